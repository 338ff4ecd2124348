"""Plain JSON of the API (or of a kubectl dump) into the model. Tolerant: what is odd is left out, never guessed.

A snapshot of 100,000 pods shares equal labels, tolerations, requests and selectors between pods, since the pods of
one owner differ in little more than their name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from math import isfinite
from types import MappingProxyType
from typing import Any, TypeVar, cast

from infra.clock import parse_time
from infra.model.cluster import EMPTY, Condition, Node, Owner, Taint, Toleration
from infra.model.workload import Budget, Pod, Requirement, Selector

T = TypeVar("T")
Wire = Mapping[str, Any]

# Annotations of pods that matter to moving them; the rest (last-applied, sidecar status, …) would fill memory.
_KEPT = ("poolshift.dev/", "sandbox.poolshift.dev/", "karpenter.sh/", "cluster-autoscaler.kubernetes.io/")
_KEPT_EXACT = frozenset(
    {
        "kubernetes.io/config.mirror",
        "kubernetes.io/config.source",
        "scheduling.k8s.io/group-name",
        "controller.kubernetes.io/pod-deletion-cost",
    }
)
_OF_MACHINE = (
    "/boot/", "/dev/", "/etc/", "/lib/", "/lib64/", "/opt/", "/proc/", "/run/", "/sbin/", "/sys/", "/usr/",
    "/home/kubernetes/", "/var/lib/kubelet/", "/var/log/", "/var/run/", "/var/lib/containerd/", "/var/lib/docker/",
)  # fmt: skip
_SUFFIX: Mapping[str, float] = {
    "": 1, "m": 1e-3, "u": 1e-6, "n": 1e-9, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


class Shared:
    """Equal values become one object. One per snapshot or watch; used from one thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def mapping(self, raw: Mapping[str, T] | None) -> Mapping[str, T]:
        """A read-only mapping of scalars, the same object for equal content."""
        if not raw:
            return EMPTY
        return self.once(("map", *raw.items()), lambda: MappingProxyType(dict(raw)))

    def once(self, key: Hashable, build: Callable[[], T]) -> T:
        """The value first built for the key."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = build()
        return cast(T, found)


def quantity(text: object) -> float:
    """A Kubernetes quantity in its base unit ("500m" -> 0.5, "2Gi" -> 2147483648). Unreadable is 0."""
    word = str(text).strip()
    number = word.rstrip("numkKMGTPEi")
    suffix = word[len(number) :]
    try:
        value = float(number) * _SUFFIX[suffix] if suffix in _SUFFIX else float(word)
    except ValueError:
        return 0.0
    return value if isfinite(value) else 0.0


def amounts(raw: Wire | None) -> dict[str, int]:
    """A resource list as numbers: CPU in millicores, everything else in its base unit, rounded up."""
    found = {}
    for name, text in (raw or {}).items():
        value = quantity(text) * (1000 if name == "cpu" else 1)
        found[name] = int(value) + (value > int(value))
    return found


def moment(text: object) -> datetime | None:
    """A time, or None where absent or unreadable."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        return None


def owner(meta: Wire) -> Owner | None:
    """The controlling owner reference; without a `controller` mark there is no controller."""
    for ref in meta.get("ownerReferences") or ():
        if ref.get("controller"):
            return Owner(
                kind=str(ref.get("kind", "")),
                name=str(ref.get("name", "")),
                uid=str(ref.get("uid", "")),
                api_version=str(ref.get("apiVersion", "")),
            )
    return None


def requirements(raw: Iterable[Wire] | None, *, fields: bool = False) -> tuple[Requirement, ...]:
    """The entries of matchExpressions or matchFields."""
    return tuple(
        Requirement(
            key=str(e.get("key", "")),
            operator=str(e.get("operator", "")),
            values=tuple(str(v) for v in e.get("values") or ()),
            field=fields,
        )
        for e in raw or ()
    )


def selector(raw: Wire | None) -> Selector | None:
    """A LabelSelector; None where there is none, which selects nothing."""
    if raw is None:
        return None
    return Selector(labels=dict(raw.get("matchLabels") or {}), expressions=requirements(raw.get("matchExpressions")))


