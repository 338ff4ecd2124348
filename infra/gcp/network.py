"""From a target to the request that makes it: RDMA networks, reservation affinity, node pool. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.errors import BadSpec
from infra.gcp import read
from infra.model.pools import Request
from infra.model.record import RUN, UNPROVEN_TAINT
from infra.model.spec import GkeTarget
from infra.model.survey import ClusterFacts, Machine

EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
BOOT_DISK_GIB = 200
DRANET_LABEL = "cloud.google.com/gke-networking-dra-driver"  # GKE's own RDMA driver runs on nodes that carry it
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def cluster_path(project: str, location: str, cluster: str) -> str:
    """GKE's full name of a cluster."""
    return f"projects/{project}/locations/{location}/clusters/{cluster}"


def request(target: GkeTarget, run: str, cluster: ClusterFacts, machine: Machine) -> Request:
    """What `create` sends. The same input gives the same request."""
    parent = cluster_path(target.project, target.location, target.cluster)
    return Request(
        verb="container.create_node_pool",
        object=f"node pool {target.cluster}/{target.name}",
        body={"parent": parent, "node_pool": node_pool(target, run, cluster, machine)},
    )


def node_pool(target: GkeTarget, run: str, cluster: ClusterFacts, machine: Machine) -> dict[str, Any]:
    """The NodePool. One zone and a fixed size; a deletion respects budgets; an upgrade needs no spare machine."""
    pool: dict[str, Any] = {
        "name": target.name,
        "initial_node_count": target.nodes,
        "locations": [target.zone],
        "config": config(target, run, machine),
        "management": management(cluster),
        # Surge machines would come out of the same reservation: with none free the upgrade would never end.
        "upgrade_settings": {"strategy": "SURGE", "max_surge": 0, "max_unavailable": 1},
        "node_drain_config": {"respect_pdb_during_node_pool_deletion": True},
    }
    network = network_config(target, machine)
    if network:
        pool["network_config"] = network
    if target.placement_policy:
        pool["placement_policy"] = {"type_": "COMPACT", "policy_name": target.placement_policy}
    return pool


def config(target: GkeTarget, run: str, machine: Machine) -> dict[str, Any]:
    """NodeConfig. GKE adds its own nvidia.com/gpu taint."""
    labels = {**target.labels, RUN: run}
    if machine.fabric == "roce" and target.rdma_network_profile == "auto":
        labels[DRANET_LABEL] = "true"
    taints = [{"key": t.key, "value": t.value, "effect": EFFECTS[t.effect]} for t in target.taints]
    node: dict[str, Any] = {
        "machine_type": target.machine_type,
        "accelerators": [
            {
                "accelerator_type": machine.accelerator,
                "accelerator_count": machine.gpus,
                "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"},
            }
        ],
        "image_type": "COS_CONTAINERD",  # the RDMA installers and the Lustre driver know no other
        "disk_type": read.machines()[machine.name]["disk_type"],
        "disk_size_gb": BOOT_DISK_GIB,
        "gvnic": {"enabled": True},
        "oauth_scopes": list(SCOPES),
        "labels": labels,
        "taints": [*taints, {"key": UNPROVEN_TAINT, "value": run, "effect": "NO_SCHEDULE"}],
        "resource_labels": {read.RUN_LABEL: run, "poolshift-managed": "true"},
        "reservation_affinity": affinity(target),
    }
    if machine.local_ssds:
        node["ephemeral_storage_local_ssd_config"] = {"local_ssd_count": machine.local_ssds}
    if target.service_account:
        node["service_account"] = target.service_account
    return node


def affinity(target: GkeTarget) -> dict[str, Any]:
    """Exactly the named reservation, or none at all: an unnamed one must not be eaten by accident."""
    named = target.reservation
    if named is None:
        return {"consume_reservation_type": "NO_RESERVATION"}
    value = named.name
    if named.project or named.block:
        value = f"projects/{named.project or target.project}/reservations/{named.name}"
    if named.block:
        value += f"/reservationBlocks/{named.block}"
    return {"consume_reservation_type": "SPECIFIC_RESERVATION", "key": read.RESERVATION_KEY, "values": [value]}


def network_config(target: GkeTarget, machine: Machine) -> dict[str, Any]:
    """GKE's own RDMA networks ('auto'), or the named ones, gVNIC first.

    Raises:
        BadSpec: a network is not written as NETWORK/SUBNETWORK.

    """
    if target.rdma_network_profile == "auto":
        return {"accelerator_network_profile": "auto"} if machine.fabric == "roce" else {}
    pairs = []
    for entry in target.rdma_networks:
        network, slash, subnetwork = entry.partition("/")
        if not (network and slash and subnetwork):
            raise BadSpec(
                "target.rdma_networks",
                f"{entry!r}",
                expected="NETWORK/SUBNETWORK for each interface",
                remedy="gcloud compute networks subnets list",
            )
        pairs.append({"network": network, "subnetwork": subnetwork})
    return {"additional_node_network_configs": pairs}


def management(cluster: ClusterFacts) -> dict[str, bool]:
    """Repair and upgrade off, so that nothing replaces a node under measurement; a release channel insists on both."""
    forced = bool(cluster.release_channel)
    return {"auto_repair": forced, "auto_upgrade": forced}


def prior_text(prior: Mapping[str, Any]) -> str:
    """In the characters that a resource label allows: "as1-mn0-mx4-tm0-tx0-r1-p0"."""
    return (
        f"as{int(prior['autoscaling'])}-mn{prior['min']}-mx{prior['max']}-tm{prior['total_min']}"
        f"-tx{prior['total_max']}-r{int(prior['repair'])}-p{int(prior['respect_pdb'])}"
    )


def read_prior(text: str) -> dict[str, Any] | None:
    """Back from the label; None for anything else."""
    try:
        scaling, low, high, total_low, total_high, repair, budgets = text.split("-")
        return {
            "autoscaling": scaling.removeprefix("as") == "1",
            "min": int(low.removeprefix("mn")),
            "max": int(high.removeprefix("mx")),
            "total_min": int(total_low.removeprefix("tm")),
            "total_max": int(total_high.removeprefix("tx")),
            "repair": repair.removeprefix("r") == "1",
            "respect_pdb": budgets.removeprefix("p") == "1",
        }
    except ValueError:
        return None


def prior_of(pool: Mapping[str, Any]) -> dict[str, Any]:
    """What fencing will change, as it is now."""
    scaling = pool.get("autoscaling") or {}
    drain = pool.get("node_drain_config") or {}
    return {
        "autoscaling": bool(scaling.get("enabled")),
        "min": int(scaling.get("min_node_count") or 0),
        "max": int(scaling.get("max_node_count") or 0),
        "total_min": int(scaling.get("total_min_node_count") or 0),
        "total_max": int(scaling.get("total_max_node_count") or 0),
        "repair": bool((pool.get("management") or {}).get("auto_repair")),
        "respect_pdb": bool(drain.get("respect_pdb_during_node_pool_deletion")),
    }
