"""The Auto Scaling groups behind simulated node groups: sizes, instances, and who goes when one becomes smaller.

A smaller desired size kills machines that Auto Scaling chooses (here: the first ones, busy or not); a termination by
name kills that one. Over several zones AZRebalance then ends another, until as many are in each. EKS shows the new
desired size only a while later, as its API reference warns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from infra.sandbox.clouds.machines import ec2_id

if TYPE_CHECKING:
    from infra.sandbox.clouds.eks import NodeGroups

TERMINATE_SECONDS = 45.0
STALE_SECONDS = 20.0  # EKS shows the old desiredSize for so long


class Refusal(Exception):
    """EKS or Auto Scaling says no. `code` is its exception's name."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class ScalingGroups:
    """One Auto Scaling group for each node group. `desired` is its true size; `going` the instances that end."""

    def __init__(self, groups: NodeGroups) -> None:
        self.groups = groups
        self.desired: dict[str, int] = {}
        self.launched: dict[str, int] = {}
        self.going: set[str] = set()
        self.suspended: dict[str, set[str]] = {}  # processes of a group that are
        self.placed: dict[str, str] = {}  # machine to zone, where a group has several

    def adopt(self, group: dict[str, Any]) -> None:
        """A node group has come into being with its first size."""
        name = str(group["nodegroupName"])
        self.desired[name] = self.launched[name] = int(group["scalingConfig"]["desiredSize"])

    def describe(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """DescribeAutoScalingGroups."""
        wanted = set(names)
        with self.groups.lock:
            known = {scaling_group(group): group for group in self.groups.groups.values()}
            return [self._describe(name, known[name]) for name in sorted(known) if not wanted or name in wanted]

    def terminate(self, instance: str, *, decrement: bool) -> dict[str, Any]:
        """TerminateInstanceInAutoScalingGroup."""
        with self.groups.lock:
            pool, machine = self._find(instance)
            group = self.groups.groups[pool]
            low = int(group["scalingConfig"]["minSize"])
            if decrement and self.desired[pool] <= low:
                raise Refusal(
                    "ValidationError",
                    f"Currently, desiredSize equals minSize ({low}). Terminating instance without replacement will "
                    "violate group's min size constraint.",
                )
            if decrement:
                self.desired[pool] -= 1
                self.groups.timeline.after(STALE_SECONDS, lambda: self._show(group))
            self._end(pool, machine)
            self._balance(group)
            if not decrement:
                self._launch(group, 1)
            return {"ActivityId": f"terminate-{instance}", "StatusCode": "InProgress", "Progress": 0}

    def resize(self, group: dict[str, Any], size: int) -> None:
        """A desired size that EKS was told: more machines are launched, or some that nobody named are killed."""
        pool = str(group["nodegroupName"])
        more = size - self.desired[pool]
        self.desired[pool] = size
        if more > 0:
            self._launch(group, more)
        for machine in [m for m in self.groups.machines[pool] if m not in self.going][: max(0, -more)]:
            self._end(pool, machine)

    def _launch(self, group: dict[str, Any], count: int) -> None:
        pool = str(group["nodegroupName"])
        first = self.launched[pool]
        self.launched[pool] += count
        self.groups.grow(group, first, count)

    def _end(self, pool: str, machine: str) -> None:
        self.going.add(machine)
        self.groups.timeline.after(TERMINATE_SECONDS, lambda: self._gone(pool, machine))

    def _gone(self, pool: str, machine: str) -> None:
        self.groups.nodes.leave(machine)
        with self.groups.lock:
            self.going.discard(machine)
            if machine in self.groups.machines.get(pool, ()):
                self.groups.machines[pool].remove(machine)
                self.groups.capacity.ended(pool, self.groups.timeline.after)

    def _zones(self, group: dict[str, Any]) -> dict[str, str]:
        """The zone of each machine; those that were there first are in each zone in turn."""
        zones = [self.groups.subnet_zone(subnet) for subnet in group["subnets"]]
        pool = str(group["nodegroupName"])
        for machine in self.groups.machines[pool]:
            self.placed.setdefault(machine, zones[len(self.placed) % len(zones)])
        return {machine: self.placed[machine] for machine in self.groups.machines[pool]}

    def _balance(self, group: dict[str, Any]) -> None:
        """AZRebalance: where a zone has two fewer than another, one is launched there and one elsewhere ends."""
        if "AZRebalance" in self.suspended.get(scaling_group(group), ()):
            return
        standing: dict[str, list[str]] = {self.groups.subnet_zone(subnet): [] for subnet in group["subnets"]}
        for machine, zone in self._zones(group).items():
            if machine not in self.going:
                standing[zone].append(machine)
        fullest = max(standing.values(), key=len)
        if len(fullest) - min(map(len, standing.values())) > 1:
            self._launch(group, 1)
            self._end(str(group["nodegroupName"]), fullest[0])

    def _show(self, group: dict[str, Any]) -> None:
        with self.groups.lock:
            group["scalingConfig"]["desiredSize"] = self.desired[str(group["nodegroupName"])]

    def _find(self, instance: str) -> tuple[str, str]:
        for pool, machines in self.groups.machines.items():
            for machine in machines:
                if ec2_id(machine) == instance and machine not in self.going:
                    return pool, machine
        raise Refusal(
            "ValidationError", f"Instance Id not found - No managed instance found for instance ID: {instance}"
        )

    def _describe(self, name: str, group: dict[str, Any]) -> dict[str, Any]:
        pool, scaling = str(group["nodegroupName"]), group["scalingConfig"]
        zones = self._zones(group)
        return {
            "AutoScalingGroupName": name,
            "MinSize": int(scaling["minSize"]),
            "MaxSize": int(scaling["maxSize"]),
            "DesiredCapacity": self.desired[pool],
            "DefaultCooldown": 300,
            "AvailabilityZones": sorted({self.groups.subnet_zone(subnet) for subnet in group["subnets"]}),
            "SuspendedProcesses": [
                {"ProcessName": each, "SuspensionReason": "User suspended"}
                for each in sorted(self.suspended.get(name, ()))
            ],
            "HealthCheckType": "EC2",
            "CreatedTime": group["createdAt"],
            "Instances": [
                {
                    "InstanceId": ec2_id(machine),
                    "AvailabilityZone": zones[machine],
                    "LifecycleState": "Terminating:Wait" if machine in self.going else "InService",
                    "HealthStatus": "Healthy",
                    "ProtectedFromScaleIn": False,
                }
                for machine in self.groups.machines[pool]
            ],
        }


def scaling_group(group: Mapping[str, Any]) -> str:
    """Name of the Auto Scaling group behind a node group."""
    return str(group["resources"]["autoScalingGroups"][0]["name"])


def shortage(machine_type: str, zone: str, *, reserved: bool) -> str:
    """EC2's words, with and without a reservation."""
    if reserved:
        return (
            "Could not launch On-Demand Instances. ReservationCapacityExceeded - Insufficient capacity in the "
            "requested Capacity Reservation. Launching EC2 instance failed."
        )
    return (
        f"Could not launch On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient "
        f"{machine_type} capacity in the Availability Zone you requested ({zone}). Launching EC2 instance failed."
    )
