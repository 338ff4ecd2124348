"""Which pods of a set to remove first, and which pods a set owns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cmp_to_key

from infra.clock import parse_time
from infra.sandbox.control_plane.controllers.cluster import Cluster
from infra.sandbox.control_plane.controllers.objects import Object, is_deleting, labels_of
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.resources import Kind

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}


def claimed(
    cluster: Cluster,
    owner: Object,
    kind: Kind,
    *,
    adopts: Callable[[PodFacts], bool] | None = None,
    finalizer: str = "",
) -> list[PodFacts]:
    """The pods of a set: those it owns and selects; bare ones it selects are adopted, strays are released.

    `adopts` says which of the bare pods that the selector matches may be adopted (all by default); `finalizer` is
    put on them.
    """
    selector = owner["spec"].get("selector")
    matches = label_matcher(selector)
    uid = owner["metadata"]["uid"]
    namespace = owner["metadata"]["namespace"]
    mine = []
    for pod in cluster.view.pods_of(uid):
        if pod.is_selected(selector, matches):
            mine.append(pod)
        elif not is_deleting(owner) and not pod.deleting:
            cluster.release_pod(pod, uid)
    if is_deleting(owner):
        return mine
    for pod in cluster.view.bare_pods_in(namespace):
        if pod.active and matches(labels_of(pod.obj)) and (adopts is None or adopts(pod)):
            cluster.adopt_pod(pod, owner, kind, finalizer)
            mine.append(cluster.view.pods[pod.key])
    return mine


def deletion_cost(pod: PodFacts) -> int:
    """The pod-deletion-cost annotation; 0 when it is missing or no 32-bit number as the API writes it."""
    text = (pod.obj["metadata"].get("annotations") or {}).get(DELETION_COST, "")
    digits = text.removeprefix("-")
    if not digits.isdigit() or (len(digits) > 1 and digits[0] == "0"):
        return 0
    cost = int(text)
    return cost if -(2**31) <= cost < 2**31 else 0


def _age_rank(text: str | None, now: datetime) -> float:
    """Ages count on a logarithmic scale, so that among pods of like age the choice does not follow age."""
    age = (now - parse_time(text)).total_seconds() if text else 0.0
    return math.floor(math.log2(age)) if age >= 1 else 0


def _restarts(pod: PodFacts) -> int:
    status = pod.obj.get("status") or {}
    return max((c.get("restartCount", 0) for c in status.get("containerStatuses") or ()), default=0)


def removal_order(pods: Sequence[PodFacts], related: Iterable[PodFacts], now: datetime) -> list[PodFacts]:
    """Pods in the order in which a set that shrinks gives them up.

    Unassigned first, then Pending, then not ready, then cheap by pod-deletion-cost, then those on nodes that hold
    more pods of the same owner, then the ones ready for less time, restarted more, created later.
    """
    crowd = Counter(pod.node for pod in related if pod.active)

    def before(a: PodFacts, b: PodFacts) -> int:
        if a.ready and b.ready and a.ready_since != b.ready_since:
            rank = _age_rank(a.ready_since, now) - _age_rank(b.ready_since, now)
            return (1 if rank > 0 else -1) if rank else (-1 if a.uid < b.uid else 1)
        if _restarts(a) != _restarts(b):
            return -1 if _restarts(a) > _restarts(b) else 1
        made_a, made_b = a.obj["metadata"].get("creationTimestamp"), b.obj["metadata"].get("creationTimestamp")
        rank = _age_rank(made_a, now) - _age_rank(made_b, now) if made_a != made_b else 0
        if rank:
            return 1 if rank > 0 else -1
        return -1 if a.uid < b.uid else (1 if a.uid > b.uid else 0)

    by_age = cmp_to_key(before)
    return sorted(
        pods,
        key=lambda p: (
            bool(p.node),
            _PHASE_RANK.get(p.phase, 1),
            p.ready,
            deletion_cost(p),
            -crowd[p.node],
            by_age(p),
        ),
    )
