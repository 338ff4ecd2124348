"""Which program a pod runs, from its command line. What is not known runs for ever, or ends soon in a Job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.sandbox.agent import container as read
from infra.sandbox.fabric import collective
from infra.sandbox.fabric.collective import Setting, SweepArgs, TrainArgs
from infra.sandbox.fabric.nccl_tests import PerfArgs, perf
from infra.sandbox.fabric.storage import FioArgs
from infra.sandbox.fabric.transcript import Transcript

JOB_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Forever:
    """Serves, or trains, until it is stopped."""


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Ends by itself."""

    seconds: float
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class Collective:
    """Runs with the other pods of its Job: nothing happens before all `pods` are there."""

    pods: int
    ranks: int
    index: int
    run: Callable[[Setting], list[Transcript]]


@dataclass(frozen=True, kw_only=True)
class Launched:
    """mpirun: so many ranks in all, in the workers of the same MPIJob."""

    ranks: int
    run: Callable[[Setting], list[Transcript]]


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """Looks at the devices of its node. `text`: as fi_info prints it, else as our own report."""

    text: bool = False


@dataclass(frozen=True, kw_only=True)
class Fio:
    """Measures the file system, at the same time as the other pods of its Job."""

    jobs: tuple[FioArgs, ...]


Program = Forever | Ends | Collective | Launched | DeviceReport | Fio


def program_of(pod: Mapping[str, Any]) -> Program:
    """The program of the pod's first container. Annotations go before the command line."""
    seconds = read.knob(pod, "run-seconds")
    if seconds == "forever":
        return Forever()
    if seconds:
        return Ends(seconds=float(seconds), exit_code=int(read.knob(pod, "exit-code", "0")))
    line = read.words(pod, pod["spec"]["containers"][0])
    known = _known(pod, line)
    if known is not None:
        return known
    if line and line[0].rsplit("/", 1)[-1] == "sleep" and line[-1].isdigit():
        return Ends(seconds=float(line[-1]))
    return Ends(seconds=JOB_SECONDS) if read.owner_uid(pod, "Job") else Forever()


def _known(pod: Mapping[str, Any], line: Sequence[str]) -> Program | None:
    names = [word.rsplit("/", 1)[-1] for word in line]
    if "all_reduce.py" in names:
        return _torch(pod, line, _sweep(line[names.index("all_reduce.py") :]))
    if "train_step.py" in names:
        return _torch(pod, line, _train(line[names.index("train_step.py") :]))
    if "all_reduce_perf" in names and names[0] == "mpirun":
        perf_line = line[names.index("all_reduce_perf") :]
        return Launched(ranks=int(read.option(line, "-np", "1")), run=_perf(perf_line))
    if "all_reduce_perf" in names:
        return _torch(pod, line, _perf(line[names.index("all_reduce_perf") :]))
    if "device.py" in names:
        return DeviceReport()
    if "fi_info" in names:
        return DeviceReport(text=True)
    if "fio" in names:
        return Fio(jobs=fio_jobs(line[names.index("fio") + 1 :]))
    return None


def _torch(pod: Mapping[str, Any], line: Sequence[str], run: Callable[[Setting], list[Transcript]]) -> Collective:
    pods = read.option(line, "--nnodes", read.knob(pod, "pods", "1")).split(":")[-1]
    ranks = read.option(line, "--nproc-per-node") or read.option(line, "--nproc_per_node", "gpu")
    gpus = read.granted(pod, "nvidia.com/gpu")
    return Collective(
        pods=int(pods),
        ranks=int(ranks) if ranks.isdigit() else max(1, gpus),
        index=read.completion_index(pod),
        run=run,
    )


def _sweep(line: Sequence[str]) -> Callable[[Setting], list[Transcript]]:
    args = SweepArgs(
        sizes=[int(size) for size in read.option(line, "--sizes").split(",")],
        iters=int(read.option(line, "--iters", "20")),
        warmup=int(read.option(line, "--warmup", "5")),
        rounds=int(read.option(line, "--rounds", "1")),
        timeout=float(read.option(line, "--timeout", "600")),
    )
    return lambda setting: collective.sweep(setting, args)


def _train(line: Sequence[str]) -> Callable[[Setting], list[Transcript]]:
    args = TrainArgs(
        preset=read.option(line, "--preset", "qwen2.5-14b"),
        steps=int(read.option(line, "--steps", "40")),
        warmup=int(read.option(line, "--warmup", "5")),
        batch=int(read.option(line, "--batch", "1")),
        timeout=float(read.option(line, "--timeout", "600")),
    )
    return lambda setting: collective.train(setting, args)


def _perf(line: Sequence[str]) -> Callable[[Setting], list[Transcript]]:
    args = PerfArgs(
        low=read.size_of(read.option(line, "-b", "32M")),
        high=read.size_of(read.option(line, "-e", "32M")),
        factor=int(read.option(line, "-f", "2")),
        iters=int(read.option(line, "-n", "20")),
        warmup=int(read.option(line, "-w", "1")),
        check=read.option(line, "-c", "1") != "0",
    )
    return lambda setting: perf(setting, args)


def fio_jobs(line: Sequence[str]) -> tuple[FioArgs, ...]:
    """The jobs of a fio line: options before the first --name hold for all, each --name opens one."""
    sections: list[list[str]] = [[]]
    for word in line:
        if word.startswith("--name"):
            sections.append([])
        sections[-1].append(word)
    common, jobs = sections[0], sections[1:] or [[]]
    return tuple(_fio_job([*own, *common]) for own in jobs)


def _fio_job(line: Sequence[str]) -> FioArgs:
    def seconds(name: str) -> float:
        return float(read.option(line, name, "0").rstrip("s") or 0)

    return FioArgs(
        name=read.option(line, "--name", "job"),
        rw=read.option(line, "--rw", "read"),
        block=read.size_of(read.option(line, "--bs", "4k")),
        size=read.size_of(read.option(line, "--size", "1G")),
        jobs=int(read.option(line, "--numjobs", "1")),
        depth=int(read.option(line, "--iodepth", "1")),
        runtime=seconds("--runtime"),
        ramp=seconds("--ramp_time"),
        directory=read.option(line, "--directory", ""),
        told={key: value for word in line if word[:2] == "--" for key, _, value in [word[2:].partition("=")]},
    )
