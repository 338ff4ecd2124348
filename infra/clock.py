"""Time as an argument. Product code never calls `time.sleep` or `datetime.now` itself.

In the sandbox a day of soak takes seconds: its clock runs `rate` times faster than the wall clock from an
`origin` that its kubeconfig carries, and every process that talks to it (API server, node agent, clouds, the
migration) reads the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Now and sleep. `now` is timezone-aware UTC; seconds are seconds of this clock."""

    def now(self) -> datetime:
        """The time on this clock."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` of this clock have passed."""
        ...

    def real_seconds(self, seconds: float) -> float:
        """How long `seconds` of this clock last on the wall clock (for timeouts of sockets and waits)."""
        ...


class SystemClock:
    """The wall clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def real_seconds(self, seconds: float) -> float:
        return seconds


@dataclass(frozen=True)
class ScaledClock:
    """A clock that shows `origin` when the wall clock shows `started` (Unix seconds) and runs `rate` times faster."""

    origin: datetime
    started: float
    rate: float

    def now(self) -> datetime:
        return self.origin + timedelta(seconds=(time.time() - self.started) * self.rate)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds) / self.rate)

    def real_seconds(self, seconds: float) -> float:
        return seconds / self.rate


@dataclass
class ManualClock:
    """For tests: time moves when somebody sleeps or calls `advance`. Records every sleep."""

    time: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    slept: list[float] = field(default_factory=list)

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move time on."""
        self.time += timedelta(seconds=seconds)

    def real_seconds(self, seconds: float) -> float:
        return 0.0


def pauses(most: float) -> Iterator[float]:
    """Seconds between looks at what may be over at once or take an hour: 1, 2, 4, …, then `most` for ever."""
    pause = min(1.0, most)
    while True:
        yield pause
        pause = min(most, 2 * pause)


def rfc3339(moment: datetime) -> str:
    """As Kubernetes writes a Time: UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """As Kubernetes writes a MicroTime (a Lease's renewTime is refused without microseconds)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """Read RFC 3339 as Kubernetes and the clouds write it; a naive time is taken as UTC."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
