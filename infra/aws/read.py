"""What AWS answers, as our own frozen types. Pure and tolerant: an unknown word is kept, never taken as good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from infra.clock import parse_time
from infra.model.pools import IssueClass, Pool, PoolIssue, PoolState
from infra.model.record import RUN
from infra.model.survey import (
    Addon,
    Card,
    ClusterFacts,
    Lustre,
    Machine,
    Reservation,
    SecurityGroup,
    Subnet,
)

POOL_LABEL = "eks.amazonaws.com/nodegroup"
GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
EFA_TYPES = ("efa", "efa-only")
BLOCK_MARGIN = timedelta(minutes=40)  # EKS scales a Capacity Block group to 0 at EndDate - 40 min

_STATES = {
    "CREATING": PoolState.CREATING,
    "ACTIVE": PoolState.ACTIVE,
    "UPDATING": PoolState.UPDATING,
    "DELETING": PoolState.DELETING,
    "CREATE_FAILED": PoolState.FAILED,
    "DELETE_FAILED": PoolState.DELETE_FAILED,
    "DEGRADED": PoolState.DEGRADED,
}
_CAPACITY_WORDS = (
    "InsufficientInstanceCapacity",
    "ReservationCapacityExceeded",
    "InsufficientReservedInstanceCapacity",
    "does not have enough capacity",
    "sufficient capacity",
)
_QUOTA_WORDS = ("VcpuLimitExceeded", "InstanceLimitExceeded", "vCPU capacity than your current", "PendingVerification")
_CLASSES = {
    "InstanceLimitExceeded": IssueClass.QUOTA,
    "LimitExceeded": IssueClass.QUOTA,
    "IamLimitExceeded": IssueClass.QUOTA,
    "Ec2LaunchTemplateMaxLimitExceeded": IssueClass.QUOTA,
    "ClusterUnreachable": IssueClass.TRANSIENT,
    "IamThrottling": IssueClass.TRANSIENT,
    "AutoScalingGroupRateLimitExceeded": IssueClass.TRANSIENT,
    "AutoScalingGroupInstanceRefreshActive": IssueClass.TRANSIENT,
    "InternalFailure": IssueClass.TRANSIENT,
    "NodeCreationFailure": IssueClass.JOIN,
    "PodEvictionFailure": IssueClass.DRAIN,
    "NodeTerminationFailure": IssueClass.DRAIN,
    "Unknown": IssueClass.UNKNOWN,
}
_CONFIG_PREFIXES = ("Ec2", "AmiId", "Iam", "Kubernetes", "Insufficient", "Access", "AutoScalingGroup", "SourceEc2")


def pool_state(status: str) -> PoolState:
    """EKS' status; one that we do not know is degraded, never active."""
    return _STATES.get(status, PoolState.DEGRADED)


def issue_class(code: str, message: str) -> IssueClass:
    """What to do about a health code. The message decides for launch failures, whose code says nothing."""
    if any(word in message for word in _QUOTA_WORDS):
        return IssueClass.QUOTA
    if any(word in message for word in _CAPACITY_WORDS):
        return IssueClass.CAPACITY
    if code in _CLASSES:
        return _CLASSES[code]
    if code == "AsgInstanceLaunchFailures":
        return IssueClass.UNKNOWN
    return IssueClass.CONFIG if code.startswith(_CONFIG_PREFIXES) else IssueClass.UNKNOWN


def issues(group: Mapping[str, Any]) -> tuple[PoolIssue, ...]:
    """health.issues of a node group."""
    return tuple(
        PoolIssue(
            code=issue.get("code", "Unknown"),
            message=issue.get("message", ""),
            issue_class=issue_class(issue.get("code", "Unknown"), issue.get("message", "")),
            resources=tuple(issue.get("resourceIds") or ()),
        )
        for issue in (group.get("health") or {}).get("issues") or ()
    )


