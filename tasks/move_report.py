"""How a move and its waves ended, as records and as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from infra.model.verdict import Finding
from tasks.gangs import GangEnd
from tasks.rules.outcome import End, PodEnd, Tally


@dataclass(frozen=True, kw_only=True)
class WaveReport:
    """One wave as it went. `seconds` on the run's clock; `harm` is what the gate after it found."""

    number: int
    of: int
    nodes: Mapping[str, End]
    left: tuple[PodEnd, ...] = ()
    gangs: tuple[GangEnd, ...] = ()
    harm: tuple[Finding, ...] = ()
    unproven: tuple[Finding, ...] = ()
    moved: int = 0
    seconds: float = 0.0

    @property
    def pods(self) -> int:
        """All that left with it: one by one, and as ranks of gangs that run again."""
        return self.moved + sum(g.ranks for g in self.gangs if g.running)

    @property
    def stuck(self) -> list[str]:
        """What has kept nodes from being empty, with the reason of each: gangs, pods, then what is not proven."""
        gangs = [f"{g.workload}: {g.reason}" for g in self.gangs if g.end is not End.DRAINED]
        held = {g.workload: g.reason for g in self.gangs}
        pods = [f"pod {p.pod.key}: {p.reason}" for p in self.left if p.reason not in held.values()]
        return [*gangs, *pods] or [f.fact() for f in self.unproven]

    @property
    def remedies(self) -> list[str]:
        """What to do about that, each once, in the same order."""
        found = [*(p.remedy for p in self.left), *(f.remedy for f in (*self.harm, *self.unproven))]
        return list(dict.fromkeys(each for each in found if each))


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """How a move ended. Only `DRAINED` means that every source node is proven empty and every gate was passed.

    `restored` are nodes put back as they were (untouched and failed ones); `forced` pods deleted past their budget.
    """

    end: End
    reason: str
    nodes: Mapping[str, End]
    waves: tuple[WaveReport, ...]
    restored: tuple[str, ...]
    tally: Tally
    requests: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Everything has moved."""
        return self.end is End.DRAINED

    @property
    def forced(self) -> tuple[str, ...]:
        """Pods deleted past their budget, as the spec allowed."""
        return tuple(self.tally.forced)

    @property
    def remedies(self) -> list[str]:
        """What to do about what the last wave left: the first three."""
        return self.waves[-1].remedies[:3] if self.waves else []

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "end": self.end.value,
            "reason": self.reason,
            "nodes": {name: end.value for name, end in self.nodes.items()},
            "waves": [_wave_dict(w) for w in self.waves],
            "restored": list(self.restored),
            "evictions": asdict(self.tally),
            "requests": self.requests,
            "seconds": round(self.seconds, 1),
        }


def _wave_dict(wave: WaveReport) -> dict[str, Any]:
    return {
        "number": wave.number,
        "of": wave.of,
        "nodes": {name: end.value for name, end in wave.nodes.items()},
        "left": [pod_end_dict(p) for p in wave.left],
        "gangs": [asdict(g) for g in wave.gangs],
        "harm": [f.to_dict() for f in wave.harm],
        "unproven": [f.to_dict() for f in wave.unproven],
        "moved": wave.moved,
        "seconds": round(wave.seconds, 1),
    }


def pod_end_dict(left: PodEnd) -> dict[str, str]:
    """A pod that did not leave, for a person to find: pod, node, owner, reason."""
    pod = left.pod
    return {
        "pod": pod.key,
        "uid": pod.uid,
        "node": pod.node,
        "owner": f"{pod.owner.kind} {pod.owner.name}" if pod.owner else "",
        "end": left.end.value,
        "code": left.code,
        "reason": left.reason,
        "remedy": left.remedy,
    }


def told_as_one(moves: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Several moves, each as `MoveReport.to_dict`, as if they had been one: the last one's end, sums of the rest."""
    listed = list(moves)
    waves = [wave for move in listed for wave in move.get("waves") or ()]
    evictions: dict[str, Any] = {}
    for move in listed:
        for key, value in (move.get("evictions") or {}).items():
            evictions[key] = evictions[key] + value if key in evictions else value
    return {
        "end": listed[-1].get("end", "") if listed else End.DRAINED.value,
        "reason": listed[-1].get("reason", "") if listed else "",
        "nodes": {name: end for move in listed for name, end in (move.get("nodes") or {}).items()},
        "waves": [{**wave, "number": number, "of": len(waves)} for number, wave in enumerate(waves, start=1)],
        "restored": [name for move in listed for name in move.get("restored") or ()],
        "evictions": evictions,
        "requests": sum(int(move.get("requests") or 0) for move in listed),
        "seconds": round(sum(float(move.get("seconds") or 0) for move in listed), 1),
    }
