"""What EKS refuses at once of a node group that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infra.sandbox.clouds.scaling import Refusal

Template = Callable[[Mapping[str, Any]], tuple[str, str, Mapping[str, Any]]]
"""LaunchTemplateData by id or name and version, behind the template's id and name."""
AMI_TYPES = {
    "AL2023_x86_64_NVIDIA",
    "AL2023_ARM_64_NVIDIA",
    "BOTTLEROCKET_x86_64_NVIDIA",
    "BOTTLEROCKET_ARM_64_NVIDIA",
    "AL2_x86_64_GPU",
    "CUSTOM",
}
CAPACITY_TYPES = {"ON_DEMAND", "SPOT", "CAPACITY_BLOCK"}
EFFECTS = {"NO_SCHEDULE", "NO_EXECUTE", "PREFER_NO_SCHEDULE"}


def check(body: Mapping[str, Any], subnet_zone: Callable[[str], str], template_of: Template) -> Mapping[str, Any]:
    """Of CreateNodegroup. Returns the launch template's data, {} without one; raises Refusal.

    `subnet_zone` and `template_of` raise KeyError for what does not exist.
    """
    if body.get("amiType") and body["amiType"] not in AMI_TYPES:
        raise Refusal("InvalidParameterException", f"Unsupported AMI type {body['amiType']}")
    kind = body.get("capacityType") or "ON_DEMAND"
    if kind not in CAPACITY_TYPES:
        raise Refusal("InvalidParameterException", f"Unsupported capacity type {kind}")
    for taint in body.get("taints") or ():
        if taint.get("effect") not in EFFECTS:
            raise Refusal("InvalidParameterException", f"Invalid taint effect {taint.get('effect')}")
    check_scaling(body.get("scalingConfig") or {})
    for subnet in body["subnets"]:
        try:
            subnet_zone(subnet)
        except KeyError:
            raise Refusal("InvalidParameterException", f"The subnet ID '{subnet}' does not exist") from None
    if not body.get("launchTemplate"):
        return {}
    if body.get("diskSize") or body.get("remoteAccess"):
        raise Refusal("InvalidParameterException", "Disk size and remote access go into the launch template")
    try:
        _, _, template = template_of(body["launchTemplate"])
    except KeyError:
        raise Refusal("InvalidRequestException", "Launch template or its version does not exist") from None
    if template.get("InstanceType") and body.get("instanceTypes"):
        raise Refusal("InvalidParameterException", "Instance type is in the launch template and in the request")
    market = (template.get("InstanceMarketOptions") or {}).get("MarketType")
    if (kind == "CAPACITY_BLOCK") != (market == "capacity-block"):
        raise Refusal("InvalidParameterException", f"Capacity type {kind} with market type {market}")
    return template


def check_scaling(scaling: Mapping[str, Any]) -> None:
    """Of any scalingConfig; raises Refusal."""
    low, size, high = (int(scaling.get(key, 1)) for key in ("minSize", "desiredSize", "maxSize"))
    if not low <= size <= high or high < 1:
        raise Refusal(
            "InvalidParameterException",
            f"Minimum capacity {low}, desired capacity {size} and maximum capacity {high} do not agree",
        )
