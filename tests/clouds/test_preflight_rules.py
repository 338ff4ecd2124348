"""Every preflight rule with the case that it accepts and the case that it refuses. Pure: no cloud, no clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.model.pools import Pool, PoolState
from infra.model.spec import ExternalPool, MigrationSpec, Strategy
from infra.model.survey import (
    Addon,
    ClusterFacts,
    Lustre,
    Machine,
    Part,
    Quota,
    Ranges,
    RdmaNetwork,
    Reservation,
    SecurityGroup,
    Subnet,
    Survey,
)
from infra.model.verdict import Level
from tasks.rules import preflight
from tasks.rules.preflight_version import gke_version

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def pool(kind: str, **changes: Any) -> Pool:
    base = Pool(
        kind=kind,
        name="gpu-old",
        identity="id",
        state=PoolState.ACTIVE,
        machine_type="m",
        nodes=2,
        node_selector={"pool": "gpu-old"},
    )
    return replace(base, **changes)


def eks_survey() -> Survey:
    return Survey(
        kind="eks",
        cluster=ClusterFacts(name="train", version="1.34", state="ACTIVE", network="vpc-1", security_group="sg-1"),
        source=pool("eks"),
        machine=Machine(
            name="p5en.48xlarge",
            gpus=8,
            vcpus=192,
            efa_interfaces=16,
            usage_classes=("on-demand", "capacity-block"),
            fabric="efa",
            addresses_per_interface=50,
        ),
        machine_known=True,
        offered_zones=("us-east-2a", "us-east-2c"),
        subnet=Subnet(name="subnet-1", zone="us-east-2a", zone_id="use2-az1", network="vpc-1", addresses=500),
        reservation=Reservation(
            name="cr-0a11ce0000000001",
            state="active",
            usable=True,
            machine_type="p5en.48xlarge",
            zone="us-east-2a",
            zone_id="use2-az1",
            platform="Linux/UNIX",
            tenancy="default",
            total=8,
            free=8,
        ),
        reservation_known=True,
        security_groups=(SecurityGroup(name="sg-1", self_in=True, self_out=True, cluster=True),),
        placement_strategy=None,
        lustre=Lustre(
            name="fs-1", state="AVAILABLE", usable=True, zone="us-east-2a", network="vpc-1", rdma=True, open_ports=True
        ),
        addons=(),
        source_role="arn:aws:iam::123456789012:role/train-nodes",
    )


def gke_survey() -> Survey:
    return Survey(
        kind="gke",
        cluster=ClusterFacts(
            name="train",
            version="1.34.1-gke.2541000",
            state="RUNNING",
            network="projects/p/global/networks/train-vpc",
            multi_networking=True,
            dataplane_v2=True,
            lustre_driver=True,
        ),
        source=pool("gke"),
        machine=Machine(
            name="a3-ultragpu-8g", gpus=8, accelerator="nvidia-h200-141gb", networks=9, fabric="roce", local_ssds=32
        ),
        machine_known=True,
        offered_zones=("europe-west4-b",),
        reservation=Reservation(
            name="train-h200",
            state="READY",
            usable=True,
            machine_type="a3-ultragpu-8g",
            zone="europe-west4-b",
            total=8,
            free=8,
            accelerator="nvidia-h200-141gb",
            accelerators=8,
            local_ssds=32,
            dense=True,
        ),
        reservation_known=True,
        lustre=Lustre(
            name="projects/p/locations/europe-west4-b/instances/l",
            state="ACTIVE",
            usable=True,
            zone="europe-west4-b",
            network="projects/p/global/networks/train-vpc",
        ),
        ranges=Ranges(subnetwork="nodes", pod_range="pods", nodes_free=9, pods_free=4096, pods_per_node=256),
    )


SURVEYS = {"eks": eks_survey, "gke": gke_survey}


@pytest.fixture
def codes(source_spec, target_spec):
    """Codes of the findings for a changed survey and a changed target, with their levels."""

    def judge(cloud: str, survey: Survey | None = None, *, spec: dict[str, Any] | None = None, **target: Any):
        made = MigrationSpec(
            name="run-1", source=source_spec(cloud), target=target_spec(cloud, **target), **(spec or {})
        )
        findings = preflight.judge(survey or SURVEYS[cloud](), made, "run-1", NOW)
        for finding in findings:
            assert finding.object
            assert finding.observed
        return {finding.code: finding.level for finding in findings}

    return judge


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_sound_migration_has_no_finding(codes, cloud):
    assert codes(cloud) == {}


def change(part: str, **fields: Any):
    """A survey with some fields of one part changed."""

    def apply(survey: Survey) -> Survey:
        return replace(survey, **{part: replace(getattr(survey, part), **fields)})

    return apply


def put(**fields: Any):
    """A survey with whole parts put in place."""
    return lambda survey: replace(survey, **fields)


BLOCK, WARN, INFO = Level.BLOCK, Level.WARN, Level.INFO
SOON = NOW + timedelta(hours=3)

REFUSALS = [
    ("eks", change("cluster", state="UPDATING"), {"cluster-not-active": BLOCK}),
    ("gke", change("cluster", autopilot=True), {"cluster-autopilot": BLOCK}),
    ("gke", change("cluster", busy_with="UPGRADE_MASTER operation-1"), {"cluster-busy": WARN}),
    ("eks", put(source=None), {"source-not-found": BLOCK}),
    ("eks", put(source=None, source_read=False), {"source-unread": WARN}),
    ("eks", change("source", state=PoolState.DELETING), {"source-deleting": BLOCK}),
    ("eks", change("source", state=PoolState.DEGRADED), {"source-not-active": WARN}),
    ("gke", change("source", bounds=(0, 4)), {"source-autoscaled": INFO}),
    ("eks", put(existing=pool("eks", name="gpu-rdma")), {"target-name-foreign": BLOCK}),
    ("eks", put(existing=pool("eks", name="gpu-rdma", ours="other")), {"target-name-foreign": BLOCK}),
    ("eks", put(existing=pool("eks", name="gpu-rdma", ours="run-1")), {"target-adoptable": INFO}),
    ("eks", put(existing=pool("eks", ours="run-1", state=PoolState.FAILED)), {"target-failed": BLOCK}),
    ("eks", put(machine=None, machine_known=False), {"machine-type-unknown": BLOCK}),
    (
        "eks",
        put(machine=None, machine_known=None, unread={Part.MACHINE: "403"}),
        {"unread-machine": BLOCK},
    ),
    ("eks", change("machine", gpus=0), {"machine-without-gpu": BLOCK}),
    ("eks", change("machine", fabric="", efa_interfaces=0), {"machine-without-rdma": WARN}),
    ("eks", put(layout_problem="15 of 16"), {"efa-layout": BLOCK}),
    ("eks", put(offered_zones=("us-east-2c",)), {"type-not-offered": BLOCK}),
    ("gke", put(offered_zones=()), {"type-not-offered": BLOCK}),
    ("eks", put(offered_zones=None), {"unread-offered": WARN}),
    ("eks", put(subnet=None), {"unread-subnet": BLOCK}),
    ("eks", change("subnet", network="vpc-2"), {"subnet-network": BLOCK}),
    ("eks", change("subnet", addresses=1), {"addresses": BLOCK}),
    ("eks", change("subnet", addresses=99), {"addresses-for-pods": WARN}),
    ("eks", put(security_groups=None), {"unread-security": BLOCK}),
    ("eks", put(security_groups=()), {"sg-none": BLOCK}),
    (
        "eks",
        put(security_groups=(SecurityGroup(name="sg-1", self_in=True, self_out=False),)),
        {"sg-self-reference": BLOCK},
    ),
    (
        "eks",
        put(security_groups=(SecurityGroup(name="sg-1", self_in=False, self_out=True),)),
        {"sg-self-reference": BLOCK},
    ),
    ("eks", put(reservation=None, reservation_known=False), {"reservation-unknown": BLOCK}),
    ("gke", put(reservation=None, reservation_known=None), {"unread-reservation": BLOCK}),
    ("eks", change("reservation", state="scheduled", usable=False), {"reservation-not-active": BLOCK}),
    ("gke", change("reservation", state="CREATING", usable=False), {"reservation-not-active": BLOCK}),
    ("eks", change("reservation", machine_type="p5.48xlarge"), {"reservation-machine-type": BLOCK}),
    ("gke", change("reservation", specific=False), {"reservation-not-specific": BLOCK}),
    ("eks", change("reservation", capacity_block=True), {"reservation-kind": BLOCK}),
    ("eks", change("reservation", placement_group="pg"), {"reservation-placement-group": BLOCK}),
    ("eks", change("reservation", tenancy="dedicated"), {"reservation-platform": BLOCK}),
    ("eks", change("reservation", platform="Windows"), {"reservation-platform": BLOCK}),
    ("gke", change("reservation", accelerators=4), {"reservation-accelerators": BLOCK}),
    ("gke", change("reservation", local_ssds=16), {"reservation-local-ssds": BLOCK}),
    ("eks", change("reservation", free=1), {"reservation-full": BLOCK}),
    ("gke", change("reservation", free=1), {"reservation-full": BLOCK}),
    ("eks", change("reservation", ends=SOON), {"reservation-ends": BLOCK}),
    ("eks", change("reservation", zone="us-east-2c", zone_id="use2-az3"), {"reservation-zone": BLOCK}),
    ("gke", change("reservation", zone="europe-west4-c"), {"reservation-zone": BLOCK}),
    ("gke", change("cluster", dataplane_v2=False), {"dataplane-v2": BLOCK}),
    ("gke", change("cluster", version="1.33.9-gke.1000000"), {"gke-version": BLOCK}),
    ("gke", change("cluster", version="latest"), {"gke-version-unread": BLOCK}),
    ("gke", change("cluster", lustre_driver=False), {"lustre-driver": BLOCK}),
    ("eks", put(lustre=None), {"unread-lustre": BLOCK}),
    ("eks", change("lustre", state="MISCONFIGURED", usable=False), {"lustre-not-available": BLOCK}),
    ("eks", change("lustre", zone="us-east-2c"), {"lustre-zone": BLOCK}),
    ("eks", change("lustre", zone="us-east-2c", rdma=False), {"lustre-zone": WARN}),
    ("gke", change("lustre", zone="europe-west4-c"), {"lustre-zone": BLOCK}),
    ("eks", change("lustre", network="vpc-2"), {"lustre-network": BLOCK}),
    ("eks", change("lustre", open_ports=False), {"lustre-ports": BLOCK}),
    ("eks", change("lustre", open_ports=None), {"lustre-ports-unread": WARN}),
    ("gke", change("lustre", gke_support=False), {"lustre-gke-support": BLOCK}),
    ("eks", put(source_role="arn:aws:iam::123456789012:role/other"), {"node-role-last": WARN}),
    (
        "eks",
        put(source_role="arn:aws:iam::123456789012:role/other", role_shared_with=("cpu",)),
        {},
    ),
    ("gke", change("ranges", nodes_free=1), {"addresses": BLOCK}),
    ("gke", change("ranges", pods_free=511), {"pod-addresses": BLOCK}),
    ("gke", put(ranges=None), {"unread-addresses": WARN}),
    ("eks", put(addons=None), {"unread-addons": WARN}),
    ("eks", put(addons=(Addon(name="vpc-cni", version="v1", status="ACTIVE"),)), {"addons": INFO}),
    (
        "eks",
        put(addons=(Addon(name="vpc-cni", version="v1", status="DEGRADED", issues=("AccessDenied: x",)),)),
        {"addon-not-active": BLOCK, "addons": INFO},
    ),
    (
        "eks",
        put(addons=(Addon(name="coredns", version="v1", status="DEGRADED"),)),
        {"addon-not-active": WARN, "addons": INFO},
    ),
]


@pytest.mark.parametrize(
    ("cloud", "changed", "expected"), REFUSALS, ids=lambda v: next(iter(v), "none") if isinstance(v, dict) else None
)
def test_a_rule_refuses_what_it_should_and_nothing_else_does(codes, cloud, changed, expected):
    assert codes(cloud, changed(SURVEYS[cloud]())) == expected


def test_the_kubeconfig_must_mean_the_clouds_cluster(source_spec, target_spec):
    spec = MigrationSpec(name="run-1", source=source_spec("eks"), target=target_spec("eks"))
    survey = change("cluster", endpoints=("ABC.gr7.us-east-2.eks.amazonaws.com",))(eks_survey())

    def found(**facts: Any) -> dict[str, Level]:
        return {f.code: f.level for f in preflight.judge(survey, spec, "run-1", NOW, **facts)}

    assert found(server="https://abc.gr7.us-east-2.eks.amazonaws.com", source_nodes=2) == {}
    assert found(server="https://127.0.0.1:6443", source_nodes=2) == {}
    assert found(source_nodes=0) == {"source-nodes-unseen": BLOCK}
    assert found(server="https://other.example.com", source_nodes=1) == {"cluster-endpoint": WARN}


def test_zones_of_shared_reservations_are_compared_by_id_not_by_the_accounts_alias(codes):
    survey = change("reservation", zone="us-east-2b")(eks_survey())  # the owner's alias of the same zone

    assert codes("eks", survey) == {}


def test_a_capacity_block_needs_a_type_that_has_them(codes):
    block = change("reservation", capacity_block=True)(eks_survey())
    without = change("machine", usage_classes=("on-demand",))(block)
    asked = {"reservation": {"id": "cr-0a11ce0000000001", "capacity_block": True}}

    assert codes("eks", block, **asked) == {}
    assert codes("eks", without, **asked) == {"type-without-capacity-block": BLOCK}


def test_a_placement_group_must_exist_be_a_cluster_and_be_the_reservations(codes):
    named = change("reservation", placement_group="pg")(eks_survey())

    assert codes("eks", replace(named, placement_strategy="cluster"), placement_group="pg") == {}
    assert codes("eks", replace(named, placement_strategy="spread"), placement_group="pg") == {
        "placement-strategy": BLOCK
    }
    assert codes("eks", named, placement_group="pg") == {"unread-placement": BLOCK}
    assert codes("eks", replace(eks_survey(), placement_strategy="cluster"), placement_group="pg") == {
        "reservation-placement-group": BLOCK
    }


def test_a_placement_policy_does_not_go_with_a_dense_reservation(codes):
    assert codes("gke", placement_policy="compact") == {"placement-on-dense": BLOCK}
    loose = change("reservation", dense=False)(gke_survey())
    assert codes("gke", loose, placement_policy="compact") == {}


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (Quota(name="q", unit="vCPU", limit=1000, used=0), {}),
        (Quota(name="q", unit="vCPU", limit=1000, used=700), {"quota": BLOCK}),
        (Quota(name="q", unit="vCPU", limit=1000, used=None), {"quota-use-unread": WARN}),
        (None, {"unread-quota": WARN}),
    ],
)
def test_on_demand_machines_need_quota_and_reserved_ones_do_not(codes, quota, expected):
    on_demand = replace(eks_survey(), reservation=None, reservation_known=None, quota=quota)

    assert codes("eks", on_demand, reservation=None) == expected
    assert codes("eks", replace(eks_survey(), quota=quota)) == {}


def test_named_networks_are_counted_and_tied_to_the_zone(codes):
    nine = tuple(f"net-{i}/sub-{i}" for i in range(9))
    here = replace(gke_survey(), networks=(RdmaNetwork(name="rdma", zone="europe-west4-b"),))
    away = replace(gke_survey(), networks=(RdmaNetwork(name="rdma", zone="europe-west4-c"),))
    named = {"rdma_network_profile": "networks", "rdma_networks": nine}

    assert codes("gke", here, **named) == {}
    assert codes("gke", away, **named) == {"network-zone": BLOCK}
    assert codes("gke", here, **{**named, "rdma_networks": nine[:8]}) == {"network-count": BLOCK}
    assert codes("gke", **named) == {"unread-network": BLOCK}
    off = change("cluster", multi_networking=False)(here)
    assert codes("gke", off, **named) == {"multi-networking": BLOCK}


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_one_reservation_for_both_pools_means_a_swap(codes, cloud, source_spec, target_spec):
    survey = change("reservation", free=1)(SURVEYS[cloud]())
    survey = change("source", reservation=survey.reservation.name)(survey)
    spec = MigrationSpec(name="run-1", source=source_spec(cloud), target=target_spec(cloud))

    assert codes(cloud, survey) == {"swap-needed": WARN}
    assert preflight.strategy(survey, spec) is Strategy.SWAP
    assert codes(cloud, survey, spec={"strategy": "side-by-side"}) == {"reservation-holds-both": BLOCK}
    assert preflight.strategy(SURVEYS[cloud](), spec) is Strategy.SIDE_BY_SIDE
    too_small = change("reservation", free=0)(change("source", nodes=1)(survey))
    assert codes(cloud, too_small) == {"reservation-full": BLOCK}


def test_a_pool_of_ours_already_holds_its_machines(codes):
    """Running again after the pool was made: its machines are not asked for twice."""
    survey = change("reservation", free=0)(eks_survey())
    survey = replace(survey, existing=pool("eks", name="gpu-rdma", ours="run-1", nodes=2))

    assert codes("eks", survey) == {"target-adoptable": INFO}


def test_all_findings_come_at_once_and_blocking_ones_first(codes):
    survey = replace(eks_survey(), source=replace(pool("eks"), bounds=(0, 4)), lustre=None, subnet=None)

    found = codes("eks", survey)

    assert set(found) == {"source-autoscaled", "unread-lustre", "unread-subnet"}
    assert list(found.values()) == [BLOCK, BLOCK, INFO]


def test_an_external_target_must_be_there():
    source = ExternalPool(name="old", selector={"pool": "old"})
    target = ExternalPool(name="new", selector={"pool": "new"})
    spec = MigrationSpec(name="run-1", source=source, target=target)
    seen = Survey(kind="external", source=pool("external"), existing=pool("external", name="new"))

    assert preflight.judge(seen, spec, "run-1", NOW) == []
    codes = [f.code for f in preflight.judge(replace(seen, existing=None), spec, "run-1", NOW)]
    assert codes == ["target-not-there"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.34.1-gke.1829001", (1, 34, 1, 1829001)), ("1.34", None), ("", None), ("1.34.1-gke.1-beta", None)],
)
def test_a_gke_version_is_read_or_not_understood(text, expected):
    assert gke_version(text) == expected


EFA = {"vpc.amazonaws.com/efa": 16}


@pytest.mark.parametrize(
    ("cloud", "reserved", "target", "expected"),
    [
        ("eks", {}, {}, ("fabric-nearness-unknown", WARN)),
        ("eks", {"placement_group": "pg"}, {"placement_group": "pg"}, ("fabric-nearness", INFO)),
        ("gke", {}, {}, ("fabric-nearness", INFO)),
        ("gke", {"dense": False}, {}, ("fabric-nearness-unknown", WARN)),
        ("gke", {"dense": False}, {"placement_policy": "near"}, ("fabric-nearness", INFO)),
    ],
)
def test_the_plan_says_what_keeps_the_nodes_near_each_other_or_that_nothing_does(
    codes, cloud, reserved, target, expected
):
    survey = change("reservation", **reserved)(change("machine", rdma=EFA)(SURVEYS[cloud]()))
    found = codes(cloud, replace(survey, placement_strategy="cluster"), **target)

    assert {c: level for c, level in found.items() if c.startswith("fabric")} == dict([expected])


def test_one_node_or_one_without_rdma_needs_nothing_near(codes):
    survey = change("machine", rdma=EFA)(eks_survey())

    assert codes("eks", survey, nodes=1) == {}


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("1.33", {}),
        ("1.34", {}),
        ("1.32", {"kubernetes-version": BLOCK}),
        ("1.9", {"kubernetes-version": BLOCK}),
        ("newest", {"kubernetes-version-unread": WARN}),
    ],
)
def test_the_cluster_is_new_enough_for_the_machine_type(codes, version, found):
    survey = eks_survey()
    assert survey.cluster is not None
    survey = replace(survey, cluster=replace(survey.cluster, version=version))
    told = codes("eks", survey, machine_type="p6e-gb200.36xlarge")
    assert {code: level for code, level in told.items() if code.startswith("kubernetes")} == found
    assert not [code for code in codes("eks", survey) if code.startswith("kubernetes")]
