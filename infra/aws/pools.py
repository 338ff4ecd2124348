"""EKS managed node groups behind the narrow contract of `infra.model.pools.Pools`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.aws import network, read, scaling
from infra.aws import survey as aws_survey
from infra.aws.api import Aws
from infra.clock import Clock, pauses
from infra.errors import CloudError, Conflict, Forbidden, NotFound, Unreachable
from infra.model.pools import IssueClass, Pool, PoolIssue, PoolState, ProvePool, Request, unproven
from infra.model.record import PRIOR, RUN, UNPROVEN_TAINT
from infra.model.spec import EksTarget
from infra.model.survey import ClusterFacts, Machine, Survey

UPDATE_SECONDS = 300.0  # a config update takes seconds; longer means that another one holds the group
POLL_SECONDS = 5.0


@dataclass
class EksPools:
    """The node groups of one EKS cluster."""

    aws: Aws
    cluster: str
    clock: Clock
    _machines: dict[str, Machine] = field(default_factory=dict, repr=False)
    _templates: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, repr=False)
    _zones: dict[str, str] = field(default_factory=dict, repr=False)

    def find(self, pool: Any) -> Pool | None:
        """The node group named `pool.name`, or None. `NotFound`: the cluster itself is unknown."""
        group = self.describe(pool.name)
        return None if group is None else self._pool(group)

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

    def machine(self, name: str) -> Machine:
        """DescribeInstanceTypes for one type, read once. `NotFound`: EC2 has no such type in this region."""
        if name not in self._machines:
            what = f"machine type {name}"
            try:
                answer = self.aws.call("ec2.describe_instance_types", what, {"InstanceTypes": [name]})
            except CloudError as error:
                if "InvalidInstanceType" not in error.observed:
                    raise
                answer = {}
            found = answer.get("InstanceTypes") or ()
            if not found:
                raise NotFound(
                    what,
                    f"EC2 has no such type in {self.aws.region}",
                    expected="an instance type of this region, e.g. p5en.48xlarge",
                    remedy=f"aws ec2 describe-instance-types --region {self.aws.region} "
                    "--filters Name=network-info.efa-supported,Values=true --query 'InstanceTypes[].InstanceType'",
                )
            self._machines[name] = read.machine(found[0])
        return self._machines[name]

    def describe_cluster(self) -> ClusterFacts:
        """DescribeCluster. `NotFound` says how to list the region's clusters."""
        what = f"EKS cluster {self.cluster}"
        try:
            answer = self.aws.call("eks.describe_cluster", what, {"name": self.cluster})
        except NotFound as error:
            raise self._no_cluster() from error
        return read.cluster(answer["cluster"])

    def zone_of(self, subnet: str) -> str:
        """The zone name of a subnet, read once."""
        if subnet not in self._zones:
            answer = self.aws.call("ec2.describe_subnets", f"subnet {subnet}", {"SubnetIds": [subnet]})
            self._zones[subnet] = str(answer["Subnets"][0].get("AvailabilityZone", ""))
        return self._zones[subnet]

    def template_of(self, group: Mapping[str, Any]) -> Mapping[str, Any]:
        """LaunchTemplateData behind a node group; {} for a group without one."""
        named = group.get("launchTemplate") or {}
        if not named:
            return {}
        key = (str(named.get("id") or named.get("name")), str(named.get("version") or "$Default"))
        if key not in self._templates:
            identity = {"LaunchTemplateId": named["id"]} if named.get("id") else {"LaunchTemplateName": named["name"]}
            answer = self.aws.call(
                "ec2.describe_launch_template_versions",
                f"launch template {key[0]}",
                {**identity, "Versions": [key[1]]},
            )
            versions = answer.get("LaunchTemplateVersions") or [{}]
            self._templates[key] = versions[0].get("LaunchTemplateData") or {}
        return self._templates[key]

    def groups(self) -> list[Mapping[str, Any]]:
        """Every node group of the cluster, as EKS describes it."""
        names = self.aws.pages(
            "eks.list_nodegroups", f"EKS cluster {self.cluster}", "nodegroups", {"clusterName": self.cluster}
        )
        described = (self.describe(name) for name in names)
        return [group for group in described if group is not None]

    def describe(self, name: str) -> Mapping[str, Any] | None:
        """DescribeNodegroup; None for a group that does not exist."""
        try:
            answer = self.aws.call(
                "eks.describe_nodegroup",
                self._what(name),
                {"clusterName": self.cluster, "nodegroupName": name},
            )
        except NotFound as error:
            if "No cluster found" in error.observed:
                raise self._no_cluster() from error
            return None
        group: Mapping[str, Any] = answer["nodegroup"]
        return group

    def _must_exist(self, name: str) -> Mapping[str, Any]:
        group = self.describe(name)
        if group is None:
            names = ", ".join(sorted(str(g["nodegroupName"]) for g in self.groups())) or "none"
            raise NotFound(
                self._what(name),
                "does not exist",
                expected=f"one of {names}",
                remedy=f"aws eks list-nodegroups --cluster-name {self.cluster} --region {self.aws.region}",
            )
        return group

    def _pool(self, group: Mapping[str, Any]) -> Pool:
        template = self.template_of(group)
        machine_type = read.template_machine_type(group, template)
        try:
            shape = self.machine(machine_type) if machine_type else None
        except NotFound:
            shape = None  # the plan reports the unknown type; a pool that exists is still readable
        zones = tuple(sorted({self.zone_of(subnet) for subnet in group.get("subnets") or ()}))
        failures: tuple[PoolIssue, ...] = ()
        if group.get("status") != "ACTIVE" or read.issues(group):
            failures = self._launch_failures(group)
        return read.pool(group, template, shape, zones, failures)

    def _launch_failures(self, group: Mapping[str, Any]) -> tuple[PoolIssue, ...]:
        """What Auto Scaling says of its launches; EKS repeats it late and without EC2's words."""
        found: list[PoolIssue] = []
        for behind in (group.get("resources") or {}).get("autoScalingGroups") or ():
            try:
                answer = self.aws.call(
                    "autoscaling.describe_scaling_activities",
                    f"Auto Scaling group {behind['name']}",
                    {"AutoScalingGroupName": behind["name"], "MaxRecords": 20},
                )
            except (Forbidden, NotFound, CloudError) as error:
                found.append(
                    PoolIssue(
                        code="ScalingActivitiesUnread",
                        message=error.wording(),
                        issue_class=IssueClass.TRANSIENT,
                    )
                )
                continue
            found.extend(read.launch_failures(answer.get("Activities") or ()))
        return tuple(found)

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
                remedy="poolshift rollback SPEC to remove it, or choose another target.name",
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

    def _no_cluster(self) -> NotFound:
        return NotFound(
            f"EKS cluster {self.cluster}",
            f"does not exist in {self.aws.region} for these credentials",
            remedy=f"check region and cluster: aws eks list-clusters --region {self.aws.region}",
        )

    def _what(self, name: str) -> str:
        return f"node group {self.cluster}/{name}"
