"""Who may hold or end a move while it runs, and where it stands meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.rules.outcome import Progress
from tasks.rules.wording import plural


@dataclass(frozen=True, kw_only=True)
class Steer:
    """Asked all the time, so each must answer at once.

    `paused` and `cancelled` say who wants it and why, "" when nobody does. A pause holds before the next wave; a
    cancellation stops new evictions, lets gangs that are down come up again, and puts the rest back. `barred` says why
    this process must not write any more, "" while it may: the lease is not its own. Until that is known, it waits.
    `past_budget` is told NAMESPACE/NAME of a pod and its budget before the pod is deleted past it; raising stops that.
    """

    paused: Callable[[], str] = lambda: ""
    cancelled: Callable[[], str] = lambda: ""
    barred: Callable[[], str] = lambda: ""
    past_budget: Callable[[str, str], None] = lambda pod, budget: None

    def ended(self) -> str:
        """Why no new work may begin, or ""."""
        return f"the lease is lost: {why}" if (why := self.barred()) else self.cancelled()


FREE = Steer()


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Where a move is: wave, nodes emptied before it, and in words what happens. `progress` while pods leave."""

    wave: int
    of: int
    nodes: int
    done: int
    words: str
    progress: Progress | None = None

    def wording(self) -> str:
        """One line."""
        return f"wave {self.wave} of {self.of} ({plural(self.nodes, 'node')}): {self.words}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, small enough for the record: at most ten budgets that are waited for."""
        found: dict[str, Any] = {"wave": self.wave, "of": self.of, "emptied": self.done, "words": self.wording()}
        if self.progress is not None:
            found["percent"] = self.progress.percent
            found["waits"] = [
                {"budget": key, "why": words, "pods": count} for key, words, count in self.progress.waiting[:10]
            ]
        return found
