"""Owners of pods and their volumes, from plain JSON into the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.kube.wire import Shared, Wire, node_terms, owner
from infra.model.endings import is_over
from infra.model.gangs import gang_kind
from infra.model.workload import Requirement, Volume, Workload

_NODE_NAME_LABEL = "kubernetes.io/hostname"


def workload(raw: Wire, shared: Shared | None = None) -> Workload:
    """Any kind of owner, a custom one too."""
    shared = shared or Shared()
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    kind, api_version = str(raw.get("kind", "")), str(raw.get("apiVersion", ""))
    left, ignores = _restarts(api_version, kind, spec, status)
    return Workload(
        kind=kind,
        api_version=api_version,
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        owner=owner(meta),
        labels=shared.mapping(meta.get("labels")),
        annotations={
            k: str(v)
            for k, v in (meta.get("annotations") or {}).items()
            if k != "kubectl.kubernetes.io/last-applied-configuration"
        },
        replicas=_replicas(kind, spec, status),
        ready=int(status.get("readyReplicas") or status.get("numberReady") or status.get("ready") or 0),
        completions=spec.get("completions") if isinstance(spec.get("completions"), int) else None,
        indexed=spec.get("completionMode") == "Indexed",
        suspended=_suspended(api_version, kind, raw),
        finished=is_over(raw),
        restarts_left=left,
        ignores_disruption=ignores,
        surge=_surges(kind, spec),
        resource_version=str(meta.get("resourceVersion", "")),
        **(_admission(spec, status) if kind == "Workload" else {}),
    )


def _admission(spec: Wire, status: Wire) -> dict[str, Any]:
    """What only Kueue's Workload says: its queue, what its owner asked for, and where it was admitted to."""
    templates = [((s.get("template") or {}).get("spec") or {}) for s in spec.get("podSets") or ()]
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    return {
        "queue": str(spec.get("queueName") or ""),
        "own_labels": frozenset((k, str(v)) for t in templates for k, v in (t.get("nodeSelector") or {}).items()),
        "assigned": frozenset(str(name) for a in assigned for name in (a.get("flavors") or {}).values()),
    }


def _replicas(kind: str, spec: Wire, status: Wire) -> int:
    """How many pods it wants: the API's default of 1 where the spec is silent."""
    if kind == "DaemonSet":
        return int(status.get("desiredNumberScheduled") or 0)
    if kind == "LeaderWorkerSet":
        size = (spec.get("leaderWorkerTemplate") or {}).get("size") or 1
        return _int(spec.get("replicas"), 1) * int(size)
    if kind == "JobSet":
        return sum(
            _int(r.get("replicas"), 1) * _int(((r.get("template") or {}).get("spec") or {}).get("parallelism"), 1)
            for r in spec.get("replicatedJobs") or ()
        )
    for key in ("pytorchReplicaSpecs", "mpiReplicaSpecs", "tfReplicaSpecs"):
        if specs := spec.get(key):
            return sum(_int(r.get("replicas"), 1) for r in specs.values())
    if tasks := spec.get("tasks"):  # Volcano
        return sum(_int(t.get("replicas"), 1) for t in tasks)
    if "headGroupSpec" in spec:  # RayCluster: the head and its workers
        return 1 + sum(_int(g.get("replicas"), 1) for g in spec.get("workerGroupSpecs") or ())
    if "trainer" in spec:
        return _int((spec.get("trainer") or {}).get("numNodes"), 1)
    return _int(spec.get("parallelism"), 1) if kind == "Job" else _int(spec.get("replicas"), 1)


def _int(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _suspended(api_version: str, kind: str, raw: Wire) -> bool | None:
    row = gang_kind(api_version, kind)
    return None if row is None else row.is_stopped(raw)


def _restarts(api_version: str, kind: str, spec: Wire, status: Wire) -> tuple[int | None, bool]:
    """(restarts left, an eviction does not spend one)."""
    if api_version.startswith("batch.volcano.sh/"):
        return max(0, _int(spec.get("maxRetry"), 0) - _int(status.get("retryCount"), 0)), False
    if kind == "Job":
        rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
        ignores = any(
            r.get("action") == "Ignore"
            and any(c.get("type") == "DisruptionTarget" for c in r.get("onPodConditions") or ())
            for r in rules
        )
        return max(0, _int(spec.get("backoffLimit"), 6) - _int(status.get("failed"), 0)), ignores
    if kind == "JobSet":
        policy = spec.get("failurePolicy") or {}
        ignores = any(r.get("action") == "RestartJobSetAndIgnoreMaxRestarts" for r in policy.get("rules") or ())
        spent = _int(status.get("restartsCountTowardsMax"), _int(status.get("restarts"), 0))
        return max(0, _int(policy.get("maxRestarts"), 0) - spent), ignores
    return None, False


def _surges(kind: str, spec: Wire) -> bool:
    """May the owner run one more than it wants while it rolls?"""
    if kind != "Deployment":
        return False
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return False
    surge = (strategy.get("rollingUpdate") or {}).get("maxSurge", "25%")
    return str(surge) not in ("0", "0%")


def volumes(claims: list[Wire], persistent: list[Wire]) -> tuple[Volume, ...]:
    """Claims joined with their PersistentVolumes; an unbound claim is a volume without affinity.

    A claim whose volume was not read is left out: where it is stored is unknown.
    """
    by_name: dict[str, Mapping[str, Any]] = {str((v.get("metadata") or {}).get("name")): v for v in persistent}
    found = []
    for claim in claims:
        meta, spec = claim.get("metadata") or {}, claim.get("spec") or {}
        bound = spec.get("volumeName")
        if bound and bound not in by_name:
            continue
        volume = (by_name.get(str(bound)) or {}).get("spec") or {}
        terms = node_terms((volume.get("nodeAffinity") or {}).get("required"))
        found.append(
            Volume(
                namespace=str(meta.get("namespace", "")),
                claim=str(meta.get("name", "")),
                driver=str((volume.get("csi") or {}).get("driver") or ""),
                affinity=terms,
                local="local" in volume or "hostPath" in volume or _one_node(terms),
            )
        )
    return tuple(found)


def _one_node(terms: tuple[tuple[Requirement, ...], ...]) -> bool:
    return bool(terms) and all(
        any(r.key == _NODE_NAME_LABEL and r.operator == "In" and len(r.values) == 1 for r in term) for term in terms
    )
