"""The arithmetic of PodDisruptionBudgets, as the eviction handler and the disruption controller do it.

The cumulative use of each budget is simulated over a plan: N dry-run evictions of N pods behind one budget would
all pass, since a dry run stores nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.model.workload import Budget, Pod
from tasks.rules.wording import plural

# The disruption controller finds how many pods these want by itself; it asks all other owners for their scale.
_COUNTABLE = ("ReplicaSet", "ReplicationController", "StatefulSet", "Deployment")
KNOWN_POLICIES = ("IfHealthyBudget", "AlwaysAllow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """How far a budget opens.

    `allowed` disruptions now, None when nobody can tell; `headroom` when all its pods are healthy; `never` says why
    it will not open by waiting, else "", with its `remedy`, and `another_helps` whether one more replica would open
    it; `unhealthy` are pods that keep it closed by not being ready, `unplaced` those of them that are on no node.
    """

    budget: Budget
    allowed: int | None
    headroom: int
    desired: int
    healthy: int
    expected: int
    never: str = ""
    remedy: str = ""
    another_helps: bool = False
    unhealthy: tuple[str, ...] = ()
    unplaced: tuple[Pod, ...] = ()

    @property
    def wording(self) -> str:
        """For a person: which budget, what it needs, what it has."""
        return f"budget {self.budget.key} needs {self.desired} healthy of {self.expected} and has {self.healthy}"


class Coverage:
    """Which budgets select a pod; equal label sets are matched once."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        self._by_namespace: dict[str, list[Budget]] = {}
        for budget in budgets:
            self._by_namespace.setdefault(budget.namespace, []).append(budget)
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[Budget, ...]] = {}

    def of(self, pod: Pod) -> tuple[Budget, ...]:
        """Budgets over the pod, in the order in which they were read."""
        candidates = self._by_namespace.get(pod.namespace)
        if not candidates:
            return ()
        key = (pod.namespace, frozenset(pod.labels.items()))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = tuple(b for b in candidates if b.covers(pod))
        return found

    def pods(self, pods: Iterable[Pod]) -> dict[str, list[Pod]]:
        """Unfinished pods by the key of each budget over them."""
        grouped: dict[str, list[Pod]] = {}
        for pod in pods:
            if not pod.finished:
                for budget in self.of(pod):
                    grouped.setdefault(budget.key, []).append(pod)
        return grouped


def share(written: str, expected: int) -> int:
    """A written "2" or "50%" of the expected pods, rounded up as Kubernetes does for both fields."""
    if written.endswith("%"):
        try:
            return math.ceil(int(written[:-1]) * expected / 100)
        except ValueError:
            return expected
    try:
        return int(written)
    except ValueError:
        return expected


def desired_healthy(budget: Budget, expected: int) -> int:
    """How many pods must stay healthy out of `expected`."""
    if budget.max_unavailable:
        return max(0, expected - share(budget.max_unavailable, expected))
    return share(budget.min_available or "1", expected)


def room(budget: Budget, covered: Sequence[Pod]) -> Room:
    """Judge one budget from its status, or, where a dump has none, from the pods it covers."""
    managed = [p for p in covered if p.owner is not None]
    counts_owners = bool(budget.max_unavailable) or budget.min_available.endswith("%")
    counted = managed if counts_owners else list(covered)
    if budget.expected is not None and budget.counted:
        expected, healthy = budget.expected, budget.healthy or 0
    else:
        expected = len(counted)
        healthy = sum(p.ready and not p.terminating for p in counted)
    stated = budget.desired if budget.counted else None
    desired = desired_healthy(budget, expected) if stated is None else stated
    written = budget.allowed is not None
    # The controller writes no negative number: such a status is nobody's count.
    allowed = budget.allowed if budget.counted and (budget.allowed or 0) >= 0 else None
    if not written and budget.observed is None:  # a dump without status: what the controller would write
        allowed = max(0, healthy - desired)
    never, remedy = _never(budget, covered, counts_owners, expected, desired)
    unhealthy = sorted((p for p in covered if not p.ready and not p.terminating), key=lambda p: p.key)
    return Room(
        budget=budget,
        allowed=allowed,
        headroom=0 if never else max(0, expected - desired),
        desired=desired,
        healthy=healthy,
        expected=expected,
        never=never,
        remedy=remedy,
        another_helps=_another_helps(budget, expected),
        unhealthy=tuple(p.key for p in unhealthy),
        unplaced=tuple(p for p in unhealthy if p.phase == "Pending" and not p.node),
    )


