"""One GKE cluster and its node pools as Google describes them. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from infra.errors import BadSpec, Forbidden, NotFound
from infra.gcp import network, read
from infra.gcp.api import Gcp
from infra.model.pools import Pool
from infra.model.survey import ClusterFacts, Machine

GROUP_PERMISSION = "compute.instanceGroupManagers.get"


@dataclass
class GkeCluster:
    """The zones in which the cluster makes nodes are read once."""

    gcp: Gcp
    location: str
    cluster: str
    _zones: tuple[str, ...] | None = field(default=None, init=False, repr=False)

    def find(self, pool: Any) -> Pool | None:
        """The node pool named `pool.name`, or None. `NotFound`: the cluster itself is unknown."""
        described = self.describe(pool.name)
        return None if described is None else self._pool(described)

    def machine(self, name: str) -> Machine:
        """The type's row. `BadSpec`: we do not know what GKE must be told of it."""
        found = read.machine(name)
        if found is None:
            raise BadSpec(
                f"machine type {name}",
                "is not known",
                expected=f"one of {', '.join(sorted(read.machines()))}",
                remedy="correct target.machine_type",
            )
        return found

    def describe_cluster(self) -> ClusterFacts:
        """GetCluster. `NotFound` says how to list the project's clusters."""
        what = f"GKE cluster {self.location}/{self.cluster}"
        try:
            described = self.gcp.call("get_cluster", what, {"name": self._parent})
        except NotFound as error:
            raise NotFound(
                what,
                f"does not exist in project {self.gcp.project} for these credentials",
                remedy=f"check project, location and name: gcloud container clusters list --project {self.gcp.project}",
            ) from error
        if self.gcp.endpoint:
            link = urlsplit(str(described.get("self_link", "")))
            self.gcp.rest = f"{link.scheme}://{link.netloc}"
        self._zones = tuple(described.get("locations") or ())
        return read.cluster(described)

    def running_operation(self) -> str:
        """The name of an operation that runs on the cluster now, or ""."""
        for operation in self._operations():
            if operation.get("status") in ("PENDING", "RUNNING", "ABORTING"):
                return f"{operation.get('operation_type')} {operation.get('name')}"
        return ""

    @property
    def _parent(self) -> str:
        return network.cluster_path(self.gcp.project, self.location, self.cluster)

    def path(self, name: str) -> str:
        """GKE's full name of a node pool."""
        return f"{self._parent}/nodePools/{name}"

    def _what(self, name: str) -> str:
        return f"node pool {self.cluster}/{name}"

    def describe(self, name: str) -> Mapping[str, Any] | None:
        """GetNodePool; None for a pool that does not exist."""
        try:
            return self.gcp.call("get_node_pool", self._what(name), {"name": self.path(name)})
        except NotFound:
            self.describe_cluster()  # raises where the cluster is what is missing
            return None

    def _must_exist(self, name: str) -> Mapping[str, Any]:
        described = self.describe(name)
        if described is None:
            raise NotFound(
                self._what(name),
                "does not exist",
                expected="an existing node pool",
                remedy=f"gcloud container node-pools list --cluster {self.cluster} --location {self.location}",
            )
        return described

    def _pool(self, described: Mapping[str, Any]) -> Pool:
        name = str(described["name"])
        if self._zones is None:
            self.describe_cluster()
        operations: list[dict[str, Any]] = []
        if described.get("status") != "RUNNING":
            # Operations tell what the pool's own conditions leave out; without the permission those must do.
            try:
                operations = since_creation(self._operations(), name)
            except Forbidden:
                operations = []
        return self._sized(read.pool(described, self.path(name), self._zones or (), operations), described)

    def _sized(self, pool: Pool, described: Mapping[str, Any]) -> Pool:
        """With the size that its instance groups have: GKE goes on showing the count that a pool was made with.

        Without the permission to read them the first count must do, and which pool it is stays unknown: a node pool
        has no id of its own.
        """
        try:
            groups = [
                self.gcp.get(url, f"instance group of {pool.name}", GROUP_PERMISSION)
                for url in described.get("instance_group_urls") or ()
            ]
        except (Forbidden, NotFound):
            return pool
        made = tuple(sorted(str(group["id"]) for group in groups if group.get("id")))
        return replace(pool, nodes=sum(int(g.get("targetSize") or 0) for g in groups), made=made) if groups else pool

    def _operations(self) -> list[dict[str, Any]]:
        """Operations of the cluster, newest first."""
        answer = self.gcp.call(
            "list_operations",
            f"operations in {self.location}",
            {"parent": f"projects/{self.gcp.project}/locations/{self.location}"},
        )
        here = f"/clusters/{self.cluster}"
        found = [
            operation
            for operation in answer.get("operations") or ()
            if here + "/" in f"{operation.get('target_link')}/"
        ]
        return sorted(found, key=lambda operation: str(operation.get("start_time", "")), reverse=True)


def since_creation(operations: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Operations on the pool that exists now, newest first: an earlier pool of the same name ends at our creation."""
    found = []
    for operation in operations:
        if str(operation.get("target_link")).endswith(f"/nodePools/{name}"):
            found.append(operation)
            if operation.get("operation_type") == "CREATE_NODE_POOL":
                break
    return found
