"""Read what the preflight judges, part by part: one part that cannot be read does not hide the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.errors import CloudError, Forbidden, NotFound, Unreachable
from infra.gcp import read
from infra.gcp.api import COMPUTE, LUSTRE
from infra.gcp.cluster import GkeCluster
from infra.model.spec import GkeTarget
from infra.model.survey import (
    ClusterFacts,
    Lustre,
    Machine,
    Part,
    PartReader,
    Quota,
    Ranges,
    RdmaNetwork,
    Reservation,
    Survey,
)

# Compute Engine's regional quota metrics. Types that are only sold by reservation have none; it is then unread.
_METRICS = {
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
    "nvidia-b200": "NVIDIA_B200_GPUS",
}


def survey(pools: GkeCluster, source: Any, target: Any, run: str) -> Survey:
    """Read everything. Raises only for an unknown cluster, missing credentials or an unreachable cloud."""
    cluster = pools.describe_cluster()
    ours = source.kind == "gke"
    before = pools.find(source) if ours else None
    if not isinstance(target, GkeTarget):
        return Survey(kind="gke", cluster=cluster, source=before, source_read=ours)
    reader = _Reader(pools, target)
    machine = read.machine(target.machine_type)
    reservation, known = reader.reservation()
    named = target.rdma_network_profile == "networks"
    return Survey(
        kind="gke",
        cluster=replace(cluster, busy_with=reader.busy()),
        source=before,
        source_read=ours,
        existing=pools.find(target),
        machine=machine,
        machine_known=machine is not None,
        offered_zones=reader.part(Part.OFFERED, reader.offered),
        reservation=reservation,
        reservation_known=known,
        quota=None if target.reservation else reader.part(Part.QUOTA, lambda: reader.quota(machine)),
        networks=reader.part(Part.NETWORK, reader.networks) if named else None,
        ranges=reader.part(Part.ADDRESSES, lambda: reader.ranges(cluster)),
        lustre=reader.part(Part.LUSTRE, reader.lustre) if target.lustre else None,
        unread=reader.unread,
    )


class _Reader(PartReader):
    """The reads for one target."""

    def __init__(self, pools: GkeCluster, target: GkeTarget) -> None:
        super().__init__()
        self.pools = pools
        self.gcp = pools.gcp
        self.target = target

    def busy(self) -> str:
        try:
            return self.pools.running_operation()
        except (Forbidden, Unreachable):
            return ""  # a change would wait for it anyway

    def offered(self) -> tuple[str, ...]:
        """The target's zone, if it has the type; Compute Engine is asked for this one zone."""
        zone, name = self.target.zone, self.target.machine_type
        url = f"{COMPUTE}/projects/{self.gcp.project}/zones/{zone}/machineTypes/{name}"
        try:
            self.gcp.get(url, f"machine type {name} in {zone}", "compute.machineTypes.get")
        except NotFound:
            return ()
        return (zone,)

    def reservation(self) -> tuple[Reservation | None, bool | None]:
        named = self.target.reservation
        if named is None:
            return None, None
        project = named.project or self.gcp.project
        url = f"{COMPUTE}/projects/{project}/zones/{self.target.zone}/reservations/{named.name}"
        try:
            found = read.reservation(self.gcp.get(url, f"reservation {named.name}", "compute.reservations.get"))
        except NotFound:
            return None, False
        except (Forbidden, CloudError, Unreachable) as error:
            self.unread[Part.RESERVATION] = error.wording()
            return None, None
        return self._in_block(found, url, named.block), True

    def _in_block(self, found: Reservation, url: str, block: str | None) -> Reservation | None:
        """What the pool may use of it: of a named block, only that block's machines."""
        if not block:
            return found
        what = f"block {block} of reservation {found.name}"
        try:
            answer = self.gcp.get(f"{url}/reservationBlocks/{block}", what, "compute.reservationBlocks.get")
        except NotFound:
            return replace(found, state=f"without block {block}", usable=False, total=0, free=0)
        except (Forbidden, CloudError, Unreachable) as error:
            self.unread[Part.RESERVATION] = error.wording()
            return None
        return read.reservation_block(found, answer)

    def quota(self, machine: Machine | None) -> Quota:
        region = self.target.zone.rpartition("-")[0]
        metric = _METRICS.get(machine.accelerator if machine else "", "")
        answer = self.gcp.get(
            f"{COMPUTE}/projects/{self.gcp.project}/regions/{region}", f"region {region}", "compute.regions.get"
        )
        found = read.quota(answer, metric)
        if found is None:
            what = metric or f"the GPUs of {self.target.machine_type}"
            raise NotFound(f"quota for {what}", f"region {region} lists none", remedy="check it in the console")
        return found

    def ranges(self, cluster: ClusterFacts) -> Ranges:
        """Free addresses for nodes and for their pods."""
        what = f"subnetwork {cluster.subnetwork or 'of the cluster'}"
        if not cluster.subnetwork or not cluster.pod_range:
            raise NotFound(what, "the cluster names no subnetwork with a range for pods", remedy="check it by hand")
        url = f"{COMPUTE}/{cluster.subnetwork}?views=WITH_UTILIZATION"
        found = read.ranges(cluster, self.gcp.get(url, what, "compute.subnetworks.get"))
        if found is None:
            raise NotFound(
                what,
                "Compute Engine does not say how much of its ranges is free",
                remedy="check it by hand: gcloud compute networks subnets list --project " + self.gcp.project,
            )
        return found

    def networks(self) -> tuple[RdmaNetwork, ...]:
        found = []
        for name in dict.fromkeys(entry.partition("/")[0] for entry in self.target.rdma_networks):
            url = f"{COMPUTE}/projects/{self.gcp.project}/global/networks/{name}"
            found.append(read.rdma_network(name, self.gcp.get(url, f"network {name}", "compute.networks.get")))
        return tuple(found)

    def lustre(self) -> Lustre:
        name = str(self.target.lustre)
        return read.lustre(self.gcp.get(f"{LUSTRE}/{name}", f"Lustre instance {name}", "lustre.instances.get"))
