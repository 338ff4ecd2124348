"""EKS managed node groups behind the narrow contract of `infra.model.contract.Pools`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.aws import network, read, scaling
from infra.aws import survey as aws_survey
from infra.aws.cluster import EksCluster
from infra.clock import Clock, pauses
from infra.errors import CloudError, Conflict, NotFound, Unreachable
from infra.model.contract import ProvePool, unproven
from infra.model.pools import Pool, PoolState, Request
from infra.model.record import PRIOR, RUN, UNPROVEN_TAINT
from infra.model.spec import EksTarget
from infra.model.survey import Survey

UPDATE_SECONDS = 300.0  # a config update takes seconds; longer means that another one holds the group
POLL_SECONDS = 5.0


@dataclass
class EksPools(EksCluster):
    """The node groups of one EKS cluster."""

    clock: Clock

    def survey(self, source: Any, target: Any, run: str) -> Survey:
        """Everything the preflight judges. See `infra.aws.survey`."""
        return aws_survey.survey(self, source, target, run)

    def render(self, target: Any, run: str) -> list[Request]:
        """The launch template and the node group, as they will be sent."""
        return network.requests(target, run, self.machine(target.machine_type), self.describe_cluster().security_group)

    def create(self, target: Any, run: str) -> Pool:
        """Make the node group, or adopt the one that this run made before.

        Raises:
            Conflict: the name is taken by another owner, or by this run with another content.

        """
        template, group = self.render(target, run)
        existing = self.find(target)
        if existing is None:
            self._ensure_template(template)
            try:
                self.aws.call(group.verb, group.object, group.body)
            except Conflict:
                pass  # made between our two calls, by an earlier process of this run or by somebody else: look again
            existing = self.find(target)
            if existing is None:
                raise Unreachable(
                    group.object,
                    "created, but not listed yet",
                    remedy="run the same command again",
                )
        self._must_be_ours(existing, target, run, group)
        return existing

    def fence_for_run(self, pool: Any, run: str) -> Mapping[str, Any]:
        """Fix the size at what it is, switch node repair off, and suspend AZRebalance.

        All three fight a drain or a measurement: AZRebalance ends an instance of one zone, busy or not, once another
        zone has fewer, as it has when machines go by name.
        """
        group = self._must_exist(pool.name)
        noted, balancing = network.read_prior(group), scaling.balancing(self.aws, group)
        prior = {**(noted or network.prior_of(group))}
        prior["rebalance"] = bool(prior.get("rebalance")) or bool(balancing)

        def fenced() -> dict[str, Any]:
            size = scaling.size(self.aws, group)
            return {
                "scalingConfig": {"minSize": size, "maxSize": max(size, 1), "desiredSize": size},
                "nodeRepairConfig": {"enabled": False},
            }

        settled = network.already(group, fenced())
        if settled and not balancing:
            return prior
        if noted != prior:
            # Before the change: a kill in between must not make our own values look like the prior ones.
            self.aws.call(
                "eks.tag_resource",
                self._what(pool.name),
                {"resourceArn": group["nodegroupArn"], "tags": {PRIOR: network.prior_text(prior)}},
            )
        for name in balancing:
            scaling.suspend(self.aws, name)
        if not settled:
            self.update(pool.name, fenced)
        return prior

    def unfence(self, pool: Any, prior: Mapping[str, Any]) -> None:
        """Bounds, repair and rebalancing as they were, then the tag that said so away. An absent group is success."""
        group = self.describe(pool.name)
        if group is None:
            return
        prior = {**network.prior_of(group), **prior}

        def restored() -> dict[str, Any]:
            size = scaling.size(self.aws, group)
            return {
                "scalingConfig": {
                    "minSize": min(int(prior["min"]), size),
                    "maxSize": max(int(prior["max"]), size, 1),
                    "desiredSize": size,
                },
                "nodeRepairConfig": {"enabled": bool(prior["repair"])},
            }

        if not network.already(group, restored()):
            self.update(pool.name, restored)
        if prior.get("rebalance") or (network.read_prior(group) or {}).get("rebalance"):
            for behind in scaling.groups(self.aws, group):
                scaling.resume(self.aws, str(behind["AutoScalingGroupName"]))
        if PRIOR in (group.get("tags") or {}):
            self.aws.call(
                "eks.untag_resource",
                self._what(pool.name),
                {"resourceArn": group["nodegroupArn"], "tagKeys": [PRIOR]},
            )

    def release(self, pool: Any) -> None:
        """Take our unproven taint out of the group's configuration."""
        group = self._must_exist(pool.name)
        ours = [t for t in group.get("taints") or () if t.get("key") == UNPROVEN_TAINT]
        if ours:
            self.update(pool.name, {"taints": {"removeTaints": ours}})

    def delete(self, pool: Any, prove: ProvePool = unproven) -> None:
        """Ask EKS to delete the group; it then kills its nodes within minutes, whatever budgets say."""
        group = self.describe(pool.name)
        if group is None:
            self._delete_templates(pool.name)
            return
        if group.get("status") == "DELETING":
            return
        prove(self._pool(group))
        try:
            self.aws.call(
                "eks.delete_nodegroup",
                self._what(pool.name),
                {"clusterName": self.cluster, "nodegroupName": pool.name},
            )
        except NotFound:
            return

    def _ensure_template(self, request: Request) -> None:
        """Create it, or take the one of the same name, which carries the digest of its content; then read it back."""
        name = request.body["LaunchTemplateName"]
        try:
            self.aws.call(request.verb, request.object, request.body)
        except Conflict:
            pass  # an earlier process of this run made it
        stored = self.template_of({"launchTemplate": {"name": name, "version": network.TEMPLATE_VERSION}})
        sent = request.body["LaunchTemplateData"]
        wanted = (
            read.template_reservation(sent),
            read.template_efa(sent),
            sent["InstanceType"],
            len(sent["NetworkInterfaces"]),
        )
        got = (
            read.template_reservation(stored),
            read.template_efa(stored),
            stored.get("InstanceType"),
            len(stored.get("NetworkInterfaces") or ()),
        )
        if got != wanted:
            raise CloudError(
                request.object,
                f"read back with (reservation, EFA interfaces, type, interfaces) {got}",
                expected=str(wanted),
                remedy=f"aws ec2 delete-launch-template --launch-template-name {name}, then run again",
            )

    def _must_be_ours(self, pool: Pool, target: EksTarget, run: str, group: Request) -> None:
        what = self._what(target.name)
        if pool.ours != run:
            owner = f"run {pool.ours}" if pool.ours else "somebody else (no poolshift tag)"
            raise Conflict(
                what,
                f"exists and belongs to {owner}",
                expected=f"a free name, or a group tagged {RUN}={run}",
                remedy="choose another target.name",
            )
        if pool.state in (PoolState.DELETING, PoolState.DELETE_FAILED):
            raise Conflict(what, f"is {pool.state}", remedy="wait until it is gone, then run again")
        template = (self._must_exist(target.name).get("launchTemplate") or {}).get("name")
        if template != group.body["launchTemplate"]["name"] or pool.nodes != target.nodes:
            raise Conflict(
                what,
                f"was made by this run from another spec (template {template}, {pool.nodes} nodes)",
                expected=f"template {group.body['launchTemplate']['name']}, {target.nodes} nodes",
                remedy="remove it: poolshift rollback SPEC --remove-target; or choose another target.name",
            )

    def _delete_templates(self, pool_name: str) -> None:
        """Templates that poolshift made for this group; only once the group is gone."""
        prefix = network.template_prefix(self.cluster, pool_name)
        answer = self.aws.pages(
            "ec2.describe_launch_templates",
            f"launch templates of {pool_name}",
            "LaunchTemplates",
            {"Filters": [{"Name": f"tag:{network.POOL_TAG}", "Values": [f"{self.cluster}/{pool_name}"]}]},
        )
        for template in answer:
            if str(template["LaunchTemplateName"]).startswith(prefix):
                try:
                    self.aws.call(
                        "ec2.delete_launch_template",
                        f"launch template {template['LaunchTemplateName']}",
                        {"LaunchTemplateId": template["LaunchTemplateId"]},
                    )
                except NotFound:
                    continue

    def update(self, name: str, change: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """One config update, followed to its end. EKS runs one at a time: another one is waited for.

        `change`: or what gives it, asked anew before each request, where it depends on what may change meanwhile.
        """
        what = self._what(name)
        limit, wait = self.clock.now().timestamp() + UPDATE_SECONDS, pauses(POLL_SECONDS)
        while True:
            asked = change() if callable(change) else change
            body = {"clusterName": self.cluster, "nodegroupName": name, **asked}
            try:
                update = self.aws.call("eks.update_nodegroup_config", what, body)["update"]
                break
            except Conflict:
                if self.clock.now().timestamp() >= limit:
                    raise
                self.clock.sleep(next(wait))
        while update.get("status") == "InProgress":
            if self.clock.now().timestamp() >= limit:
                raise Unreachable(what, f"update {update['id']} is still in progress", remedy="run again")
            self.clock.sleep(next(wait))
            update = self.aws.call(
                "eks.describe_update",
                what,
                {"name": self.cluster, "nodegroupName": name, "updateId": update["id"]},
            )["update"]
        if update.get("status") != "Successful":
            errors = "; ".join(f"{e.get('errorCode')}: {e.get('errorMessage')}" for e in update.get("errors") or ())
            raise CloudError(what, f"update {update.get('id')} ended {update.get('status')}: {errors}")
