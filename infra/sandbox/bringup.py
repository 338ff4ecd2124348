"""Brings a scenario's cluster up: plugins, the source pool's nodes, its workloads, in an order that is repeatable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.clock import Clock
from infra.errors import PoolshiftError
from infra.sandbox import scenario as scenarios
from infra.sandbox.access import Answer, Api
from infra.sandbox.agent.plugins import PLUGINS
from infra.sandbox.clouds.machines import ec2_id
from infra.sandbox.nodes import add_node, pool_nodes
from infra.sandbox.scenario import CloudConfig, ImageMissing

Object = dict[str, Any]
LOOK_SECONDS = 0.03  # wall-clock, between two looks
PATIENCE_SECONDS = 120.0  # wall-clock; a healthy sandbox needs two on the embedded control plane

PATHS: Mapping[str, str] = {
    "Namespace": "/api/v1/namespaces",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}


class BringUp:
    """One bring-up. Raises PoolshiftError naming what did not come up."""

    def __init__(self, api: Api, clock: Clock, config: CloudConfig) -> None:
        self.api, self.clock, self.config = api, clock, config
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    def run(self) -> None:
        """Everything, in order."""
        for obj in scenarios.manifests(f"plugins-{self.config.place.cloud}"):
            self.create(obj)
        source = self.config.scenario.source
        names = self.config.source_nodes
        busy = names[: source.nodes - source.idle]
        self._add(busy)
        self.await_(f"GPUs on the nodes of {self.config.place.source_pool}", lambda: self._gpus(len(busy)))
        for name in self.config.scenario.workloads:
            objects = scenarios.manifests(name)
            for obj in objects:
                self.create(obj)
            for obj in objects:
                if obj["kind"] in ("Deployment", "StatefulSet", "Job"):
                    self.await_(_called(obj), lambda obj=obj: _runs(self._read(obj)))  # type: ignore[misc]
        self._add(names[len(busy) :])
        self.await_(f"GPUs on the nodes of {self.config.place.source_pool}", lambda: self._gpus(len(names)))
        self.await_("the plugins of the source pool", lambda: self._plugins(len(names)))

    def create(self, obj: Object) -> None:
        """Create; what exists stays."""
        try:
            self.api.request("POST", _path(obj), obj)
        except Answer as answer:
            if answer.status != 409:
                raise

    def await_(self, what: str, done: Callable[[], bool]) -> None:
        """Look until it is so."""
        while not done():
            if time.monotonic() > self._deadline:
                raise PoolshiftError(
                    f"sandbox {self.config.scenario.name!r}",
                    f"{what} did not come up in {PATIENCE_SECONDS:.0f} s",
                    remedy="give the machine more room; `kubectl get pods -A` on the sandbox shows what is waiting",
                )
            time.sleep(LOOK_SECONDS)

    def _add(self, names: tuple[str, ...]) -> None:
        place, scenario = self.config.place, self.config.scenario
        gke = place.cloud == "gke"
        for name in names:
            add_node(
                self.api,
                name=name,
                pool_labels=self.config.source_labels(),
                machine_type=place.machine_type,
                zone=place.zone,
                rdma=scenario.source.rdma,
                taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}] if gke else [],
                provider_id=f"gce://{place.project}/{place.zone}/{name}"
                if gke
                else f"aws:///{place.zone}/{ec2_id(name)}",
            )

    def _gpus(self, count: int) -> bool:
        labels = self.config.place.pool_labels(self.config.place.source_pool)
        names = set(pool_nodes(self.api, labels))
        nodes = [n for n in self.api.list_items("/api/v1/nodes") if n["metadata"]["name"] in names]
        return sum("nvidia.com/gpu" in (n.get("status") or {}).get("allocatable", {}) for n in nodes) == count

    def _plugins(self, nodes: int) -> bool:
        """Every pod of a plugin DaemonSet on the source pool runs, or says that its image is missing."""
        pods = self.api.list_items("/api/v1/namespaces/kube-system/pods")
        placed = [pod for pod in pods if pod["spec"].get("nodeName") in self.config.source_nodes]
        sets = self.api.list_items("/apis/apps/v1/namespaces/kube-system/daemonsets")
        settled = all(_settled(pod) for pod in placed)
        wanted = sum(int((each.get("status") or {}).get("desiredNumberScheduled") or 0) for each in sets)
        drivers = {plugin.driver for plugin in PLUGINS if plugin.driver}
        csi = self.api.list_items("/apis/storage.k8s.io/v1/csinodes")
        registered = sum(any(d["name"] in drivers for d in c["spec"].get("drivers") or []) for c in csi)
        return settled and len(placed) == wanted > 0 and registered == nodes and self._advertised()

    def _advertised(self) -> bool:
        """RDMA resources show on a source pool that has them, unless the scenario breaks their plugin."""
        scenario = self.config.scenario
        broken = any(isinstance(d, ImageMissing) and d.pool in ("any", "source") for d in scenario.defects)
        if not scenario.source.rdma or broken:
            return True
        nodes = self.api.list_items("/api/v1/nodes")
        return all(len((n.get("status") or {}).get("allocatable", {})) > 5 for n in nodes)

    def _read(self, obj: Object) -> Object:
        return self.api.request("GET", f"{_path(obj)}/{obj['metadata']['name']}")


def _path(obj: Object) -> str:
    return PATHS[obj["kind"]].format(obj["metadata"].get("namespace", ""))


def _called(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{obj['kind'].lower()} {meta['namespace']}/{meta['name']}"


def _runs(obj: Object) -> bool:
    """All replicas of a Deployment or StatefulSet are ready, all pods of a Job are."""
    status = obj.get("status") or {}
    if obj["kind"] == "Job":
        return bool(status.get("ready", 0) == obj["spec"].get("parallelism", 1))
    return bool(status.get("readyReplicas", 0) == obj["spec"]["replicas"])


def _settled(pod: Object) -> bool:
    status = pod.get("status") or {}
    if status.get("phase") == "Running":
        return True
    waiting = [
        each["state"].get("waiting", {}).get("reason", "")
        for each in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    ]
    return "ImagePullBackOff" in waiting
