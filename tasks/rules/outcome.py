"""What may happen to a pod on a node that is being emptied, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from infra.model.verdict import Finding
from infra.model.workload import Pod
from tasks.rules.wording import plural, span


class Fate(StrEnum):
    """What a rule says of a pod on a node that is being emptied."""

    LEAVE = "leave"
    STAY = "stay"
    HELD = "held"


class End(StrEnum):
    """How it ended for a pod or a node. Unknown is never read as drained."""

    DRAINED = "drained"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A fate with its reason, for pods that are held."""

    fate: Fate
    code: str = ""
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodEnd:
    """A pod that did not leave, and why."""

    pod: Pod
    end: End
    code: str
    reason: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Deadlines on the run's clock, and what happens at them."""

    pod: timedelta
    wave: timedelta
    until: datetime
    delete_after: timedelta | None = None
    grace: int | None = None


@dataclass(kw_only=True)
class Tally:
    """What was asked of the server, over the life of an evictor."""

    sent: int = 0
    accepted: int = 0
    refused: int = 0
    errors: int = 0
    gone: int = 0
    forced: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where an emptying stands. `waiting`: budget, what is said of it and of the first pod that waits, how many do.

    A budget "" stands for the rate, or for what the server answers. `at_most`: evictions a second that the rate lets
    through where it holds pods back, 0 where it does not. `unseen`: why it may be old, "" where it is of now.
    """

    total: int
    gone: int
    terminating: int
    waiting: tuple[tuple[str, str, int], ...]
    per_second: float
    unseen: str = ""
    at_most: float = 0.0

    @property
    def percent(self) -> int:
        """Of the pods, gone."""
        return 100 * self.gone // self.total if self.total else 100

    def wording(self) -> str:
        """One line."""
        if not self.total:
            return "no pod has to leave"
        text = f"{self.gone} of {plural(self.total, 'pod')} gone ({self.percent} %), {self.terminating} terminating"
        if self.per_second > 0 and self.gone < self.total:
            rate = f"{self.per_second:.0f}/s" if self.per_second >= 1 else f"{60 * self.per_second:.1f}/min"
            text += f", {rate}"
            left = (self.total - self.gone) / self.per_second
            if self.at_most > 0:  # the first ones went at once, and those that are left may not
                left = max(left, (self.total - self.gone - self.terminating) / self.at_most)
            # Where every pod that is left waits for a budget, the pace so far says nothing of when it opens.
            if left >= 1 and sum(count for key, _, count in self.waiting if key) < self.total - self.gone:
                text += f", about {span(timedelta(seconds=left))} left"
        text += "".join(f"; {waits_words(words or key, count)}" for key, words, count in self.waiting[:3])
        if len(self.waiting) > 3:
            text += f"; and {len(self.waiting) - 3} more budgets"
        return text + (f"; the cluster cannot be seen: {self.unseen}" if self.unseen else "")


def waits_words(words: str, count: int) -> str:
    """Which budget is waited for and by whom: `words` name the first pod, `count` is how many there are."""
    return words + (f" and {plural(count - 1, 'more pod')}" if count > 1 else "")


def node_end(pods: Iterable[PodEnd], *, proven: bool) -> End:
    """Drained needs the proof; without it, and without a pod that failed, nobody knows."""
    ends = {p.end for p in pods}
    if End.UNKNOWN in ends:
        return End.UNKNOWN
    if End.FAILED in ends:
        return End.FAILED
    return End.DRAINED if proven else End.FAILED


def node_ends(nodes: Iterable[str], left: Collection[PodEnd], unproven: Collection[Finding]) -> dict[str, End]:
    """How each node ended, from what was seen of its pods and from what the proof (`verify_empty`) found against it."""
    unseen = any(f.code == "emptiness-unverified" for f in unproven)
    bad = {f.object for f in unproven}
    return {
        name: End.UNKNOWN
        if unseen
        else node_end((p for p in left if p.pod.node == name), proven=f"node {name}" not in bad)
        for name in nodes
    }


def worst_end(ends: Iterable[End]) -> End:
    """Unknown beats failed beats drained; nothing at all is drained."""
    seen = set(ends)
    return next((e for e in (End.UNKNOWN, End.FAILED) if e in seen), End.DRAINED)
