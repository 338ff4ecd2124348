"""GKE node pools behind the narrow contract of `infra.model.contract.Pools`.

GKE has no idempotency token: the name is the key. It runs one operation at a time per cluster, so every change waits
for the one before it, and a failed creation usually leaves the pool behind, so a pool is always looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.clock import Clock, pauses
from infra.errors import CloudError, Conflict, NotFound, Unreachable
from infra.gcp import network, read
from infra.gcp import survey as gcp_survey
from infra.gcp.api import Busy
from infra.gcp.cluster import GkeCluster
from infra.model.contract import ProvePool, unproven
from infra.model.pools import Pool, PoolState, Request
from infra.model.record import UNPROVEN_TAINT
from infra.model.spec import GkeTarget
from infra.model.survey import Survey

BUSY_SECONDS = 1800.0  # another operation (an upgrade of the control plane) may take this long
CHANGE_SECONDS = 900.0  # a change of settings; creating and deleting are followed with `find`
POLL_SECONDS = 10.0


@dataclass
class GkePools(GkeCluster):
    """The node pools of one GKE cluster."""

    clock: Clock

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
                remedy="remove it: poolshift rollback SPEC --remove-target; or choose another target.name",
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
