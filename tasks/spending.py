"""GPU-minutes of one run, baseline and target together, kept in its record.

A run that was killed and goes on does not get a fresh budget: what it has spent is in the cluster, and a probe that
was under way counts with its estimate until its true cost is known. What a Job has held is written down before it is
deleted, by its UID: taken up again by the next process it is not counted twice, and gone it is not forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from infra.kube import records
from infra.kube.api import Kube
from infra.model.measurement import positive
from infra.probes.catalogue import Probe
from tasks.rules import cost

NOTE = "gpu-minutes"


@dataclass(kw_only=True)
class Spending:
    """What a run may spend and has spent, in GPU-minutes. `held`: estimates of probes under way, by name. `known`: what
    Jobs of those have held so far, by name and UID.

    A revalidation has no run record: its flow hands on from pool to pool what was counted.
    """

    kube: Kube
    run: str
    budget: float
    spent: float = 0.0
    held: dict[str, float] = field(default_factory=dict)
    known: dict[str, dict[str, float]] = field(default_factory=dict)
    recorded: bool = False
    _lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def of(cls, kube: Kube, run: str, budget: float) -> Spending:
        """As the run's record says."""
        record = records.read(kube, run)
        spent, held, known = read_note(record.notes.get(NOTE) if record else None)
        return cls(kube=kube, run=run, budget=budget, spent=spent, held=held, known=known, recorded=record is not None)

    def left(self, name: str = "") -> float:
        """What may still be spent. A probe that is taken up again under its name has its share already."""
        return max(0.0, self.budget - self.counted + self._share(name) - self._of(name))

    @property
    def counted(self) -> float:
        """GPU-minutes spent, with the estimates of what is, or may be, still under way."""
        return self.spent + sum(self._share(name) for name in {*self.held, *self.known})

    def _share(self, name: str) -> float:
        return max(self.held.get(name, 0.0), self._of(name))

    def _of(self, name: str) -> float:
        """What its Jobs are known to have held."""
        return sum(self.known.get(name, {}).values())

    def refusal(self, probe: Probe, nodes: int, gpus: int, name: str) -> str:
        """Why the probe may not start, or ""."""
        return cost.over_budget(probe, nodes, gpus, left=self.left(name), budget=self.budget)

    def begin(self, name: str, estimate: float) -> None:
        """A probe is about to hold GPUs."""
        if estimate:
            self.held[name] = estimate
            self._keep()

    def count(self, name: str, uid: str, minutes: float) -> None:
        """One of its Jobs has held so much and is about to be deleted. From any thread."""
        with self._lock:
            self.known.setdefault(name, {})[uid] = minutes
            self._keep()

    def end(self, name: str, minutes: float) -> None:
        """It let go of them after `minutes`."""
        self.spent += max(minutes, self._of(name))
        self.held.pop(name, None)
        self.known.pop(name, None)
        self._keep()

    def _keep(self) -> None:
        if self.recorded:
            held = {name: round(minutes, 2) for name, minutes in sorted(self.held.items())}
            known = {n: {uid: round(m, 3) for uid, m in jobs.items()} for n, jobs in sorted(self.known.items())}
            note = {"spent": round(self.spent, 3), "held": held, "known": known}
            records.write_note(self.kube, self.run, NOTE, note)


def read_note(note: object) -> tuple[float, dict[str, float], dict[str, dict[str, float]]]:
    """What a record's note says was spent, is under way, and is known of that; figures that are none count nothing."""
    raw: Mapping[str, Any] = note if isinstance(note, Mapping) else {}
    known = raw.get("known")
    jobs = {str(name): _figures(each) for name, each in known.items()} if isinstance(known, Mapping) else {}
    return positive(raw.get("spent")) or 0.0, _figures(raw.get("held")), jobs


def _figures(raw: object) -> dict[str, float]:
    return {str(k): positive(v) or 0.0 for k, v in raw.items()} if isinstance(raw, Mapping) else {}
