"""What the simulated AWS answers where moto does not: each function takes the cloud and moto's response object.

For EKS, EC2 and Auto Scaling the second argument is moto's response object; for FSx and Service Quotas the body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from infra.sandbox.clouds import names
from infra.sandbox.clouds.scaling import Refusal

if TYPE_CHECKING:
    from infra.sandbox.clouds.aws import SimulatedAws

ADDONS = {"vpc-cni": "v1.20.4-eksbuild.2", "kube-proxy": "v1.34.1-eksbuild.2", "coredns": "v1.12.4-eksbuild.1"}
QUOTAS = {
    "L-417A185B": ("Running On-Demand P instances", 1536.0 * 4),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 768.0),
    "L-1216C47A": ("Running On-Demand Standard instances", 1152.0),
}


def _cluster_known(aws: SimulatedAws, response: Any) -> None:
    aws.eks.describe_cluster(name=response._get_param("name"))  # raises as EKS does


def _create(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    return {"nodegroup": aws.groups.create(json.loads(response.body))}


def _describe(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    return {"nodegroup": aws.groups.describe(response._get_param("nodegroupName"))}


def _list(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    return {"nodegroups": sorted(aws.groups.groups)}


def _delete(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    return {"nodegroup": aws.groups.delete(response._get_param("nodegroupName"))}


def _update(aws: SimulatedAws, response: Any) -> Any:
    return {"update": aws.groups.update(response._get_param("nodegroupName"), json.loads(response.body))}


def _describe_update(aws: SimulatedAws, response: Any) -> Any:
    return {"update": aws.groups.describe_update(response._get_param("updateId"))}


def _list_addons(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    return {"addons": sorted(ADDONS)}


def _describe_addon(aws: SimulatedAws, response: Any) -> Any:
    _cluster_known(aws, response)
    name = response._get_param("addonName")
    if name not in ADDONS:
        raise Refusal("ResourceNotFoundException", f"No addon: {name} found in cluster: {aws.config.place.cluster}")
    health: dict[str, Any] = {"issues": []}
    return {"addon": {"addonName": name, "addonVersion": ADDONS[name], "status": "ACTIVE", "health": health}}


def _tag(aws: SimulatedAws, response: Any) -> None:
    aws.groups.tag(_arn(response), json.loads(response.body)["tags"])


def _untag(aws: SimulatedAws, response: Any) -> None:
    aws.groups.untag(_arn(response), parse_qs(response.parsed_url.query).get("tagKeys", []))


def _arn(response: Any) -> str:
    return unquote(response.path).split("/tags/", 1)[1]


def _reservations(aws: SimulatedAws, response: Any) -> Any:
    place = aws.config.place
    wanted = response._get_param("CapacityReservationIds") or [names.RESERVATION]
    if names.RESERVATION not in wanted:
        raise _ec2_error("InvalidCapacityReservationId.NotFound", f"The reservation {wanted[0]} does not exist")
    subnet = aws.ec2.get_subnet(names.SUBNET)
    return {
        "CapacityReservations": [
            {
                "CapacityReservationId": names.RESERVATION,
                "OwnerId": names.ACCOUNT,
                "InstanceType": place.machine_type,
                "InstancePlatform": "Linux/UNIX",
                "AvailabilityZone": place.zone,
                "AvailabilityZoneId": subnet.availability_zone_id,
                "Tenancy": "default",
                "TotalInstanceCount": aws.capacity.total,
                "AvailableInstanceCount": aws.capacity.free,
                "State": "active",
                "InstanceMatchCriteria": "targeted",
                "EndDateType": "unlimited",
                "ReservationType": "default",
            }
        ]
    }


def _placement_groups(aws: SimulatedAws, response: Any) -> Any:
    wanted = response._get_param("GroupNames") or [names.PLACEMENT_GROUP]
    if names.PLACEMENT_GROUP not in wanted:
        raise _ec2_error("InvalidPlacementGroup.Unknown", f"The Placement Group '{wanted[0]}' is unknown.")
    return {"PlacementGroups": [{"GroupName": names.PLACEMENT_GROUP, "State": "available", "Strategy": "cluster"}]}


def scaling_activities(aws: SimulatedAws, response: Any) -> Any:
    """DescribeScalingActivities."""
    name = response._get_param("AutoScalingGroupName")
    return {"Activities": list(aws.groups.activities.get(name, ()))}


def scaling_groups(aws: SimulatedAws, response: Any) -> Any:
    """DescribeAutoScalingGroups."""
    return {"AutoScalingGroups": aws.groups.scaling.describe(response._get_param("AutoScalingGroupNames") or ())}


def terminate(aws: SimulatedAws, response: Any) -> Any:
    """TerminateInstanceInAutoScalingGroup."""
    from moto.autoscaling.exceptions import ValidationError

    decrement = response._get_bool_param("ShouldDecrementDesiredCapacity", False)
    try:
        return {"Activity": aws.groups.scaling.terminate(response._get_param("InstanceId"), decrement=decrement)}
    except Refusal as refusal:
        raise ValidationError(str(refusal)) from refusal


def suspend(aws: SimulatedAws, response: Any) -> Any:
    """SuspendProcesses."""
    named = response._get_param("ScalingProcesses")
    aws.groups.scaling.suspended.setdefault(response._get_param("AutoScalingGroupName"), set()).update(named)
    return {}


def resume(aws: SimulatedAws, response: Any) -> Any:
    """ResumeProcesses."""
    named = response._get_param("ScalingProcesses")
    aws.groups.scaling.suspended.get(response._get_param("AutoScalingGroupName"), set()).difference_update(named)
    return {}


def file_systems(aws: SimulatedAws, body: Mapping[str, Any]) -> Any:
    """DescribeFileSystems."""
    from moto.fsx.exceptions import FileSystemNotFound

    wanted = body.get("FileSystemIds") or [names.FILE_SYSTEM]
    if names.FILE_SYSTEM not in wanted:
        raise FileSystemNotFound(wanted[0])
    lustre, place = aws.config.scenario.lustre, aws.config.place
    return {
        "FileSystems": [
            {
                "FileSystemId": names.FILE_SYSTEM,
                "FileSystemType": "LUSTRE",
                "FileSystemTypeVersion": "2.15",
                "Lifecycle": "AVAILABLE",
                "StorageType": "SSD",
                "StorageCapacity": round(lustre.capacity_tib * 1024),
                "VpcId": names.VPC,
                "SubnetIds": [aws.lustre_subnet],
                "NetworkInterfaceIds": [names.LUSTRE_INTERFACE],
                "DNSName": f"{names.FILE_SYSTEM}.fsx.{place.region}.amazonaws.com",
                "LustreConfiguration": {
                    "DeploymentType": "PERSISTENT_2",
                    "PerUnitStorageThroughput": round(lustre.mb_s_per_tib),
                    "MountName": "train",
                    "EfaEnabled": True,
                },
            }
        ]
    }


def quota(aws: SimulatedAws, body: Mapping[str, Any]) -> Any:
    """GetServiceQuota."""
    from moto.servicequotas.exceptions import NoSuchResource

    code = str(body.get("QuotaCode"))
    if body.get("ServiceCode") != "ec2" or code not in QUOTAS:
        raise NoSuchResource
    name, value = QUOTAS[code]
    return {"Quota": {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": name, "Value": value}}


def _ec2_error(code: str, message: str) -> Exception:
    from moto.ec2.exceptions import EC2ClientError

    error: Exception = EC2ClientError(code, message)
    return error


EKS: dict[str, Callable[[SimulatedAws, Any], Any]] = {
    "create_nodegroup": _create,
    "describe_nodegroup": _describe,
    "list_nodegroups": _list,
    "delete_nodegroup": _delete,
    "update_nodegroup_config": _update,
    "describe_update": _describe_update,
    "tag_resource": _tag,
    "untag_resource": _untag,
    "list_addons": _list_addons,
    "describe_addon": _describe_addon,
}
EC2: dict[str, Callable[[SimulatedAws, Any], Any]] = {
    "describe_capacity_reservations": _reservations,
    "describe_placement_groups": _placement_groups,
}
