"""A swap in slices: which source nodes make room for which part of the target, and whether the work has a place.

The first slice is the canary: it is made of the source's idlest nodes, and no further node is given up before the
target nodes made of it have passed the whole gate. From the second slice on, work that leaves goes to proven target
nodes. A gang moves as one, so the target must have room for all of it before the first of its nodes is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.model.pools import Pool
from infra.model.spec import Drain, ExternalPool, MigrationSpec, MoveMode
from infra.model.survey import Survey
from infra.model.verdict import Finding, Gate, Level, Outcome, Verdict, worst
from infra.model.workload import Snapshot
from tasks.rules.gangs import Gang, find_gangs, stop_words
from tasks.rules.placement import TargetShape, place, without_room
from tasks.rules.waves import leaving, order_nodes
from tasks.rules.wording import and_more, plural

SLICES = 200  # the record of a run is one ConfigMap of 1 MiB; a slice keeps some 3 KiB of verdicts in it
STAYING = (MoveMode.WAIT, MoveMode.LEAVE)  # these gangs are moved by somebody else, or end by themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How many nodes a slice takes from the source, adds to the target, and how many the target has then."""

    give: int
    add: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One slice as planned. `nodes` of the source are given up; `pods` of them must find another place."""

    number: int
    nodes: tuple[str, ...]
    add: int
    total: int
    pods: int

    def wording(self) -> str:
        """One line for a person."""
        gone = f"{and_more(list(self.nodes), 4)} given up" if self.nodes else "nothing is given up: the room is there"
        moved = f", {plural(self.pods, 'pod')} moved first" if self.pods else ""
        return f"{gone}{moved}; {plural(self.add, 'node')} made and proven, {self.total} in all"


@dataclass(frozen=True, kw_only=True)
class SwapPlan:
    """Every slice, the source nodes that are left for the end, and what stands in the way."""

    slices: tuple[Slice, ...] = ()
    rest: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    @property
    def blocked(self) -> bool:
        """It cannot go like this."""
        return any(f.level is Level.BLOCK for f in self.findings)

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain JSON."""
        return [
            {"number": s.number, "nodes": list(s.nodes), "add": s.add, "total": s.total, "pods": s.pods}
            for s in self.slices
        ]


def sizes(target: int, free: int, size: int) -> list[Size]:
    """The slices of a target of so many nodes. No slice of one node, and machines that are free are used first.

    Args:
        target: nodes that the target is to have.
        free: machines that the reservation has free already.
        size: nodes per slice, at least 2.

    """
    found: list[Size] = []
    total, room = 0, free
    while total < target:
        left = target - total
        add = min(size, left)
        if left - add == 1:  # one alone cannot be proven: it joins this slice, or this one leaves it a partner
            add = left if size == 2 else add - 1
        give = max(0, add - room)
        room += give - add
        total += add
        found.append(Size(give=give, add=add, total=total))
    return found


def order(snapshot: Snapshot, nodes: Iterable[str], gangs: Sequence[Gang]) -> list[str]:
    """In which order nodes are given up: idle ones, then those without a gang, then gang after gang, small ones first.

    A gang that moves early has to fit on a target that is still small.
    """
    ranks: dict[str, tuple[int, str]] = {}
    for gang in sorted(gangs, key=lambda g: (len(g.pods), g.object)):
        ranks |= {p.node: (len(gang.pods), gang.object) for p in gang.pods}
    by_wave = {name: number for number, name in enumerate(order_nodes(nodes, snapshot, gangs))}
    return sorted(by_wave, key=lambda n: (bool(leaving(snapshot, [n])), *ranks.get(n, (0, "")), by_wave[n]))


