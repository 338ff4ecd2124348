"""Preflight: is there such a machine, and does a reservation or a quota have it for us."""

from __future__ import annotations

from collections.abc import Iterator

from infra.fabrics import load
from infra.model.spec import EksTarget, ExternalPool, GkeTarget, MigrationSpec, Strategy
from infra.model.survey import Part, Survey
from infra.model.verdict import Finding
from tasks.rules.folding import UNKNOWN_MACHINE
from tasks.rules.nearest import did_you_mean
from tasks.rules.preflight_question import Question, unread, warn, zone_of
from tasks.rules.wording import plural


def check_machine(q: Question) -> Iterator[Finding]:
    """The type exists, has GPUs and a fabric, and its interfaces can be laid out."""
    if isinstance(q.target, ExternalPool):
        return
    what = f"machine type {q.target.machine_type}"
    machine = q.survey.machine
    if q.survey.machine_known is False:
        meant = did_you_mean(q.target.machine_type, load())
        remedy = f"{meant} correct target.machine_type" if meant else "correct the spelling"
        yield Finding.block(UNKNOWN_MACHINE, what, "is not known", "a type of this region", remedy)
        return
    if machine is None:
        yield unread(q, Part.MACHINE, what)
        return
    if not machine.gpus:
        yield Finding.block("machine-without-gpu", what, "has no GPU", "a GPU type", "correct target.machine_type")
    if not machine.fabric:
        yield warn("machine-without-rdma", what, "has no RDMA fabric", "EFA or RoCE", "its transport proof will fail")
    if q.survey.layout_problem:
        yield Finding.block(
            "efa-layout", what, q.survey.layout_problem, "a legal interface layout", "choose another type"
        )


def check_offered(q: Question) -> Iterator[Finding]:
    """The zone has this machine type at all."""
    if isinstance(q.target, ExternalPool) or q.survey.machine_known is not True:
        return
    what = f"machine type {q.target.machine_type}"
    zone = zone_of(q)
    if q.survey.offered_zones is None:
        yield unread(q, Part.OFFERED, what)
    elif zone and zone not in q.survey.offered_zones:
        offered = ", ".join(q.survey.offered_zones) or "no zone of this region"
        yield Finding.block(
            "type-not-offered", what, f"is not offered in {zone}", offered, "choose a subnet or zone that has it"
        )


