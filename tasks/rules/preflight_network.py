"""Preflight: one zone for everything, addresses, security groups, and what RDMA needs of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from infra.model.spec import EksTarget, GkeTarget
from infra.model.survey import Part
from infra.model.verdict import Finding
from tasks.rules.preflight_question import Question, unread, warn, zone_of
from tasks.rules.preflight_version import AUTO_PROFILE, gke_version


def check_zones(q: Question) -> Iterator[Finding]:
    """Reservation, RDMA networks and Lustre lie in the pool's one zone."""
    zone = zone_of(q)
    if not zone:
        return
    found, subnet = q.survey.reservation, q.survey.subnet
    if found is not None:
        by_id = bool(found.zone_id and subnet and subnet.zone_id)
        same = found.zone_id == subnet.zone_id if by_id and subnet else found.zone == zone
        if not same:
            yield Finding.block(
                "reservation-zone",
                f"reservation {found.name}",
                f"is in {found.zone}{f' ({found.zone_id})' if found.zone_id else ''}",
                f"{zone}{f' ({subnet.zone_id})' if subnet and subnet.zone_id else ''}, where the pool is",
                "choose a subnet or zone that the reservation is in",
            )
    for network in q.survey.networks or ():
        if network.zone and network.zone != zone:
            yield Finding.block(
                "network-zone",
                f"RDMA network {network.name}",
                f"is tied to {network.zone} by its profile",
                f"{zone}, where the pool is",
                "use the networks of this zone: a RoCE network cannot leave its own",
            )


def check_subnet(q: Question) -> Iterator[Finding]:
    """The subnet exists, lies in the cluster's network, and has addresses."""
    if not isinstance(q.target, EksTarget):
        return
    subnet, what = q.survey.subnet, f"subnet {q.target.subnet}"
    if subnet is None:
        yield unread(q, Part.SUBNET, what)
        return
    cluster = q.survey.cluster
    if cluster and cluster.network and subnet.network != cluster.network:
        yield Finding.block(
            "subnet-network",
            what,
            f"is in {subnet.network}",
            f"the cluster's {cluster.network}",
            "correct target.subnet",
        )
    nodes, machine = q.target.nodes, q.survey.machine
    per_node = machine.addresses_per_interface if machine else 0
    if subnet.addresses < nodes:
        yield Finding.block(
            "addresses", what, f"has {subnet.addresses} free addresses", f"at least {nodes}", "use a larger subnet"
        )
    elif subnet.addresses < nodes * per_node:
        yield warn(
            "addresses-for-pods",
            what,
            f"has {subnet.addresses} free addresses",
            f"{nodes * per_node}: the VPC CNI holds one interface's {per_node} for each node",
            "lower WARM_ENI_TARGET, use prefix delegation, or use a larger subnet",
        )


def check_security_groups(q: Question) -> Iterator[Finding]:
    """Every group lets all traffic to and from itself by group id: EFA frames match no other rule."""
    if not isinstance(q.target, EksTarget):
        return
    if q.survey.machine is not None and not q.survey.machine.efa_interfaces:
        return
    if q.survey.security_groups is None:
        yield unread(q, Part.SECURITY, "security groups of the target")
        return
    if not q.survey.security_groups:
        yield Finding.block(
            "sg-none", f"cluster {q.target.cluster}", "has no security group to put on the nodes", "one", ""
        )
    # EFA passes when one group that all interfaces carry has both rules.
    if any(group.self_in and group.self_out for group in q.survey.security_groups):
        return
    for group in q.survey.security_groups:
        missing = [way for way, ok in (("ingress", group.self_in), ("egress", group.self_out)) if not ok]
        yield Finding.block(
            "sg-self-reference",
            f"security group {group.name}",
            f"has no all-protocol rule to itself for {' and '.join(missing)}",
            "on one group of every interface: protocol -1 from and to its own id (0.0.0.0/0 does not match EFA)",
            " && ".join(
                f"aws ec2 authorize-security-group-{way} --group-id {group.name} --protocol all "
                f"--source-group {group.name}"
                for way in missing
            ),
        )


def check_cluster_features(q: Question) -> Iterator[Finding]:
    """GKE: what RDMA needs of the cluster can only be chosen when the cluster is made."""
    cluster, target = q.survey.cluster, q.target
    if cluster is None or not isinstance(target, GkeTarget):
        return
    machine = q.survey.machine
    if machine is not None and not machine.networks:
        return
    what = f"cluster {cluster.name}"
    made = "only settable when the cluster is made: move to a cluster that has it"
    if cluster.dataplane_v2 is not True:
        yield Finding.block("dataplane-v2", what, "does not run Dataplane V2", "ADVANCED_DATAPATH", made)
    if target.rdma_network_profile == "networks":
        if cluster.multi_networking is not True:
            yield Finding.block("multi-networking", what, "has no multi-networking", "enable_multi_networking", made)
        return
    version = gke_version(cluster.version)
    if version is None:
        yield Finding.block(
            "gke-version-unread", what, f"version {cluster.version!r} is not understood", "1.34.1-gke.N", ""
        )
    elif version < AUTO_PROFILE:
        yield Finding.block(
            "gke-version",
            what,
            f"runs {cluster.version}",
            "1.34.1-gke.1829001 or later for rdma_network_profile: auto",
            "upgrade the cluster, or name the networks (rdma_network_profile: networks)",
        )


def check_networks(q: Question) -> Iterator[Finding]:
    """GKE: as many networks as the machine has interfaces for them."""
    target, machine = q.target, q.survey.machine
    if not isinstance(target, GkeTarget) or target.rdma_network_profile != "networks" or machine is None:
        return
    if len(target.rdma_networks) != machine.networks:
        yield Finding.block(
            "network-count",
            f"node pool {target.name}",
            f"{len(target.rdma_networks)} networks named",
            f"{machine.networks} for {machine.name}, the gVNIC's first",
            "name one network/subnetwork for each interface in target.rdma_networks",
        )
    if q.survey.networks is None:
        yield unread(q, Part.NETWORK, "RDMA networks of the target")
