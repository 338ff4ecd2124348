"""What breaks a soak: a moved workload below strength, or a pod that waits for a node since the move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from infra.model.verdict import Finding, Level

GRACE = timedelta(minutes=2)  # an image pull or a probe may take this long without being a breach


def breaches(
    workloads: Mapping[str, Mapping[str, Any] | None],
    pending: Iterable[Mapping[str, Any]],
    target: Mapping[str, str],
    started: datetime,
) -> list[Finding]:
    """Findings over plain objects. `workloads` maps KIND/NAMESPACE/NAME to the object, None when it is gone.

    `target` is the target pool's node selector: a pod pinned to it that cannot be placed is our doing even when it is
    older than the soak.
    """
    found = [f for name, obj in workloads.items() for f in _strength(name, obj)]
    found += [f for pod in pending for f in _stuck(pod, target, started)]
    return sorted(found, key=lambda f: (f.code, f.object))


def _strength(name: str, obj: Mapping[str, Any] | None) -> Iterable[Finding]:
    kind = name.split("/", 1)[0]
    if obj is None:
        if kind != "Job":  # a Job may have finished and been cleaned up by its own TTL
            yield _finding("workload-gone", name, "no longer exists", "the workload that was moved")
        return
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if kind == "Job":
        conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
        if conditions.get("Failed") == "True":
            yield _finding("job-failed", name, "condition Failed", "running or complete")
        return
    wanted = int(spec.get("replicas", 1))
    ready = int(status.get("readyReplicas") or 0)
    if ready < wanted:
        yield _finding("replicas-unready", name, f"{ready} of {wanted} replicas ready", f"{wanted}")


def _stuck(pod: Mapping[str, Any], target: Mapping[str, str], started: datetime) -> Iterable[Finding]:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("nodeName") or meta.get("deletionTimestamp"):
        return
    refused = next(
        (c for c in status.get("conditions") or () if c.get("type") == "PodScheduled" and c.get("status") == "False"),
        None,
    )
    if refused is None:
        return
    wants = spec.get("nodeSelector") or {}
    pinned = bool(target) and all(wants.get(key) == value for key, value in target.items())
    created = str(meta.get("creationTimestamp", ""))
    young = created >= (started - GRACE).strftime("%Y-%m-%dT%H:%M:%SZ")
    if pinned or young:
        yield _finding(
            "newly-pending",
            f"pod {meta.get('namespace')}/{meta.get('name')}",
            f"Pending: {refused.get('message', '')}",
            "scheduled",
        )


def _finding(code: str, what: str, observed: str, expected: str) -> Finding:
    where = what.removeprefix("pod ").split("/")
    remedy = f"kubectl -n {where[-2]} describe {'pod' if what.startswith('pod ') else where[0].lower()} {where[-1]}"
    return Finding(level=Level.BLOCK, code=code, object=what, observed=observed, expected=expected, remedy=remedy)
