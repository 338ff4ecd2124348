"""The sandbox's own clock: scaled like the one that its kubeconfig carries, and able to jump forward.

A scenario in which a plugin has been failing for 271 days starts with the clock that far back, brings the cluster
up, and jumps. Everything that the cluster wrote before the jump is then that old.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from infra.clock import ScaledClock


class SandboxClock:
    """Shows `origin` at the moment it is made and runs `rate` times faster than the wall clock. Thread-safe."""

    def __init__(self, rate: float = 1.0, origin: datetime | None = None) -> None:
        self._lock = threading.Lock()
        self._clock = ScaledClock(origin or datetime.now(UTC), time.time(), rate)

    @property
    def rate(self) -> float:
        """Seconds of this clock in one second of the wall clock."""
        return self._clock.rate

    def now(self) -> datetime:
        """The time on this clock, UTC."""
        return self._clock.now()

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` of this clock have passed. A jump does not shorten it."""
        self._clock.sleep(seconds)

    def real_seconds(self, seconds: float) -> float:
        """How long `seconds` of this clock last on the wall clock."""
        return self._clock.real_seconds(seconds)

    def jump(self, days: float) -> None:
        """Move forward by `days`, at once."""
        with self._lock:
            old = self._clock
            self._clock = ScaledClock(old.origin + timedelta(days=days), old.started, old.rate)

    def scaled(self) -> ScaledClock:
        """The clock as a value that another process can rebuild. Stale after a jump."""
        return self._clock
