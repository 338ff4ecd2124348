"""What the cloud must agree to before anything is created: pure checks over what an adapter read.

The driver collects every finding of every check; nothing stops at the first. A check whose facts could not be read
says so and never passes silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from infra.model.pools import PoolState
from infra.model.spec import EksTarget, ExternalPool, GkeTarget, MigrationSpec, Strategy
from infra.model.survey import Part, Survey
from infra.model.verdict import Finding, Level

AUTO_PROFILE_VERSION = (1, 34, 1, 1829001)  # GKE that knows accelerator_network_profile=auto (managed DRANET)
LUSTRE_VERSION = (1, 33, 2, 1111000)  # GKE that knows Managed Lustre
_SOFT = {Part.QUOTA, Part.OFFERED}  # the cloud itself refuses these without harm: a warning is enough


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a check looks at."""

    survey: Survey
    spec: MigrationSpec
    run: str
    now: datetime

    @property
    def target(self) -> EksTarget | GkeTarget | ExternalPool:
        """The pool to be made."""
        return self.spec.target


Check = Callable[[Question], Iterable[Finding]]


def judge(survey: Survey, spec: MigrationSpec, run: str, now: datetime) -> list[Finding]:
    """Every finding of every check, blocking ones first, else in the order of `CHECKS`."""
    question = Question(survey=survey, spec=spec, run=run, now=now)
    findings = [finding for check in CHECKS for finding in check(question)]
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def strategy(survey: Survey, spec: MigrationSpec) -> Strategy:
    """Side by side when both pools fit, swap when one reservation must hold both in turn.

    An explicit choice in the spec stands; `check_reservation_room` says when it cannot work.
    """
    if spec.strategy is not Strategy.AUTO:
        return spec.strategy
    return Strategy.SWAP if _must_swap(survey, spec) else Strategy.SIDE_BY_SIDE


def check_cluster(q: Question) -> Iterator[Finding]:
    """The cluster is up and one whose pools may be managed."""
    cluster = q.survey.cluster
    if cluster is None:
        return
    what = f"cluster {cluster.name}"
    if cluster.state not in ("ACTIVE", "RUNNING"):
        yield _block("cluster-not-active", what, cluster.state, "ACTIVE or RUNNING", "wait for the cluster")
    if cluster.autopilot:
        yield _block("cluster-autopilot", what, "is an Autopilot cluster", "a Standard one", "use kind: external")
    if cluster.busy_with:
        yield _warn(
            "cluster-busy", what, f"runs {cluster.busy_with}", "no other operation", "changes wait until it ends"
        )


def check_source(q: Question) -> Iterator[Finding]:
    """The old pool exists and the cloud is not already at it."""
    source = q.survey.source
    what = f"{q.spec.source.kind} pool {q.spec.source.name}"
    if source is None:
        yield _block("source-not-found", what, "does not exist", "the pool to move from", "correct source.name")
        return
    if source.state in (PoolState.DELETING, PoolState.DELETE_FAILED):
        yield _block("source-deleting", what, f"is {source.state}", "a pool that stays until it is empty", "")
    elif source.state is not PoolState.ACTIVE:
        issues = "; ".join(f"{i.code}: {i.message}" for i in source.issues) or "no reason given"
        yield _warn("source-not-active", what, f"is {source.state} ({issues})", "active", "it can still be drained")
    if source.bounds:
        low, high = source.bounds
        yield _info(
            "source-autoscaled",
            what,
            f"may be scaled between {low} and {high} nodes",
            "its size is fixed during the run and put back after it",
        )


def check_name(q: Question) -> Iterator[Finding]:
    """The target's name is free, or ours to go on with."""
    existing = q.survey.existing
    if existing is None or isinstance(q.target, ExternalPool):
        return
    what = f"{existing.kind} pool {existing.name}"
    if existing.ours != q.run:
        owner = f"run {existing.ours}" if existing.ours else "somebody else"
        yield _block(
            "target-name-foreign", what, f"exists and belongs to {owner}", "a free name", "choose another target.name"
        )
    elif existing.state in (PoolState.FAILED, PoolState.DEGRADED, PoolState.DELETING, PoolState.DELETE_FAILED):
        yield _block(
            "target-failed",
            what,
            f"was made by this run and is {existing.state}",
            "active",
            "poolshift rollback SPEC removes it; then run again",
        )
    else:
        yield _info("target-adoptable", what, f"was made by this run and is {existing.state}", "it is continued")


