"""What a simulated cloud does later: events at times of the sandbox's clock.

Events are run by a thread of its own, and also by whoever asks the cloud something, so a test with a manual clock
needs no thread: it moves the clock and asks.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta

from infra.clock import Clock

AGAIN_SECONDS = 5.0
TRIES = 10  # an event that meets a Kubernetes API which is not up yet is tried so often


class Timeline:
    """A queue of events, run one at a time in order. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._events: list[tuple[datetime, int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._running = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def after(self, seconds: float, event: Callable[[], None], *, tries: int = TRIES) -> None:
        """Run `event` when `seconds` of the clock have passed."""
        with self._changed:
            due = self.clock.now() + timedelta(seconds=seconds)
            heapq.heappush(self._events, (due, next(self._numbers), tries, event))
            self._changed.notify()

    def run_due(self) -> None:
        """Run every event whose time has come."""
        with self._running:
            while True:
                with self._changed:
                    if not self._events or self._events[0][0] > self.clock.now():
                        return
                    _, _, tries, event = heapq.heappop(self._events)
                self._run(event, tries)

    def start(self) -> None:
        """Run events on a daemon thread until `stop`."""
        self._thread = threading.Thread(target=self._loop, name="simulated-cloud", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more events. Returns when the one that runs is over."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self, event: Callable[[], None], tries: int) -> None:
        try:
            event()
        except Exception:  # noqa: BLE001 - one event that fails must not stop the cloud
            if tries > 1:
                self.after(AGAIN_SECONDS, event, tries=tries - 1)
            else:
                traceback.print_exc(file=sys.stderr)

    def _loop(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._stopped:
                    return
                if self._events:
                    seconds = (self._events[0][0] - self.clock.now()).total_seconds()
                    # At least a millisecond, and at most a second: the clock may jump forward under us.
                    self._changed.wait(min(1.0, max(0.001, self.clock.real_seconds(seconds))))
                else:
                    self._changed.wait()
