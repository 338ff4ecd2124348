"""An old pool and a new one of two simulated GPU nodes each, for gangs to move between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from infra.sandbox.nodes import add_node

POOL = "eks.amazonaws.com/nodegroup"
OLD, NEW = ("ip-a-0", "ip-a-1"), ("ip-b-0", "ip-b-1")


def add_pools(stage: Any) -> None:
    """Nodes of both pools, with their GPUs allocatable."""
    for pool, names in (("gpu-a", OLD), ("gpu-b", NEW)):
        for name in names:
            labels = {POOL: pool}
            add_node(stage.sandbox.api, name=name, pool_labels=labels, machine_type="p5en.48xlarge", zone="us-east-2a")

    def gpus() -> bool:
        found = [stage.kube.get(f"/api/v1/nodes/{name}") or {} for name in (*OLD, *NEW)]
        return all((n.get("status") or {}).get("allocatable", {}).get("nvidia.com/gpu") == "8" for n in found)

    until(gpus, "GPUs allocatable on four nodes")


def until(seen: Callable[[], object], what: str, seconds: float = 180.0) -> None:
    """Real time: a real control plane has no other."""
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.5)


def pod_template(**labels: str) -> dict[str, Any]:
    """A rank that trains for ever, pinned to the old pool."""
    container = {"name": "rank", "image": "registry.example.com/train:1"}
    return {
        "metadata": {"labels": labels, "annotations": {"sandbox.poolshift.dev/run-seconds": "forever"}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {POOL: "gpu-a"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [{**container, "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
        },
    }


def homes(kube: Any, label: str) -> dict[str, str]:
    """Pod to node, of the running pods with a label ("key=value")."""
    pods = kube.list("/api/v1/namespaces/default/pods", {"labelSelector": label})
    return {
        p["metadata"]["name"]: p["spec"].get("nodeName", "")
        for p in pods
        if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")
    }
