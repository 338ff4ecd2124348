"""What people ask of a run that is under way: pause, resume, cancel.

A wish is a note in the run's record, so it can be made on any machine that reaches the cluster, and it outlives the
process that carries it out.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from time import monotonic
from typing import Any

from infra.clock import SystemClock, rfc3339
from infra.errors import NotFound, PoolshiftError, Refused
from infra.kube import api, leases, records
from infra.kube.api import Kube
from infra.model.record import RUN, Step, StepState
from infra.model.spec import Cluster
from tasks.facts import say_past_budget
from tasks.run import Run
from tasks.steering import Steer

NOTE = "wish"
EVERY = 3.0  # wall-clock seconds between two looks at the record: one request each
BETWEEN_WAVES = 0.2  # the same, where the next wave is about to begin: a pause said before it must hold it


class Wish(StrEnum):
    """What is asked."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


def ask(cluster: Cluster, name: str, wish: Wish, *, by: str | None, reason: str) -> str:
    """Write a wish into a run's record; says what will come of it.

    Raises:
        NotFound: no such run in this cluster.
        Refused: the run has ended, or is cancelled and is to be paused.

    """
    kube = api.connect(cluster)
    record = records.read(kube, name)
    if record is None:
        raise NotFound(f"run {name}", "no record in this cluster", remedy="poolshift status")
    retired = record.steps.get(Step.RETIRE)
    if retired is not None and retired.state is StepState.DONE:
        raise Refused(f"run {name}", f"has ended: {retired.summary}", remedy=f"poolshift report {name}")
    before = record.notes.get(NOTE)
    if wish is Wish.PAUSE and isinstance(before, dict) and before.get("wish") == Wish.CANCEL:
        raise Refused(f"run {name}", _words(before), remedy=f"poolshift resume {name} takes that back")
    asked = {"wish": wish.value, "by": by or getpass.getuser(), "at": rfc3339(kube.clock.now()), "reason": reason}
    records.write_note(kube, name, NOTE, None if wish is Wish.RESUME else asked)
    if wish is Wish.RESUME and not isinstance(before, dict):
        return f"run {name}: nothing was paused or cancelled; nothing is changed"
    if not _is_running(kube, name):
        if wish is Wish.CANCEL:
            return (
                f"run {name}: cancel noted; no process has taken it up (one that is just starting ends by it): "
                f"poolshift rollback {name} puts back what it changed"
            )
        return (
            f"run {name}: {wish.value} noted; no process has taken it up: it counts for one that is just starting, "
            "or when it is run next"
        )
    return f"run {name}: {wish.value}, seen within {EVERY:.0f} s: {_outcome(wish, record)}"


def _outcome(wish: Wish, record: records.RunRecord) -> str:
    """What the process that runs it will do, once it has seen the wish."""
    if wish is Wish.RESUME:
        return "it goes on"
    now = next((step for step, entry in record.steps.items() if entry.state is StepState.STARTED), None)
    if now is Step.MIGRATE:
        return {
            Wish.PAUSE: "it holds before its next wave; the wave that has begun is finished",
            Wish.CANCEL: "no further eviction; nodes that are not empty go back to what they were",
        }[wish]
    holds = "holds" if wish is Wish.PAUSE else "ends"
    return f"it {holds} when step {now.value} is finished" if now else f"it {holds} before its next step"


def _is_running(kube: Kube, name: str) -> bool:
    """Does a process hold a lease of the run? One that was killed on this very host does not count."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
    for lease in kube.list(path, {"labelSelector": f"{RUN}={name}"}):
        holder = leases.Holder.parse(str((lease.get("spec") or {}).get("holderIdentity", "")))
        if holder is not None and not holder.is_gone:
            return True
    return False


@dataclass(kw_only=True)
class Heard:
    """A run's wish as last read. What cannot be read is as it was."""

    kube: Kube
    run: str
    _note: Any = None
    _read: float = field(default=float("-inf"))

    def paused(self) -> str:
        """Who wants it to wait and why, or ""."""
        return self._is(Wish.PAUSE, BETWEEN_WAVES)

    def cancelled(self) -> str:
        """Who has cancelled it and why, or ""."""
        return self._is(Wish.CANCEL, EVERY)

    def _is(self, wish: Wish, seconds: float) -> str:
        if monotonic() - self._read >= seconds:
            try:
                record = records.read(self.kube, self.run)
                self._note = record.notes.get(NOTE) if record else None
            except PoolshiftError:
                pass  # the API is away for a moment: the next look tells
            self._read = monotonic()
        note = self._note
        return _words(note) if isinstance(note, dict) and note.get("wish") == wish else ""


def _words(note: dict[str, Any]) -> str:
    done = {"pause": "paused", "cancel": "cancelled"}.get(str(note.get("wish")), "held")
    why = f": {note['reason']}" if note.get("reason") else ""
    return f"{done} by {note.get('by', 'somebody')} at {note.get('at', '?')}{why}"


def standing(record: records.RunRecord) -> str:
    """A record's wish in words, "" without one."""
    note = record.notes.get(NOTE)
    return _words(note) if isinstance(note, dict) else ""


def steer(run: Run) -> Steer:
    """As a move asks for it all the time."""
    heard = Heard(kube=run.kube, run=run.name)
    return Steer(
        paused=heard.paused,
        cancelled=heard.cancelled,
        barred=leases.lost,
        past_budget=partial(say_past_budget, run),
    )


def heed(run: Run) -> None:
    """Between two steps: wait while the run is paused. Raises Refused when it is cancelled."""
    heard, said = Heard(kube=run.kube, run=run.name), ""
    while (why := heard.paused()) and not leases.lost():
        if why != said:
            run.say(f"waits: {why}; goes on after: poolshift resume {run.name}")
            said = why
        SystemClock().sleep(EVERY)  # people live on the wall clock
    refuse_cancelled(run)


def refuse_cancelled(run: Run, standing: str = "") -> None:
    """Raise Refused when the run is cancelled. `standing`: where that has left it, in words."""
    if why := Heard(kube=run.kube, run=run.name).cancelled():
        raise Refused(
            f"run {run.name}",
            standing if why in standing else f"{why}; {standing}".rstrip("; "),
            expected="a run that may go on",
            remedy=f"poolshift resume {run.name} and run it again, or: poolshift rollback {run.name}",
        )
