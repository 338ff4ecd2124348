"""The probes as data: what each one runs, what it proves, how long it holds the GPUs. From cheap to dear."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from infra.model.spec import Validation

STORAGE_MOUNT = "/mnt/poolshift"
_NO_HANG = ("--timeout", "120")  # ranks on different networks wait for each other until they are stopped (nccl#234)
_PERF = ("-f", "2", "-g", "1", "-c", "1", "-n", "20", "-w", "5")
BASELINE_SIZES = (256 << 20, 1 << 30)  # on sockets 8 GiB takes minutes and tells nothing that 1 GiB does not


class Program(StrEnum):
    """What runs in the container."""

    ALL_REDUCE = "all-reduce"
    TRAIN_STEP = "train-step"
    DEVICE = "device"
    FIO = "fio"
    NCCL_TESTS = "nccl-tests"


class Mode(StrEnum):
    """`PINNED`: reference image, NCCL_NET set, so an absent plugin fails closed; says what the pool can do.
    `WORKLOAD`: the workload's image, nothing set; says what jobs really get.
    """

    PINNED = "pinned"
    WORKLOAD = "workload"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One probe. `name` labels its objects; `args` follow the program's command.

    `timeout_seconds` bounds the program once its pods run. `seconds` is how long a healthy pool needs, start of
    the image's Python included: the estimate behind the GPU-minutes of a plan. `gpu` false: it holds no GPU;
    `gpus_a_node` is the most that it takes of each node's GPUs, 0: all.
    """

    name: str
    program: Program
    mode: Mode
    image: str
    proves: str
    args: tuple[str, ...]
    timeout_seconds: float
    seconds: float
    gpu: bool = True
    gpus_a_node: int = 0
    claim: str = ""


def transport_proof(validation: Validation) -> Probe:
    """Small messages, two communicators: is the path RDMA on every rank? Stops the rest when it is not."""
    return Probe(
        name="transport-proof",
        program=Program.ALL_REDUCE,
        mode=Mode.PINNED,
        image=validation.image,
        proves="every rank of every communicator moves its bytes over the RDMA network, with the network pinned",
        # few repetitions: lines and counters are read, and on sockets each one takes a fifth of a second
        args=(*_sweep_args(validation.proof_sizes, iters=4, rounds=2, warmup=1), *_NO_HANG),
        timeout_seconds=validation.timeout.total_seconds(),
        seconds=40,
    )


def workload_path(validation: Validation) -> Probe:
    """The same in the workload's own image with nothing pinned: catches the image that has no plugin."""
    return replace(
        transport_proof(validation),
        name="workload-path",
        mode=Mode.WORKLOAD,
        image=validation.workload_image or validation.image,
        proves="a job in this image, with nothing pinned, gets the RDMA network",
    )


def scout(probe: Probe) -> Probe:
    """A proof with one GPU a node: whether NCCL goes to sockets shows on one GPU as well as on eight."""
    return replace(probe, gpus_a_node=1, proves="a job finds the RDMA network at all")


def bandwidth(validation: Validation) -> Probe:
    """Large messages: does the network carry what this machine type carries?"""
    return replace(
        transport_proof(validation),
        name="bandwidth",
        proves="all-reduce bandwidth reaches the floors of the machine type, without a dip between sizes",
        args=_sweep_args(validation.sweep_sizes, iters=20, rounds=1),
        seconds=75,
    )


def nccl_tests(validation: Validation) -> Probe | None:
    """all_reduce_perf over MPI, or None where the spec names no image for it: the field's own program as a second
    opinion. Sizes double from the smallest to the largest of the sweep.
    """
    if not validation.nccl_tests_image:
        return None
    low, high = min(validation.sweep_sizes), max(validation.sweep_sizes)
    return replace(
        bandwidth(validation),
        name="nccl-tests",
        program=Program.NCCL_TESTS,
        image=validation.nccl_tests_image,
        proves="nccl-tests reads the same of the network",
        args=("all_reduce_perf", "-b", str(low), "-e", str(high), *_PERF),
    )


