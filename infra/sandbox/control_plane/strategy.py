"""How each resource prepares its writes: which part a writer may touch, what counts as a new generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.sandbox.control_plane import defaults, errors
from infra.sandbox.control_plane.quantity import qos_class
from infra.sandbox.control_plane.resources import Kind

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]
Key = tuple[str, str]

SYSTEM_FIELDS = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
    "resourceVersion",
)
"""Metadata that a writer cannot change."""

INITIAL_STATUS: dict[Key, Object] = {
    ("", "namespaces"): {"phase": "Active"},
    ("", "persistentvolumeclaims"): {"phase": "Pending"},
    ("", "persistentvolumes"): {"phase": "Pending"},
    ("", "services"): {"loadBalancer": {}},
    ("", "replicationcontrollers"): {"replicas": 0},
    ("", "resourcequotas"): {},
    ("apps", "deployments"): {},
    ("apps", "replicasets"): {"replicas": 0},
    ("apps", "statefulsets"): {"replicas": 0, "availableReplicas": 0},
    ("apps", "daemonsets"): {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    },
    ("batch", "jobs"): {},
    ("batch", "cronjobs"): {},
    ("policy", "poddisruptionbudgets"): {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    },
    ("autoscaling", "horizontalpodautoscalers"): {"desiredReplicas": 0, "currentMetrics": None},
    ("resource.k8s.io", "resourceclaims"): {},
    ("networking.k8s.io", "ingresses"): {"loadBalancer": {}},
    ("storage.k8s.io", "volumeattachments"): {"attached": False},
}
"""What status a fresh object shows, whatever its writer sent. Nodes keep what they are created with."""

KEEPS_STATUS_ON_CREATE = frozenset({("", "nodes")})
STATUS_KEEPS_LABELS = frozenset({("apps", "deployments")})
"""Kinds whose status endpoint leaves labels alone; the others take metadata from status writers too."""


def prepare_create(store: Store, kind: Kind, obj: Object) -> None:
    """Status and defaults of a new object, in place."""
    if kind.custom:
        if kind.has_status:
            obj.pop("status", None)
        return
    if kind.has_status and kind.key not in KEEPS_STATUS_ON_CREATE:
        status = INITIAL_STATUS.get(kind.key)
        if status is None:
            obj.pop("status", None)
        else:
            obj["status"] = dict(status)
    defaults.apply(kind.key, obj)
    special = _ON_CREATE.get(kind.key)
    if special is not None:
        special(obj)


def _new_pod(pod: Object) -> None:
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(pod["spec"])}
    if pod["spec"].get("schedulingGates"):
        gated = "Scheduling is blocked due to non-empty scheduling gates"
        pod["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": gated,
             "lastProbeTime": None, "lastTransitionTime": None}
        ]  # fmt: skip


def _new_namespace(namespace: Object) -> None:
    namespace["spec"] = {"finalizers": ["kubernetes"]}


_JOB_UID = "batch.kubernetes.io/controller-uid"


def job_labels(job: Object) -> dict[str, str]:
    """What a Job puts on its pods to know them."""
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    return {_JOB_UID: uid, "batch.kubernetes.io/job-name": name, "controller-uid": uid, "job-name": name}


def job_selector(job: Object) -> Object:
    """How it selects them, unless told otherwise."""
    return {"matchLabels": {_JOB_UID: job["metadata"]["uid"]}}


def _new_job(job: Object) -> None:
    """Unless told otherwise, a Job selects its pods by its own uid."""
    spec, labels = job["spec"], job_labels(job)
    if spec.get("manualSelector"):
        return
    metadata = spec["template"]["metadata"]
    own = metadata.get("labels") or {}
    metadata["labels"] = {**labels, **own}
    if not job["metadata"].get("labels"):
        job["metadata"]["labels"] = dict(own or metadata["labels"])
    asked = spec.get("selector") or {}
    spec["selector"] = {**asked, "matchLabels": {_JOB_UID: labels[_JOB_UID], **asked.get("matchLabels", {})}}


def _new_volume(volume: Object) -> None:
    volume["status"]["lastPhaseTransitionTime"] = volume["metadata"]["creationTimestamp"]


_ON_CREATE = {
    ("", "persistentvolumes"): _new_volume,
    ("", "pods"): _new_pod,
    ("", "namespaces"): _new_namespace,
    ("batch", "jobs"): _new_job,
}


def check_identity(kind: Kind, obj: Object, old: Object) -> None:
    """409 when the writer holds an older version, or another object of that name."""
    sent, stored = obj["metadata"], old["metadata"]
    uid = sent.get("uid")
    if uid and uid != stored["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored['uid']}"
        raise errors.conflict(kind.group, kind.plural, stored["name"], why)
    version = sent.get("resourceVersion")
    if version and version != stored["resourceVersion"]:
        raise errors.stale(kind.group, kind.plural, stored["name"])


def prepare_update(kind: Kind, obj: Object, old: Object, part: str) -> Object:
    """The object to store: the writer's part from `obj`, everything else from `old`."""
    metadata = _metadata(obj["metadata"], old["metadata"])
    if part == "status":
        return _status_update(kind, obj, old, metadata)
    new = {**obj, "metadata": metadata, "apiVersion": old["apiVersion"], "kind": old["kind"]}
    if kind.has_status:
        _take(new, old, "status")
    if not kind.custom:
        if kind.key == ("", "namespaces"):
            _take(new, old, "spec")
        defaults.apply(kind.key, new)
    if kind.key == ("apps", "daemonsets"):
        _count_template(new, old)
    if kind.generation and _content_changed(kind, new, old):
        metadata["generation"] = old["metadata"].get("generation", 0) + 1
    return new


