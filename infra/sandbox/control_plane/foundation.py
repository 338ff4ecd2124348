"""What every cluster has from the start: its namespaces, its own service, the two system priorities."""

from __future__ import annotations

from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import NAMESPACE, Store

SERVICE = by_plural("", "v1", "services")
PRIORITY_CLASS = by_plural("scheduling.k8s.io", "v1", "priorityclasses")
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


def lay(store: Store) -> None:
    """Create it in an empty store."""
    for name in NAMESPACES:
        store.create(NAMESPACE, {"metadata": {"name": name}})
    for name, value in SYSTEM_PRIORITIES.items():
        store.create(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
    port = {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}
    labels = {"component": "apiserver", "provider": "kubernetes"}
    metadata = {"name": "kubernetes", "namespace": "default", "labels": labels}
    store.create(SERVICE, {"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "ports": [port]}})
