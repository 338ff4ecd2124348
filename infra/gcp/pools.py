"""GKE node pools behind the narrow contract of `infra.model.pools.Pools`.

GKE has no idempotency token: the name is the key. It runs one operation at a time per cluster, so every change waits
for the one before it, and a failed creation usually leaves the pool behind, so a pool is always looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from infra.clock import Clock, pauses
from infra.errors import BadSpec, CloudError, Conflict, Forbidden, NotFound, Unreachable
from infra.gcp import network, read
from infra.gcp import survey as gcp_survey
from infra.gcp.api import Busy, Gcp
from infra.model.pools import Pool, PoolState, ProvePool, Request, unproven
from infra.model.record import UNPROVEN_TAINT
from infra.model.spec import GkeTarget
from infra.model.survey import ClusterFacts, Machine, Survey

BUSY_SECONDS = 1800.0  # another operation (an upgrade of the control plane) may take this long
CHANGE_SECONDS = 900.0  # a change of settings; creating and deleting are followed with `find`
POLL_SECONDS = 10.0
GROUP_PERMISSION = "compute.instanceGroupManagers.get"


@dataclass
class GkePools:
    """The node pools of one GKE cluster."""

    gcp: Gcp
    location: str
    cluster: str
    clock: Clock
    _zones: tuple[str, ...] | None = field(default=None, repr=False)

    def find(self, pool: Any) -> Pool | None:
        """The node pool named `pool.name`, or None. `NotFound`: the cluster itself is unknown."""
        described = self.describe(pool.name)
        return None if described is None else self._pool(described)

    def survey(self, source: Any, target: Any, run: str) -> Survey:
        """Everything the preflight judges. See `infra.gcp.survey`."""
        return gcp_survey.survey(self, source, target, run)

    def render(self, target: Any, run: str) -> list[Request]:
        """The node pool, as it will be sent."""
        return [network.request(target, run, self.describe_cluster(), self.machine(target.machine_type))]

    def create(self, target: Any, run: str) -> Pool:
        """Make the node pool, or adopt the one that this run made before.

        Raises:
            Conflict: the name is taken by another owner, or by this run with another content.

        """
        request = self.render(target, run)[0]
        existing = self.find(target)
        if existing is None:
            try:
                self.when_free(lambda: self.gcp.call("create_node_pool", request.object, request.body))
            except Conflict:
                pass  # made between our two calls: look again
            existing = self.find(target)
            if existing is None:
                raise Unreachable(request.object, "created, but not listed yet", remedy="run the same command again")
        self._must_be_ours(existing, target, run)
        return existing

    def fence_for_run(self, pool: Any, run: str) -> Mapping[str, Any]:
        """Autoscaling and repair off, budgets respected by a later deletion. Repair stays on in a release channel."""
        described = self._must_exist(pool.name)
        labels = (described.get("config") or {}).get("resource_labels") or {}
        noted = network.read_prior(labels.get(read.PRIOR_LABEL, ""))
        now = network.prior_of(described)
        forced = bool(self.describe_cluster().release_channel)
        fenced = {**now, "autoscaling": False, "repair": now["repair"] and forced, "respect_pdb": True}
        if now == fenced:
            return noted or now
        if noted is None:
            # Before the change: a kill in between must not make our own values look like the prior ones.
            self._label(pool.name, {**labels, read.PRIOR_LABEL: network.prior_text(now)})
        self._settle(pool.name, described, fenced)
        return noted or now

    def unfence(self, pool: Any, prior: Mapping[str, Any]) -> None:
        """Everything as it was, then the label that said so away. An absent pool is success."""
        described = self.describe(pool.name)
        if described is None:
            return
        self._settle(pool.name, described, {**network.prior_of(described), **prior})
        labels = dict((described.get("config") or {}).get("resource_labels") or {})
        if labels.pop(read.PRIOR_LABEL, None) is not None:
            self._label(pool.name, labels)

    def release(self, pool: Any) -> None:
        """Take our unproven taint out of the pool's configuration."""
        described = self._must_exist(pool.name)
        taints = (described.get("config") or {}).get("taints") or ()
        kept = [dict(taint) for taint in taints if taint.get("key") != UNPROVEN_TAINT]
        if len(kept) != len(taints):
            self._update(pool.name, {"taints": {"taints": kept}})

    def delete(self, pool: Any, prove: ProvePool = unproven) -> None:
        """Ask GKE to delete the pool. Budgets are ignored by default: they are switched on first."""
        described = self.describe(pool.name)
        if described is None or described.get("status") == "STOPPING":
            return
        drain = described.get("node_drain_config") or {}
        if not drain.get("respect_pdb_during_node_pool_deletion"):
            self._update(pool.name, {"node_drain_config": {"respect_pdb_during_node_pool_deletion": True}})

        def send() -> dict[str, Any]:
            prove(self._pool(self._must_exist(pool.name)))
            return self.gcp.call("delete_node_pool", self._what(pool.name), {"name": self.path(pool.name)})

        try:
            self.when_free(send, unless=lambda: self._going(pool.name))
        except NotFound:
            return

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

    def _must_be_ours(self, pool: Pool, target: GkeTarget, run: str) -> None:
        what = self._what(target.name)
        if pool.ours != run:
            owner = f"run {pool.ours}" if pool.ours else f"somebody else (no {read.RUN_LABEL} label)"
            raise Conflict(
                what,
                f"exists and belongs to {owner}",
                expected=f"a free name, or a pool labelled {read.RUN_LABEL}={run}",
                remedy="choose another target.name",
            )
        if pool.state is PoolState.DELETING:
            raise Conflict(what, "is being deleted", remedy="wait until it is gone, then run again")
        wanted = (
            target.machine_type,
            (target.zone,),
            target.reservation.name if target.reservation else "",
            target.nodes,
        )
        got = (pool.machine_type, pool.zones, pool.reservation, pool.nodes)
        if got != wanted:
            raise Conflict(
                what,
                f"was made by this run from another spec: (type, zones, reservation, nodes) {got}",
                expected=str(wanted),
                remedy="poolshift rollback SPEC to remove it, or choose another target.name",
            )

    def _settle(self, name: str, described: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Bring autoscaling, repair and drain settings to `wanted`; what already is so is not written."""
        now = network.prior_of(described)
        what, path = self._what(name), self.path(name)
        if now["autoscaling"] != wanted["autoscaling"]:
            scaling: dict[str, Any] = {"enabled": wanted["autoscaling"]}
            if wanted["autoscaling"]:
                scaling |= {
                    "min_node_count": wanted["min"],
                    "max_node_count": wanted["max"],
                    "total_min_node_count": wanted["total_min"],
                    "total_max_node_count": wanted["total_max"],
                }
            self._change("set_node_pool_autoscaling", what, {"name": path, "autoscaling": scaling})
        if now["repair"] != wanted["repair"]:
            upgrade = bool((described.get("management") or {}).get("auto_upgrade"))
            management = {"auto_repair": wanted["repair"], "auto_upgrade": upgrade}
            self._change("set_node_pool_management", what, {"name": path, "management": management})
        if now["respect_pdb"] != wanted["respect_pdb"]:
            drain = {"respect_pdb_during_node_pool_deletion": wanted["respect_pdb"]}
            self._update(name, {"node_drain_config": drain})

    def _label(self, name: str, labels: Mapping[str, str]) -> None:
        self._update(name, {"resource_labels": {"labels": dict(labels)}})

    def _update(self, name: str, change: Mapping[str, Any]) -> None:
        self._change("update_node_pool", self._what(name), {"name": self.path(name), **change})

    def _change(self, method: str, what: str, request: Mapping[str, Any]) -> None:
        """One change of settings, followed to its end."""
        operation = self.when_free(lambda: self.gcp.call(method, what, request))
        self._follow(str(operation.get("name", "")), what, CHANGE_SECONDS)

    def when_free(
        self, send: Callable[[], dict[str, Any]], unless: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Send when no other operation holds the cluster. `unless`: nothing more to send, what was wanted is so."""
        limit, wait = self.clock.now().timestamp() + BUSY_SECONDS, pauses(POLL_SECONDS)
        while True:
            try:
                return send()
            except Busy as busy:
                if self.clock.now().timestamp() >= limit:
                    raise
                if unless():
                    return {}
                self.clock.sleep(next(wait))
                if busy.operation:
                    self._follow(busy.operation, busy.object, limit - self.clock.now().timestamp(), judge=False)

    def _follow(self, operation: str, what: str, seconds: float, *, judge: bool = True) -> None:
        """Wait for an operation. `judge`: raise when it failed; another one's outcome is not ours to judge."""
        name = f"projects/{self.gcp.project}/locations/{self.location}/operations/{operation}"
        limit, wait = self.clock.now().timestamp() + seconds, pauses(POLL_SECONDS)
        while True:
            found = self.gcp.call("get_operation", f"operation {operation}", {"name": name})
            if found.get("status") == "DONE":
                error = found.get("error") or {}
                if error and judge:
                    raise CloudError(what, f"operation {operation} failed: {error.get('message')}")
                return
            if self.clock.now().timestamp() >= limit:
                raise Unreachable(what, f"operation {operation} is still {found.get('status')}", remedy="run again")
            self.clock.sleep(next(wait))

    def _going(self, name: str) -> bool:
        """Is it gone or going already? A delete that was retried underneath meets its own operation."""
        described = self.describe(name)
        return described is None or described.get("status") == "STOPPING"


def since_creation(operations: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Operations on the pool that exists now, newest first: an earlier pool of the same name ends at our creation."""
    found = []
    for operation in operations:
        if str(operation.get("target_link")).endswith(f"/nodePools/{name}"):
            found.append(operation)
            if operation.get("operation_type") == "CREATE_NODE_POOL":
                break
    return found
