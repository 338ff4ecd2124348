"""What probes measure, as rules judge it: a bandwidth sweep and the steps of a training run. Plain JSON both ways.

Tolerant on the way in: what is missing or of the wrong type becomes None or is left out, and the rules call it
unmeasured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# Of the start line: what makes a step of one run another's; without the first four it is not known what ran.
WORKLOAD = ("preset", "parameters", "batch", "backend", "shape", "recompute", "torch")
LARGEST = (1 << 63) - 1  # no tool counts further; arithmetic on more digits overflows or takes for ever


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    """One size in one round. Bytes, µs, GB/s; `wrong` is None where the sums were not checked."""

    round: int
    size_bytes: int
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """An all-reduce sweep. `rounds` is how many communicators were announced, one after another.

    `doubt`: why the output proves nothing of the nodes it was asked of, whatever its rows say. It stays with the
    figures, since those are judged again, under other limits and at the gate, without the output.
    """

    collective: str = "all-reduce"
    ranks: int | None = None
    hosts: int | None = None
    rounds: int = 1
    complete: bool = False
    rows: tuple[SweepRow, ...] = ()
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sweep:
        """Rows that lack a figure are left out, so their size is missing."""
        rows = [_row(r) for r in data.get("rows") or () if isinstance(r, Mapping)]
        return cls(
            collective=str(data.get("collective") or "all-reduce"),
            ranks=whole(data.get("ranks")),
            hosts=whole(data.get("hosts")),
            rounds=whole(data.get("rounds")) or 1,
            complete=data.get("complete") is True,
            rows=tuple(r for r in rows if r is not None),
            doubt=str(data.get("doubt") or ""),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The measured steps of a training run, warm-up dropped. `workload` is what must be equal on both sides."""

    seconds: tuple[float, ...] = ()
    warmup: int = 0
    announced: int | None = None
    ranks: int | None = None
    hosts: int | None = None
    complete: bool = False
    workload: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Steps:
        """A step without a finite positive time ends the list: what follows cannot be told apart from it."""
        seconds: list[float] = []
        for value in data.get("seconds") or ():
            number = positive(value)
            if number is None:
                break
            seconds.append(number)
        workload = data.get("workload")
        return cls(
            seconds=tuple(seconds),
            warmup=whole(data.get("warmup")) or 0,
            announced=whole(data.get("announced")),
            ranks=whole(data.get("ranks")),
            hosts=whole(data.get("hosts")),
            complete=data.get("complete") is True,
            workload=dict(workload) if isinstance(workload, Mapping) else None,
        )


def sweep_of(start: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, complete: bool) -> Sweep:
    """From the lines of the all-reduce payload: its start line and its rows."""
    return Sweep.from_dict({**start, "rows": rows, "complete": complete})


def steps_of(start: Mapping[str, Any], numbers: Sequence[int], seconds: Sequence[float], *, complete: bool) -> Steps:
    """From the lines of the training payload, whose steps are counted from 0, warm-up included.

    The steps that the start line announces must all be there, each once and in order; else lines were lost and the
    run is incomplete.
    """
    warmup, announced = whole(start.get("warmup")), whole(start.get("steps"))
    measured = [(n, s) for n, s in zip(numbers, seconds, strict=True) if n >= (warmup or 0)]
    whole_run = (
        warmup is not None
        and announced is not None
        and len(measured) == announced  # first, for what is announced may be any number
        and [n for n, _ in measured] == list(range(warmup, warmup + announced))
    )
    return Steps.from_dict(
        {
            "seconds": [s for _, s in measured],
            "warmup": warmup,
            "announced": announced,
            "ranks": start.get("ranks"),
            "hosts": start.get("hosts"),
            "complete": complete and whole_run,
            "workload": {key: start[key] for key in WORKLOAD if key in start}
            if all(start.get(key) for key in WORKLOAD[:4])
            else None,
        }
    )


def whole(value: object) -> int | None:
    """A whole number from 0 to `LARGEST`, or None. True is no number here."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else None


def positive(value: object) -> float | None:
    """A number above zero, `LARGEST` at most, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value <= LARGEST else None


def _row(raw: Mapping[str, Any]) -> SweepRow | None:
    size = whole(raw.get("size_bytes"))
    figures = [positive(raw.get(key)) for key in ("time_us", "algbw_gb_s", "busbw_gb_s")]
    if not size or any(f is None for f in figures):
        return None
    time_us, algbw, busbw = (f for f in figures if f is not None)
    return SweepRow(
        round=whole(raw.get("round")) or 0,
        size_bytes=size,
        time_us=time_us,
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        wrong=whole(raw.get("wrong")),
    )