def launch_failures(activities: Iterable[Mapping[str, Any]]) -> tuple[PoolIssue, ...]:
    """Failed launches since the last success, newest first: here stands EC2's true error."""
    found: dict[str, PoolIssue] = {}
    for activity in activities:
        status = activity.get("StatusCode")
        if status == "Successful":
            break
        if status in ("Failed", "Cancelled"):
            message = activity.get("StatusMessage") or activity.get("Description") or ""
            code = "AsgInstanceLaunchFailures"
            found.setdefault(message, PoolIssue(code=code, message=message, issue_class=issue_class(code, message)))
    return tuple(found.values())


def machine(described: Mapping[str, Any]) -> Machine:
    """One entry of DescribeInstanceTypes."""
    network = described.get("NetworkInfo") or {}
    gpus = (described.get("GpuInfo") or {}).get("Gpus") or ()
    efa = int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces") or 0) if network.get("EfaSupported") else 0
    return Machine(
        name=described["InstanceType"],
        gpus=sum(int(gpu.get("Count", 0)) for gpu in gpus),
        accelerator=str(gpus[0].get("Name", "")) if gpus else "",
        vcpus=int((described.get("VCpuInfo") or {}).get("DefaultVCpus") or 0),
        rdma={EFA: efa} if efa else {},
        cards=tuple(
            Card(
                index=int(card["NetworkCardIndex"]),
                interfaces=int(card.get("MaximumNetworkInterfaces") or 0),
                types=tuple(card.get("InterfaceTypes") or ()),
            )
            for card in network.get("NetworkCards") or ()
        ),
        efa_interfaces=efa,
        usage_classes=tuple(described.get("SupportedUsageClasses") or ()),
        fabric="efa" if efa else "",
        addresses_per_interface=int(network.get("Ipv4AddressesPerInterface") or 0),
    )


def template_machine_type(group: Mapping[str, Any], template: Mapping[str, Any]) -> str:
    """The instance type: from the launch template, else from the group; EKS never has both."""
    return str(template.get("InstanceType") or next(iter(group.get("instanceTypes") or ()), ""))


def template_efa(template: Mapping[str, Any]) -> int:
    """How many EFA interfaces the launch template attaches; a group without a template has none."""
    interfaces = template.get("NetworkInterfaces") or ()
    return sum(1 for interface in interfaces if interface.get("InterfaceType") in EFA_TYPES)


