"""What Google Cloud answers (plain JSON, snake case for GKE, camel case for REST), as our own frozen types. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from infra.clock import parse_time
from infra.fabrics import fabric_of
from infra.model.pools import IssueClass, Pool, PoolIssue, PoolState
from infra.model.survey import ClusterFacts, Lustre, Machine, Quota, Ranges, RdmaNetwork, Reservation

POOL_LABEL = "cloud.google.com/gke-nodepool"
GPU = "nvidia.com/gpu"
RUN_LABEL = "poolshift-run"  # resource labels allow no dots and slashes
PRIOR_LABEL = "poolshift-prior"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"

_STATES = {
    "PROVISIONING": PoolState.CREATING,
    "RUNNING": PoolState.ACTIVE,
    "RUNNING_WITH_ERROR": PoolState.DEGRADED,
    "RECONCILING": PoolState.UPDATING,
    "STOPPING": PoolState.DELETING,
    "ERROR": PoolState.FAILED,
}
_CLASSES = {
    "GCE_STOCKOUT": IssueClass.CAPACITY,
    "GCE_QUOTA_EXCEEDED": IssueClass.QUOTA,
    "GKE_SERVICE_ACCOUNT_DELETED": IssueClass.CONFIG,
    "NODE_SERVICE_ACCOUNT_MISSING_PERMISSIONS": IssueClass.CONFIG,
    "CLOUD_KMS_KEY_ERROR": IssueClass.CONFIG,
    "CLOUD_KMS_KEY_DESTROYED": IssueClass.CONFIG,
    "SET_BY_OPERATOR": IssueClass.UNKNOWN,
    "CA_EXPIRING": IssueClass.TRANSIENT,
}
_WORDS = (
    ("stockout", IssueClass.CAPACITY),
    ("zone_resource_pool_exhausted", IssueClass.CAPACITY),
    ("does not have enough resources", IssueClass.CAPACITY),
    ("short of", IssueClass.CAPACITY),
    ("quota", IssueClass.QUOTA),
    ("reservation", IssueClass.CAPACITY),
    ("not all instances running in igm", IssueClass.CAPACITY),
    ("failed to register", IssueClass.JOIN),
)
MAX_PODS = 110  # of a node, GKE's default


def pool_state(status: str) -> PoolState:
    """GKE's status; one that we do not know is degraded, never active."""
    return _STATES.get(status, PoolState.DEGRADED)


def issue_class(code: str, message: str) -> IssueClass:
    """What to do about a condition or an operation's error. Without a telling code its words decide."""
    if code in _CLASSES:
        return _CLASSES[code]
    lowered = message.lower()
    return next((its for word, its in _WORDS if word in lowered), IssueClass.UNKNOWN)


def issues(node_pool: Mapping[str, Any], operations: Iterable[Mapping[str, Any]] = ()) -> tuple[PoolIssue, ...]:
    """A pool's conditions and the errors of the operations on it, without repeats."""
    found: dict[str, PoolIssue] = {}
    for condition in node_pool.get("conditions") or ():
        code, message = condition.get("code") or "UNKNOWN", condition.get("message") or ""
        found[message] = PoolIssue(code=code, message=message, issue_class=issue_class(code, message))
    for operation in operations:
        error = operation.get("error") or {}
        if not error:
            continue
        message = error.get("message") or f"operation {operation.get('name')} failed with code {error.get('code')}"
        found.setdefault(
            message,
            PoolIssue(
                code=operation_code(message),
                message=message,
                issue_class=issue_class("", message),
                resources=(str(operation.get("name", "")),),
            ),
        )
    return tuple(found.values())


def operation_code(message: str) -> str:
    """The word in capitals that GCE puts into its message ("GCE_STOCKOUT"), else OPERATION_FAILED."""
    known = ("GCE_STOCKOUT", "ZONE_RESOURCE_POOL_EXHAUSTED", "GCE_QUOTA_EXCEEDED", "CONDITION_NOT_MET")
    return next((word for word in known if word in message), "OPERATION_FAILED")


