"""Simulated Compute Engine and Managed Lustre: the few REST resources that poolshift reads or calls, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from infra.sandbox.clouds import names
from infra.sandbox.clouds.capacity import Capacity
from infra.sandbox.clouds.instance_groups import InstanceGroups
from infra.sandbox.scenario import CloudConfig

LOCAL_SSDS = 32  # of an A3 Ultra machine


class SimulatedGce:
    """An HTTP server at `url`; every path that is not known is 404 in Google's form."""

    def __init__(self, config: CloudConfig, capacity: Capacity) -> None:
        self.config = config
        self.groups: InstanceGroups | None = None  # the node pools' own, once they are there
        self.capacity = capacity
        self.url = ""
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Serve on a free port."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._resource, self._call))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="simulated-gce", daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """A method of an instance group."""
        _, slash, rest = path.partition("/instanceGroupManagers/")
        group, _, method = rest.partition("/")
        return self.groups.call(group, method, body) if slash and self.groups else None

    def _resource(self, path: str) -> dict[str, Any] | None:
        _, slash, group = path.partition("/instanceGroupManagers/")
        if slash and self.groups:
            return self.groups.get(group)
        place = self.config.place
        compute = f"/compute/v1/projects/{place.project}"
        lustre_zone = place.zone if self.config.scenario.lustre.zone == "same" else place.other_zone
        known: dict[str, Callable[[], dict[str, Any]]] = {
            f"{compute}/zones/{place.zone}/reservations/{names.GKE_RESERVATION}": self._reservation,
            f"{compute}/zones/{place.zone}/reservations/{names.GKE_RESERVATION}/reservationBlocks/{names.GKE_BLOCK}": (
                self._block
            ),
            f"{compute}/regions/{place.region}": self._region,
            f"{compute}/global/networks/{names.GKE_GVNIC_NETWORK}": lambda: {"name": names.GKE_GVNIC_NETWORK},
            f"{compute}/global/networks/{names.GKE_RDMA_NETWORK}": self._rdma_network,
            f"{compute}/regions/{place.region}/subnetworks/{names.GKE_SUBNETWORK}": self._subnetwork,
        }
        for zone in (place.zone, place.other_zone):
            known[f"{compute}/zones/{zone}/machineTypes/{place.machine_type}"] = lambda: {"name": place.machine_type}
            name = f"projects/{place.project}/locations/{zone}/instances/{names.GKE_LUSTRE}"
            if zone == lustre_zone:
                known[f"/v1/{name}"] = lambda name=name: self._lustre(name)  # type: ignore[misc]
        found = known.get(path)
        return found() if found else None

    def _reservation(self) -> dict[str, Any]:
        place, total = self.config.place, self.capacity.total
        compute = f"https://www.googleapis.com/compute/v1/projects/{place.project}"
        accelerator = f"{compute}/zones/{place.zone}/acceleratorTypes/nvidia-h200-141gb"
        return {
            "kind": "compute#reservation",
            "name": names.GKE_RESERVATION,
            "zone": f"{compute}/zones/{place.zone}",
            "status": "READY",
            "specificReservationRequired": True,
            "deploymentType": "DENSE",
            "specificReservation": {
                "count": str(total),  # int64 is a string in Google's JSON
                "inUseCount": str(total - self.capacity.free),
                "instanceProperties": {
                    "machineType": place.machine_type,
                    "guestAccelerators": [{"acceleratorType": accelerator, "acceleratorCount": 8}],
                    "localSsds": [{"diskSizeGb": "375", "interface": "NVME"}] * LOCAL_SSDS,
                },
            },
        }

    def _block(self) -> dict[str, Any]:
        total = self.capacity.total
        counts = {"count": total, "inUseCount": total - self.capacity.free}
        return {"resource": {"kind": "compute#reservationBlock", "name": names.GKE_BLOCK, "status": "READY", **counts}}

    def _region(self) -> dict[str, Any]:
        return {
            "name": self.config.place.region,
            "quotas": [{"metric": "NVIDIA_H200_GPUS", "limit": 256.0, "usage": 8.0 * len(self.config.source_nodes)}],
        }

    def _subnetwork(self) -> dict[str, Any]:
        used = len(self.config.source_nodes) + 20
        return {
            "name": names.GKE_SUBNETWORK,
            "utilizationDetails": {
                "ipv4Utilizations": [
                    {"totalAllocatedIp": str(used), "totalFreeIp": str(4092 - used)},
                    {
                        "rangeName": names.GKE_POD_RANGE,
                        "totalAllocatedIp": str(used * 256),
                        "totalFreeIp": str(65536 - used * 256),
                    },
                ]
            },
        }

    def _rdma_network(self) -> dict[str, Any]:
        place = self.config.place
        profile = f"projects/{place.project}/global/networkProfiles/{place.zone}-vpc-roce"
        return {"name": names.GKE_RDMA_NETWORK, "networkProfile": profile}

    def _lustre(self, name: str) -> dict[str, Any]:
        lustre, project = self.config.scenario.lustre, self.config.place.project
        return {
            "name": name,
            "filesystem": "train",
            "state": "ACTIVE",
            "capacityGib": str(round(lustre.capacity_tib * 1024)),
            "perUnitStorageThroughput": str(round(lustre.mb_s_per_tib)),
            "network": f"projects/{project}/global/networks/{names.GKE_NETWORK}",
            "mountPoint": "10.90.1.4@tcp:/train",
            "gkeSupportEnabled": True,
        }


def _handler(
    resource: Callable[[str], dict[str, Any] | None], call: Callable[[str, dict[str, Any]], dict[str, Any] | None]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(resource(self.path.partition("?")[0]))

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(call(self.path.partition("?")[0], json.loads(sent or b"{}")))

        def _answer(self, body: dict[str, Any] | None) -> None:
            status = 200 if body is not None else 404
            error = {
                "error": {"code": 404, "message": f"The resource '{self.path}' was not found", "status": "NOT_FOUND"}
            }
            data = json.dumps(body if body is not None else error).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
            """Quiet."""

    return Handler
