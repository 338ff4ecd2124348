"""What a drain rule may say, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from infra.model.cluster import EMPTY
from infra.model.record import RUN
from infra.model.workload import Pod, Snapshot
from tasks.rules.budgets import Coverage, Room, room
from tasks.rules.placement import TargetShape


class Act(StrEnum):
    """What to do with a pod, from least to most strict."""

    SKIP = "skip"
    EVICT = "evict"
    WAIT = "wait"
    BLOCK = "block"


_STRICT = (Act.SKIP, Act.EVICT, Act.WAIT, Act.BLOCK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One rule's answer. `detail` holds facts for machines (budget, finalizers, since)."""

    act: Act
    code: str
    reason: str = ""
    remedy: str = ""
    detail: Mapping[str, object] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What may be lost: each is opt-in, and means what kubectl drain's flag of the same meaning does."""

    bare_pods: bool = False
    empty_dir: bool = False
    do_not_disrupt: bool = False
    ignore_daemonsets: bool = True
    surge: bool = False


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything that a rule may look at. `run`: who asks, whose own cordons are taken back if it fails; "": nobody."""

    snapshot: Snapshot
    allowed: Allowed = Allowed()
    target: TargetShape | None = None
    run: str = ""

    @property
    def now(self) -> datetime | None:
        """When the snapshot was taken; None for a dump that mentions no time."""
        return self.snapshot.taken

    @cached_property
    def coverage(self) -> Coverage:
        """Budgets over pods."""
        return Coverage(self.snapshot.budgets)

    @cached_property
    def rooms(self) -> Mapping[str, Room]:
        """Every budget, judged, by key."""
        covered = self.coverage.pods(self.snapshot.pods)
        return {b.key: room(b, covered.get(b.key, [])) for b in self.snapshot.budgets}

    @cached_property
    def cordoned(self) -> tuple[list[str], Mapping[str, list[str]]]:
        """Nodes that are cordoned: by others, and by runs of poolshift, which mark theirs."""
        others: list[str] = []
        by_run: dict[str, list[str]] = {}
        for node in sorted(self.snapshot.nodes, key=lambda n: n.name):
            if node.unschedulable:
                run = node.labels.get(RUN)
                (by_run.setdefault(run, []) if run else others).append(node.name)
        return others, by_run


Rule = Callable[[Pod, Context], Decision | None]


def strictest(decisions: tuple[Decision, ...]) -> Act:
    """What happens to the pod: the strictest answer; none at all means evict."""
    return max((d.act for d in decisions), key=_STRICT.index, default=Act.EVICT)
