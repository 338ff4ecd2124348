"""Programs that run NCCL over several pods: our all-reduce sweep, our training step, and nccl-tests.

Each function takes the job as the ranks find it and returns one transcript a pod.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from infra.sandbox.fabric import physics
from infra.sandbox.fabric.machine import Host
from infra.sandbox.fabric.nccl_log import Job, Member, Rank, pinned_absent
from infra.sandbox.fabric.transcript import Tape, Traffic, Transcript

IMPORT_SECONDS = 6.0  # interpreter, import of PyTorch, rendezvous
INIT_SECONDS = 2.0  # one communicator
TEARDOWN_SECONDS = 1.0
SOCKET_OVERHEAD = 1.02  # TCP/IP headers at MTU 9001
BOOKKEEPING_BYTES = 3_000_000  # rendezvous, bootstrap and gloo, always over eth0
WATCHDOG_SECONDS = 600.0  # of a collective that never ends, unless the program was given another


@dataclass
class Counters:
    """Byte counters of a node since its boot."""

    rdma: dict[str, int] = field(default_factory=dict)
    ethernet: int = 0

    def add(self, traffic: Traffic) -> None:
        """Count a program's traffic."""
        for device, count in traffic.rdma.items():
            self.rdma[device] = self.rdma.get(device, 0) + count
        self.ethernet += traffic.ethernet


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run needs beside the job: when it starts, and the counters that its nodes show then."""

    job: Job
    start: datetime
    counters: Mapping[str, Counters] = field(default_factory=dict)

    @property
    def hosts(self) -> list[Host]:
        """The hosts, in order of their ranks."""
        return [member.host for member in self.job.members]

    def stamp(self, at: float) -> str:
        """Wall time as NCCL's WARN lines show it."""
        return (self.start + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S")

    def rng(self, *parts: object) -> random.Random:
        """Noise that is the same for the same run."""
        return random.Random(self.job.number("noise", *parts, bits=60))


@dataclass(frozen=True, kw_only=True)
class SweepArgs:
    """Arguments of all_reduce.py."""

    sizes: Sequence[int]
    iters: int = 20
    warmup: int = 5
    rounds: int = 1
    timeout: float = WATCHDOG_SECONDS


@dataclass(frozen=True, kw_only=True)
class TrainArgs:
    """Arguments of train_step.py."""

    preset: str = "qwen2.5-14b"
    steps: int = 40
    warmup: int = 5
    batch: int = 1
    timeout: float = WATCHDOG_SECONDS


def compact(record: Mapping[str, object]) -> str:
    """One JSON line as the payloads write it."""
    return json.dumps(record, separators=(",", ":"))


def sweep(setting: Setting, args: SweepArgs) -> list[Transcript]:
    """`all_reduce.py` under torchrun."""
    job = setting.job
    tapes = [Tape() for _ in job.members]
    at = IMPORT_SECONDS
    _say_counters(setting, tapes, at, "before", [Traffic() for _ in job.members])
    tapes[0].say(at + 0.1, compact(_sweep_start(setting, args)))
    early = broken(setting, tapes, at + 0.2, "all-reduce", args.timeout)
    if early is not None:
        return early
    moved = 0.0
    for number in range(args.rounds):
        at = connect(setting, tapes, at + 0.2, number)
        for size in args.sizes:
            row = _row(setting, args, number, size)
            operations = args.iters + args.warmup + 2  # the sums are checked before and after
            at += operations * float(str(row["time_us"])) / 1e6
            moved += operations * physics.wire_bytes(len(job.members), job.ranks, size)
            record = {"poolshift": "all-reduce", "event": "row", "round": number, **row}
            tapes[0].say(at, compact(record))
        at += TEARDOWN_SECONDS
    traffic = [traffic_of(member, moved) for member in job.members]
    _say_counters(setting, tapes, at, "after", traffic)
    tapes[0].say(at + 0.1, compact({"poolshift": "all-reduce", "event": "end", "ok": True}))
    return [tape.finish(at + 1.0, traffic=each) for tape, each in zip(tapes, traffic, strict=True)]


def train(setting: Setting, args: TrainArgs) -> list[Transcript]:
    """`train_step.py` under torchrun."""
    job = setting.job
    tapes = [Tape() for _ in job.members]
    at = IMPORT_SECONDS + 20.0  # making and sharding the model
    early = broken(setting, tapes, at, "train-step", args.timeout)
    if early is not None:
        return early
    at = connect(setting, tapes, at, 0)
    model = physics.QWEN_14B
    tapes[0].say(at, compact(_train_start(setting, args)))
    typical = physics.step_seconds(setting.hosts, job.ranks, model, args.batch)
    rng = setting.rng("train", args.steps)
    for step in range(args.warmup + args.steps):
        slow = 1.6 if step == 0 else 1.05 if step < args.warmup else 1.0  # caches, autotuning
        seconds = physics.noisy(typical * slow, rng)
        at += seconds
        record = {
            "poolshift": "train-step",
            "event": "step",
            "step": step,
            "seconds": round(seconds, 6),
            "warmup": step < args.warmup,
            "loss": round(12.0 * 0.99**step + 0.02 * rng.random(), 4),
        }
        tapes[0].say(at, compact(record))
    tapes[0].say(at + 0.1, compact({"poolshift": "train-step", "event": "end", "ok": True}))
    moved = (args.warmup + args.steps) * model.parameters * model.gathered * (job.ranks - 1) / job.ranks
    traffic = [traffic_of(member, moved if len(job.members) > 1 else 0.0) for member in job.members]
    return [tape.finish(at + 1.0, traffic=each) for tape, each in zip(tapes, traffic, strict=True)]


def traffic_of(member: Member, moved: float) -> Traffic:
    """Where `moved` bytes of a node's collectives show up: spread over its live NICs, or all on eth0."""
    host = member.host
    if host.transport == "socket":
        return Traffic(rdma=dict.fromkeys(_visible(host), 0), ethernet=int(moved * SOCKET_OVERHEAD) + BOOKKEEPING_BYTES)
    live = [name for name, rate in zip(_visible(host), host.nics, strict=True) if rate > 0]
    each = int(moved / len(live))
    return Traffic(rdma={name: each if name in live else 0 for name in _visible(host)}, ethernet=BOOKKEEPING_BYTES)


def _visible(host: Host) -> list[str]:
    return host.machine.rdma_devices()[: len(host.nics)]


def _say_counters(setting: Setting, tapes: list[Tape], at: float, when: str, traffic: Sequence[Traffic]) -> None:
    for member, tape, each in zip(setting.job.members, tapes, traffic, strict=True):
        base = setting.counters.get(member.host.node, Counters())
        rdma = {name: base.rdma.get(name, 0) + each.rdma.get(name, 0) for name in _visible(member.host)}
        ethernet = base.ethernet + each.ethernet
        record = {
            "poolshift": "counters",
            "when": when,
            "node": member.host.node,
            "rdma": {name: {"tx_bytes": count, "rx_bytes": count} for name, count in rdma.items()},
            "ethernet": {"eth0": {"tx_bytes": ethernet, "rx_bytes": ethernet}},
        }
        tape.say(at, compact(record))


def _nodes(setting: Setting) -> list[str]:
    return sorted({host.node for host in setting.hosts})


def _sweep_start(setting: Setting, args: SweepArgs) -> dict[str, object]:
    gen = setting.job.generation
    return {
        "poolshift": "all-reduce",
        "event": "start",
        "v": 1,
        "ranks": setting.job.ranks,
        "hosts": len(_nodes(setting)),
        "nodes": _nodes(setting),
        "gpus": sorted({host.machine.gpu.name for host in setting.hosts}),
        "backend": "nccl",
        "nccl": gen.text,
        "torch": gen.torch,
        "dtype": "float32",
        "sizes": list(args.sizes),
        "iters": args.iters,
        "warmup": args.warmup,
        "rounds": args.rounds,
    }


def _train_start(setting: Setting, args: TrainArgs) -> dict[str, object]:
    return {
        "poolshift": "train-step",
        "event": "start",
        "v": 1,
        "preset": args.preset,
        "ranks": setting.job.ranks,
        "hosts": len(_nodes(setting)),
        "nodes": _nodes(setting),
        "backend": "nccl",
        "torch": setting.job.generation.torch,
        "parameters": int(physics.QWEN_14B.parameters),
        "batch": args.batch,
        "steps": args.steps,
        "warmup": args.warmup,
    }


def _row(setting: Setting, args: SweepArgs, number: int, size: int) -> dict[str, object]:
    job = setting.job
    rng = setting.rng("row", number, size)
    seconds = physics.noisy(physics.all_reduce_seconds(setting.hosts, job.ranks, size), rng)
    algbw = size / seconds / 1e9
    return {
        "size_bytes": size,
        "iters": args.iters,
        "time_us": round(seconds * 1e6, 2),
        "slowest_us": round(seconds * 1e6 * (1 + 0.004 * rng.random()), 2),
        "algbw_gb_s": round(algbw, 4),
        "busbw_gb_s": round(algbw * physics.bus_factor(job.ranks), 4),
        "wrong": 0,
    }


def _each_rank(
    setting: Setting, tapes: list[Tape], at: float, seconds: float, lines: Callable[[Rank], list[str]]
) -> None:
    """Print lines of every rank over a span, ranks beside each other as their processes run."""
    for member, tape in zip(setting.job.members, tapes, strict=True):
        for local in range(member.ranks):
            tape.spread(at + local * 1e-3, seconds, lines(Rank(setting.job, member, local)))


def connect(setting: Setting, tapes: list[Tape], at: float, number: int) -> float:
    """Build communicator `number` and run its first collective. Returns the time after it."""

    def init(rank: Rank) -> list[str]:
        start = rank.process_lines() if number == 0 else []
        return start + rank.init_lines(number, setting.stamp(at))

    _each_rank(setting, tapes, at, INIT_SECONDS * 0.7, init)
    _each_rank(setting, tapes, at + INIT_SECONDS * 0.8, INIT_SECONDS * 0.1, Rank.connect_lines)
    return at + INIT_SECONDS


def broken(setting: Setting, tapes: list[Tape], at: float, program: str, timeout: float) -> list[Transcript] | None:
    """The run, if NCCL cannot start or never gets through; None if it can."""
    job = setting.job
    stamp = setting.stamp(at)
    if any(pinned_absent(job, host) for host in setting.hosts):
        _each_rank(
            setting,
            tapes,
            at,
            1.0,
            lambda rank: (
                rank.process_lines()
                + (rank.refusal_lines(stamp) if pinned_absent(job, rank.host) else rank.plugin_lines(stamp))
            ),
        )
        return _fail(setting, tapes, at + 2.0, program)
    if len({job.network(host) for host in setting.hosts}) > 1:
        # NCCL has no agreement between ranks on the network: the first collective never ends (nccl#234).
        _each_rank(setting, tapes, at, 1.0, lambda rank: rank.process_lines() + rank.init_lines(0, stamp)[:-1])
        return _hang(setting, tapes, at + timeout, timeout)
    return None


def _fail(setting: Setting, tapes: list[Tape], at: float, program: str) -> list[Transcript]:
    version = setting.job.generation.text
    pinned = setting.job.env.get("NCCL_NET", "")
    error = (
        f"NCCL error in: /opt/pytorch/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, invalid usage (run with"
        f" NCCL_DEBUG=WARN for details), NCCL version {version}\nncclInvalidUsage: This usually reflects invalid"
        f" usage of NCCL library.\nLast error:\nError: network {pinned} not found."
    )
    record = {"poolshift": program, "event": "end", "ok": False, "error": error}
    tapes[0].say(at, compact(record))
    for tape in tapes:
        tape.say(
            at + 0.1, "Traceback (most recent call last):", *f"torch.distributed.DistBackendError: {error}".split("\n")
        )
    return [tape.finish(at + 1.0, exit_code=1) for tape in tapes]


def _hang(setting: Setting, tapes: list[Tape], at: float, timeout: float) -> list[Transcript]:
    milliseconds = int(timeout * 1000)
    for member, tape in zip(setting.job.members, tapes, strict=True):
        tape.say(
            at,
            f"[rank{member.first_rank}]:[E ProcessGroupNCCL.cpp:632] [Rank {member.first_rank}] Watchdog caught"
            f" collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)={milliseconds}) ran for"
            f" {milliseconds + 37} milliseconds before timing out.",
        )
    return [tape.finish(at + 1.0, exit_code=134) for tape in tapes]
