"""Namespaces: what every new one gets, and how a terminating one is emptied and removed."""

from __future__ import annotations

from collections import Counter

from infra.sandbox.control_plane.controllers.cluster import NAMESPACE, POD, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, is_deleting, with_condition
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import Kind, kind_of

SERVICE_ACCOUNT = kind_of("v1", "ServiceAccount")
CONFIG_MAP = kind_of("v1", "ConfigMap")
ROOT_CA = "kube-root-ca.crt"
CA_NOTICE = "simulated: the embedded control plane is served without TLS"

_SUCCESSES = (
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    ("NamespaceDeletionGroupVersionParsingFailure", "ParsedGroupVersions", "All legacy kube types successfully parsed"),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
)
"""Conditions of a terminating namespace that are False when all is well: type, reason, message."""


class Namespaces:
    """Furnishes new namespaces and empties terminating ones."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("namespace", self.reconcile)
        cluster.on(NAMESPACE, lambda event, obj, old: self._queue.add(("", obj["metadata"]["name"])))
        cluster.on_every(self._content_changed)

    def _content_changed(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        name = obj["metadata"].get("namespace")
        if event != "DELETED" or not name:
            return
        namespace = self._cluster.store.get(NAMESPACE, None, name)
        furniture = kind.key in (SERVICE_ACCOUNT.key, CONFIG_MAP.key)
        if namespace is not None and (is_deleting(namespace) or furniture):
            self._queue.add(("", name))

    def reconcile(self, key: Key) -> None:
        """Furnish a live namespace; empty and remove a terminating one."""
        namespace = self._cluster.store.get(NAMESPACE, None, key[1])
        if namespace is None:
            return
        if not is_deleting(namespace):
            self._furnish(key[1])
            return
        left = self._delete_content(key[1])
        if left:
            self._write_conditions(namespace, left)
        elif not namespace["metadata"].get("finalizers"):
            self._cluster.store.remove(NAMESPACE, namespace)

    def _furnish(self, name: str) -> None:
        store = self._cluster.store
        if store.get(SERVICE_ACCOUNT, name, "default") is None:
            store.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": name}})
        if store.get(CONFIG_MAP, name, ROOT_CA) is None:
            metadata = {"name": ROOT_CA, "namespace": name}
            store.create(CONFIG_MAP, {"metadata": metadata, "data": {"ca.crt": CA_NOTICE}})

    def _kinds(self) -> list[Kind]:
        """Every stored namespaced kind once, pods first: nothing else goes while pods may still need it."""
        kinds = {
            each.key: each
            for each in self._cluster.store.registry
            if each.namespaced and (each.group, each.plural) == each.key
        }
        kinds.pop(POD.key, None)
        return [POD, *kinds.values()]

    def _delete_content(self, name: str) -> list[tuple[Kind, Object]]:
        """Delete what is there, and return what is still there afterwards."""
        left: list[tuple[Kind, Object]] = []
        for kind in self._kinds():
            for obj in self._cluster.store.list(kind, name):
                if not is_deleting(obj):
                    try:
                        self._cluster.store.delete(kind, name, obj["metadata"]["name"], propagation="Background")
                    except ApiError as error:
                        if error.code not in (404, 409):
                            raise
            left += [(kind, obj) for obj in self._cluster.store.list(kind, name)]
            if kind is POD and left:
                break
        return left

    def _write_conditions(self, namespace: Object, left: list[tuple[Kind, Object]]) -> None:
        status = dict(namespace.get("status") or {})
        conditions = list(status.get("conditions") or ())
        for kind, state, reason, message in _wanted_conditions(left):
            known = next((each for each in conditions if each["type"] == kind), None)
            if known is not None and (known["status"], known["message"]) == (state, message):
                continue
            same = known is not None and known["status"] == state
            stamp = known["lastTransitionTime"] if same and known else self._cluster.stamp()
            new = {"type": kind, "status": state, "lastTransitionTime": stamp, "reason": reason, "message": message}
            conditions = with_condition(conditions, new)
        status["conditions"] = conditions
        self._cluster.write_status(NAMESPACE, namespace, status)


def _wanted_conditions(left: list[tuple[Kind, Object]]) -> list[tuple[str, str, str, str]]:
    kinds = Counter(f"{kind.plural}.{kind.group}" for kind, _ in left)
    finalizers = Counter(each for _, obj in left for each in obj["metadata"].get("finalizers") or ())
    remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(kinds.items()))
    held = ", ".join(f"{name} in {count} resource instances" for name, count in sorted(finalizers.items()))
    wanted = [(kind, "False", reason, message) for kind, reason, message in _SUCCESSES]
    wanted.append(
        (
            "NamespaceContentRemaining",
            "True",
            "SomeResourcesRemain",
            f"Some resources are remaining: {remaining}",
        )
    )
    if held:
        message = f"Some content in the namespace has finalizers remaining: {held}"
        wanted.append(("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", message))
    else:
        message = "All content-preserving finalizers finished"
        wanted.append(("NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers", message))
    return wanted
