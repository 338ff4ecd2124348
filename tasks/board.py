"""A migration's waves for people: passing progress, the record that `poolshift status` reads, one table for Prefect."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from infra.clock import rfc3339
from infra.errors import PoolshiftError
from infra.kube import records
from tasks.move_report import WaveReport
from tasks.rules.wording import and_more, plural, span
from tasks.run import Run
from tasks.steering import Stand

NOTE = "progress"
EVERY = 5.0  # wall-clock seconds between two writes to the record while a wave is under way


@dataclass(kw_only=True)
class Board:
    """What is shown of one move."""

    run: Run
    nodes: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    _written: float = field(default=float("-inf"))

    def stand(self, now: Stand) -> None:
        """While pods leave, or while a wave waits for its turn."""
        self.run.passing(now.wording())
        if monotonic() - self._written >= EVERY or now.progress is None:
            self._note({**now.to_dict(), "of_nodes": self.nodes})

    def wave(self, report: WaveReport) -> None:
        """After each wave: a row of the table, which is stored anew."""
        self.rows.append(row(report))
        drained = sum(1 for end in report.nodes.values() if end.value == "drained")
        words = f"wave {report.number} of {report.of}: {drained} of {len(report.nodes)} nodes empty"
        moved = f"{plural(report.moved, 'pod')} moved" if report.moved else "no pod to move"
        self.run.say(f"{words}, {moved} in {self.rows[-1]['took']}")
        self.run.show(f"waves of {self.run.name}", self.rows)
        self._note({"wave": report.number, "of": report.of, "words": words, "of_nodes": self.nodes, "waits": []})

    def _note(self, what: dict[str, Any]) -> None:
        self._written = monotonic()
        try:
            records.write_note(self.run.kube, self.run.name, NOTE, {**what, "at": rfc3339(self.run.clock.now())})
        except PoolshiftError:
            return  # it is for people to look at: the move does not depend on it


def row(report: WaveReport) -> dict[str, Any]:
    """One wave, as a row of equal keys."""
    from datetime import timedelta

    left = [f"{p.pod.key}: {p.reason}" for p in report.left]
    gangs = [f"{g.workload}: {'moved' if g.running else g.reason or g.end.value}" for g in report.gangs]
    return {
        "wave": f"{report.number} of {report.of}",
        "nodes": and_more(sorted(report.nodes), 6),
        "empty": f"{sum(1 for end in report.nodes.values() if end.value == 'drained')} of {len(report.nodes)}",
        "pods moved": report.moved,
        "gangs": "; ".join(gangs),
        "took": span(timedelta(seconds=report.seconds)),
        "left behind": and_more(left, 3),
        "harm": and_more([f.fact() for f in report.harm], 3),
    }
