"""A second replica first: a Deployment of one pod gets another on the target, then lets the old one go.

Raised by one, a new pod Ready off the source, the old one marked as the cheapest to delete, lowered again: the
ReplicaSet itself takes the old pod away, so the workload is never without one, and its budget never closes the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.errors import Conflict, PoolshiftError
from infra.kube import switches
from infra.kube.api import MERGE_PATCH, Kube
from infra.kube.wire import selector
from infra.model.gangs import SURGE_KIND
from infra.model.workload import Pod
from tasks.gangs import Failed, GangEnd, Mover, Work
from tasks.rules.outcome import End

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def surge(mover: Mover, namespace: str, name: str) -> Work:
    """Move one Deployment. Never raises; what it could not move is left to an ordinary eviction."""
    workload = f"deployment {namespace}/{name}"
    try:
        raw = switches.read(mover.kube, SURGE_KIND, namespace, name)
        if raw is None:
            return GangEnd(workload=workload, end=End.DRAINED)
        noted = switches.memory(raw, mover.run)
        if noted is None:
            before = raw["spec"].get("replicas", 1)
            noted = {"run": mover.run, "stage": "raised", "before": before}
            mover.say(f"{workload}: starting a second replica on the target first")
            raw = switches.note(mover.kube, SURGE_KIND, raw, noted, {"spec": {"replicas": before + 1}})
        try:
            yield from mover.wait_for(
                lambda: any(p.ready and p.node not in mover.off for p in _pods(mover, raw)),
                mover.limit,
                workload,
                "surge-not-ready",
                "its second replica did not become Ready on the target",
            )
            for pod in _pods(mover, raw):
                if pod.node in mover.off:
                    _cheapest(mover.kube, pod)
        finally:
            lower(mover.kube, switches.read(mover.kube, SURGE_KIND, namespace, name) or raw, noted)
        yield from mover.wait_for(
            lambda: not any(p.node in mover.off for p in _pods(mover, raw)),
            mover.limit,
            workload,
            "surge-kept-old",
            "the old replica stayed, and a new one was taken away",
        )
    except Failed as failure:
        return GangEnd(workload=workload, end=failure.end, code=failure.code, reason=failure.reason)
    except PoolshiftError as error:
        end = End.FAILED if isinstance(error, Conflict) else End.UNKNOWN
        return GangEnd(workload=workload, end=end, code="surge-failed", reason=error.wording())
    return GangEnd(workload=workload, end=End.DRAINED, ranks=1)


def lower(kube: Kube, raw: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
    """Back to the count of before, unless somebody has set another since; our marks off. Idempotent."""
    before = noted.get("before", 1)
    ours = (raw.get("spec") or {}).get("replicas") == before + 1
    switches.forget(kube, SURGE_KIND, raw, {"spec": {"replicas": before}} if ours else None)


def _pods(mover: Mover, raw: Mapping[str, Any]) -> list[Pod]:
    """Live pods of the Deployment, by its own selector."""
    chosen = selector(raw["spec"].get("selector"))
    namespace = raw["metadata"]["namespace"]
    return [
        p
        for p in mover.view.pods.values()
        if chosen and p.namespace == namespace and not p.terminating and not p.finished and chosen.matches(p.labels)
    ]


def _cheapest(kube: Kube, pod: Pod) -> None:
    body = {"metadata": {"uid": pod.uid, "annotations": {DELETION_COST: "-1000"}}}
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
    kube.request("PATCH", path, body=body, content_type=MERGE_PATCH, retry=True)
