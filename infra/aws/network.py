"""From a target to the requests that make it: EFA interfaces, launch template, node group; and what fencing changes.

Everything here is pure.
The EFA layout is derived from what EC2 says of the machine type's network cards, never from a table or a count of
cards: p6-b300 has 17 cards and 16 EFA interfaces, and none of them on card 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from infra.errors import BadSpec
from infra.model.pools import Request
from infra.model.record import MANAGED_BY, PREFIX, PRIOR, RUN, UNPROVEN_TAINT
from infra.model.spec import EksTarget
from infra.model.survey import Machine

EFFECTS = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
POOL_TAG = f"{PREFIX}/pool"  # on a launch template: CLUSTER/POOL that it was made for
ROOT_GIB = 300  # EKS' default of 20 GiB does not hold one training image
TEMPLATE_VERSION = "1"  # a template is never changed: another content has another name


def efa_layout(machine: Machine) -> list[dict[str, Any]]:
    """The interfaces of one machine: (card 0, device 0) carries IP, every EFA beside it is `efa-only` and takes none.

    (0,0) must be `interface`; card 0 adds (0,1) if it has room and lists efa-only; each further card gives (i,0). Where
    no card can hold an efa-only interface, the primary itself becomes `efa` (hpc6id).

    Raises:
        BadSpec: the layout does not reach the machine type's number of EFA interfaces.

    """
    primary = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}
    if not machine.efa_interfaces:
        return [primary]
    extra = []
    for card in machine.cards:
        device = 1 if card.index == 0 else 0
        if "efa-only" in card.types and device < card.interfaces:
            extra.append({"NetworkCardIndex": card.index, "DeviceIndex": device, "InterfaceType": "efa-only"})
    extra = extra[: machine.efa_interfaces]
    if len(extra) == machine.efa_interfaces - 1 and any(
        card.index == 0 and "efa" in card.types for card in machine.cards
    ):
        return [{**primary, "InterfaceType": "efa"}, *extra]
    if len(extra) != machine.efa_interfaces:
        raise BadSpec(
            f"machine type {machine.name}",
            f"its network cards hold {len(extra)} EFA interfaces by the known rule",
            expected=f"{machine.efa_interfaces}, the maximum that EC2 states",
            remedy="choose another machine type; this one's card layout is not understood",
        )
    return [primary, *extra]


def requests(target: EksTarget, run: str, machine: Machine, cluster_group: str) -> list[Request]:
    """What `create` sends, in order. The same input gives the same bytes, tokens included."""
    data = template_data(target, run, machine, cluster_group)
    name = template_name(target, run, data)
    template = {
        "LaunchTemplateName": name,
        "VersionDescription": f"poolshift run {run}",
        "LaunchTemplateData": data,
        "TagSpecifications": [
            {
                "ResourceType": "launch-template",
                "Tags": [*_tag_list(run), {"Key": POOL_TAG, "Value": f"{target.cluster}/{target.name}"}],
            }
        ],
    }
    group = node_group(target, run, name)
    return [
        Request(
            verb="ec2.create_launch_template",
            object=f"launch template {name}",
            body={**template, "ClientToken": token(run, template)},
        ),
        Request(
            verb="eks.create_nodegroup",
            object=f"node group {target.cluster}/{target.name}",
            body={**group, "clientRequestToken": token(run, group)},
        ),
    ]


def template_data(target: EksTarget, run: str, machine: Machine, cluster_group: str) -> dict[str, Any]:
    """LaunchTemplateData. As soon as it names a group EKS no longer adds the cluster's, so we do, on each interface."""
    groups = [cluster_group, *(group for group in target.security_groups if group != cluster_group)]
    data: dict[str, Any] = {
        "InstanceType": target.machine_type,
        "NetworkInterfaces": [
            {**interface, "Groups": groups, "DeleteOnTermination": True} for interface in efa_layout(machine)
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/xvdb" if target.ami_type.startswith("BOTTLEROCKET") else "/dev/xvda",
                "Ebs": {"VolumeSize": ROOT_GIB, "VolumeType": "gp3", "DeleteOnTermination": True},
            }
        ],
        # Two hops: pods that use IMDSv2 sit behind one more than the node.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        # A node group's tags do not reach its instances; the template's do.
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": "Name", "Value": target.name}, *_tag_list(run)]}
            for kind in ("instance", "volume")
        ],
    }
    if target.reservation:
        data["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": target.reservation.id}
        }
        if target.reservation.capacity_block:
            data["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if target.placement_group:
        data["Placement"] = {"GroupName": target.placement_group}
    return data


def node_group(target: EksTarget, run: str, template: str) -> dict[str, Any]:
    """CreateNodegroup without its token. Fixed size, no repair: nothing may replace nodes while they are measured."""
    block = bool(target.reservation and target.reservation.capacity_block)
    taints = [{"key": t.key, "value": t.value, "effect": EFFECTS[t.effect]} for t in target.taints]
    return {
        "clusterName": target.cluster,
        "nodegroupName": target.name,
        "subnets": [target.subnet],
        "nodeRole": target.node_role,
        "amiType": target.ami_type,
        "capacityType": "CAPACITY_BLOCK" if block else "ON_DEMAND",
        "scalingConfig": {"minSize": target.nodes, "maxSize": max(target.nodes, 1), "desiredSize": target.nodes},
        "launchTemplate": {"name": template, "version": TEMPLATE_VERSION},
        "labels": {**target.labels, RUN: run},
        "taints": [*taints, {"key": UNPROVEN_TAINT, "value": run, "effect": "NO_SCHEDULE"}],
        "tags": {RUN: run, MANAGED_BY: "poolshift"},
        # MINIMAL terminates first: a full reservation has no room for a surge.
        "updateConfig": {"maxUnavailable": 1, "updateStrategy": "MINIMAL"},
        "nodeRepairConfig": {"enabled": False},
    }


def template_name(target: EksTarget, run: str, data: Mapping[str, Any]) -> str:
    """Named after its content, so a changed spec never meets the template of an earlier one."""
    return template_prefix(target.cluster, target.name) + token(run, data)[:10]


def template_prefix(cluster: str, pool: str) -> str:
    """How every template of ours for this node group begins (EC2 allows 128 characters)."""
    return f"poolshift-{cluster[:40]}-{pool[:40]}-"


def token(run: str, body: Mapping[str, Any]) -> str:
    """Deterministic idempotency token: the same run and request, the same token; 32 hex digits."""
    text = json.dumps([run, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def prior_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """What fencing will change, as it is now."""
    scaling = group.get("scalingConfig") or {}
    return {
        "min": int(scaling.get("minSize") or 0),
        "max": int(scaling.get("maxSize") or 0),
        "repair": bool((group.get("nodeRepairConfig") or {}).get("enabled")),
    }


def prior_text(prior: Mapping[str, Any]) -> str:
    """In the characters that an AWS tag allows: "min=0 max=4 repair=1 rebalance=0"."""
    size = f"min={prior['min']} max={prior['max']}"
    return f"{size} repair={int(prior['repair'])} rebalance={int(prior.get('rebalance', False))}"


def read_prior(group: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state before us from the group's tag, or None. A tag that somebody garbled counts as absent."""
    text = (group.get("tags") or {}).get(PRIOR, "")
    try:
        parts = dict(part.split("=") for part in text.split())
        flags = {key: parts.get(key, "0") == "1" for key in ("repair", "rebalance")}
        return {"min": int(parts["min"]), "max": int(parts["max"]), **flags}
    except (ValueError, KeyError):
        return None


def already(group: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Are size and repair of the group as `wanted` (an UpdateNodegroupConfig) would make them?"""
    repair = bool((group.get("nodeRepairConfig") or {}).get("enabled"))
    same_size = dict(group.get("scalingConfig") or {}) == dict(wanted["scalingConfig"])
    return same_size and repair == bool(wanted["nodeRepairConfig"]["enabled"])


def _tag_list(run: str) -> list[dict[str, str]]:
    return [{"Key": RUN, "Value": run}, {"Key": MANAGED_BY, "Value": "poolshift"}]
