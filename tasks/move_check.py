"""The gate between waves: what moved must be as ready as it was, or no further wave begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from infra.errors import NotFound
from infra.kube import records
from infra.model.verdict import Finding
from tasks.move_state import MoveState
from tasks.rules.settling import Health, unsettled
from tasks.rules.wording import and_more

_WAVE = "wave"  # note in the run record
_LOOK = timedelta(seconds=5)  # between two looks at replacements, on the run's clock


def settle(
    work: MoveState, before: Health, off: Iterable[str], tell: Callable[[str], None] = lambda _: None
) -> tuple[Finding, ...]:
    """Wait until what moved is as ready as it was, and tell what for; what is still worse at the end is harm."""
    end = work.clock.now() + work.drain.waves.settle
    gone, said = frozenset(off), ""
    while True:
        now = work.look()
        found = unsettled(before, now, gone)
        if found and work.room.give_way(now.pods):
            end = work.clock.now() + work.drain.waves.settle
        if not found or work.clock.now() >= end or work.steer.ended():
            return tuple(found)
        words = and_more([f"{f.fact()}, expected {f.expected}" for f in found], 2)
        if words != said:
            tell(f"waits for replacements: {words}")
            said = words
        work.view.rest(min(2.0, max(0.05, work.clock.real_seconds(_LOOK.total_seconds()))))


def settle_last(work: MoveState, done: Iterable[str]) -> None:
    """The wave that ended with the run before: what it moved must be as ready as it was before that wave."""
    record = records.read(work.kube, work.run)
    noted = record.notes.get(_WAVE) if record else None
    harm = settle(work, Health.from_dict(noted), done) if isinstance(noted, dict) and noted else ()
    if harm:
        work.reason = f"the wave before this start did harm: {harm[0].wording()}"


def note(work: MoveState, health: Mapping[str, Any]) -> None:
    """Keep it in the run record: a restart in the middle of a wave cannot see what it was like before."""
    try:
        records.write_note(work.kube, work.run, _WAVE, health)
    except NotFound:
        pass  # a move without a record, which nobody resumes