def template_reservation(template: Mapping[str, Any]) -> str:
    """The capacity reservation (or its resource group) that the template targets, or ""."""
    target = (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId") or target.get("CapacityReservationResourceGroupArn") or "")


def pool(
    group: Mapping[str, Any],
    template: Mapping[str, Any],
    shape: Machine | None,
    zones: tuple[str, ...],
    launch: tuple[PoolIssue, ...] = (),
) -> Pool:
    """A node group, its launch template's data ({} without one) and its machine type."""
    scaling = group.get("scalingConfig") or {}
    tags = group.get("tags") or {}
    efa = template_efa(template)
    low, high = int(scaling.get("minSize") or 0), int(scaling.get("maxSize") or 0)
    known = issues(group)
    return Pool(
        kind="eks",
        name=group["nodegroupName"],
        identity=str(group.get("nodegroupArn", "")),
        made=(str(group["nodegroupArn"]),) if group.get("nodegroupArn") else (),  # it ends in a UUID
        state=pool_state(str(group.get("status", ""))),
        machine_type=template_machine_type(group, template),
        nodes=int(scaling.get("desiredSize") or 0),
        zones=zones,
        issues=known + tuple(issue for issue in launch if issue.message not in {k.message for k in known}),
        node_selector={POOL_LABEL: group["nodegroupName"]},
        gpus={GPU: shape.gpus} if shape and shape.gpus else {},
        rdma={EFA: efa} if efa else {},
        tags=dict(tags),
        labels=dict(group.get("labels") or {}),
        ours=str(tags.get(RUN, "")),
        reservation=template_reservation(template),
        bounds=(low, high) if low != high else None,
    )


def cluster(described: Mapping[str, Any]) -> ClusterFacts:
    """DescribeCluster."""
    vpc = described.get("resourcesVpcConfig") or {}
    return ClusterFacts(
        name=described["name"],
        version=str(described.get("version", "")),
        state=str(described.get("status", "")),
        endpoints=tuple(filter(None, [urlsplit(str(described.get("endpoint", ""))).hostname])),
        network=str(vpc.get("vpcId", "")),
        security_group=str(vpc.get("clusterSecurityGroupId", "")),
    )


def reservation(described: Mapping[str, Any]) -> Reservation:
    """One entry of DescribeCapacityReservations. Machines start only in state `active`."""
    block = described.get("ReservationType") == "capacity-block"
    end = _moment(described.get("EndDate"))
    return Reservation(
        name=described["CapacityReservationId"],
        state=str(described.get("State", "")),
        usable=described.get("State") == "active",
        machine_type=str(described.get("InstanceType", "")),
        zone=str(described.get("AvailabilityZone", "")),
        zone_id=str(described.get("AvailabilityZoneId", "")),
        total=int(described.get("TotalInstanceCount") or 0),
        free=int(described.get("AvailableInstanceCount") or 0),
        ends=end - BLOCK_MARGIN if end and block else end,
        capacity_block=block,
        placement_group=str(described.get("PlacementGroupArn", "")).rpartition("/")[2],
        platform=str(described.get("InstancePlatform", "")),
        tenancy=str(described.get("Tenancy", "")),
        specific=described.get("InstanceMatchCriteria") == "targeted",
    )


def addon(described: Mapping[str, Any]) -> Addon:
    """DescribeAddon."""
    issues = (described.get("health") or {}).get("issues") or ()
    return Addon(
        name=str(described.get("addonName", "")),
        version=str(described.get("addonVersion", "")),
        status=str(described.get("status", "")),
        issues=tuple(f"{i.get('code', '')}: {i.get('message', '')}" for i in issues),
    )


def subnet(described: Mapping[str, Any]) -> Subnet:
    """One entry of DescribeSubnets."""
    return Subnet(
        name=described["SubnetId"],
        zone=str(described.get("AvailabilityZone", "")),
        zone_id=str(described.get("AvailabilityZoneId", "")),
        network=str(described.get("VpcId", "")),
        addresses=int(described.get("AvailableIpAddressCount") or 0),
    )


def security_group(described: Mapping[str, Any], cluster_group: str) -> SecurityGroup:
    """EFA frames are not IP: only a rule by the group's own id lets them pass; 0.0.0.0/0 does not."""
    name = described["GroupId"]
    return SecurityGroup(
        name=name,
        self_in=_references_itself(described.get("IpPermissions"), name),
        self_out=_references_itself(described.get("IpPermissionsEgress"), name),
        cluster=name == cluster_group,
    )


def open_lustre_ports(groups: Iterable[Mapping[str, Any]], clients: Iterable[str]) -> bool:
    """Do the file system's groups let the nodes' groups in on TCP 988 (LNET)? Group ids, or any address."""
    wanted = set(clients)
    for group in groups:
        for rule in group.get("IpPermissions") or ():
            if not _covers(rule, 988):
                continue
            peers = {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs") or ()}
            if peers & wanted or rule.get("IpRanges") or rule.get("PrefixListIds"):
                return True
    return False


def lustre(described: Mapping[str, Any], zone: str, open_ports: bool | None) -> Lustre:
    """One entry of DescribeFileSystems; its zone is its one subnet's."""
    settings = described.get("LustreConfiguration") or {}
    state = str(described.get("Lifecycle", ""))
    return Lustre(
        name=described["FileSystemId"],
        state=state,
        usable=state in ("AVAILABLE", "UPDATING"),
        zone=zone,
        network=str(described.get("VpcId", "")),
        rdma=bool(settings.get("EfaEnabled")),
        open_ports=open_ports,
    )


def _references_itself(rules: Iterable[Mapping[str, Any]] | None, group: str) -> bool:
    return any(
        rule.get("IpProtocol") == "-1" and group in {pair.get("GroupId") for pair in rule.get("UserIdGroupPairs") or ()}
        for rule in rules or ()
    )


def _covers(rule: Mapping[str, Any], port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return rule.get("IpProtocol") == "tcp" and rule.get("FromPort", 0) <= port <= rule.get("ToPort", -1)


def _moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    return parse_time(value) if isinstance(value, str) and value else None
