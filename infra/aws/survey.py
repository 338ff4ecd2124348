"""Read what the preflight judges, part by part: one part that cannot be read does not hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.aws import network, read
from infra.aws.cluster import EksCluster
from infra.errors import BadSpec, CloudError, Forbidden, NotFound, Unreachable
from infra.model.spec import EksTarget
from infra.model.survey import (
    Addon,
    Lustre,
    Machine,
    Part,
    PartReader,
    Quota,
    Reservation,
    SecurityGroup,
    Subnet,
    Survey,
)

# vCPU quotas of Running On-Demand instances by the letter that the type's name begins with.
_QUOTAS = {"p": "L-417A185B", "g": "L-DB2E81BA", "vt": "L-DB2E81BA"}
_STANDARD = "L-1216C47A"


def survey(pools: EksCluster, source: Any, target: Any, run: str) -> Survey:
    """Read everything. Raises only for an unknown cluster, missing credentials or an unreachable cloud."""
    cluster = pools.describe_cluster()
    ours = source.kind == "eks"
    before = pools.find(source) if ours else None
    if not isinstance(target, EksTarget):
        return Survey(kind="eks", cluster=cluster, source=before, source_read=ours)
    reader = _Reader(pools, target)
    machine, known = reader.machine()
    reservation, reserved = reader.reservation()
    groups = [cluster.security_group, *target.security_groups]
    role, shared = reader.role_shared_with(source.name) if ours else ("", ())
    return Survey(
        kind="eks",
        cluster=cluster,
        source=before,
        source_read=ours,
        existing=pools.find(target),
        machine=machine,
        machine_known=known,
        offered_zones=reader.part(Part.OFFERED, reader.offered),
        subnet=reader.part(Part.SUBNET, reader.subnet),
        reservation=reservation,
        reservation_known=reserved,
        security_groups=reader.part(Part.SECURITY, lambda: reader.security_groups(groups)),
        placement_strategy=reader.part(Part.PLACEMENT, reader.placement) if target.placement_group else None,
        quota=None if target.reservation else reader.part(Part.QUOTA, lambda: reader.quota(machine)),
        lustre=reader.part(Part.LUSTRE, lambda: reader.lustre(groups)) if target.lustre else None,
        addons=reader.part(Part.ADDONS, reader.addons),
        layout_problem=layout_problem(machine),
        source_role=role,
        role_shared_with=shared,
        unread=reader.unread,
    )


class _Reader(PartReader):
    """The reads for one target."""

    def __init__(self, pools: EksCluster, target: EksTarget) -> None:
        super().__init__()
        self.pools = pools
        self.aws = pools.aws
        self.target = target

    def machine(self) -> tuple[Machine | None, bool | None]:
        """The type and whether EC2 knows it; (None, None) where that could not be asked."""
        try:
            return self.pools.machine(self.target.machine_type), True
        except NotFound:
            return None, False
        except (Forbidden, CloudError, Unreachable) as error:
            self.unread[Part.MACHINE] = error.wording()
            return None, None

    def reservation(self) -> tuple[Reservation | None, bool | None]:
        if self.target.reservation is None:
            return None, None
        name = self.target.reservation.id
        try:
            answer = self.aws.call(
                "ec2.describe_capacity_reservations",
                f"capacity reservation {name}",
                {"CapacityReservationIds": [name]},
            )
        except NotFound:
            return None, False
        except (Forbidden, CloudError, Unreachable) as error:
            self.unread[Part.RESERVATION] = error.wording()
            return None, None
        found = answer.get("CapacityReservations") or ()
        return (read.reservation(found[0]), True) if found else (None, False)

    def offered(self) -> tuple[str, ...]:
        offers = self.aws.pages(
            "ec2.describe_instance_type_offerings",
            f"machine type {self.target.machine_type}",
            "InstanceTypeOfferings",
            {
                "LocationType": "availability-zone",
                "Filters": [{"Name": "instance-type", "Values": [self.target.machine_type]}],
            },
        )
        return tuple(sorted(offer["Location"] for offer in offers))

    def addons(self) -> tuple[Addon, ...]:
        """What EKS manages in the cluster. Add-ons that were installed by hand are none of its."""
        cluster, body = f"cluster {self.target.cluster}", {"clusterName": self.target.cluster}
        names = list(self.aws.pages("eks.list_addons", f"add-ons of {cluster}", "addons", body))
        found = [
            self.aws.call("eks.describe_addon", f"add-on {name} of {cluster}", {**body, "addonName": name})["addon"]
            for name in sorted(names)
        ]
        return tuple(read.addon(described) for described in found)

    def subnet(self) -> Subnet:
        return self._subnet(self.target.subnet)

    def _subnet(self, name: str) -> Subnet:
        answer = self.aws.call("ec2.describe_subnets", f"subnet {name}", {"SubnetIds": [name]})
        return read.subnet(_one(answer.get("Subnets"), f"subnet {name}"))

    def security_groups(self, names: list[str]) -> tuple[SecurityGroup, ...]:
        return tuple(read.security_group(group, names[0]) for group in self._groups(names))

    def _groups(self, names: Iterable[str]) -> list[Mapping[str, Any]]:
        wanted = sorted({name for name in names if name})
        if not wanted:
            return []
        what = f"security groups {', '.join(wanted)}"
        return list(self.aws.pages("ec2.describe_security_groups", what, "SecurityGroups", {"GroupIds": wanted}))

    def placement(self) -> str:
        """The strategy of the placement group; a missing group is unread with EC2's word."""
        name = str(self.target.placement_group)
        what = f"placement group {name}"
        answer = self.aws.call("ec2.describe_placement_groups", what, {"GroupNames": [name]})
        return str(_one(answer.get("PlacementGroups"), what).get("Strategy", ""))

    def quota(self, machine: Machine | None) -> Quota:
        """On-Demand vCPUs of the type's family: the limit, and what runs of it now."""
        prefix = _family(self.target.machine_type)
        code = _QUOTAS.get(prefix, _STANDARD)
        what = f"EC2 quota {code}"
        body = {"ServiceCode": "ec2", "QuotaCode": code}
        try:
            found = self.aws.call("service-quotas.get_service_quota", what, body)["Quota"]
        except NotFound:
            found = self.aws.call("service-quotas.get_aws_default_service_quota", what, body)["Quota"]
        return Quota(
            name=f"{found.get('QuotaName', 'On-Demand vCPUs')} ({code})",
            unit="vCPU",
            limit=float(found["Value"]),
            used=self._running_vcpus(prefix),
        )

    def _running_vcpus(self, prefix: str) -> float | None:
        """Counts the vCPUs of running On-Demand instances of this family; None where that cannot be read."""
        filters = [
            {"Name": "instance-type", "Values": [f"{prefix}*"]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        try:
            reservations = list(
                self.aws.pages("ec2.describe_instances", "instances", "Reservations", {"Filters": filters})
            )
        except (Forbidden, CloudError, Unreachable):
            return None
        total = 0.0
        for instance in (i for r in reservations for i in r.get("Instances") or ()):
            if _family(str(instance.get("InstanceType", ""))) != prefix or instance.get("InstanceLifecycle"):
                continue
            cpu = instance.get("CpuOptions") or {}
            total += int(cpu.get("CoreCount") or 0) * int(cpu.get("ThreadsPerCore") or 0)
        return total

    def lustre(self, clients: list[str]) -> Lustre:
        name = str(self.target.lustre)
        what = f"Lustre file system {name}"
        answer = self.aws.call("fsx.describe_file_systems", what, {"FileSystemIds": [name]})
        described = _one(answer.get("FileSystems"), what)
        subnet = self._subnet(str(next(iter(described.get("SubnetIds") or ()), "")))
        return read.lustre(described, subnet.zone, self._lustre_ports(described, clients))

    def _lustre_ports(self, described: Mapping[str, Any], clients: list[str]) -> bool | None:
        """Whether the file system's interfaces let the nodes in; None where that cannot be read."""
        interfaces = list(described.get("NetworkInterfaceIds") or ())
        if not interfaces:
            return None
        try:
            answer = self.aws.call(
                "ec2.describe_network_interfaces",
                f"interfaces of {described['FileSystemId']}",
                {"NetworkInterfaceIds": interfaces},
            )
            groups = self._groups(
                group["GroupId"] for eni in answer.get("NetworkInterfaces") or () for group in eni.get("Groups") or ()
            )
        except (Forbidden, NotFound, CloudError, Unreachable):
            return None
        return read.open_lustre_ports(groups, clients)

    def role_shared_with(self, source: str) -> tuple[str, tuple[str, ...]]:
        """The source's node role and the other groups that use it: the last group of a role cuts it from aws-auth."""
        roles = {str(g["nodegroupName"]): str(g.get("nodeRole", "")) for g in self.pools.groups()}
        role = roles.get(source, "")
        return role, tuple(sorted(name for name, its in roles.items() if role and its == role and name != source))


def layout_problem(machine: Machine | None) -> str:
    """Why no legal EFA layout is known for this type, or ""."""
    if machine is None:
        return ""
    try:
        network.efa_layout(machine)
    except BadSpec as error:
        return error.wording()
    return ""


def _family(machine_type: str) -> str:
    """The quota family of a type: "p5en.48xlarge" -> "p", "vt1.3xlarge" -> "vt", "g6e.48xlarge" -> "g"."""
    letters = ""
    for letter in machine_type:
        if not letter.isalpha():
            break
        letters += letter
    return "g" if letters == "gr" else letters


def _one(found: Iterable[Mapping[str, Any]] | None, what: str) -> Mapping[str, Any]:
    for item in found or ():
        return item
    raise NotFound(what, "does not exist", remedy="check the id and the region")
