"""The report's figures: what was measured on the old pool and on the new, and on how many nodes. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.model.evidence import Evidence
from infra.model.measurement import Steps, Sweep
from infra.model.record import Step, StepRecord, StepState
from tasks.rules.story_tables import Records, evidence, first_replicas, pods_of
from tasks.rules.wording import plural, size

NOT_ALIKE = "not comparable: the other is of another number of nodes or another size"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number with its name."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Swept:
    """All-reduce busbw in GB/s by message size in bytes, and on how many nodes; 0 where those differ or nothing was."""

    busbw: Mapping[int, float] = field(default_factory=dict)
    nodes: int = 0
    machine_type: str = ""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The sweeps of both pools, and the largest size that both have."""

    old: Swept
    new: Swept

    @property
    def at(self) -> int | None:
        """Bytes; None where no size was measured on both."""
        return max(set(self.old.busbw) & set(self.new.busbw), default=None)

    @property
    def alike(self) -> bool:
        """Both on one number of nodes: on more it is another measurement, and no arrow leads from one to the other."""
        return self.at is not None and 0 < self.old.nodes == self.new.nodes

    def words(self, arrow: str) -> str:
        """Both figures: what became of the one where they are alike, else side by side."""
        if self.at is None:
            return ""
        one, other = self.old.busbw[self.at], self.new.busbw[self.at]
        if self.alike:
            return f"{one:.1f} {arrow} {other:.1f} GB/s on {_nodes(self.old)}"
        sides = f"old pool {one:.1f} GB/s on {_nodes(self.old)}, new pool {other:.1f} GB/s on {_nodes(self.new)}"
        return f"{sides} (not comparable: not the same number of nodes)"


def compared(records: Records) -> Compared:
    """The sweeps of the old pool's baseline and of the new pool's validation."""
    return Compared(old=swept(evidence(records, Step.BASELINE)), new=swept(evidence(records, Step.VALIDATE)))


def swept(found: Sequence[Evidence]) -> Swept:
    """The bandwidth sweep, else the transport proof: the median over rounds at each size."""
    for probe in ("bandwidth", "transport-proof"):
        by_size: dict[int, list[float]] = {}
        of_probe = [e for e in found if e.probe == probe]
        for item in of_probe:
            for row in Sweep.from_dict(item.reading).rows:
                by_size.setdefault(row.size_bytes, []).append(row.busbw_gb_s)
        if by_size:
            counts, machines = {len(e.nodes) for e in of_probe}, {e.machine_type for e in of_probe}
            return Swept(
                busbw={s: statistics.median(values) for s, values in sorted(by_size.items())},
                nodes=counts.pop() if len(counts) == 1 else 0,
                machine_type=machines.pop() if len(machines) == 1 else "",
            )
    return Swept()


def step_seconds(found: Sequence[Evidence]) -> list[float]:
    """Measured training steps in seconds."""
    return [s for item in found if item.probe == "train-step" for s in Steps.from_dict(item.reading).seconds]


def step_medians(records: Records) -> tuple[float, float] | None:
    """Median training step in seconds, old pool and new; None where one of them was not measured."""
    old, new = (step_seconds(evidence(records, s)) for s in (Step.BASELINE, Step.VALIDATE))
    return (statistics.median(old), statistics.median(new)) if old and new else None


def figures(records: Records) -> Iterable[Figure]:
    """The numbers below the headline. The training step is first: it is what the move is for."""
    medians = step_medians(records)
    if medians:
        yield Figure(name="median training step, old → new pool", value=f"{medians[0]:.2f} → {medians[1]:.2f} s")
    both = compared(records)
    if both.at is not None and both.alike:
        yield Figure(name=f"all-reduce bus bandwidth at {size(both.at)}, old → new pool", value=both.words("→"))
    else:
        sides = [(s, name) for s, name in ((both.old, "old"), (both.new, "new")) if s.busbw]
        for side, name in sides:
            at = max(side.busbw) if both.at is None else both.at
            where = f"{name} pool, {_nodes(side)}" + (f" ({NOT_ALIKE})" if len(sides) > 1 else "")
            yield Figure(name=f"all-reduce bus bandwidth at {size(at)}, {where}", value=f"{side.busbw[at]:.1f} GB/s")
    # As the report's table shows each, so that it adds up.
    spent = sum(
        round(e.gpu_minutes, 1) for s in (Step.BASELINE, Step.VALIDATE, Step.SOAK) for e in evidence(records, s)
    )
    if spent:
        yield Figure(name="spent on measuring, both pools", value=f"{spent:.1f} GPU-minutes")
    migrated = records.get(Step.MIGRATE)
    if migrated is not None and migrated.data.get("pods") is not None:
        yield Figure(name="pods moved", value=_pods_moved(migrated))


def _nodes(side: Swept) -> str:
    return plural(side.nodes, "node") if side.nodes else "differing numbers of nodes"


def _pods_moved(migrated: StepRecord) -> str:
    """All that had to leave, once the step is done; else how many have, a gang's with its last rank."""
    every, waves = int(migrated.data["pods"]), migrated.data.get("waves") or ()
    if migrated.state is StepState.DONE:
        return str(every)
    # What an earlier process has moved is not in this list.
    return f"at least {first_replicas(migrated.data) + sum(pods_of(w) for w in waves)} of {every}"
