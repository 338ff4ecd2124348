"""GPU-minutes of one run, baseline and target together, kept in its record.

A run that was killed and goes on does not get a fresh budget: what it has spent is in the cluster, and a probe that
was under way counts with its estimate until its true cost is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.kube import records
from infra.kube.api import Kube
from infra.model.measurement import positive
from infra.probes.catalogue import Probe
from tasks.rules import cost

NOTE = "gpu-minutes"


@dataclass(kw_only=True)
class Spending:
    """What a run may spend and has spent, in GPU-minutes. `held`: estimates of probes under way, by name.

    A revalidation has no run record: its flow hands on from pool to pool what was counted.
    """

    kube: Kube
    run: str
    budget: float
    spent: float = 0.0
    held: dict[str, float] = field(default_factory=dict)
    recorded: bool = False

    @classmethod
    def of(cls, kube: Kube, run: str, budget: float) -> Spending:
        """As the run's record says."""
        record = records.read(kube, run)
        spent, held = read_note(record.notes.get(NOTE) if record else None)
        return cls(kube=kube, run=run, budget=budget, spent=spent, held=held, recorded=record is not None)

    def left(self, name: str = "") -> float:
        """What may still be spent. A probe that is taken up again under its name has its share already."""
        return max(0.0, self.budget - self.counted + self.held.get(name, 0.0))

    @property
    def counted(self) -> float:
        """GPU-minutes spent, with the estimates of what is, or may be, still under way."""
        return self.spent + sum(self.held.values())

    def refusal(self, probe: Probe, nodes: int, gpus: int, name: str) -> str:
        """Why the probe may not start, or ""."""
        return cost.over_budget(probe, nodes, gpus, left=self.left(name), budget=self.budget)

    def begin(self, name: str, estimate: float) -> None:
        """A probe is about to hold GPUs."""
        if estimate:
            self.held[name] = estimate
            self._keep()

    def end(self, name: str, minutes: float) -> None:
        """It let go of them after `minutes`."""
        self.held.pop(name, None)
        self.spent += minutes
        self._keep()

    def _keep(self) -> None:
        if self.recorded:
            rounded = {name: round(minutes, 2) for name, minutes in sorted(self.held.items())}
            records.write_note(self.kube, self.run, NOTE, {"spent": round(self.spent, 3), "held": rounded})


def read_note(note: object) -> tuple[float, dict[str, float]]:
    """What a record's note says was spent and is under way; figures that are none count nothing."""
    known: Mapping[str, Any] = note if isinstance(note, Mapping) else {}
    held = known.get("held")
    under_way = {str(k): positive(v) or 0.0 for k, v in held.items()} if isinstance(held, Mapping) else {}
    return positive(known.get("spent")) or 0.0, under_way
