"""When a wave may begin: not while the run is paused, and only while a window is open."""

from __future__ import annotations

from datetime import timedelta

from infra.clock import rfc3339
from tasks.move_state import MoveState
from tasks.rules.waves import PlannedWave
from tasks.rules.windows import is_open, next_opening
from tasks.steering import Stand

_LOOK = 3.0  # seconds between two looks whether the run is still paused


def await_go(work: MoveState, wave: PlannedWave, of: int) -> bool:
    """Wait while the run is paused or no window is open. False when it was cancelled or out of time meanwhile."""
    windows = work.drain.waves.windows
    said = ""
    while not work.steer.ended():
        now, paused = work.clock.now(), work.steer.paused()
        opening = next_opening(windows, now) if not paused and not is_open(windows, now) else None
        if paused:
            words, wait = f"waits: {paused}; goes on after: poolshift resume {work.run}", _LOOK
        elif opening is None:
            if windows and not is_open(windows, now):
                work.reason = "no window ever opens"
            return not work.reason
        elif opening > work.until:
            work.reason = f"no window opens before {rfc3339(work.until)}"
            return False
        else:
            words, wait = (
                f"waits for the window that opens at {rfc3339(opening)}",
                min(300.0, (opening - now).total_seconds()),
            )
        if words != said:
            said = words
            work.say(f"wave {wave.number} of {of} {words}")
            work.on_progress(Stand(wave=wave.number, of=of, nodes=len(wave.nodes), done=work.emptied, words=words))
        _rest(work, wait)
        if paused:
            work.until += work.clock.now() - now  # a person's pause does not use up the deadline
    work.reason = work.steer.ended()
    return False


def _rest(work: MoveState, seconds: float) -> None:
    """Seconds of the run's clock, in pieces, so that a cancellation is seen within some wall-clock seconds."""
    end = work.clock.now() + timedelta(seconds=seconds)
    while work.clock.now() < end and not work.steer.ended():
        work.view.rest(min(1.0, max(0.01, work.clock.real_seconds((end - work.clock.now()).total_seconds()))))