def pair(validation: Validation) -> Probe:
    """For localisation: the proof sizes only, few iterations, on a few nodes at a time."""
    return replace(
        transport_proof(validation),
        name="pair",
        proves="these nodes, together, are well",
        args=(*_sweep_args((*validation.proof_sizes, 1 << 30), iters=10, rounds=1), *_NO_HANG),
        seconds=40,
    )


def devices(validation: Validation) -> Probe:
    """What a container sees on each node: GPUs, RDMA devices, libraries, limits."""
    return Probe(
        name="devices",
        program=Program.DEVICE,
        mode=Mode.WORKLOAD,
        image=validation.workload_image or validation.image,
        proves="each node's container sees all GPUs and RDMA devices, and the network plugin loads",
        args=(),
        timeout_seconds=300,
        seconds=15,
    )


def storage(validation: Validation) -> Probe | None:
    """Direct I/O on the Lustre mount from every node at once, or None where the spec names no claim."""
    if not validation.storage or not validation.storage_claim:
        return None
    common = ("--direct=1", "--bs=4M", "--size=8G", "--numjobs=8", "--ioengine=psync", "--group_reporting")
    return Probe(
        name="storage",
        program=Program.FIO,
        mode=Mode.WORKLOAD,
        image=validation.storage_image,
        proves="every node reads and writes the shared file system at the speed that the source pool has",
        args=(
            "--output-format=json",
            f"--directory={STORAGE_MOUNT}",
            *common,
            "--time_based",
            "--runtime=30",
            "--ramp_time=5",
            "--filename_format=data.$jobnum",  # the second job reads what the first one wrote
            "--name=write",
            "--rw=write",
            "--name=read",
            "--stonewall",
            "--rw=read",
            "--unlink=1",
        ),
        timeout_seconds=validation.timeout.total_seconds(),
        seconds=90,
        gpu=False,
        claim=validation.storage_claim,
    )


def train_step(validation: Validation) -> Probe | None:
    """FSDP on a decoder of Qwen2.5-14B's shape: what the network is worth to a job. None when not asked for."""
    if not validation.train_step:
        return None
    warmup = 5
    return Probe(
        name="train-step",
        program=Program.TRAIN_STEP,
        mode=Mode.WORKLOAD,  # as the baseline runs it: both sides as a job gets its network
        image=validation.image,
        proves="a training step is faster than on the source pool",
        args=(
            *("--preset", "qwen2.5-14b", "--batch", str(validation.train_batch)),
            *("--steps", str(validation.train_steps), "--warmup", str(warmup)),
        ),
        timeout_seconds=validation.timeout.total_seconds(),
        # 6.07 s a step was published for this shape on 16 H200 over EFA; two minutes to start and shard
        seconds=120 + 6.1 * (validation.train_steps + warmup),
    )


def all_probes(validation: Validation) -> tuple[Probe, ...]:
    """Every probe that this spec asks for, in the order in which they run."""
    wanted: Iterable[Probe | None] = (
        transport_proof(validation),
        workload_path(validation),
        bandwidth(validation),
        nccl_tests(validation),
        devices(validation),
        storage(validation),
        train_step(validation),
    )
    return tuple(probe for probe in wanted if probe is not None)


def baseline_probes(validation: Validation) -> tuple[Probe, ...]:
    """What the source pool is measured with: the same programs, as a job there gets its network, and less of it."""
    shared = tuple(s for s in validation.sweep_sizes if s <= max(BASELINE_SIZES)) or BASELINE_SIZES
    wanted = (
        bandwidth(validation.model_copy(update={"sweep_sizes": shared})),
        storage(validation),
        train_step(validation),
    )
    return tuple(replace(probe, mode=Mode.WORKLOAD) for probe in wanted if probe is not None)


def _sweep_args(sizes: Iterable[int], *, iters: int, rounds: int, warmup: int = 5) -> tuple[str, ...]:
    joined = ",".join(str(size) for size in sorted(set(sizes)))
    return ("--sizes", joined, "--iters", str(iters), "--warmup", str(warmup), "--rounds", str(rounds))