def pool(
    node_pool: Mapping[str, Any], identity: str, zones: Iterable[str], operations: Iterable[Mapping[str, Any]] = ()
) -> Pool:
    """A node pool. `zones` are the cluster's, used where it names none; `operations` are on it, newest first."""
    config = node_pool.get("config") or {}
    labels = config.get("resource_labels") or {}
    located = tuple(node_pool.get("locations") or zones)
    machine_type = str(config.get("machine_type", ""))
    gpus = sum(int(a.get("accelerator_count") or 0) for a in config.get("accelerators") or ())
    scaling = node_pool.get("autoscaling") or {}
    operations = list(operations)
    return Pool(
        kind="gke",
        name=str(node_pool.get("name", "")),
        identity=identity,
        state=_state(str(node_pool.get("status", "")), operations),
        machine_type=machine_type,
        nodes=int(node_pool.get("initial_node_count") or 0) * max(1, len(located)),
        zones=located,
        issues=issues(node_pool, operations),
        node_selector={POOL_LABEL: str(node_pool.get("name", ""))},
        gpus={GPU: gpus} if gpus else {},
        rdma=rdma_resources(node_pool),
        tags=dict(labels),
        labels=dict(config.get("labels") or {}),
        ours=str(labels.get(RUN_LABEL, "")),
        reservation=reservation_name(config),
        bounds=_bounds(scaling, len(located)),
    )


def rdma_resources(node_pool: Mapping[str, Any]) -> dict[str, int]:
    """What each node should advertise: the type's, if the pool was made with RDMA networks at all."""
    network = node_pool.get("network_config") or {}
    if not network.get("accelerator_network_profile") and not network.get("additional_node_network_configs"):
        return {}
    fabric = fabric_of(str((node_pool.get("config") or {}).get("machine_type", "")))
    return dict(fabric.rdma_resources) if fabric else {}


def reservation_name(config: Mapping[str, Any]) -> str:
    """The bare name out of R or projects/P/reservations/R/reservationBlocks/B."""
    affinity = config.get("reservation_affinity") or {}
    value = str(next(iter(affinity.get("values") or ()), ""))
    parts = value.split("/")
    return parts[parts.index("reservations") + 1] if "reservations" in parts[:-1] else value


def cluster(described: Mapping[str, Any]) -> ClusterFacts:
    """GetCluster."""
    network = described.get("network_config") or {}
    addons = described.get("addons_config") or {}
    return ClusterFacts(
        name=str(described.get("name", "")),
        version=str(described.get("current_master_version", "")),
        state=str(described.get("status", "")),
        endpoints=_endpoints(described),
        network=str(network.get("network") or described.get("network", "")),
        multi_networking=bool(network.get("enable_multi_networking")),
        dataplane_v2=network.get("datapath_provider") == "ADVANCED_DATAPATH",
        lustre_driver=bool((addons.get("lustre_csi_driver_config") or {}).get("enabled")),
        autopilot=bool((described.get("autopilot") or {}).get("enabled")),
        release_channel=_channel(described),
        subnetwork=str(network.get("subnetwork", "")),
        pod_range=str((described.get("ip_allocation_policy") or {}).get("cluster_secondary_range_name", "")),
        max_pods=int((described.get("default_max_pods_constraint") or {}).get("max_pods_per_node") or 0),
    )


