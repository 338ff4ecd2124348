"""Simulated nodes: how a cloud adds them to the cluster and takes them away.

A node carries its hardware as an annotation. What of that Kubernetes may hand out is decided by the node agent:
an extended resource shows only while the plugin that advertises it runs on the node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from infra.fabrics.loader import fabric_of
from infra.model.record import SIMULATED
from infra.sandbox.access import Answer, Api

HARDWARE = "sandbox.poolshift.dev/hardware"  # annotation: JSON {"machine_type", "gpus", "rdma": {resource: count}}
VCPUS = 192  # p5en.48xlarge; a3-ultragpu-8g has 224
MEMORY = "2Ti"
PODS = 110


def hardware(machine_type: str, *, rdma: bool = True) -> dict[str, Any]:
    """What one node of the type has. `rdma=False`: launched without its EFA interfaces or RDMA networks."""
    fabric = fabric_of(machine_type)
    gpus = {fabric.gpu_resource: fabric.gpus} if fabric else {}
    interfaces = dict(fabric.rdma_resources) if fabric and rdma else {}
    return {"machine_type": machine_type, "gpus": gpus, "rdma": interfaces}


def add_node(
    api: Api,
    *,
    name: str,
    pool_labels: Mapping[str, str],
    machine_type: str,
    zone: str,
    rdma: bool = True,
    taints: Sequence[Mapping[str, str]] = (),
    provider_id: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Register a node. The agent makes it Ready. A node of that name that exists is returned as it is.

    Args:
        api: the cluster.
        name: node name.
        pool_labels: what the cloud puts on nodes of the pool, and the pool's own labels.
        machine_type: as the cloud calls it; decides GPUs and RDMA interfaces.
        zone: topology.kubernetes.io/zone.
        rdma: whether the machine was launched with its RDMA interfaces.
        taints: in Kubernetes' spelling, {"key", "value", "effect"}.
        provider_id: aws:///zone/i-… or gce://project/zone/name.
        annotations: further annotations.

    """
    labels = {
        SIMULATED: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": machine_type,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": _region(zone),
        **pool_labels,
    }
    spec: dict[str, Any] = {"taints": [dict(taint) for taint in taints]} if taints else {}
    if provider_id:
        spec["providerID"] = provider_id
    base = {"cpu": str(VCPUS), "memory": MEMORY, "pods": str(PODS), "ephemeral-storage": "3Ti"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {HARDWARE: json.dumps(hardware(machine_type, rdma=rdma)), **(annotations or {})},
        },
        "spec": spec,
        "status": {"capacity": base, "allocatable": base},
    }
    try:
        return api.request("POST", "/api/v1/nodes", node)
    except Answer as answer:
        if answer.status != 409:
            raise
        return api.request("GET", f"/api/v1/nodes/{name}")


def _region(zone: str) -> str:
    """europe-west4-b -> europe-west4; us-east-2a -> us-east-2."""
    return zone[:-2] if zone[-2:-1] == "-" else zone[:-1]


def remove_node(api: Api, name: str) -> None:
    """Delete the node object, as a cloud controller does when the machine has gone. Absent is success."""
    try:
        api.request("DELETE", f"/api/v1/nodes/{name}")
    except Answer as answer:
        if answer.status != 404:
            raise


def pool_nodes(api: Api, labels: Mapping[str, str]) -> list[str]:
    """Names of the simulated nodes that carry all `labels`, sorted."""
    selector = ",".join(f"{key}={value}" for key, value in {SIMULATED: "true", **labels}.items())
    items = api.list_items("/api/v1/nodes", {"labelSelector": selector})
    return sorted(item["metadata"]["name"] for item in items)
