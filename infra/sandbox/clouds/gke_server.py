"""The gRPC server in front of the simulated GKE, with the package's own message types on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from infra.sandbox.clouds import names
from infra.sandbox.clouds.capacity import Capacity, Faults
from infra.sandbox.clouds.gke import GPU_TAINT, NodePools, Refusal
from infra.sandbox.clouds.machines import Nodes
from infra.sandbox.clouds.timeline import Timeline
from infra.sandbox.scenario import CloudConfig

SERVICE = "google.container.v1.ClusterManager"


class SimulatedGke:
    """The cluster manager at `endpoint` (host:port, plain gRPC)."""

    def __init__(
        self, config: CloudConfig, nodes: Nodes, timeline: Timeline, faults: Faults, capacity: Capacity, rest: str
    ) -> None:
        self.timeline = timeline
        self.pools = NodePools(config, timeline, nodes, capacity, faults, lambda: rest)
        self.endpoint = ""
        self._server: Any = None

    def start(self) -> None:
        """Serve on a free port, with the source pool in place."""
        import grpc

        self._seed()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        handlers = {name: self._handler(name, *types) for name, types in _methods().items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.endpoint = f"127.0.0.1:{port}"

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.stop(None).wait()

    def _handler(self, name: str, request_type: Any, response_type: Any) -> Any:
        import grpc

        method = getattr(self.pools, _snake(name))

        def answer(request: Any, context: Any) -> Any:
            self.timeline.run_due()
            try:
                with self.pools.lock:
                    # A copy: the message is written out after the lock is gone, and events go on changing ours.
                    return response_type.deserialize(response_type.serialize(method(request)))
            except Refusal as refusal:
                context.abort(getattr(grpc.StatusCode, refusal.code), str(refusal))

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request_type.deserialize, response_serializer=response_type.serialize
        )

    def _seed(self) -> None:
        from google.cloud import container_v1 as gke

        config = self.pools.config
        place, nodes = config.place, len(config.source_nodes)
        networks = [
            {"network": names.GKE_GVNIC_NETWORK, "subnetwork": names.GKE_GVNIC_NETWORK},
            *({"network": names.GKE_RDMA_NETWORK, "subnetwork": f"{names.GKE_RDMA_NETWORK}-{i}"} for i in range(8)),
        ]
        source: dict[str, Any] = {
            "name": place.source_pool,
            "initial_node_count": nodes,
            "locations": [place.zone],
            "config": {
                "machine_type": place.machine_type,
                "accelerators": [{"accelerator_type": "nvidia-h200-141gb", "accelerator_count": 8}],
                "image_type": "COS_CONTAINERD",
                "taints": [GPU_TAINT],
                "resource_labels": {"team": "platform"},
            },
            "autoscaling": {"enabled": True, "min_node_count": 0, "max_node_count": nodes + 2},
            "management": {"auto_repair": True, "auto_upgrade": False},
        }
        if config.scenario.reservation.source:
            source["config"]["reservation_affinity"] = {
                "consume_reservation_type": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": [names.GKE_RESERVATION],
            }
        if config.scenario.source.rdma:
            source["network_config"] = {"additional_node_network_configs": networks}
        self.pools.adopt(gke.NodePool(source), config.source_nodes)


def _methods() -> Mapping[str, tuple[Any, Any]]:
    from google.cloud import container_v1 as gke

    return {
        "GetCluster": (gke.GetClusterRequest, gke.Cluster),
        "GetNodePool": (gke.GetNodePoolRequest, gke.NodePool),
        "ListNodePools": (gke.ListNodePoolsRequest, gke.ListNodePoolsResponse),
        "CreateNodePool": (gke.CreateNodePoolRequest, gke.Operation),
        "DeleteNodePool": (gke.DeleteNodePoolRequest, gke.Operation),
        "UpdateNodePool": (gke.UpdateNodePoolRequest, gke.Operation),
        "SetNodePoolAutoscaling": (gke.SetNodePoolAutoscalingRequest, gke.Operation),
        "SetNodePoolSize": (gke.SetNodePoolSizeRequest, gke.Operation),
        "SetNodePoolManagement": (gke.SetNodePoolManagementRequest, gke.Operation),
        "GetOperation": (gke.GetOperationRequest, gke.Operation),
        "ListOperations": (gke.ListOperationsRequest, gke.ListOperationsResponse),
    }


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
