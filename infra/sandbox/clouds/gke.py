"""Simulated GKE node pools and operations, as google-cloud-container's own messages; `gke_server` carries them.

One operation at a time per cluster; creating and deleting take time; a failed creation leaves the pool behind; an
unknown name, a taken one and a busy cluster are answered with the codes and words of the real service. A deletion
kills the machines after its time whatever runs on them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from infra.clock import rfc3339_micro
from infra.sandbox.clouds import names
from infra.sandbox.clouds.capacity import Capacity, Faults, Outcome
from infra.sandbox.clouds.instance_groups import InstanceGroups
from infra.sandbox.clouds.machines import Machine, Nodes, gke_name, kubernetes_taints
from infra.sandbox.clouds.timeline import Timeline
from infra.sandbox.scenario import CloudConfig

VERSION = "1.34.1-gke.2541000"
CHANGE_SECONDS = 20.0
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}  # GKE's own, on every GPU pool


class Refusal(Exception):
    """GKE says no: a gRPC code's name and a message."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass
class NodePools:
    """The node pools and operations of the one simulated cluster. Messages are google-cloud-container's."""

    config: CloudConfig
    timeline: Timeline
    nodes: Nodes
    capacity: Capacity
    faults: Faults
    self_link: Callable[[], str]
    pools: dict[str, Any] = field(default_factory=dict)
    machines: dict[str, list[str]] = field(default_factory=dict)
    groups: InstanceGroups = field(init=False)
    operations: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.groups = InstanceGroups(self)

    @property
    def parent(self) -> str:
        """Full name of the cluster."""
        place = self.config.place
        return f"projects/{place.project}/locations/{place.region}/clusters/{place.cluster}"

    def get_cluster(self, request: Any) -> Any:
        """GetCluster."""
        from google.cloud import container_v1 as gke

        self._known(request.name)
        place = self.config.place
        return gke.Cluster(
            {
                "name": place.cluster,
                "location": place.region,
                "locations": [place.zone],
                "status": "RUNNING",
                "current_master_version": VERSION,
                "endpoint": "127.0.0.1",
                "network": names.GKE_NETWORK,
                "network_config": {
                    "network": f"projects/{place.project}/global/networks/{names.GKE_NETWORK}",
                    "enable_multi_networking": True,
                    "datapath_provider": "ADVANCED_DATAPATH",
                    "subnetwork": f"projects/{place.project}/regions/{place.region}/subnetworks/{names.GKE_SUBNETWORK}",
                },
                "ip_allocation_policy": {"use_ip_aliases": True, "cluster_secondary_range_name": names.GKE_POD_RANGE},
                "default_max_pods_constraint": {"max_pods_per_node": 110},
                "addons_config": {"lustre_csi_driver_config": {"enabled": True}},
                "self_link": f"{self.self_link()}/v1/{self.parent}",
            }
        )

    def get_node_pool(self, request: Any) -> Any:
        """GetNodePool."""
        return self._get(request.name)

    def list_node_pools(self, request: Any) -> Any:
        """ListNodePools."""
        from google.cloud import container_v1 as gke

        self._known(request.parent)
        return gke.ListNodePoolsResponse(node_pools=list(self.pools.values()))

    def create_node_pool(self, request: Any) -> Any:
        """CreateNodePool: PROVISIONING at once, its outcome later."""
        self._known(request.parent)
        pool = request.node_pool
        if pool.name in self.pools:
            raise Refusal("ALREADY_EXISTS", f"Already exists: {self.parent}/nodePools/{pool.name}.")
        self._check(pool)
        self._free()
        return self._provision(pool)

    def adopt(self, pool: Any, machines: tuple[str, ...]) -> None:
        """A pool that stands already, with its machines in the cluster."""
        pool.status = "RUNNING"
        pool.self_link = f"{self.self_link()}/v1/{self.parent}/nodePools/{pool.name}"
        self.pools[pool.name], self.machines[pool.name] = pool, list(machines)
        self.groups.adopt(pool, len(machines))

    def delete_node_pool(self, request: Any) -> Any:
        """DeleteNodePool: STOPPING, then every machine is killed."""
        pool = self._get(request.name)
        self._free()
        pool.status = "STOPPING"
        operation = self._operation("DELETE_NODE_POOL", pool.name)
        failure, self.faults.delete_failure = self.faults.delete_failure, ""
        seconds = self.config.scenario.target.delete_seconds
        if failure:
            self.timeline.after(seconds, lambda: self._delete_failed(pool, operation, failure))
        else:
            self.timeline.after(seconds * 0.7, lambda: self._kill(pool.name))
            self.timeline.after(seconds, lambda: self._gone(pool.name, operation))
        return operation

    def update_node_pool(self, request: Any) -> Any:
        """UpdateNodePool: taints, labels, resource labels, drain settings."""
        pool = self._get(request.name)
        self._free()
        if "taints" in request:
            pool.config.taints = list(request.taints.taints)
        if "labels" in request:
            pool.config.labels = dict(request.labels.labels)
        if "resource_labels" in request:
            pool.config.resource_labels = dict(request.resource_labels.labels)
        if "node_drain_config" in request:
            pool.node_drain_config = request.node_drain_config
        return self._changed("UPDATE_CLUSTER", pool)

    def set_node_pool_autoscaling(self, request: Any) -> Any:
        """SetNodePoolAutoscaling."""
        pool = self._get(request.name)
        self._free()
        pool.autoscaling = request.autoscaling
        return self._changed("UPDATE_CLUSTER", pool)

    def set_node_pool_size(self, request: Any) -> Any:
        """SetNodePoolSize: more machines are made; of fewer, GKE chooses which are killed."""
        pool = self._get(request.name)
        self._free()
        more = int(request.node_count) - self.groups.size[pool.name]
        operation = self._operation("SET_NODE_POOL_SIZE", pool.name)
        seconds = self.config.scenario.target.of_change(CHANGE_SECONDS)
        if more > 0:
            seconds = self.config.scenario.target.create_seconds
            self._grow(pool, operation, more)
        else:
            self.groups.shrink(pool.name, -more)
        self.timeline.after(seconds, lambda: self._done_if_running(operation))
        return operation

    def set_node_pool_management(self, request: Any) -> Any:
        """SetNodePoolManagement."""
        pool = self._get(request.name)
        self._free()
        pool.management = request.management
        return self._changed("SET_NODE_POOL_MANAGEMENT", pool)

    def get_operation(self, request: Any) -> Any:
        """GetOperation."""
        number = request.name.rpartition("/")[2]
        if number not in self.operations:
            raise Refusal("NOT_FOUND", f"Not found: {request.name}.")
        return self.operations[number]

    def list_operations(self, request: Any) -> Any:
        """ListOperations."""
        from google.cloud import container_v1 as gke

        return gke.ListOperationsResponse(operations=list(self.operations.values()))

    def _known(self, path: str) -> None:
        if path != self.parent and not path.startswith(self.parent + "/"):
            raise Refusal("NOT_FOUND", f"Not found: {path}.")

    def _get(self, path: str) -> Any:
        self._known(path)
        name = path.rpartition("/")[2]
        if name not in self.pools:
            raise Refusal("NOT_FOUND", f"Not found: {path}.")
        return self.pools[name]

    def _free(self) -> None:
        """One operation at a time."""
        if self.faults.busy_seconds:
            seconds, self.faults.busy_seconds = self.faults.busy_seconds, 0.0
            other = self._operation("UPGRADE_MASTER", "")
            self.timeline.after(seconds, lambda: self._done(other))
        for operation in self.operations.values():
            if operation.status.name in ("PENDING", "RUNNING"):
                raise Refusal("FAILED_PRECONDITION", f"Cluster is running incompatible operation {operation.name}.")

    def _check(self, pool: Any) -> None:
        """What GKE refuses at once."""
        place = self.config.place
        if list(pool.locations) not in ([place.zone], [place.other_zone]):
            raise Refusal("INVALID_ARGUMENT", f"locations {list(pool.locations)}: not zones of {place.region}.")
        network = pool.network_config
        if network.accelerator_network_profile and network.additional_node_network_configs:
            raise Refusal("INVALID_ARGUMENT", "accelerator_network_profile excludes additional node networks.")
        affinity = pool.config.reservation_affinity
        if _reserved(pool):
            value = affinity.values[0].split("/")
            if names.GKE_RESERVATION not in value:
                raise Refusal("NOT_FOUND", f"Reservation {affinity.values[0]} was not found in {pool.locations[0]}.")

    def _operation(self, kind: str, pool: str) -> Any:
        from google.cloud import container_v1 as gke

        place = self.config.place
        digest = hashlib.sha256(f"{kind}{pool}{len(self.operations)}".encode()).hexdigest()
        name = f"operation-{1700000000000 + len(self.operations)}-{digest[:8]}-{digest[8:16]}"
        target = f"{self.self_link()}/v1/{self.parent}" + (f"/nodePools/{pool}" if pool else "")
        self.operations[name] = gke.Operation(
            {
                "name": name,
                "operation_type": kind,
                "status": "RUNNING",
                "target_link": target,
                "location": place.region,
                "start_time": rfc3339_micro(self.timeline.clock.now()),
            }
        )
        return self.operations[name]

    def _changed(self, kind: str, pool: Any) -> Any:
        operation = self._operation(kind, pool.name)
        seconds = self.config.scenario.target.of_change(CHANGE_SECONDS)
        self.timeline.after(seconds, lambda: self._done(operation))
        return operation

    def _done(self, operation: Any, error: str = "", code: int = 0) -> None:
        with self.lock:
            operation.status = "DONE"
            operation.end_time = rfc3339_micro(self.timeline.clock.now())
            if error:
                operation.error.code, operation.error.message = code, error

    def _provision(self, pool: Any) -> Any:
        from google.cloud import container_v1 as gke

        pool.status = "PROVISIONING"
        pool.self_link = f"{self.self_link()}/v1/{self.parent}/nodePools/{pool.name}"
        taints = [*pool.config.taints]
        if pool.config.accelerators:
            taints.append(gke.NodeTaint(GPU_TAINT))
        pool.config.taints = taints
        self.pools[pool.name], self.machines[pool.name] = pool, []
        operation = self._operation("CREATE_NODE_POOL", pool.name)
        nodes = int(pool.initial_node_count)
        reserved = _reserved(pool)
        outcome = self.capacity.outcome(nodes, reserved=reserved)
        if reserved and outcome.joined:
            self.capacity.ours[pool.name] = outcome.joined
        seconds = self.config.scenario.target.create_seconds
        self.groups.adopt(pool, nodes)
        self._launch(pool, 0, outcome.joined)
        self.timeline.after(seconds, lambda: self._settle(pool, operation, outcome, nodes))
        return operation

    def _launch(self, pool: Any, first: int, count: int) -> None:
        """Machines number `first` and on join one after another while the pool is being made or grows."""
        seconds = self.config.scenario.target.create_seconds
        for index in range(first, first + count):
            machine = self._machine(pool, index)
            share = 0.5 + 0.3 * (index - first) / count
            self.timeline.after(seconds * share, lambda machine=machine: self._join(pool, machine))  # type: ignore[misc]

    def _grow(self, pool: Any, operation: Any, more: int) -> None:
        reserved = _reserved(pool)
        outcome = self.capacity.outcome(more, reserved=reserved)
        if reserved and outcome.joined:
            self.capacity.ours[pool.name] = self.capacity.ours.get(pool.name, 0) + outcome.joined
        self._launch(pool, self.groups.grown(pool.name, more), outcome.joined)
        if outcome.joined < more:
            seconds = self.config.scenario.target.create_seconds / 2
            self.timeline.after(seconds, lambda: self._short(pool, operation, more - outcome.joined))

    def _short(self, pool: Any, operation: Any, missing: int) -> None:
        from google.cloud import container_v1 as gke

        with self.lock:
            message = self._stockout(pool, missing)
            pool.status = "RUNNING_WITH_ERROR"
            pool.conditions = [gke.StatusCondition(code="GCE_STOCKOUT", message=message)]
            self._done(operation, message, 8)

    def _stockout(self, pool: Any, missing: int) -> str:
        return (
            f"Instance group manager is short of {missing} VM count: GCE_STOCKOUT: The zone "
            f"'projects/{self.config.place.project}/zones/{pool.locations[0]}' does not have enough resources "
            "available to fulfill the request."
        )

    def _done_if_running(self, operation: Any) -> None:
        if operation.status.name == "RUNNING":
            self._done(operation)

    def _machine(self, pool: Any, index: int) -> Machine:
        place, zone = self.config.place, pool.locations[0]
        name = gke_name(place.cluster, pool.name, index)
        network = pool.network_config
        taints = [{"key": t.key, "value": t.value, "effect": t.effect.name} for t in pool.config.taints]
        accelerators = pool.config.accelerators
        return Machine(
            name=name,
            labels={
                **place.pool_labels(pool.name),
                **({"cloud.google.com/gke-accelerator": accelerators[0].accelerator_type} if accelerators else {}),
                "topology.gke.io/zone": zone,
                **dict(pool.config.labels),
            },
            machine_type=pool.config.machine_type,
            zone=zone,
            rdma=bool(network.accelerator_network_profile or network.additional_node_network_configs),
            taints=kubernetes_taints(taints),
            provider_id=f"gce://{place.project}/{zone}/{name}",
        )

    def _join(self, pool: Any, machine: Machine) -> None:
        with self.lock:
            here = any(known is pool for known in self.pools.values())
            if not here or pool.status.name == "STOPPING":
                return
        self.nodes.join(machine)
        with self.lock:
            if machine.name not in self.machines[pool.name]:
                self.machines[pool.name].append(machine.name)

    def _settle(self, pool: Any, operation: Any, outcome: Outcome, nodes: int) -> None:
        from google.cloud import container_v1 as gke

        with self.lock:
            if pool.status.name != "PROVISIONING":
                return
            if outcome.kind == "active":
                pool.status = "RUNNING"
                self._done(operation)
                return
            if outcome.kind == "create-failed":
                message = (
                    "Node registration failed: all cluster resources were brought up, but nodes failed to register"
                )
                code, condition = 13, "UNKNOWN"
            else:
                message = self._stockout(pool, nodes - outcome.joined)
                code, condition = 8, "GCE_STOCKOUT"
            pool.status = "RUNNING_WITH_ERROR" if outcome.kind == "degraded" else "ERROR"
            pool.conditions = [gke.StatusCondition(code=condition, message=message)]
            self._done(operation, message, code)

    def _kill(self, name: str) -> None:
        for machine in list(self.machines.get(name, ())):
            self.nodes.leave(machine)
        with self.lock:
            self.machines[name] = []
            self.capacity.ours.pop(name, None)

    def _gone(self, name: str, operation: Any) -> None:
        with self.lock:
            self.pools.pop(name, None)
            self._done(operation)

    def _delete_failed(self, pool: Any, operation: Any, message: str) -> None:
        from google.cloud import container_v1 as gke

        with self.lock:
            pool.status = "ERROR"
            pool.conditions = [gke.StatusCondition(code="UNKNOWN", message=message)]
            self._done(operation, message, 9)


def _reserved(pool: Any) -> bool:
    return bool(pool.config.reservation_affinity.consume_reservation_type.name == "SPECIFIC_RESERVATION")