def plan(
    snapshot: Snapshot,
    drain: Drain,
    source_nodes: Sequence[str],
    shape: TargetShape | None,
    steps: Sequence[Size],
) -> SwapPlan:
    """Lay out the slices on the source as it is, and check that all work has a place at every moment. Pure."""
    gangs = find_gangs(snapshot, drain, source_nodes)
    ordered = order(snapshot, source_nodes, gangs)
    slices: list[Slice] = []
    at = 0
    for number, step in enumerate(steps, start=1):
        nodes = tuple(ordered[at : at + step.give])
        at += step.give
        pods = len(leaving(snapshot, nodes))
        slices.append(Slice(number=number, nodes=nodes, add=step.add, total=step.total, pods=pods))
    rest = tuple(ordered[at:])
    findings = [*_enough(slices, steps), *_first(snapshot, slices, ordered, gangs)]
    if shape is not None and shape.allocatable:
        findings += _room(snapshot, slices, rest, gangs, shape)
    return SwapPlan(slices=tuple(slices), rest=rest, findings=tuple(findings))


def _enough(slices: Sequence[Slice], steps: Sequence[Size]) -> list[Finding]:
    wanted, have = sum(s.give for s in steps), sum(len(s.nodes) for s in slices)
    found = []
    if have < wanted:
        found.append(
            Finding.block(
                "swap-source-too-small",
                "source pool",
                f"has {plural(have, 'node')} to give up",
                f"{wanted}",
                "ask for fewer",
            )
        )
    if any(s.add < 2 for s in slices):
        found.append(
            Finding.block(
                "swap-slice-of-one",
                "target.nodes",
                "1 node: the network between nodes cannot be proven on it",
                "at least 2",
                "ask for two nodes or more",
            )
        )
    if len(slices) > SLICES:
        found.append(
            Finding.block(
                "swap-too-many-slices",
                "swap.slice",
                f"gives {plural(len(slices), 'slice')}",
                f"at most {SLICES}",
                "raise it",
            )
        )
    return found


def _first(snapshot: Snapshot, slices: Sequence[Slice], ordered: Sequence[str], gangs: Sequence[Gang]) -> list[Finding]:
    """What the canary slice displaces must fit on the source's other nodes: there is no target yet."""
    if not slices or not slices[0].nodes:
        return []
    nodes = slices[0].nodes
    here = {p.uid for p in leaving(snapshot, nodes)}
    found = [
        Finding.block(
            "gang-in-first-slice",
            gang.object,
            f"runs on {and_more(sorted({p.node for p in gang.pods if p.uid in here}), 3)}, which must be given up "
            "before any target node exists",
            f"{plural(len(nodes), 'source node')} without a gang",
            f"free nodes of the source (or of the reservation), or {_park(gang)}",
        )
        for gang in gangs
        if gang.mode not in STAYING and any(p.uid in here for p in gang.pods)
    ]
    member = {p.uid for g in gangs for p in g.pods}
    pods = [p for p in leaving(snapshot, nodes) if p.uid not in member]
    homeless = without_room(pods, snapshot, [n for n in ordered if n not in nodes])
    if homeless:
        found.append(
            Finding.block(
                "slice-without-room",
                "slice 1",
                f"{and_more(sorted(p.key for p in homeless), 3)} find no room on the other source nodes",
                "room for all work on the source pool less the first slice",
                "free nodes of the source, or make swap.slice smaller",
            )
        )
    return found


def _room(
    snapshot: Snapshot, slices: Sequence[Slice], rest: Sequence[str], gangs: Sequence[Gang], shape: TargetShape
) -> list[Finding]:
    """From the second slice on: what leaves must fit on the target nodes that are proven by then, gangs as a whole."""
    own = {p.uid for g in gangs for p in g.pods}
    moving = [g for g in gangs if g.mode not in STAYING]
    free: list[dict[str, int]] = []
    found: list[Finding] = []
    # What the first slice displaced sits on other source nodes, and leaves with the second.
    displaced = [p for p in leaving(snapshot, slices[0].nodes) if p.uid not in own] if slices else []
    stages = [*((f"slice {s.number}", s.nodes) for s in slices[1:]), ("the rest", tuple(rest))]
    for before, (name, nodes) in zip(slices, stages, strict=True):
        free += [dict(shape.allocatable) for _ in range(before.add)]
        for gang in [g for g in moving if any(p.node in nodes for p in g.pods)]:
            moving.remove(gang)
            if homeless := place(gang.pods, free):
                found.append(_gang_without_room(gang, len(homeless), before.total, name))
        pods = [p for p in leaving(snapshot, nodes) if p.uid not in own]
        homeless = place([*pods, *displaced], free)
        displaced = []
        if homeless:
            found.append(
                Finding.block(
                    "slice-without-room",
                    name,
                    f"{and_more(sorted(p.key for p in homeless), 3)} find no room on the target nodes proven by then",
                    "room for all work at every slice",
                    "free nodes of the source, or ask for a larger target",
                )
            )
    return found


