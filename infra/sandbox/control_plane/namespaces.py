"""The life of namespaces: what a fresh one holds, and how a terminating one is emptied and goes."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane import deletion
from infra.sandbox.control_plane.history import Event
from infra.sandbox.control_plane.resources import Kind, by_plural
from infra.sandbox.control_plane.store import NAMESPACE, Store

Object = dict[str, Any]

ACCOUNT = by_plural("", "v1", "serviceaccounts")
CONFIG_MAP = by_plural("", "v1", "configmaps")
SERVICE = by_plural("", "v1", "services")
PRIORITY_CLASS = by_plural("scheduling.k8s.io", "v1", "priorityclasses")
FIRST = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
ROOT_CA = "kube-root-ca.crt"
CA_NOTICE = "simulated: the embedded control plane is served without TLS"


class Namespaces:
    """Fills new namespaces and empties terminating ones."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._terminating: set[str] = set()
        store.subscribe(self._told)

    def lay_foundation(self) -> None:
        """What every cluster has from the start."""
        for name in FIRST:
            self._store.create(NAMESPACE, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            self._store.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}
        labels = {"component": "apiserver", "provider": "kubernetes"}
        metadata = {"name": "kubernetes", "namespace": "default", "labels": labels}
        self._store.create(SERVICE, {"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "ports": [port]}})

    def _told(self, event: Event, kind: Kind, obj: Object, _old: Object | None) -> None:
        if kind.key == NAMESPACE.key:
            self._namespace_changed(event, obj)
        elif event == "DELETED" and self._terminating and kind.namespaced:
            namespace = obj["metadata"]["namespace"]
            if namespace in self._terminating and not self._left(namespace):
                self._release(namespace)

    def _namespace_changed(self, event: Event, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        if event == "ADDED":
            metadata = {"namespace": name}
            self._store.create(ACCOUNT, {"metadata": {**metadata, "name": "default"}})
            self._store.create(CONFIG_MAP, {"metadata": {**metadata, "name": ROOT_CA}, "data": {"ca.crt": CA_NOTICE}})
        elif event == "DELETED":
            self._terminating.discard(name)
        elif "deletionTimestamp" in namespace["metadata"] and name not in self._terminating:
            self._terminating.add(name)
            self._empty(name)

    def _empty(self, namespace: str) -> None:
        """Delete everything in it: at once where nothing holds it, else as its grace and finalizers allow."""
        for kind, obj in self._left(namespace):
            deletion.delete(self._store, kind, obj, deletion.Options(propagation="Background"))
        if not self._left(namespace):
            self._release(namespace)

    def _left(self, namespace: str) -> list[tuple[Kind, Object]]:
        left = []
        for kind in self._store.registry:
            if kind.namespaced and (kind.group, kind.plural) == kind.key:
                left += [(kind, obj) for obj in self._store.list(kind, namespace)]
        return left

    def _release(self, name: str) -> None:
        namespace = self._store.get(NAMESPACE, None, name)
        if namespace is None:
            return
        rest = [each for each in namespace.get("spec", {}).get("finalizers", ()) if each != "kubernetes"]
        spec = {**namespace.get("spec", {}), "finalizers": rest}
        if not rest:
            del spec["finalizers"]
        new = {**namespace, "spec": spec}
        if deletion.released(new):
            self._store.remove(NAMESPACE, new)
        elif new != namespace:
            self._store.commit(NAMESPACE, "MODIFIED", new, namespace)
