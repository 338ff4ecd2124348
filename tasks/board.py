"""A migration's waves for people: passing progress, the record that `poolshift status` reads, one table for Prefect."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from infra.clock import rfc3339
from infra.errors import PoolshiftError
from infra.kube import records
from tasks.facts import noted
from tasks.move_report import WaveReport
from tasks.rules.gangs import ended_words
from tasks.rules.wording import and_more, plural, span
from tasks.run import Run
from tasks.steering import Stand

NOTE, _ROWS = "progress", "waves-shown"
KEPT = 300  # rows of the table; each takes some 300 bytes of the record's 1 MiB
EVERY = 5.0  # wall-clock seconds between two writes to the record while a wave is under way


def board_of(run: Run, nodes: int, part: str = "") -> Board:
    """For a move of so many nodes, of a part of the run ("slice 2"); goes on with the rows of the moves before it."""
    rows = [dict(each) for each in noted(run, _ROWS).get("rows") or ()]
    return Board(run=run, nodes=nodes, part=part, rows=rows)


@dataclass(kw_only=True)
class Board:
    """What is shown of one move. `rows`: every wave of the run so far."""

    run: Run
    nodes: int
    part: str
    rows: list[dict[str, Any]]
    _written: float = field(default=float("-inf"))

    def stand(self, now: Stand) -> None:
        """While pods leave, or while a wave waits for its turn."""
        words = self._named(now.wording())
        self.run.passing(words)
        if monotonic() - self._written >= EVERY or now.progress is None:
            self._note({**now.to_dict(), "words": words, "of_nodes": self.nodes})

    def wave(self, report: WaveReport) -> None:
        """After each wave: a row of the table, which is stored anew."""
        fresh = row(report, self.run.clock.now())
        fresh["wave"] = ", ".join(filter(None, (self.part, fresh["wave"])))
        self.rows.append(fresh)
        nodes = "node" if len(report.nodes) == 1 else "nodes"
        words = self._named(f"wave {report.number} of {report.of}: {fresh['empty']} {nodes} empty")
        self.run.say(f"{words}, {_moved(report)} in {fresh['took']}")
        title = f"Waves of {self.run.name}{' (simulated)' if self.run.simulated else ''}"
        self.run.show(title, self.rows[-KEPT:])
        self._note({"wave": report.number, "of": report.of, "words": words, "of_nodes": self.nodes, "waits": []})
        self._keep(_ROWS, {"rows": self.rows[-KEPT:]})

    def _named(self, words: str) -> str:
        return f"{self.part}: {words}" if self.part else words

    def _note(self, what: dict[str, Any]) -> None:
        self._written = monotonic()
        self._keep(NOTE, {**what, "at": rfc3339(self.run.clock.now())})

    def _keep(self, note: str, what: object) -> None:
        try:
            records.write_note(self.run.kube, self.run.name, note, what)
        except PoolshiftError:
            return  # it is for people to look at: the move does not depend on it


def _moved(report: WaveReport) -> str:
    """What left, in words; that nothing had to is another thing than that nothing did."""
    if report.pods:
        return f"{plural(report.pods, 'pod')} moved"
    return "no pod to move" if not report.stuck else "no pod moved"


def row(report: WaveReport, ended: datetime) -> dict[str, Any]:
    """One wave, as a row of equal keys; a cell with nothing to say has a dash."""
    left = [f"{p.pod.key}: {p.reason}" for p in report.left]
    gangs = [f"{g.workload}: {ended_words(asdict(g))}" for g in report.gangs]
    return {
        "wave": f"{report.number} of {report.of}",
        "nodes": and_more(sorted(report.nodes), 6),
        "empty": f"{sum(1 for end in report.nodes.values() if end.value == 'drained')} of {len(report.nodes)}",
        "pods moved": report.pods,
        "gangs": "; ".join(gangs) or "-",
        "took": span(timedelta(seconds=report.seconds)),
        "ended": rfc3339(ended),
        "left behind": and_more(left, 3) or "-",
        "harm": and_more([f.fact() for f in report.harm], 3) or "-",
    }
