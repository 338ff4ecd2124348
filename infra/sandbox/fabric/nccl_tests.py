"""`all_reduce_perf` of nccl-tests: its text table, with the headers of its version (validation facts, §2a)."""

from __future__ import annotations

from dataclasses import dataclass

from infra.sandbox.fabric import physics
from infra.sandbox.fabric.collective import INIT_SECONDS, Setting, broken, connect, traffic_of
from infra.sandbox.fabric.transcript import Tape, Transcript

START_SECONDS = 3.0  # mpirun, before the first line
ELEMENT = 4  # bytes of a float


@dataclass(frozen=True, kw_only=True)
class PerfArgs:
    """Arguments of all_reduce_perf. `-f` factor; sizes in bytes."""

    low: int
    high: int
    factor: int = 2
    iters: int = 20
    warmup: int = 1
    check: bool = True

    def sizes(self) -> list[int]:
        """From `low` to `high`, each `factor` times the last."""
        found, size = [], self.low
        while size <= self.high:
            found.append(size)
            if self.factor < 2:
                break
            size *= self.factor
        return found


def fit(value: float, width: int) -> str:
    """A bandwidth as nccl-tests fits it: two decimals, fewer when it grows, exponents beyond."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text.rjust(width)
    return f"{value:.1e}".rjust(width)


def fit_time(microseconds: float) -> str:
    """A time in a column of seven: 17.93, 1090.5, 10052, 1.2e+07."""
    decimals = 2 if microseconds < 100 else 1 if microseconds < 10_000 else 0
    text = f"{microseconds:.{decimals}f}"
    return (text if len(text) <= 7 else f"{microseconds:.1e}").rjust(7)


def perf(setting: Setting, args: PerfArgs, *, program: str = "all_reduce_perf") -> list[Transcript]:
    """The run: rank 0 prints the table between the NCCL lines of all ranks."""
    job = setting.job
    tapes = [Tape() for _ in job.members]
    head = tapes[0]
    modern = job.generation.at_least(27)
    if modern:
        number = job.generation.nccl[0] * 10000 + job.generation.nccl[1] * 100 + job.generation.nccl[2]
        head.say(START_SECONDS, f"# nccl-tests version 2.17.6 nccl-headers={number} nccl-library={number}")
        head.say(START_SECONDS, f"# Collective test starting: {program}")
    head.say(
        START_SECONDS,
        f"# nThread 1 nGpus 1 minBytes {args.low} maxBytes {args.high} step: {args.factor}(factor) warmup iters:"
        f" {args.warmup} iters: {args.iters} agg iters: 1 validation: {int(args.check)} graph: 0",
        "#",
        "# Using devices",
        *_devices(setting),
        "#",
    )
    early = broken(setting, tapes, START_SECONDS + 0.5, program, 600.0)
    if early is not None:
        return early
    at = connect(setting, tapes, START_SECONDS + 0.5, 0) + INIT_SECONDS
    head.say(
        at,
        f"#{'':62}out-of-place{'':23}in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
        " #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
        "       ",
    )
    moved, bus = 0.0, []
    for size in args.sizes():
        seconds = [_measure(setting, size, place) for place in ("out", "in")]
        at += (args.iters + args.warmup) * sum(seconds)
        moved += 2 * (args.iters + args.warmup) * physics.wire_bytes(len(job.members), job.ranks, size)
        factor = physics.bus_factor(job.ranks) if job.ranks > 1 else 0.0
        bus += [size / each / 1e9 * factor for each in seconds]
        head.say(at, _row(size, seconds, factor, checked=args.check))
    average = sum(bus) / len(bus)
    head.say(at, f"# {'Out of bounds values':<20} : 0 OK", f"# {'Avg bus bandwidth':<20} : {average:g} ", "#")
    if modern:
        head.say(at, f"# Collective test concluded: {program}")
    traffic = [traffic_of(member, moved) for member in job.members]
    return [tape.finish(at + 1.0, traffic=each) for tape, each in zip(tapes, traffic, strict=True)]


def _measure(setting: Setting, size: int, place: str) -> float:
    ideal = physics.all_reduce_seconds(setting.hosts, setting.job.ranks, size)
    return physics.noisy(ideal, setting.rng("perf", place, size))


def _row(size: int, seconds: list[float], factor: float, *, checked: bool) -> str:
    text = f"{size:>12}  {size // ELEMENT:>12}  {'float':>8}  {'sum':>6}  {-1:>6}"
    for each in seconds:
        algbw = size / each / 1e9
        wrong = "0" if checked else "N/A"
        text += f"  {fit_time(each * 1e6)}  {fit(algbw, 6)}  {fit(algbw * factor, 6)}  {wrong:>5}"
    return text


def _devices(setting: Setting) -> list[str]:
    lines = []
    for member in setting.job.members:
        machine = member.host.machine
        host = member.hostname.split(".")[0]
        for local in range(member.ranks):
            rank, pid = member.first_rank + local, 60 + local
            lines.append(
                f"#  Rank {rank:>2} Group  0 Pid {pid:>6} on {host:>10} device {local:>2}"
                f" [0000:{machine.bus_id(local):02x}:00] {machine.gpu.name}"
            )
    return lines