def node_terms(raw: Wire | None) -> tuple[tuple[Requirement, ...], ...]:
    """nodeSelectorTerms: one must hold; within a term all must."""
    terms = (raw or {}).get("nodeSelectorTerms") or ()
    return tuple(
        requirements(t.get("matchExpressions")) + requirements(t.get("matchFields"), fields=True) for t in terms
    )


def conditions(status: Wire) -> tuple[Condition, ...]:
    """Status conditions with the time of their last change."""
    return tuple(
        Condition(
            type=str(c.get("type", "")),
            status=str(c.get("status", "")),
            reason=str(c.get("reason") or ""),
            message=str(c.get("message") or ""),
            since=moment(c.get("lastTransitionTime")),
        )
        for c in status.get("conditions") or ()
    )


def taints(raw: Iterable[Wire]) -> tuple[Taint, ...]:
    """Taints, of a node or of a flavour of nodes."""
    return tuple(
        Taint(key=str(t.get("key", "")), value=str(t.get("value") or ""), effect=str(t.get("effect", ""))) for t in raw
    )


def node(raw: Wire, shared: Shared | None = None) -> Node:
    """A Node object."""
    shared = shared or Shared()
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    return Node(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        labels=dict(meta.get("labels") or {}),
        annotations=dict(meta.get("annotations") or {}),
        taints=taints(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        conditions=conditions(status),
        allocatable=shared.mapping(amounts(status.get("allocatable"))),
        capacity=shared.mapping(amounts(status.get("capacity"))),
        provider_id=str(spec.get("providerID") or ""),
        created=moment(meta.get("creationTimestamp")),
        deletion=moment(meta.get("deletionTimestamp")),
        resource_version=str(meta.get("resourceVersion", "")),
    )


def pod(raw: Wire, shared: Shared | None = None) -> Pod:
    """A Pod object."""
    shared = shared or Shared()
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    ready, ready_since, unschedulable = _pod_conditions(status)
    statuses = status.get("containerStatuses") or ()
    volumes = spec.get("volumes") or ()
    terms = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    tolerated = spec.get("tolerations") or ()
    return Pod(
        namespace=shared.once(("s", meta.get("namespace", "")), lambda: str(meta.get("namespace", ""))),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        node=shared.once(("s", spec.get("nodeName") or ""), lambda: str(spec.get("nodeName") or "")),
        phase=shared.once(("s", status.get("phase") or ""), lambda: str(status.get("phase") or "")),
        ready=ready,
        ready_since=ready_since,
        created=moment(meta.get("creationTimestamp")),
        deletion=moment(meta.get("deletionTimestamp")),
        grace=_grace(spec),
        owner=_shared_owner(meta, shared),
        labels=shared.mapping(meta.get("labels")),
        annotations=shared.mapping(_kept(meta.get("annotations"))),
        finalizers=tuple(meta.get("finalizers") or ()),
        priority=int(spec.get("priority") or 0),
        node_selector=shared.mapping(spec.get("nodeSelector")),
        affinity=shared.once(("a", str(terms)), lambda: node_terms(terms)) if terms else (),
        tolerations=shared.once(("t", str(tolerated)), lambda: tolerations(tolerated)) if tolerated else (),
        requests=_requests(spec, shared),
        empty_dirs=tuple(str(v.get("name")) for v in volumes if "emptyDir" in v),
        host_paths=tuple(path for v in volumes if v.get("hostPath") and (path := _data_path(v["hostPath"]))),
        claims=_claims(meta, volumes),
        csi_drivers=tuple(str(v["csi"].get("driver")) for v in volumes if v.get("csi")),
        resource_claims=tuple(str(c.get("name")) for c in spec.get("resourceClaims") or ()),
        waiting=next((w for w in (_waiting(c) for c in statuses) if w), ""),
        restarts=sum(int(c.get("restartCount") or 0) for c in statuses),
        containers_ended=bool(statuses) and all("terminated" in (c.get("state") or {}) for c in statuses),
        unschedulable=unschedulable,
    )


def _data_path(volume: Wire) -> str:
    """The path, unless it belongs to the machine itself: devices, sockets, logs, the kubelet's and driver's files."""
    path = str(volume.get("path") or "")
    of_machine = path == "/" or f"{path.rstrip('/')}/".startswith(_OF_MACHINE)
    return "" if of_machine or volume.get("type") in ("Socket", "CharDevice", "BlockDevice", "File") else path


def _grace(spec: Wire) -> int:
    """Seconds; 30 where the object does not say (the API's default), 0 is a value of its own."""
    seconds = spec.get("terminationGracePeriodSeconds")
    return 30 if seconds is None else int(seconds)


def _pod_conditions(status: Wire) -> tuple[bool, datetime | None, str]:
    """(Ready, since when, why it cannot be scheduled)."""
    ready, since, unschedulable = False, None, ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Ready":
            ready = condition.get("status") == "True"
            since = moment(condition.get("lastTransitionTime"))
        elif condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            unschedulable = str(condition.get("message") or condition.get("reason") or "unschedulable")
    return ready, since, unschedulable


def _shared_owner(meta: Wire, shared: Shared) -> Owner | None:
    for ref in meta.get("ownerReferences") or ():
        if ref.get("controller"):
            return shared.once(("o", ref.get("uid"), ref.get("name")), lambda: owner(meta))
    return None


def _kept(raw: Mapping[str, str] | None) -> dict[str, str]:
    return {k: v for k, v in (raw or {}).items() if k in _KEPT_EXACT or k.startswith(_KEPT)}


def tolerations(raw: Iterable[Wire]) -> tuple[Toleration, ...]:
    """Tolerations, of a pod or of what adds to it."""
    return tuple(
        Toleration(
            key=str(t.get("key") or ""),
            operator=str(t.get("operator") or "Equal"),
            value=str(t.get("value") or ""),
            effect=str(t.get("effect") or ""),
        )
        for t in raw
    )


def _requests(spec: Wire, shared: Shared) -> Mapping[str, int]:
    """What the scheduler counts: containers and sidecars together, or the largest init container, plus overhead."""
    containers = spec.get("containers") or ()
    inits = spec.get("initContainers") or ()
    wanted = [c.get("resources") or EMPTY for c in containers]
    key = ("r", str(wanted), str([i.get("resources") for i in inits]), str(spec.get("overhead")))

    def build() -> Mapping[str, int]:
        total: dict[str, int] = {}
        peak: dict[str, int] = {}
        for container in (*containers, *(i for i in inits if i.get("restartPolicy") == "Always")):
            for name, value in _asked(container).items():
                total[name] = total.get(name, 0) + value
        for container in inits:
            for name, value in _asked(container).items():
                peak[name] = max(peak.get(name, 0), value)
        for name, value in peak.items():
            total[name] = max(total.get(name, 0), value)
        for name, value in amounts(spec.get("overhead")).items():
            total[name] = total.get(name, 0) + value
        return MappingProxyType(total)

    return shared.once(key, build)


def _asked(container: Wire) -> dict[str, int]:
    """A limit without a request is a request."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _claims(meta: Wire, volumes: Iterable[Wire]) -> tuple[str, ...]:
    """Names of PersistentVolumeClaims; a generic ephemeral volume's claim is POD-VOLUME."""
    found = []
    for volume in volumes:
        if claim := volume.get("persistentVolumeClaim"):
            found.append(str(claim.get("claimName", "")))
        elif volume.get("ephemeral"):
            found.append(f"{meta.get('name')}-{volume.get('name')}")
    return tuple(found)


def _waiting(status: Wire) -> str:
    return str(((status.get("state") or {}).get("waiting") or {}).get("reason") or "")


def budget(raw: Wire, _shared: Shared | None = None) -> Budget:
    """A PodDisruptionBudget object. An empty selector selected nothing in policy/v1beta1."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    chosen = spec.get("selector")
    return Budget(
        namespace=str(meta.get("namespace", "")),
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        generation=int(meta.get("generation") or 0),
        observed=_number(status.get("observedGeneration")),
        min_available=_written(spec.get("minAvailable")),
        max_unavailable=_written(spec.get("maxUnavailable")),
        selector=None if not chosen and raw.get("apiVersion") == "policy/v1beta1" else selector(chosen),
        unhealthy_policy=str(spec.get("unhealthyPodEvictionPolicy") or "IfHealthyBudget"),
        allowed=_number(status.get("disruptionsAllowed")),
        healthy=_number(status.get("currentHealthy")),
        desired=_number(status.get("desiredHealthy")),
        expected=_number(status.get("expectedPods")),
        disrupted=tuple(status.get("disruptedPods") or ()),
        resource_version=str(meta.get("resourceVersion", "")),
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _written(value: object) -> str:
    return "" if value is None else str(value)