def check_reservation(q: Question) -> Iterator[Finding]:
    """The reservation exists, is usable now, and is for this machine."""
    if isinstance(q.target, ExternalPool) or q.target.reservation is None:
        return
    what = f"reservation {_reservation_name(q)}"
    if q.survey.reservation_known is False:
        yield Finding.block(
            "reservation-unknown", what, "does not exist", "a reservation in this zone", "correct its name"
        )
        return
    found = q.survey.reservation
    if found is None:
        yield unread(q, Part.RESERVATION, what)
        return
    if not found.usable:
        yield Finding.block(
            "reservation-not-active", what, f"is {found.state}", "active", "wait for it to start, or use another one"
        )
    if found.machine_type != q.target.machine_type:
        yield Finding.block(
            "reservation-machine-type", what, f"holds {found.machine_type}", q.target.machine_type, "make them agree"
        )
    if not found.specific and isinstance(q.target, GkeTarget):
        yield Finding.block(
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
            yield Finding.block(
                "reservation-kind",
                what,
                f"{is_one} a Capacity Block",
                f"what the spec says: capacity_block: {str(asked).lower()}",
                "correct target.reservation.capacity_block",
            )
        if (found.platform, found.tenancy) != ("Linux/UNIX", "default"):
            yield Finding.block(
                "reservation-platform",
                what,
                f"is for {found.platform or 'an unknown platform'}, tenancy {found.tenancy or 'unknown'}",
                "Linux/UNIX, tenancy default: what a node group launches",
                "use a reservation made for them",
            )
        if asked and machine and "capacity-block" not in machine.usage_classes:
            yield Finding.block(
                "type-without-capacity-block",
                f"machine type {machine.name}",
                "has no Capacity Blocks",
                "one that has",
                "",
            )
        if (q.target.placement_group or "") != found.placement_group:
            yield Finding.block(
                "reservation-placement-group",
                what,
                f"was made in placement group {found.placement_group or 'none'}",
                f"the spec's, which is {q.target.placement_group or 'none'}",
                f"set target.placement_group to {found.placement_group or 'null'}: other machines cannot use it",
            )
        return
    if isinstance(q.target, GkeTarget) and q.target.placement_policy and found.dense:
        yield Finding.block(
            "placement-on-dense", what, "is DENSE, so placed already", "no placement policy", "drop placement_policy"
        )
    if machine and (found.accelerators, found.accelerator) != (machine.gpus, machine.accelerator):
        yield Finding.block(
            "reservation-accelerators",
            what,
            f"holds {found.accelerators} {found.accelerator or 'accelerators'} a machine",
            f"{machine.gpus} {machine.accelerator}",
            "use a reservation of the pool's shape",
        )
    if machine and None not in (machine.local_ssds, found.local_ssds) and found.local_ssds != machine.local_ssds:
        yield Finding.block(
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
    observed = f"has {found.free} of {plural(found.total, 'machine')} free"
    if not must_swap(q.survey, q.spec):
        yield Finding.block(
            "reservation-full",
            what,
            observed,
            f"{needed} for the target",
            "free machines of it, or ask for fewer nodes",
        )
    elif q.spec.strategy is Strategy.SIDE_BY_SIDE:
        yield Finding.block(
            "reservation-holds-both",
            what,
            f"{observed} and holds the source pool too",
            f"{needed} free for side-by-side",
            "set strategy: swap (or auto)",
        )
    else:
        yield warn(
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
        yield Finding.block(
            "reservation-ends",
            f"reservation {found.name}",
            f"gives its machines back from {found.ends:%Y-%m-%d %H:%M} UTC",
            f"later than {until:%Y-%m-%d %H:%M} UTC, when drain and soak may end",
            "extend the reservation, or shorten drain.deadline and soak.duration",
        )


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
        yield Finding.block(
            "quota",
            f"quota {quota.name}",
            f"{free:g} of {quota.limit:g} {quota.unit} free",
            f"{needed} for {plural(q.target.nodes, 'node')}",
            "ask the cloud to raise it, or use a reservation",
        )
    elif quota.used is None:
        yield warn(
            "quota-use-unread",
            f"quota {quota.name}",
            f"limit {quota.limit:g} {quota.unit}; what is used of it could not be read",
            f"{needed} free",
            "allow reading instances, or check it in the console",
        )


def check_placement_group(q: Question) -> Iterator[Finding]:
    """A named placement group exists and packs machines together."""
    if not isinstance(q.target, EksTarget) or not q.target.placement_group:
        return
    what = f"placement group {q.target.placement_group}"
    if q.survey.placement_strategy is None:
        yield unread(q, Part.PLACEMENT, what)
    elif q.survey.placement_strategy != "cluster":
        yield Finding.block("placement-strategy", what, f"is a {q.survey.placement_strategy} group", "cluster", "")


def must_swap(survey: Survey, spec: MigrationSpec) -> bool:
    """One reservation holds the source too, and only with the source's machines is there room."""
    found, source = survey.reservation, survey.source
    if found is None or source is None or isinstance(spec.target, ExternalPool):
        return False
    return source.reservation == found.name and found.free < spec.target.nodes <= found.free + source.nodes


def _ours(q: Question) -> bool:
    return q.survey.existing is not None and q.survey.existing.ours == q.run


def _reservation_name(q: Question) -> str:
    if isinstance(q.target, EksTarget) and q.target.reservation:
        return q.target.reservation.id
    if isinstance(q.target, GkeTarget) and q.target.reservation:
        return q.target.reservation.name
    return ""
