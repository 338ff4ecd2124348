"""Admission on create, as the real server's default plugins: service accounts, priority, taints, protection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.resources import Kind, by_plural

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]

NAMESPACE = by_plural("", "v1", "namespaces")
PRIORITY_CLASS = by_plural("scheduling.k8s.io", "v1", "priorityclasses")
STORAGE_CLASS = by_plural("storage.k8s.io", "v1", "storageclasses")

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
NOT_READY = "node.kubernetes.io/not-ready"
EVICTION_TOLERATIONS: tuple[Object, ...] = tuple(
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for key in (NOT_READY, "node.kubernetes.io/unreachable")
)
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 (a path)
TOKEN_SOURCE: Object = {
    "defaultMode": 420,
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
                                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ],
}  # fmt: skip


def admit_create(store: Store, kind: Kind, obj: Object) -> None:
    """Refuse or complete a new object, in place."""
    if kind.namespaced:
        _check_namespace(store, kind, obj)
    plugin = _PLUGINS.get(kind.key)
    if plugin is not None:
        plugin(store, obj)


def _check_namespace(store: Store, kind: Kind, obj: Object) -> None:
    name = obj["metadata"].get("namespace", "")
    namespace = store.get(NAMESPACE, None, name)
    if namespace is None:
        raise errors.not_found("", "namespaces", name)
    if "deletionTimestamp" in namespace["metadata"]:
        raise terminating(kind, obj["metadata"]["name"], name)


def terminating(kind: Kind, name: str, namespace: str) -> errors.ApiError:
    """403 for new content of a namespace that is going."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    text = f"namespace {namespace} is being terminated"
    cause = errors.Cause(reason="NamespaceTerminating", message=text, field="metadata.namespace")
    return errors.forbidden(kind.group, kind.plural, name, why, [cause])


def _admit_pod(store: Store, pod: Object) -> None:
    spec = pod["spec"]
    _set_priority(store, pod, spec)
    present = spec.get("tolerations", [])
    missing = [wanted for wanted in EVICTION_TOLERATIONS if not _tolerated(wanted["key"], present)]
    if missing:
        spec["tolerations"] = [*present, *missing]
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    if spec.get("automountServiceAccountToken", True):
        _mount_token(store, spec)


def _tolerated(key: str, tolerations: list[Object]) -> bool:
    return any(
        toleration.get("key", key) == key and toleration.get("effect", "NoExecute") in ("NoExecute", "")
        for toleration in tolerations
        if toleration.get("key") or toleration.get("operator") == "Exists"
    )


def _set_priority(store: Store, pod: Object, spec: Object) -> None:
    chosen = spec.get("priorityClassName")
    found = store.get(PRIORITY_CLASS, None, chosen) if chosen else None
    if chosen and found is None:
        why = f"no PriorityClass with name {chosen} was found"
        raise errors.forbidden("", "pods", pod["metadata"]["name"], why)
    if found is None:
        found = next((each for each in store.list(PRIORITY_CLASS) if each.get("globalDefault")), None)
    if found is None:
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    spec["priorityClassName"] = found["metadata"]["name"]
    spec["priority"] = found["value"]
    spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")


def _mount_token(store: Store, spec: Object) -> None:
    """The projected token that every pod carries unless it says otherwise."""
    mount: Object | None = None
    for group in ("containers", "initContainers"):
        for container in spec.get(group) or ():
            mounts = container.get("volumeMounts", [])
            if any(each.get("mountPath") == TOKEN_PATH for each in mounts):
                continue
            if mount is None:
                volume = "kube-api-access-" + store.suffix()
                spec["volumes"] = [*spec.get("volumes", []), {"name": volume, "projected": TOKEN_SOURCE}]
                mount = {"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}
            container["volumeMounts"] = [*mounts, mount]


def _admit_node(_store: Store, node: Object) -> None:
    """A fresh node takes no pods until the node lifecycle controller has seen it Ready."""
    spec = node.setdefault("spec", {})
    taints = spec.get("taints", [])
    if not any(taint.get("key") == NOT_READY and taint.get("effect") == "NoSchedule" for taint in taints):
        spec["taints"] = [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]


def _admit_claim(store: Store, claim: Object) -> None:
    _protect(claim, "kubernetes.io/pvc-protection")
    if "storageClassName" not in claim["spec"]:
        classes = store.list(STORAGE_CLASS)
        chosen = [each for each in classes if each["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true"]
        if chosen:
            claim["spec"]["storageClassName"] = chosen[0]["metadata"]["name"]


def _admit_volume(_store: Store, volume: Object) -> None:
    _protect(volume, "kubernetes.io/pv-protection")


def _protect(obj: Object, finalizer: str) -> None:
    present = obj["metadata"].get("finalizers", [])
    if finalizer not in present:
        obj["metadata"]["finalizers"] = [*present, finalizer]


def _admit_service(store: Store, service: Object) -> None:
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = store.cluster_ip()
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")


_PLUGINS = {
    ("", "pods"): _admit_pod,
    ("", "nodes"): _admit_node,
    ("", "persistentvolumeclaims"): _admit_claim,
    ("", "persistentvolumes"): _admit_volume,
    ("", "services"): _admit_service,
}