@cache
def machines() -> dict[str, dict[str, Any]]:
    """machines.yaml."""
    import yaml

    text = (resources.files("infra.gcp") / "machines.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def machine(name: str) -> Machine | None:
    """What GKE must be told of a type; None for one that the table does not have."""
    row = machines().get(name)
    if row is None:
        return None
    fabric = fabric_of(name)
    return Machine(
        name=name,
        gpus=row["gpus"],
        accelerator=row["accelerator"],
        rdma=dict(fabric.rdma_resources) if fabric else {},
        networks=row["networks"],
        fabric=row["fabric"],
        local_ssds=row["local_ssds"],
    )


def reservation(described: Mapping[str, Any]) -> Reservation:
    """Compute Engine's reservation. Machines start only in status READY."""
    specific = described.get("specificReservation") or {}
    shape = specific.get("instanceProperties") or {}
    accelerators = shape.get("guestAccelerators") or ()
    total, used = int(specific.get("count") or 0), int(specific.get("inUseCount") or 0)
    end = described.get("deleteAtTime")
    return Reservation(
        name=str(described.get("name", "")),
        state=str(described.get("status", "")),
        usable=described.get("status") == "READY",
        machine_type=str(shape.get("machineType", "")),
        zone=_tail(described.get("zone", "")),
        total=total,
        free=max(0, total - used),
        ends=parse_time(end) if end else None,
        accelerator=_tail(accelerators[0].get("acceleratorType", "")) if accelerators else "",
        accelerators=sum(int(a.get("acceleratorCount") or 0) for a in accelerators),
        local_ssds=len(shape["localSsds"]) if "localSsds" in shape else None,
        specific=bool(described.get("specificReservationRequired")),
        dense=described.get("deploymentType") == "DENSE",
    )


def reservation_block(whole: Reservation, described: Mapping[str, Any]) -> Reservation:
    """The reservation as a pool sees it that may only use this one block of it: the block's machines, and its state."""
    block = described.get("resource") or described
    total, used = int(block.get("count") or 0), int(block.get("inUseCount") or 0)
    state = str(block.get("status", ""))
    ready = state == "READY"
    return replace(
        whole,
        state=whole.state if ready else f"{whole.state}, its block {block.get('name', '')} {state or 'of no state'}",
        usable=whole.usable and ready,
        total=total,
        free=min(whole.free, max(0, total - used)),
    )


def lustre(described: Mapping[str, Any]) -> Lustre:
    """Managed Lustre's instance; its zone is in its name."""
    name = str(described.get("name", ""))
    parts = name.split("/")
    state = str(described.get("state", ""))
    return Lustre(
        name=name,
        state=state,
        usable=state in ("ACTIVE", "UPDATING", "UPGRADING"),
        zone=parts[parts.index("locations") + 1] if "locations" in parts[:-1] else "",
        network=str(described.get("network", "")),
        gke_support=bool(described.get("gkeSupportEnabled")),
    )


def rdma_network(name: str, described: Mapping[str, Any]) -> RdmaNetwork:
    """A VPC network; a RoCE one is named by its profile, <zone>-vpc-roce. Others are not tied to a zone."""
    profile = _tail(described.get("networkProfile", ""))
    zone = profile.partition("-vpc-roce")[0] if "-vpc-roce" in profile else ""
    return RdmaNetwork(name=name, zone=zone)


def ranges(cluster: ClusterFacts, described: Mapping[str, Any]) -> Ranges | None:
    """A subnetwork with its utilization: its primary range has no name. None where either range is not told."""
    told = (described.get("utilizationDetails") or {}).get("ipv4Utilizations") or ()
    free = {str(r.get("rangeName", "")): int(r["totalFreeIp"]) for r in told if "totalFreeIp" in r}
    if "" not in free or cluster.pod_range not in free:
        return None
    # GKE: the smallest block that holds twice the pods of a node, so that no address is used again at once
    block = 1 << (2 * (cluster.max_pods or MAX_PODS) - 1).bit_length()
    return Ranges(
        subnetwork=_tail(cluster.subnetwork),
        pod_range=cluster.pod_range,
        nodes_free=free[""],
        pods_free=free[cluster.pod_range],
        pods_per_node=block,
    )


def quota(described: Mapping[str, Any], metric: str) -> Quota | None:
    """One metric of a region's quotas; None where the region does not list it."""
    for entry in described.get("quotas") or ():
        if entry.get("metric") == metric:
            return Quota(name=metric, unit="GPU", limit=float(entry["limit"]), used=float(entry.get("usage", 0)))
    return None


def _state(status: str, operations: list[Mapping[str, Any]]) -> PoolState:
    """GKE has no status for a deletion that failed: the newest operation tells it."""
    newest = operations[0] if operations else {}
    if newest.get("operation_type") == "DELETE_NODE_POOL" and newest.get("error") and status != "STOPPING":
        return PoolState.DELETE_FAILED
    return pool_state(status)


def _endpoints(described: Mapping[str, Any]) -> tuple[str, ...]:
    """Public and private address, and the DNS name: a kubeconfig may name any of them."""
    control = described.get("control_plane_endpoints_config") or {}
    addresses = control.get("ip_endpoints_config") or {}
    private = described.get("private_cluster_config") or {}
    found = (
        described.get("endpoint"),
        (control.get("dns_endpoint_config") or {}).get("endpoint"),
        addresses.get("public_endpoint"),
        addresses.get("private_endpoint"),
        private.get("public_endpoint"),
        private.get("private_endpoint"),
    )
    return tuple(dict.fromkeys(str(endpoint) for endpoint in found if endpoint))


def _channel(described: Mapping[str, Any]) -> str:
    channel = str((described.get("release_channel") or {}).get("channel", ""))
    return "" if channel == "UNSPECIFIED" else channel


def _bounds(scaling: Mapping[str, Any], zones: int) -> tuple[int, int] | None:
    if not scaling.get("enabled"):
        return None
    if scaling.get("total_max_node_count"):
        return int(scaling.get("total_min_node_count") or 0), int(scaling["total_max_node_count"])
    return int(scaling.get("min_node_count") or 0) * zones, int(scaling.get("max_node_count") or 0) * zones


def _tail(path: object) -> str:
    return str(path).rpartition("/")[2]
