"""The recent past of one resource: a ring of events, for watches that resume and for lists that page."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Literal, NamedTuple

Event = Literal["ADDED", "MODIFIED", "DELETED"]
CAPACITY = 8192
"""Events kept a resource: a 4,000-pod drain stays resumable, and memory stays flat."""


class Change(NamedTuple):
    """One write: the object after it (before it, for DELETED) and the object it replaced."""

    version: int
    event: Event
    obj: dict[str, Any]
    old: dict[str, Any] | None


class History:
    """A ring of changes in order of resourceVersion."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._changes: deque[Change] = deque(maxlen=capacity)
        self.compacted = 0
        """The newest version that is no longer here: nobody can resume from before it."""

    def append(self, change: Change) -> None:
        """Add the newest change; the oldest one leaves when the ring is full."""
        if len(self._changes) == self._changes.maxlen:
            self.compacted = self._changes[0].version
        self._changes.append(change)

    def compact(self, version: int) -> None:
        """Forget every change up to `version`."""
        while self._changes and self._changes[0].version <= version:
            self._changes.popleft()
        self.compacted = max(self.compacted, version)

    def since(self, version: int) -> list[Change]:
        """Changes newer than `version`, oldest first."""
        newer = list(takewhile(lambda change: change.version > version, reversed(self._changes)))
        newer.reverse()
        return newer

    def back_to(self, version: int) -> Iterator[Change]:
        """Changes newer than `version`, newest first."""
        return takewhile(lambda change: change.version > version, reversed(self._changes))