def _another_helps(budget: Budget, expected: int) -> bool:
    """Would it spare one of its pods if there were one more?"""
    return desired_healthy(budget, expected + 1) <= expected


def _never(budget: Budget, covered: Sequence[Pod], counts_owners: bool, expected: int, desired: int) -> tuple[str, str]:
    """Why waiting will not open it, and what would; ("", "") where it may open."""
    if budget.unhealthy_policy not in KNOWN_POLICIES:
        return (
            f"unhealthyPodEvictionPolicy {budget.unhealthy_policy!r} is unknown, and means: do not evict",
            f"let its owner set one of {', '.join(KNOWN_POLICIES)}: "
            + patch(budget, unhealthyPodEvictionPolicy=KNOWN_POLICIES[0]),
        )
    opening = _opening(budget, covered, counts_owners)
    relax = f"no replica helps: let its owner relax the budget for the move: {opening}"
    if budget.max_unavailable in ("0", "0%"):
        return f"maxUnavailable is {budget.max_unavailable}: it never allows an eviction", relax
    if budget.min_available == "100%":
        return "minAvailable is 100%: it never allows an eviction", relax
    integer = f"let its owner write minAvailable as a number below that of its pods, counting no owners: {opening}"
    if counts_owners and expected == 0 and covered:
        if all(p.owner is None for p in covered):
            return (
                "its pods have no controller, so a percentage or maxUnavailable of them counts 0 expected pods",
                integer,
            )
        other = next((p.owner.kind for p in covered if p.owner is not None and p.owner.kind not in _COUNTABLE), "")
        if other:
            return f"the server cannot count the pods of a {other} (no scale subresource): it expects 0 pods", integer
    stale = budget.allowed is not None and not budget.counted
    if not stale and 0 < expected <= desired and not budget.disrupted:
        helps = f"add a replica, or let its owner relax the budget: {opening}"
        return (
            f"it needs {desired} healthy of {plural(expected, 'pod')}: none can be spared",
            helps if _another_helps(budget, expected) else relax,
        )
    return "", ""


def patch(budget: Budget, **spec: int | str | None) -> str:
    """The command that changes these fields of its spec; None takes one away."""
    body = json.dumps({"spec": spec}, separators=(",", ":"))
    return f"kubectl -n {budget.namespace} patch pdb {budget.name} --type merge -p '{body}'"


def _opening(budget: Budget, covered: Sequence[Pod], counts_owners: bool) -> str:
    """The command after which one pod may go at a time: a share of what is wanted, where the server can count that."""
    countable = all(p.owner is not None and p.owner.kind in _COUNTABLE for p in covered)
    if counts_owners and countable:
        other: dict[str, int | None] = {"minAvailable": None} if budget.min_available else {}
        return patch(budget, **other, maxUnavailable=1)
    written: dict[str, int | None] = {"maxUnavailable": None} if budget.max_unavailable else {}
    return patch(budget, **written, minAvailable=max(0, len(covered) - 1))


def spends(pod: Pod, budget_room: Room) -> bool | None:
    """Does evicting the pod use up one disruption? None: it is refused (an unready pod under IfHealthyBudget).

    Pending, finished and terminating pods pass without a check.
    """
    if pod.phase == "Pending" or pod.finished or pod.terminating:
        return False
    if pod.ready:
        return True
    if budget_room.budget.unhealthy_policy == "AlwaysAllow":
        return False
    if budget_room.healthy >= budget_room.desired > 0:
        return False
    return True if (budget_room.allowed or 0) > 0 else None


@dataclass(kw_only=True, slots=True)
class Turns:
    """Hands out turns within one wave: turn 1 leaves at once, turn n+1 when the replacements of turn n are ready."""

    rooms: Mapping[str, Room]
    used: dict[str, int] = field(default_factory=dict)

    def take(self, pod: Pod, budgets: Sequence[Budget]) -> tuple[int, str]:
        """(turn, budget waited for); turn 0 means never."""
        if len(budgets) != 1:
            return (1, "") if not budgets else (0, budgets[0].key)
        found = self.rooms[budgets[0].key]
        cost = spends(pod, found)
        if cost is False:
            return 1, ""
        if found.headroom < 1 and not found.allowed:
            return 0, found.budget.key
        first = found.headroom if found.allowed is None else found.allowed
        number = self.used.get(found.budget.key, 0)
        self.used[found.budget.key] = number + 1
        if number < first:
            return 1, ""
        step = max(1, found.headroom)
        return 2 + (number - first) // step, found.budget.key
