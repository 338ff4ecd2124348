"""Single machines of an EKS managed node group, through the Auto Scaling group behind it.

`UpdateNodegroupConfig` with a smaller desiredSize lets Auto Scaling choose who goes, and no budget is asked;
`TerminateInstanceInAutoScalingGroup` names the instance and takes the group's size down with it, which is how the
cluster autoscaler does it too. EKS' own desiredSize follows and may be out of date for a while (EKS API reference,
NodegroupScalingConfig), so the Auto Scaling group's word counts here, and desiredSize is never sent with a shrinking
change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.aws import read, scaling
from infra.aws.pools import EksPools
from infra.errors import CloudError, NotFound, Refused, Unreachable
from infra.model.slices import Instance, Prove
from infra.model.survey import Reservation

_GOING = ("Terminat", "Detach")  # Terminating, Terminating:Wait, Terminated, Detaching, …
_LATER = ("ScalingActivityInProgress", "ResourceContention")


@dataclass
class EksSlices:
    """The machines of one cluster's node groups. Fulfils `infra.model.slices.Slices`."""

    pools: EksPools

    def instances(self, pool: Any) -> Mapping[str, Instance]:
        """Of every Auto Scaling group behind the node group."""
        return {i.id: i for group in self._groups(pool) for i in _instances(group)}

    def give_up(self, pool: Any, ids: Iterable[str], prove: Prove) -> None:
        """Lower the minimum where it stands in the way, then end each instance by its id."""
        groups = self._groups(pool)
        standing = {i.id for group in groups for i in _instances(group) if not i.going}
        asked = [name for name in dict.fromkeys(ids) if name in standing]
        if not asked:
            return
        room = sum(int(group.get("DesiredCapacity") or 0) for group in groups) - len(asked)
        if sum(int(group.get("MinSize") or 0) for group in groups) > room:
            self.pools.update(pool.name, {"scalingConfig": {"minSize": room}})
        for name in asked:
            prove([name])
            self._terminate(name)

    def grow(self, pool: Any, nodes: int) -> None:
        """A fixed size of `nodes`."""
        what = f"node group {self.pools.cluster}/{pool.name}"
        size = sum(int(group.get("DesiredCapacity") or 0) for group in self._groups(pool, must=True))
        if size > nodes:
            raise Refused(what, f"has {size} machines", expected=f"at most {nodes}: it is to grow, not to shrink")
        known = (self.pools.describe(pool.name) or {}).get("scalingConfig") or {}
        wanted = {"minSize": nodes, "maxSize": max(nodes, int(known.get("maxSize") or 0), 1), "desiredSize": nodes}
        if size < nodes or known != wanted:
            self.pools.update(pool.name, {"scalingConfig": wanted})

    def reservation(self, target: Any) -> Reservation | None:
        """DescribeCapacityReservations, for Capacity Blocks too."""
        if target.reservation is None:
            return None
        name = target.reservation.id
        what = f"capacity reservation {name}"
        answer = self.pools.aws.call("ec2.describe_capacity_reservations", what, {"CapacityReservationIds": [name]})
        found = answer.get("CapacityReservations") or ()
        if not found:
            raise NotFound(what, "does not exist", remedy="correct target.reservation.id")
        return read.reservation(found[0])

    def _groups(self, pool: Any, *, must: bool = False) -> list[Mapping[str, Any]]:
        what = f"node group {self.pools.cluster}/{pool.name}"
        described = self.pools.describe(pool.name)
        if described is None:
            if must:
                raise NotFound(
                    what, "does not exist", remedy="somebody deleted it: poolshift rollback SPEC, then start again"
                )
            return []
        return scaling.groups(self.pools.aws, described)

    def _terminate(self, provider_id: str) -> None:
        what = f"instance {provider_id.rpartition('/')[2]}"
        body = {"InstanceId": provider_id.rpartition("/")[2], "ShouldDecrementDesiredCapacity": True}
        try:
            self.pools.aws.call("autoscaling.terminate_instance_in_auto_scaling_group", what, body)
        except CloudError as error:
            if not any(code in error.observed for code in _LATER):
                raise
            raise Unreachable(what, error.observed, remedy="run the same command again in a minute") from error


def _instances(group: Mapping[str, Any]) -> list[Instance]:
    return [
        Instance(
            id=f"aws:///{found.get('AvailabilityZone')}/{found['InstanceId']}",
            going=str(found.get("LifecycleState", "")).startswith(_GOING),
        )
        for found in group.get("Instances") or ()
    ]