def _gang_without_room(gang: Gang, homeless: int, nodes: int, name: str) -> Finding:
    return Finding.block(
        "gang-never-fits",
        gang.object,
        f"moves as one, and {homeless} of its {plural(len(gang.pods), 'pod')} find no room on the "
        f"{plural(nodes, 'target node')} that are proven when {name} must leave",
        "as many nodes freed before it as it needs",
        f"free source nodes or machines of the reservation, make swap.slice larger, or {_park(gang)}",
    )


def _park(gang: Gang) -> str:
    """By a person and not by the run: a swap that stops half way has room for the whole gang in neither pool."""
    return f"have it end first (mode wait), or leave it stopped until the swap has ended: {stop_words(gang)}"


def check(spec: MigrationSpec, survey: Survey, planned: SwapPlan) -> list[Finding]:
    """What a swap needs besides room: pools whose machines we may take, in one zone, and no work moved unasked."""
    found: list[Finding] = []
    source: Pool | None = survey.source
    if isinstance(spec.source, ExternalPool) or isinstance(spec.target, ExternalPool):
        found.append(
            Finding.block(
                "swap-of-external-pool",
                "strategy",
                "swap, and one of the pools is external: its machines are its owner's",
                "an EKS or GKE pool on both sides",
                "set strategy: side-by-side",
            )
        )
    if source is not None and len(source.zones) > 1:
        found.append(
            Finding.block(
                "swap-several-zones",
                f"pool {source.name}",
                f"spans {', '.join(source.zones)}",
                "one zone: a size counts per zone, and a reservation is of one",
                "swap a pool of one zone",
            )
        )
    if spec.approval.ask and planned.slices and planned.slices[0].pods:
        found.append(
            Finding.block(
                "swap-moves-before-approval",
                "slice 1",
                f"would move {plural(planned.slices[0].pods, 'pod')} before somebody is asked: the approval comes "
                "when the first slice is proven",
                f"{plural(len(planned.slices[0].nodes), 'idle source node')}",
                "free nodes of the source, or set approval.ask to false",
            )
        )
    return found


def combine(gates: Mapping[int, Gate], uids: Mapping[int, Iterable[str]], pool: Iterable[str], slices: int) -> Gate:
    """One gate over all slices: every slice has passed its own, and every node of the pool is of one of them.

    Args:
        gates: by slice, as they were judged. One that is missing is unmeasured.
        uids: node UIDs by slice.
        pool: UIDs of the pool's nodes as they are now.
        slices: how many there must be.

    """
    required = tuple(dict.fromkeys(check for gate in gates.values() for check in gate.required))
    verdicts = []
    for name in required:
        of_all = [v for number in sorted(gates) for v in gates[number].verdicts if v.check == name]
        if not of_all:
            continue  # missing, hence unmeasured
        outcome = worst(v.outcome for v in of_all)
        answered = sum(any(v.check == name for v in gate.verdicts) for gate in gates.values())
        if outcome is Outcome.PASS and answered < slices:
            reason = f"{answered} of {plural(slices, 'slice')} answer it"
            verdicts.append(Verdict(check=name, outcome=Outcome.UNMEASURED, reason=reason))
        else:
            verdicts.append(next(v for v in of_all if v.outcome is outcome))
    proven = {uid for each in uids.values() for uid in each}
    now = set(pool)
    if now != proven or not now:
        odd = (
            f"{plural(len(now - proven), 'node')} of the pool are of no proven "
            f"slice, {len(proven - now)} proven ones are gone"
        )
        verdicts.append(Verdict(check="slices", outcome=Outcome.UNMEASURED, reason=odd))
    return Gate(name="proof", required=(*required, *(() if required else ("slices",))), verdicts=tuple(verdicts))