def check_external_target(q: Question) -> Iterator[Finding]:
    """Nodes that somebody else makes must be there."""
    if isinstance(q.target, ExternalPool) and q.survey.existing is None:
        yield _block(
            "target-not-there",
            f"external pool {q.target.name}",
            f"no node carries {q.target.selector}",
            "nodes made by the pool's owner",
            "make the nodes first (for Karpenter: apply the NodePool)",
        )


def check_machine(q: Question) -> Iterator[Finding]:
    """The type exists, has GPUs and a fabric, and its interfaces can be laid out."""
    if isinstance(q.target, ExternalPool):
        return
    what = f"machine type {q.target.machine_type}"
    machine = q.survey.machine
    if q.survey.machine_known is False:
        yield _block("machine-type-unknown", what, "is not known", "a type of this region", "correct the spelling")
        return
    if machine is None:
        yield unread(q, Part.MACHINE, what)
        return
    if not machine.gpus:
        yield _block("machine-without-gpu", what, "has no GPU", "a GPU type", "correct target.machine_type")
    if not machine.fabric:
        yield _warn("machine-without-rdma", what, "has no RDMA fabric", "EFA or RoCE", "its transport proof will fail")
    if q.survey.layout_problem:
        yield _block("efa-layout", what, q.survey.layout_problem, "a legal interface layout", "choose another type")


