"""The Auto Scaling groups behind a node group: their true size, and what they do of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.aws.api import Aws
from infra.errors import Unreachable

BALANCE = "AZRebalance"


def groups(aws: Aws, group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every one behind the node group. Raises Unreachable: not all of them can be read."""
    what = f"node group {group['clusterName']}/{group['nodegroupName']}"
    names = [g["name"] for g in (group.get("resources") or {}).get("autoScalingGroups") or ()]
    verb, body = "autoscaling.describe_auto_scaling_groups", {"AutoScalingGroupNames": names}
    found = list(aws.pages(verb, what, "AutoScalingGroups", body)) if names else []
    if not names or {g["AutoScalingGroupName"] for g in found} != set(names):
        raise Unreachable(what, f"its Auto Scaling groups {names} cannot all be read", remedy="run again")
    return found


def size(aws: Aws, group: Mapping[str, Any]) -> int:
    """Nodes that Auto Scaling keeps. EKS shows an older number for a while, and sent back it kills nodes."""
    if group.get("status") == "CREATING":  # nothing changes its size yet
        return int((group.get("scalingConfig") or {}).get("desiredSize") or 0)
    return sum(int(behind.get("DesiredCapacity") or 0) for behind in groups(aws, group))


def balancing(aws: Aws, group: Mapping[str, Any]) -> list[str]:
    """Names of the groups over several zones in which AZRebalance runs."""
    if group.get("status") == "CREATING":
        return []
    return [
        str(behind["AutoScalingGroupName"])
        for behind in groups(aws, group)
        if len(behind.get("AvailabilityZones") or ()) > 1
        and not any(each.get("ProcessName") == BALANCE for each in behind.get("SuspendedProcesses") or ())
    ]


def suspend(aws: Aws, name: str) -> None:
    """Let the group not end machines of one zone because another has fewer."""
    aws.call("autoscaling.suspend_processes", *_balance(name))


def resume(aws: Aws, name: str) -> None:
    """Let it again."""
    aws.call("autoscaling.resume_processes", *_balance(name))


def _balance(name: str) -> tuple[str, dict[str, Any]]:
    return f"Auto Scaling group {name}", {"AutoScalingGroupName": name, "ScalingProcesses": [BALANCE]}
