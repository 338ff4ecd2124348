"""One EKS cluster and its node groups as AWS describes them. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.aws import read
from infra.aws.api import Aws
from infra.errors import CloudError, Forbidden, NotFound
from infra.model.pools import IssueClass, Pool, PoolIssue
from infra.model.survey import ClusterFacts, Machine


@dataclass
class EksCluster:
    """What does not change within a run (machine types, launch templates, zones) is read once."""

    aws: Aws
    cluster: str
    _machines: dict[str, Machine] = field(default_factory=dict, init=False, repr=False)
    _templates: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict, init=False, repr=False)
    _zones: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def find(self, pool: Any) -> Pool | None:
        """The node group named `pool.name`, or None. `NotFound`: the cluster itself is unknown."""
        group = self.describe(pool.name)
        return None if group is None else self._pool(group)

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

    def _no_cluster(self) -> NotFound:
        return NotFound(
            f"EKS cluster {self.cluster}",
            f"does not exist in {self.aws.region} for these credentials",
            remedy=f"check region and cluster: aws eks list-clusters --region {self.aws.region}",
        )

    def _what(self, name: str) -> str:
        return f"node group {self.cluster}/{name}"