def check_offered(q: Question) -> Iterator[Finding]:
    """The zone has this machine type at all."""
    if isinstance(q.target, ExternalPool) or q.survey.machine_known is not True:
        return
    what = f"machine type {q.target.machine_type}"
    zone = _zone(q)
    if q.survey.offered_zones is None:
        yield unread(q, Part.OFFERED, what)
    elif zone and zone not in q.survey.offered_zones:
        offered = ", ".join(q.survey.offered_zones) or "no zone of this region"
        yield _block(
            "type-not-offered", what, f"is not offered in {zone}", offered, "choose a subnet or zone that has it"
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
        yield _block(
            "subnet-network",
            what,
            f"is in {subnet.network}",
            f"the cluster's {cluster.network}",
            "correct target.subnet",
        )
    nodes, machine = q.target.nodes, q.survey.machine
    per_node = machine.addresses_per_interface if machine else 0
    if subnet.addresses < nodes:
        yield _block(
            "addresses", what, f"has {subnet.addresses} free addresses", f"at least {nodes}", "use a larger subnet"
        )
    elif subnet.addresses < nodes * per_node:
        yield _warn(
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
        yield _block("sg-none", f"cluster {q.target.cluster}", "has no security group to put on the nodes", "one", "")
    # EFA passes when one group that all interfaces carry has both rules.
    if any(group.self_in and group.self_out for group in q.survey.security_groups):
        return
    for group in q.survey.security_groups:
        missing = [way for way, ok in (("ingress", group.self_in), ("egress", group.self_out)) if not ok]
        yield _block(
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


def check_reservation(q: Question) -> Iterator[Finding]:
    """The reservation exists, is usable now, and is for this machine."""
    if isinstance(q.target, ExternalPool) or q.target.reservation is None:
        return
    what = f"reservation {_reservation_name(q)}"
    if q.survey.reservation_known is False:
        yield _block("reservation-unknown", what, "does not exist", "a reservation in this zone", "correct its name")
        return
    found = q.survey.reservation
    if found is None:
        yield unread(q, Part.RESERVATION, what)
        return
    if not found.usable:
        yield _block(
            "reservation-not-active", what, f"is {found.state}", "active", "wait for it to start, or use another one"
        )
    if found.machine_type != q.target.machine_type:
        yield _block(
            "reservation-machine-type", what, f"holds {found.machine_type}", q.target.machine_type, "make them agree"
        )
    if not found.specific and isinstance(q.target, GkeTarget):
        yield _block(
            "reservation-not-specific",
            what,
            "may be used by any instance",
            "specificReservationRequired",
            "make the reservation specific; GKE answers 'not found' otherwise",
        )
    yield from _reservation_shape(q, what)


def _reservation_shape(q: Question, what: str) -> Iterator[Finding]:
    """Clouds report a mismatch of these as "no capacity", never as what it is."""
    found, machine = q.survey.reservation, q.survey.machine
    assert found is not None
    if isinstance(q.target, EksTarget):
        asked = bool(q.target.reservation and q.target.reservation.capacity_block)
        if asked != found.capacity_block:
            is_one = "is" if found.capacity_block else "is not"
            yield _block(
                "reservation-kind",
                what,
                f"{is_one} a Capacity Block",
                f"what the spec says: capacity_block: {str(asked).lower()}",
                "correct target.reservation.capacity_block",
            )
        if asked and machine and "capacity-block" not in machine.usage_classes:
            yield _block(
                "type-without-capacity-block",
                f"machine type {machine.name}",
                "has no Capacity Blocks",
                "one that has",
                "",
            )
        if (q.target.placement_group or "") != found.placement_group:
            yield _block(
                "reservation-placement-group",
                what,
                f"was made in placement group {found.placement_group or 'none'}",
                f"the spec's, which is {q.target.placement_group or 'none'}",
                f"set target.placement_group to {found.placement_group or 'null'}: other machines cannot use it",
            )
        return
    if isinstance(q.target, GkeTarget) and q.target.placement_policy and found.dense:
        yield _block(
            "placement-on-dense", what, "is DENSE, so placed already", "no placement policy", "drop placement_policy"
        )
    if machine and (found.accelerators, found.accelerator) != (machine.gpus, machine.accelerator):
        yield _block(
            "reservation-accelerators",
            what,
            f"holds {found.accelerators} {found.accelerator or 'accelerators'} a machine",
            f"{machine.gpus} {machine.accelerator}",
            "use a reservation of the pool's shape",
        )
    if machine and None not in (machine.local_ssds, found.local_ssds) and found.local_ssds != machine.local_ssds:
        yield _block(
            "reservation-local-ssds",
            what,
            f"holds {found.local_ssds} local SSDs a machine",
            f"{machine.local_ssds}, which the pool asks for",
            "use a reservation of the pool's shape",
        )


def check_reservation_room(q: Question) -> Iterator[Finding]:
    """Enough free machines, or the source's own to be swapped."""
    found, target = q.survey.reservation, q.target
    if found is None or isinstance(target, ExternalPool):
        return
    needed = target.nodes - (q.survey.existing.nodes if _ours(q) and q.survey.existing else 0)
    if found.free >= needed:
        return
    what = f"reservation {found.name}"
    observed = f"has {found.free} of {found.total} machines free"
    if not _must_swap(q.survey, q.spec):
        yield _block(
            "reservation-full",
            what,
            observed,
            f"{needed} for the target",
            "free machines of it, or ask for fewer nodes",
        )
    elif q.spec.strategy is Strategy.SIDE_BY_SIDE:
        yield _block(
            "reservation-holds-both",
            what,
            f"{observed} and holds the source pool too",
            f"{needed} free for side-by-side",
            "set strategy: swap (or auto)",
        )
    else:
        yield _warn(
            "swap-needed",
            what,
            f"{observed} and holds the source pool too",
            f"{needed} free for side-by-side",
            "the pools are swapped in slices: capacity dips while each slice is made",
        )


def check_reservation_end(q: Question) -> Iterator[Finding]:
    """Drain and soak end before the machines are taken away."""
    found = q.survey.reservation
    if found is None or found.ends is None:
        return
    until = q.now + q.spec.drain.deadline + q.spec.soak.duration
    if found.ends <= until:
        yield _block(
            "reservation-ends",
            f"reservation {found.name}",
            f"gives its machines back from {found.ends:%Y-%m-%d %H:%M} UTC",
            f"later than {until:%Y-%m-%d %H:%M} UTC, when drain and soak may end",
            "extend the reservation, or shorten drain.deadline and soak.duration",
        )


def check_zones(q: Question) -> Iterator[Finding]:
    """Reservation, RDMA networks and Lustre lie in the pool's one zone."""
    zone = _zone(q)
    if not zone:
        return
    found, subnet = q.survey.reservation, q.survey.subnet
    if found is not None:
        by_id = bool(found.zone_id and subnet and subnet.zone_id)
        same = found.zone_id == subnet.zone_id if by_id and subnet else found.zone == zone
        if not same:
            yield _block(
                "reservation-zone",
                f"reservation {found.name}",
                f"is in {found.zone}{f' ({found.zone_id})' if found.zone_id else ''}",
                f"{zone}{f' ({subnet.zone_id})' if subnet and subnet.zone_id else ''}, where the pool is",
                "choose a subnet or zone that the reservation is in",
            )
    for network in q.survey.networks or ():
        if network.zone and network.zone != zone:
            yield _block(
                "network-zone",
                f"RDMA network {network.name}",
                f"is tied to {network.zone} by its profile",
                f"{zone}, where the pool is",
                "use the networks of this zone: a RoCE network cannot leave its own",
            )


def check_placement_group(q: Question) -> Iterator[Finding]:
    """A named placement group exists and packs machines together."""
    if not isinstance(q.target, EksTarget) or not q.target.placement_group:
        return
    what = f"placement group {q.target.placement_group}"
    if q.survey.placement_strategy is None:
        yield unread(q, Part.PLACEMENT, what)
    elif q.survey.placement_strategy != "cluster":
        yield _block("placement-strategy", what, f"is a {q.survey.placement_strategy} group", "cluster", "")


def check_quota(q: Question) -> Iterator[Finding]:
    """On-demand machines fit into the account's quota. Reservations are not charged to it at launch."""
    if isinstance(q.target, ExternalPool) or q.target.reservation is not None:
        return
    quota, machine = q.survey.quota, q.survey.machine
    if quota is None:
        yield unread(q, Part.QUOTA, "quota of the target's machine type")
        return
    if machine is None:
        return
    each = machine.gpus if quota.unit == "GPU" else machine.vcpus
    needed = q.target.nodes * each
    free = quota.limit - (quota.used or 0.0)
    if free < needed:
        yield _block(
            "quota",
            f"quota {quota.name}",
            f"{free:g} of {quota.limit:g} {quota.unit} free",
            f"{needed} for {q.target.nodes} nodes",
            "ask the cloud to raise it, or use a reservation",
        )
    elif quota.used is None:
        yield _warn(
            "quota-use-unread",
            f"quota {quota.name}",
            f"limit {quota.limit:g} {quota.unit}; what is used of it could not be read",
            f"{needed} free",
            "allow reading instances, or check it in the console",
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
        yield _block("dataplane-v2", what, "does not run Dataplane V2", "ADVANCED_DATAPATH", made)
    if target.rdma_network_profile == "networks":
        if cluster.multi_networking is not True:
            yield _block("multi-networking", what, "has no multi-networking", "enable_multi_networking", made)
        return
    version = gke_version(cluster.version)
    if version is None:
        yield _block("gke-version-unread", what, f"version {cluster.version!r} is not understood", "1.34.1-gke.N", "")
    elif version < AUTO_PROFILE_VERSION:
        yield _block(
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
        yield _block(
            "network-count",
            f"node pool {target.name}",
            f"{len(target.rdma_networks)} networks named",
            f"{machine.networks} for {machine.name}, the gVNIC's first",
            "name one network/subnetwork for each interface in target.rdma_networks",
        )
    if q.survey.networks is None:
        yield unread(q, Part.NETWORK, "RDMA networks of the target")


def check_lustre(q: Question) -> Iterator[Finding]:
    """The file system is up, near, and reachable."""
    if isinstance(q.target, ExternalPool) or not q.target.lustre:
        return
    what = f"Lustre file system {q.target.lustre}"
    found, cluster, zone = q.survey.lustre, q.survey.cluster, _zone(q)
    if found is None:
        yield unread(q, Part.LUSTRE, what)
        return
    if not found.usable:
        yield _block("lustre-not-available", what, f"is {found.state}", "available", "wait for it, or repair it")
    if zone and found.zone != zone:
        level = Level.BLOCK if found.rdma or isinstance(q.target, GkeTarget) else Level.WARN
        yield Finding(
            level=level,
            code="lustre-zone",
            object=what,
            observed=f"is in {found.zone or 'an unknown zone'}",
            expected=f"{zone}, where the pool is",
            remedy="choose the file system's zone for the pool, or a file system in the pool's zone",
        )
    if cluster and found.network and cluster.network and _tail(found.network) != _tail(cluster.network):
        yield _block(
            "lustre-network", what, f"is in {found.network}", cluster.network, "use one in the cluster's network"
        )
    yield from _lustre_reach(q, what)


def _lustre_reach(q: Question, what: str) -> Iterator[Finding]:
    found, cluster = q.survey.lustre, q.survey.cluster
    assert found is not None
    if isinstance(q.target, EksTarget):
        if found.open_ports is None:
            yield _warn(
                "lustre-ports-unread",
                what,
                "its security groups could not be read",
                "TCP 988 and 1018-1023 open to the nodes",
                "allow ec2:DescribeNetworkInterfaces; the mount is probed before work moves",
            )
        elif not found.open_ports:
            yield _block(
                "lustre-ports",
                what,
                "its security groups do not let the nodes in",
                "TCP 988 and 1018-1023 from the nodes' groups",
                "add the rules to the file system's group",
            )
        return
    if not found.gke_support:
        yield _block("lustre-gke-support", what, "is not enabled for GKE", "gke_support_enabled", "recreate it with it")
    if cluster is None:
        return
    if cluster.lustre_driver is not True:
        yield _block(
            "lustre-driver",
            f"cluster {cluster.name}",
            "has no Lustre CSI driver",
            "the addon",
            f"gcloud container clusters update {cluster.name} --update-addons=LustreCsiDriver=ENABLED",
        )
    version = gke_version(cluster.version)
    if version is not None and version < LUSTRE_VERSION:
        yield _block(
            "lustre-gke-version", f"cluster {cluster.name}", f"runs {cluster.version}", "1.33.2-gke.1111000", ""
        )


def check_role(q: Question) -> Iterator[Finding]:
    """EKS drops a node role from aws-auth with the last managed group that uses it."""
    if not isinstance(q.target, EksTarget) or not q.survey.source_role or q.survey.role_shared_with:
        return
    if q.target.node_role != q.survey.source_role and q.spec.retire.enabled:
        yield _warn(
            "node-role-last",
            f"node group {q.target.cluster}/{q.spec.source.name}",
            f"is the last that uses role {q.survey.source_role}",
            "no self-managed node needs that role",
            "EKS removes the role from aws-auth when the group goes: keep an access entry for it",
        )


CHECKS: tuple[Check, ...] = (
    check_cluster,
    check_source,
    check_name,
    check_external_target,
    check_machine,
    check_offered,
    check_subnet,
    check_security_groups,
    check_reservation,
    check_reservation_room,
    check_reservation_end,
    check_zones,
    check_placement_group,
    check_quota,
    check_cluster_features,
    check_networks,
    check_lustre,
    check_role,
)


def unread(q: Question, part: Part, what: str) -> Finding:
    """The finding for facts that could not be read; blocking, except where the cloud's own refusal does no harm."""
    return Finding(
        level=Level.WARN if part in _SOFT else Level.BLOCK,
        code=f"unread-{part.name.lower()}",
        object=what,
        observed=f"could not be read: {q.survey.unread.get(part, 'it was not asked for')}",
        expected="a reading",
        remedy="mend what the message names (a permission, an id, the network), then plan again",
    )


def gke_version(text: str) -> tuple[int, int, int, int] | None:
    """As a comparable tuple: 1.34.1-gke.1829001 gives (1, 34, 1, 1829001); None when it is written otherwise."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)-gke\.(\d+)", text)
    if match is None:
        return None
    major, minor, patch, build = (int(part) for part in match.groups())
    return major, minor, patch, build


def _must_swap(survey: Survey, spec: MigrationSpec) -> bool:
    """One reservation holds the source too, and only with the source's machines is there room."""
    found, source = survey.reservation, survey.source
    if found is None or source is None or isinstance(spec.target, ExternalPool):
        return False
    return source.reservation == found.name and found.free < spec.target.nodes <= found.free + source.nodes


def _ours(q: Question) -> bool:
    return q.survey.existing is not None and q.survey.existing.ours == q.run


def _zone(q: Question) -> str:
    if isinstance(q.target, GkeTarget):
        return q.target.zone
    return q.survey.subnet.zone if q.survey.subnet else ""


def _reservation_name(q: Question) -> str:
    if isinstance(q.target, EksTarget) and q.target.reservation:
        return q.target.reservation.id
    if isinstance(q.target, GkeTarget) and q.target.reservation:
        return q.target.reservation.name
    return ""


def _tail(path: str) -> str:
    return path.rpartition("/")[2]


def _block(code: str, what: str, observed: str, expected: str, remedy: str) -> Finding:
    return Finding(level=Level.BLOCK, code=code, object=what, observed=observed, expected=expected, remedy=remedy)


def _warn(code: str, what: str, observed: str, expected: str, remedy: str) -> Finding:
    return Finding(level=Level.WARN, code=code, object=what, observed=observed, expected=expected, remedy=remedy)


def _info(code: str, what: str, observed: str, remedy: str) -> Finding:
    return Finding(level=Level.INFO, code=code, object=what, observed=observed, remedy=remedy)
