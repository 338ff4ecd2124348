"""The arithmetic of a Deployment: how large each ReplicaSet should be, and what the status says. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.clock import parse_time
from infra.sandbox.control_plane.controllers.objects import Object, condition, scaled, with_condition, without_condition

REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
HASH_LABEL = "pod-template-hash"
NOT_COPIED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        REVISION_HISTORY,
        DESIRED,
        MAXIMUM,
    }
)
"""Annotations of a Deployment that its ReplicaSets do not inherit."""

_NO_DEADLINE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far a rolling update may stray from spec.replicas."""

    replicas: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.replicas + self.surge

    @property
    def least_available(self) -> int:
        return self.replicas - self.unavailable


def bounds_of(deployment: Object) -> Bounds:
    """Read replicas and strategy; percentages are resolved as the real controller does (surge up, the rest down)."""
    spec = deployment["spec"]
    replicas = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return Bounds(replicas=replicas, surge=0, unavailable=0)
    rolling = strategy.get("rollingUpdate") or {}
    surge = scaled(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = scaled(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(replicas=replicas, surge=surge, unavailable=min(unavailable, replicas))


def is_rolling(deployment: Object) -> bool:
    """Strategy RollingUpdate (the default)."""
    kind: str = (deployment["spec"].get("strategy") or {}).get("type", "RollingUpdate")
    return kind == "RollingUpdate"


def size(replica_set: Object) -> int:
    """spec.replicas."""
    count: int = replica_set["spec"].get("replicas", 1)
    return count


def counted(replica_set: Object | None, field: str) -> int:
    """A counter of the status; 0 when it is missing."""
    if replica_set is None:
        return 0
    count: int = (replica_set.get("status") or {}).get(field, 0)
    return count


def total(replica_sets: Iterable[Object], field: str) -> int:
    """The sum of a status counter."""
    return sum(counted(each, field) for each in replica_sets)


def revision_of(replica_set: Object) -> int:
    """The revision annotation; 0 when it is missing."""
    text = (replica_set["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def annotated(replica_set: Object, name: str) -> int | None:
    """A number in an annotation, or None."""
    text = (replica_set["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if text.isdigit() else None


def plain_template(replica_set: Object) -> Object:
    """A ReplicaSet's template without the hash label: equal to the Deployment's when it is its own."""
    template: Object = replica_set["spec"]["template"]
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != HASH_LABEL}
    return {**template, "metadata": {**meta, "labels": labels}}


def new_set_size(deployment: Object, all_sets: Sequence[Object], current: int) -> int:
    """How large the new ReplicaSet may be now, given that it is `current` and one of `all_sets` or not yet made."""
    bounds = bounds_of(deployment)
    if not is_rolling(deployment):
        return bounds.replicas
    present = sum(size(each) for each in all_sets)
    if present >= bounds.most:
        return current
    return current + min(bounds.most - present, bounds.replicas - current)


def proportional_sizes(deployment: Object, active: Sequence[Object]) -> dict[str, int]:
    """Sizes by name when a Deployment is scaled in the middle of a rollout: each set gets its share."""
    bounds = bounds_of(deployment)
    allowed = bounds.most if bounds.replicas > 0 else 0
    to_add = allowed - sum(size(each) for each in active)
    newest_first = sorted(active, key=lambda each: each["metadata"]["creationTimestamp"], reverse=to_add > 0)
    ordered = sorted(newest_first, key=size, reverse=True)
    sizes: dict[str, int] = {}
    added = 0
    for each in ordered:
        share = _share(deployment, bounds, each, to_add, added)
        sizes[each["metadata"]["name"]] = size(each) + share
        added += share
    if ordered and to_add:
        first = ordered[0]["metadata"]["name"]
        sizes[first] = max(0, sizes[first] + to_add - added)
    return sizes


def _share(deployment: Object, bounds: Bounds, replica_set: Object, to_add: int, added: int) -> int:
    current = size(replica_set)
    if current == 0 or to_add == 0 or to_add == added:
        return 0
    if bounds.replicas == 0:
        fraction = -current
    else:
        before = annotated(replica_set, MAXIMUM) or counted(deployment, "replicas")
        grown = current * bounds.most / before if before else current
        fraction = math.floor(grown + 0.5) - current
    left = to_add - added
    return min(fraction, left) if to_add > 0 else max(fraction, left)


def sizes_after_cleanup(old: Sequence[Object], most: int) -> tuple[dict[str, int], int]:
    """Shrink old sets by their unhealthy pods first, oldest set first, by at most `most`. Sizes and the number cut."""
    sizes: dict[str, int] = {}
    cut = 0
    for each in sorted(old, key=lambda item: item["metadata"]["creationTimestamp"]):
        if cut >= most:
            break
        unhealthy = size(each) - counted(each, "availableReplicas")
        if size(each) == 0 or unhealthy <= 0:
            continue
        step = min(most - cut, unhealthy)
        sizes[each["metadata"]["name"]] = size(each) - step
        cut += step
    return sizes, cut


def sizes_after_scale_down(old: Sequence[Object], available: int, bounds: Bounds) -> dict[str, int]:
    """Shrink old sets, oldest first, by the pods that are available beyond the least needed."""
    sizes: dict[str, int] = {}
    spare = available - bounds.least_available
    for each in sorted(old, key=lambda item: item["metadata"]["creationTimestamp"]):
        if spare <= 0:
            break
        if size(each) == 0:
            continue
        step = min(size(each), spare)
        sizes[each["metadata"]["name"]] = size(each) - step
        spare -= step
    return sizes


def has_deadline(deployment: Object) -> bool:
    """A progressDeadlineSeconds is set to something that can pass."""
    deadline = deployment["spec"].get("progressDeadlineSeconds")
    return deadline is not None and deadline != _NO_DEADLINE


def new_condition(kind: str, status: str, reason: str, message: str, stamp: str) -> Object:
    """A DeploymentCondition."""
    return {
        "type": kind,
        "status": status,
        "lastUpdateTime": stamp,
        "lastTransitionTime": stamp,
        "reason": reason,
        "message": message,
    }


def set_condition(status: Object, new: Object) -> None:
    """Set it, as the last one, unless status and reason are as before; the transition time moves with the status."""
    known = condition({"status": status}, new["type"])
    if known is not None:
        if (known["status"], known.get("reason")) == (new["status"], new["reason"]):
            return
        if known["status"] == new["status"]:
            new = {**new, "lastTransitionTime": known["lastTransitionTime"]}
    status["conditions"] = with_condition(without_condition(status.get("conditions"), new["type"]), new)


def counted_status(deployment: Object, all_sets: Sequence[Object], new_set: Object | None, stamp: str) -> Object:
    """The status from the ReplicaSets' counters, with the Available condition."""
    bounds = bounds_of(deployment)
    before = deployment.get("status") or {}
    available = total(all_sets, "availableReplicas")
    status: Object = {"observedGeneration": deployment["metadata"].get("generation", 1)}
    counts = {
        "replicas": total(all_sets, "replicas"),
        "updatedReplicas": counted(new_set, "replicas"),
        "readyReplicas": total(all_sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(size(each) for each in all_sets) - available),
    }
    status |= {name: count for name, count in counts.items() if count}
    status["terminatingReplicas"] = total(all_sets, "terminatingReplicas")
    if before.get("collisionCount"):
        status["collisionCount"] = before["collisionCount"]
    if before.get("conditions"):
        status["conditions"] = list(before["conditions"])
    if available >= bounds.least_available:
        set_condition(
            status,
            new_condition(
                "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.", stamp
            ),
        )
    else:
        set_condition(
            status,
            new_condition(
                "Available",
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
                stamp,
            ),
        )
    return status


def is_complete(deployment: Object, status: Object) -> bool:
    """All replicas are updated and available, and nothing old is left."""
    replicas = deployment["spec"].get("replicas", 1)
    return bool(
        status.get("updatedReplicas", 0) == replicas
        and status.get("replicas", 0) == replicas
        and status.get("availableReplicas", 0) == replicas
        and status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 1)
    )


def is_progressing(before: Object, after: Object) -> bool:
    """The new status is nearer to the goal than the old one."""

    def count(status: Object, field: str) -> int:
        found: int = status.get(field, 0)
        return found

    old_left = count(before, "replicas") - count(before, "updatedReplicas")
    new_left = count(after, "replicas") - count(after, "updatedReplicas")
    return (
        count(after, "updatedReplicas") > count(before, "updatedReplicas")
        or new_left < old_left
        or count(after, "readyReplicas") > count(before, "readyReplicas")
        or count(after, "availableReplicas") > count(before, "availableReplicas")
    )


def deadline_of(deployment: Object, progressing: Object) -> datetime:
    """When a rollout without progress counts as stuck."""
    seconds: int = deployment["spec"]["progressDeadlineSeconds"]
    return parse_time(progressing["lastUpdateTime"]) + timedelta(seconds=seconds)


def judge_progress(deployment: Object, status: Object, new_set: Object | None, now: datetime, stamp: str) -> None:
    """Set the Progressing condition in a new status."""
    if not has_deadline(deployment):
        status["conditions"] = without_condition(status.get("conditions"), "Progressing")
        return
    known = condition(deployment, "Progressing")
    if (
        known is not None
        and known.get("reason") == "NewReplicaSetAvailable"
        and status.get("replicas", 0) == status.get("updatedReplicas", 0)
    ):
        return
    subject = "Deployment" if new_set is None else "ReplicaSet"
    name = (deployment if new_set is None else new_set)["metadata"]["name"]
    if is_complete(deployment, status):
        message = f'{subject} "{name}" has successfully progressed.'
        set_condition(status, new_condition("Progressing", "True", "NewReplicaSetAvailable", message, stamp))
    elif is_progressing(deployment.get("status") or {}, status):
        fresh = new_condition("Progressing", "True", "ReplicaSetUpdated", f'{subject} "{name}" is progressing.', stamp)
        if known is not None and known["status"] == "True":
            fresh["lastTransitionTime"] = known["lastTransitionTime"]
        status["conditions"] = with_condition(without_condition(status.get("conditions"), "Progressing"), fresh)
    elif (
        known is not None
        and known.get("reason") != "NewReplicaSetAvailable"
        and (known.get("reason") == "ProgressDeadlineExceeded" or now > deadline_of(deployment, known))
    ):
        message = f'{subject} "{name}" has timed out progressing.'
        set_condition(status, new_condition("Progressing", "False", "ProgressDeadlineExceeded", message, stamp))
