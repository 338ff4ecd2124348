"""Simulated EKS node groups: they take time, fail as a scenario says, and kill their machines when deleted.

Answers have the shapes that botocore's model of EKS describes; moto only carries them over HTTP. What moto accepts
and EKS refuses (a template and instance types at once, an unknown AMI type, a Capacity Block group whose template is
none) is refused here.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.sandbox.clouds.capacity import Capacity, Faults, Outcome
from infra.sandbox.clouds.eks_refusals import Template, check, check_scaling
from infra.sandbox.clouds.machines import Machine, Nodes, ec2_id, eks_name, kubernetes_taints
from infra.sandbox.clouds.scaling import Refusal, ScalingGroups, scaling_group, shortage
from infra.sandbox.clouds.timeline import Timeline
from infra.sandbox.scenario import CloudConfig

ACCOUNT = "123456789012"
UPDATE_SECONDS = 10.0


@dataclass
class NodeGroups:
    """The node groups of the one simulated cluster.

    `template` looks up LaunchTemplateData by id or name and version; `subnet_zone` a subnet's zone; both raise
    KeyError. `cluster_group` is the security group without which a node cannot join.
    """

    config: CloudConfig
    timeline: Timeline
    nodes: Nodes
    capacity: Capacity
    faults: Faults
    template: Template
    subnet_zone: Callable[[str], str]
    cluster_group: str
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    machines: dict[str, list[str]] = field(default_factory=dict)
    activities: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)
    scaling: ScalingGroups = field(init=False)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.scaling = ScalingGroups(self)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """CreateNodegroup. The group is CREATING; its outcome follows."""
        with self.lock:
            name = str(body["nodegroupName"])
            if name in self.groups:
                raise Refusal(
                    "ResourceInUseException",
                    f"NodeGroup already exists with name {name} and cluster name {self.config.place.cluster}",
                )
            template = check(body, self.subnet_zone, self.template)
            group = self._new(body)
            self.groups[name], self.machines[name] = group, []
            self.activities[scaling_group(group)] = []
            self._plan(group, template)
            self.scaling.adopt(group)
            return copy.deepcopy(group)

    def adopt(self, body: Mapping[str, Any], machines: Iterable[str]) -> None:
        """A group that stands already, with its machines in the cluster."""
        with self.lock:
            group = {**self._new(body), "status": "ACTIVE"}
            name = str(body["nodegroupName"])
            self.groups[name] = group
            self.machines[name] = list(machines)
            self.scaling.adopt(group)
            self.activities[scaling_group(group)] = []

    def describe(self, name: str) -> dict[str, Any]:
        """DescribeNodegroup."""
        with self.lock:
            return copy.deepcopy(self._get(name))

    def delete(self, name: str) -> dict[str, Any]:
        """DeleteNodegroup: EKS drains for minutes at most, then kills every machine at once, budgets or not."""
        with self.lock:
            group = self._get(name)
            if group["status"] == "DELETING":
                raise Refusal("ResourceInUseException", f"Nodegroup {name} is being deleted")
            group["status"] = "DELETING"
            failure, self.faults.delete_failure = self.faults.delete_failure, ""
            seconds = self.config.scenario.target.delete_seconds
            if failure:
                self.timeline.after(
                    seconds, lambda: self._fail(group, "DELETE_FAILED", "Ec2SecurityGroupDeletionFailure", failure)
                )
            else:
                self.timeline.after(seconds * 0.7, lambda: self._kill(group))
                self.timeline.after(seconds, lambda: self._gone(group))
            return copy.deepcopy(group)

    def update(self, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """UpdateNodegroupConfig: one at a time, done after a few seconds."""
        with self.lock:
            group = self._get(name)
            if group["status"] in ("UPDATING", "CREATING", "DELETING"):
                raise Refusal("ResourceInUseException", f"Nodegroup {name} is {group['status']}")
            check_scaling({**group["scalingConfig"], **(change.get("scalingConfig") or {})})
            number = hashlib.sha256(f"{name}{len(self.updates)}".encode()).hexdigest()
            update = {
                "id": f"{number[:8]}-{number[8:12]}-{number[12:16]}-{number[16:20]}-{number[20:32]}",
                "status": "InProgress",
                "type": "ConfigUpdate",
                "params": [],
                "createdAt": self.timeline.clock.now(),
                "errors": [],
            }
            self.updates[str(update["id"])] = update
            before = group["status"]
            group["status"] = "UPDATING"
            seconds = self.config.scenario.target.of_change(UPDATE_SECONDS)
            self.timeline.after(seconds, lambda: self._apply(group, change, update, before))
            return copy.deepcopy(update)

    def describe_update(self, number: str) -> dict[str, Any]:
        """DescribeUpdate."""
        with self.lock:
            if number not in self.updates:
                raise Refusal("ResourceNotFoundException", f"No update found for ID: {number}.")
            return copy.deepcopy(self.updates[number])

    def tag(self, arn: str, tags: Mapping[str, str]) -> None:
        """TagResource on a node group's ARN."""
        with self.lock:
            self._by_arn(arn)["tags"].update(tags)

    def untag(self, arn: str, keys: Iterable[str]) -> None:
        """UntagResource on a node group's ARN."""
        with self.lock:
            for key in keys:
                self._by_arn(arn)["tags"].pop(key, None)

    def _get(self, name: str) -> dict[str, Any]:
        if name not in self.groups:
            raise Refusal("ResourceNotFoundException", f"No node group found for name: {name}.")
        return self.groups[name]

    def _by_arn(self, arn: str) -> dict[str, Any]:
        for group in self.groups.values():
            if group["nodegroupArn"] == arn:
                return group
        raise Refusal("NotFoundException", f"Resource was not found: {arn}")

    def _new(self, body: Mapping[str, Any]) -> dict[str, Any]:
        place = self.config.place
        digest = hashlib.sha256(f"{body['nodegroupName']}{self.timeline.clock.now()}".encode()).hexdigest()
        unique = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        name = body["nodegroupName"]
        group = {
            "nodegroupName": name,
            "nodegroupArn": f"arn:aws:eks:{place.region}:{ACCOUNT}:nodegroup/{place.cluster}/{name}/{unique}",
            "clusterName": place.cluster,
            "version": "1.34",
            "createdAt": self.timeline.clock.now(),
            "modifiedAt": self.timeline.clock.now(),
            "status": "CREATING",
            "health": {"issues": []},
            "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{unique}"}]},
            "labels": {},
            "taints": [],
            "tags": {},
            "capacityType": "ON_DEMAND",
        }
        kept = (
            "scalingConfig",
            "subnets",
            "nodeRole",
            "amiType",
            "capacityType",
            "labels",
            "taints",
            "tags",
            "updateConfig",
            "nodeRepairConfig",
            "instanceTypes",
        )
        group |= {key: copy.deepcopy(body[key]) for key in kept if body.get(key) is not None}
        if body.get("launchTemplate"):
            number, its_name, _ = self.template(body["launchTemplate"])
            version = str(body["launchTemplate"].get("version") or "1")
            group["launchTemplate"] = {"id": number, "name": its_name, "version": version}
        return group

    def _plan(self, group: dict[str, Any], template: Mapping[str, Any]) -> None:
        """Lay out what happens to a new group. Without a scalingConfig, EKS makes two nodes."""
        group.setdefault("scalingConfig", {"minSize": 1, "maxSize": 2, "desiredSize": 2})
        nodes = int(group["scalingConfig"]["desiredSize"])
        target = (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget")
        outcome = self.capacity.outcome(nodes, reserved=bool(target))
        seconds = self.config.scenario.target.create_seconds
        if outcome.kind in ("active", "degraded") and not self._can_join(template):
            outcome = Outcome(kind="create-failed", joined=0)
        if target and outcome.joined:
            self.capacity.ours[group["nodegroupName"]] = outcome.joined
        self._launch(group, template, 0, outcome.joined)
        if outcome.joined < nodes and outcome.kind != "create-failed":
            self.timeline.after(seconds * 0.4, lambda: self._launch_failed(group, reserved=bool(target)))
        self.timeline.after(seconds, lambda: self._settle(group, outcome))

    def _launch(self, group: dict[str, Any], template: Mapping[str, Any], first: int, count: int) -> None:
        """Machines number `first` and on join one after another while the pool is being made or grows."""
        seconds = self.config.scenario.target.create_seconds
        for index in range(first, first + count):
            machine = self._machine(group, template, index)
            share = 0.5 + 0.3 * (index - first) / count
            self.timeline.after(seconds * share, lambda machine=machine: self._join(group, machine))  # type: ignore[misc]

    def grow(self, group: dict[str, Any], first: int, count: int) -> None:
        """The Auto Scaling group launches `count` more; without room its activities say so and the group degrades."""
        _, _, template = self.template(group["launchTemplate"])
        reserved = bool(self._target_of(group))
        outcome = self.capacity.outcome(count, reserved=reserved)
        if reserved and outcome.joined:
            name = group["nodegroupName"]
            self.capacity.ours[name] = self.capacity.ours.get(name, 0) + outcome.joined
        self._launch(group, template, first, outcome.joined)
        if outcome.joined < count:
            short = shortage(self.config.place.machine_type, self.config.place.zone, reserved=reserved)
            seconds = self.config.scenario.target.create_seconds
            self.timeline.after(seconds, lambda: self._fail(group, "DEGRADED", "AsgInstanceLaunchFailures", short))

    def _can_join(self, template: Mapping[str, Any]) -> bool:
        """A template that names groups must name the cluster's on every interface that carries IP."""
        interfaces = template.get("NetworkInterfaces") or ()
        return all(self.cluster_group in (i.get("Groups") or ()) for i in interfaces)

    def _machine(self, group: Mapping[str, Any], template: Mapping[str, Any], index: int) -> Machine:
        place, name = self.config.place, group["nodegroupName"]
        zone = self.subnet_zone(group["subnets"][index % len(group["subnets"])])
        interfaces = template.get("NetworkInterfaces") or ()
        own = eks_name(place.region, str(group["nodegroupArn"]), index)
        return Machine(
            name=own,
            labels={
                **place.pool_labels(name),
                "eks.amazonaws.com/capacityType": group["capacityType"],
                "eks.amazonaws.com/sourceLaunchTemplateId": (group.get("launchTemplate") or {}).get("id", ""),
                **group["labels"],
            },
            machine_type=str(template.get("InstanceType") or next(iter(group.get("instanceTypes") or ["t3.medium"]))),
            zone=zone,
            rdma=any(i.get("InterfaceType") in ("efa", "efa-only") for i in interfaces),
            taints=kubernetes_taints(group["taints"]),
            provider_id=f"aws:///{zone}/{ec2_id(own)}",
        )

    def _join(self, group: Mapping[str, Any], machine: Machine) -> None:
        with self.lock:
            if group["status"] == "DELETING" or self.groups.get(group["nodegroupName"]) is not group:
                return
        self.nodes.join(machine)
        with self.lock:
            if machine.name not in self.machines[group["nodegroupName"]]:
                self.machines[group["nodegroupName"]].append(machine.name)
            self.scaling.placed[machine.name] = machine.zone
            self._activity(group, "Successful", "Launching a new EC2 instance", "")

    def _launch_failed(self, group: Mapping[str, Any], *, reserved: bool) -> None:
        with self.lock:
            if group["status"] == "CREATING":
                message = shortage(self.config.place.machine_type, self.config.place.zone, reserved=reserved)
                self._activity(group, "Failed", "Launching a new EC2 instance. Status Reason: failed", message)

    def _activity(self, group: Mapping[str, Any], status: str, description: str, message: str) -> None:
        now = self.timeline.clock.now()
        activity = {
            "ActivityId": f"activity-{len(self.activities[scaling_group(group)])}",
            "AutoScalingGroupName": scaling_group(group),
            "Description": description,
            "Cause": "an instance was started in response to a difference between desired and actual capacity",
            "StartTime": now,
            "StatusCode": status,
        }
        if message:
            activity["StatusMessage"] = message
        self.activities[scaling_group(group)].insert(0, activity)

    def _settle(self, group: dict[str, Any], outcome: Outcome) -> None:
        with self.lock:
            if group["status"] != "CREATING":
                return
            place = self.config.place
            reserved = bool(self._target_of(group))
            short = shortage(place.machine_type, place.zone, reserved=reserved)
            if outcome.kind == "active":
                group["status"] = "ACTIVE"
            elif outcome.kind == "degraded":
                self._fail(group, "DEGRADED", "AsgInstanceLaunchFailures", short)
            elif outcome.kind == "stockout":
                self._fail(group, "CREATE_FAILED", "AsgInstanceLaunchFailures", short)
            else:
                message = "Instances failed to join the kubernetes cluster"
                self._fail(group, "CREATE_FAILED", "NodeCreationFailure", message)

    def _target_of(self, group: Mapping[str, Any]) -> Any:
        if not group.get("launchTemplate"):
            return None
        _, _, template = self.template(group["launchTemplate"])
        return (template.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget")

    def _fail(self, group: dict[str, Any], status: str, code: str, message: str) -> None:
        with self.lock:
            group["status"] = status
            issue = {"code": code, "message": message, "resourceIds": [scaling_group(group)]}
            group["health"] = {"issues": [issue]}

    def _apply(self, group: dict[str, Any], change: Mapping[str, Any], update: dict[str, Any], before: str) -> None:
        with self.lock:
            labels, taints = change.get("labels") or {}, change.get("taints") or {}
            group["labels"].update(labels.get("addOrUpdateLabels") or {})
            for key in labels.get("removeLabels") or ():
                group["labels"].pop(key, None)
            changed = [*(taints.get("addOrUpdateTaints") or ()), *(taints.get("removeTaints") or ())]
            names = {(taint["key"], taint.get("effect")) for taint in changed}
            group["taints"] = [t for t in group["taints"] if (t["key"], t.get("effect")) not in names]
            group["taints"] += list(taints.get("addOrUpdateTaints") or ())
            group["scalingConfig"].update(change.get("scalingConfig") or {})
            if "desiredSize" in (change.get("scalingConfig") or {}):
                self.scaling.resize(group, int(change["scalingConfig"]["desiredSize"]))
            for key in ("updateConfig", "nodeRepairConfig"):
                if change.get(key):
                    group[key] = dict(change[key])
            group["status"] = before if group["status"] == "UPDATING" else group["status"]
            update["status"] = "Successful"

    def _kill(self, group: Mapping[str, Any]) -> None:
        with self.lock:
            names = list(self.machines[group["nodegroupName"]])
        for name in names:
            self.nodes.leave(name)
        with self.lock:
            self.machines[group["nodegroupName"]] = []
            self.capacity.ours.pop(group["nodegroupName"], None)

    def _gone(self, group: Mapping[str, Any]) -> None:
        with self.lock:
            self.groups.pop(group["nodegroupName"], None)