def _count_template(new: Object, old: Object) -> None:
    """Writers cannot set the template generation of a DaemonSet; a new template raises it."""
    count = int((old["metadata"].get("annotations") or {}).get(defaults.TEMPLATE_GENERATION, "1"))
    count += new["spec"].get("template") != old["spec"].get("template")
    annotations = new["metadata"].get("annotations") or {}
    new["metadata"]["annotations"] = {**annotations, defaults.TEMPLATE_GENERATION: str(count)}


def _status_update(kind: Kind, obj: Object, old: Object, metadata: Object) -> Object:
    if kind.custom:
        metadata = {**old["metadata"], **_only(metadata, "managedFields")}
    else:
        for name in ("ownerReferences", "finalizers"):
            _take(metadata, old["metadata"], name)
        if kind.key in STATUS_KEEPS_LABELS:
            _take(metadata, old["metadata"], "labels")
    new = {**old, "metadata": metadata}
    if "status" in obj:
        new["status"] = obj["status"]
    elif kind.custom:
        new.pop("status", None)
    return new


def _metadata(sent: Object, stored: Object) -> Object:
    metadata = {key: value for key, value in sent.items() if value is not None}
    for name in SYSTEM_FIELDS:
        if name in stored:
            metadata[name] = stored[name]
        else:
            metadata.pop(name, None)
    if "namespace" in stored:
        metadata["namespace"] = stored["namespace"]
    for name in ("labels", "annotations", "finalizers", "ownerReferences"):
        if not metadata.get(name, True):
            del metadata[name]
    if "managedFields" not in sent and "managedFields" in stored:
        metadata["managedFields"] = stored["managedFields"]
    return metadata


def _take(new: Object, old: Object, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _only(source: Object, name: str) -> Object:
    return {name: source[name]} if name in source else {}


def _content_changed(kind: Kind, new: Object, old: Object) -> bool:
    """Does this write count as a new generation?"""
    if kind.custom or kind.key == ("discovery.k8s.io", "endpointslices"):
        skipped = {"metadata", "status"} if kind.has_status else {"metadata"}
        return _without(new, skipped) != _without(old, skipped)
    if kind.key == ("apps", "deployments") and new["metadata"].get("annotations") != old["metadata"].get("annotations"):
        return True
    return bool(new.get("spec") != old.get("spec"))


def _without(obj: Object, names: set[str]) -> Object:
    return {key: value for key, value in obj.items() if key not in names}
