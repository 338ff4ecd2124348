"""The simulated clouds are strict where the real ones are, and fill what moto lacks."""

from __future__ import annotations

import threading

import pytest

from infra.clock import ManualClock
from infra.errors import CloudError, NotFound, Unmeasured, Unreachable
from infra.gcp import read
from infra.model.spec import MigrationSpec
from infra.model.survey import Part
from infra.sandbox.clouds import names
from infra.sandbox.clouds.timeline import Timeline
from tasks import pools as steps


def test_every_filled_gap_of_moto_answers(world):
    """Fails loudly when a new moto moved what the simulation puts its answers on."""
    aws = world("eks").pools.aws

    answers = {
        "ec2.describe_capacity_reservations": {},
        "ec2.describe_placement_groups": {},
        "fsx.describe_file_systems": {},
        "service-quotas.get_service_quota": {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"},
        "eks.list_nodegroups": {"clusterName": "train"},
        "autoscaling.describe_scaling_activities": {},
    }
    for verb, body in answers.items():
        assert aws.call(verb, verb, body)
    group = aws.call("eks.describe_nodegroup", "x", {"clusterName": "train", "nodegroupName": "gpu-old"})
    arn = group["nodegroup"]["nodegroupArn"]
    aws.call("eks.tag_resource", "x", {"resourceArn": arn, "tags": {"a": "b"}})
    aws.call("eks.untag_resource", "x", {"resourceArn": arn, "tagKeys": ["a", "team"]})
    again = aws.call("eks.describe_nodegroup", "x", {"clusterName": "train", "nodegroupName": "gpu-old"})
    assert again["nodegroup"]["tags"] == {}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ec2.describe_capacity_reservations", {"CapacityReservationIds": ["cr-00000000000000000"]}),
        ("ec2.describe_placement_groups", {"GroupNames": ["nope"]}),
        ("fsx.describe_file_systems", {"FileSystemIds": ["fs-00000000000000000"]}),
        ("service-quotas.get_service_quota", {"ServiceCode": "ec2", "QuotaCode": "L-0"}),
        ("eks.describe_nodegroup", {"clusterName": "train", "nodegroupName": "nope"}),
        ("eks.describe_nodegroup", {"clusterName": "nope", "nodegroupName": "gpu-old"}),
        ("eks.describe_update", {"name": "train", "updateId": "00000000-0000-0000-0000-000000000000"}),
    ],
)
def test_what_does_not_exist_is_not_found(world, verb, body):
    with pytest.raises(NotFound):
        world("eks").pools.aws.call(verb, "it", body)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"amiType": "BOGUS"}, "AMI type"),
        ({"capacityType": "CAPACITY_BLOCK"}, "market type"),
        ({"subnets": ["subnet-0000"]}, "does not exist"),
        ({"instanceTypes": ["p5.48xlarge"]}, "Instance type is in the launch template and in the request"),
        ({"diskSize": 100}, "launch template"),
        ({"launchTemplate": {"name": "nope", "version": "1"}}, "does not exist"),
        ({"launchTemplate": {"name": names.SOURCE_TEMPLATE, "version": "7"}}, "does not exist"),
        ({"scalingConfig": {"minSize": 3, "maxSize": 4, "desiredSize": 2}}, "do not agree"),
    ],
)
def test_eks_refuses_what_moto_would_accept(world, change, words):
    w = world("eks")
    body = {
        "clusterName": "train",
        "nodegroupName": "bad",
        "subnets": [names.SUBNET],
        "nodeRole": names.NODE_ROLE,
        "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0},
        "launchTemplate": {"name": names.SOURCE_TEMPLATE, "version": "1"},
        **change,
    }

    with pytest.raises(CloudError, match=words):
        w.pools.aws.call("eks.create_nodegroup", "node group", body)


def test_nodes_whose_interfaces_lack_the_clusters_group_never_join(world):
    w = world("eks")
    template, group = w.pools.render(w.target, "run-1")
    data = {**template.body["LaunchTemplateData"]}
    data["NetworkInterfaces"] = [{**i, "Groups": [names.EFA_GROUP]} for i in data["NetworkInterfaces"]]
    w.pools.aws.call(template.verb, "template", {**template.body, "LaunchTemplateData": data})
    w.pools.aws.call(group.verb, "group", group.body)

    w.clock.advance(600)

    found = w.pools.find(w.target)
    assert [issue.code for issue in found.issues] == ["NodeCreationFailure"]
    assert w.registry.machines == {}


def test_a_busy_gke_cluster_is_waited_for(world):
    w = world("gke")
    w.running.faults.busy_seconds = 300

    pool = steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert pool.state == "active"
    assert sum(w.clock.slept) >= 300


def test_a_node_pool_is_deleted_with_budgets_respected(world):
    w = world("gke")

    w.pools.delete(w.source)

    drain = w.running.servers[1].pools.pools["gpu-old"].node_drain_config
    assert drain.respect_pdb_during_node_pool_deletion


def test_errors_of_an_earlier_pool_of_the_same_name_are_not_this_ones(world):
    w = world("gke", target={"outcome": "stockout"})
    with pytest.raises(Exception, match="STOCKOUT"):
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)
    steps.retire(w.pools, w.target, w.clock, w.say)

    again = w.pools.create(w.target, "run-1")

    assert again.issues == ()


def test_the_template_goes_with_its_group(world):
    w = world("eks")
    steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    steps.retire(w.pools, w.target, w.clock, w.say)

    left = w.pools.aws.call("ec2.describe_launch_templates", "templates", {})["LaunchTemplates"]
    assert [t["LaunchTemplateName"] for t in left] == [names.SOURCE_TEMPLATE]


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_wrong_zone_lustre_blocks_the_plan(world, cloud, target_spec):
    w = world(cloud, lustre={"zone": "other"})
    spec = MigrationSpec(name="run-1", source=w.source, target=w.target)
    if cloud == "gke":  # the zone is a part of the name there
        named = f"projects/example-project/locations/europe-west4-c/instances/{names.GKE_LUSTRE}"
        spec = spec.model_copy(update={"target": target_spec("gke", lustre=named)})

    findings = steps.preflight(w.pools, spec, "run-1", w.clock.now())

    assert [f.code for f in findings if f.level == "block"] == ["lustre-zone"]


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_full_reservation_blocks_the_plan(world, cloud):
    w = world(cloud, reservation={"total": 8, "used": 7})
    spec = MigrationSpec(name="run-1", source=w.source, target=w.target)

    findings = steps.preflight(w.pools, spec, "run-1", w.clock.now())

    assert [f.code for f in findings if f.level == "block"] == ["reservation-full"]


def test_what_cannot_be_read_is_named_and_hides_nothing_else(world, target_spec):
    w = world("eks")
    target = target_spec("eks", subnet="subnet-00000000", lustre="fs-00000000", reservation={"id": "cr-00000000"})

    seen = w.pools.survey(w.source, target, "run-1")

    assert set(seen.unread) == {Part.SUBNET, Part.LUSTRE}
    assert seen.reservation_known is False
    assert seen.machine is not None
    assert seen.security_groups is not None


def test_on_demand_targets_have_their_quota_read(world, target_spec):
    eks = world("eks")
    seen = eks.pools.survey(eks.source, target_spec("eks", reservation=None), "run-1")
    assert (seen.quota.unit, seen.quota.limit, seen.quota.used) == ("vCPU", 6144.0, 0.0)

    gke = world("gke")
    seen = gke.pools.survey(gke.source, target_spec("gke", reservation=None), "run-1")
    assert (seen.quota.unit, seen.quota.limit, seen.quota.used) == ("GPU", 256.0, 24.0)


def test_named_rdma_networks_are_read_with_their_zone(world, target_spec):
    w = world("gke")
    named = (f"{names.GKE_GVNIC_NETWORK}/a", *(f"{names.GKE_RDMA_NETWORK}/r-{i}" for i in range(8)))
    target = target_spec("gke", rdma_network_profile="networks", rdma_networks=named)

    seen = w.pools.survey(w.source, target, "run-1")

    assert [(n.name, n.zone) for n in seen.networks] == [
        (names.GKE_GVNIC_NETWORK, ""),
        (names.GKE_RDMA_NETWORK, "europe-west4-b"),
    ]


def test_events_run_in_their_order_and_one_that_fails_is_tried_again():
    clock = ManualClock()
    timeline = Timeline(clock)
    seen: list[str] = []
    failures = iter([RuntimeError("the API is not up yet")])

    def shaky() -> None:
        error = next(failures, None)
        if error:
            raise error
        seen.append("second try")

    timeline.after(20, lambda: seen.append("late"))
    timeline.after(12, lambda: seen.append("early"))
    timeline.after(1, shaky)
    timeline.run_due()
    assert seen == []
    clock.advance(5)
    timeline.run_due()
    clock.advance(30)
    timeline.run_due()

    assert seen == ["second try", "early", "late"]


def test_a_started_timeline_runs_events_by_itself():
    from infra.clock import SystemClock

    timeline = Timeline(SystemClock())
    done = threading.Event()
    timeline.start()

    timeline.after(0.0, done.set)

    assert done.wait(5)
    timeline.stop()


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_source_of_another_kind_is_not_looked_for_in_this_cloud(world, cloud):
    from infra.model.spec import ExternalPool

    w = world(cloud)
    source = ExternalPool(name="gpu-old", selector={"karpenter.sh/nodepool": "gpu-old"})
    spec = MigrationSpec(name="run-1", source=source, target=w.target)

    alone = steps.look(w.pools, spec, "run-1")
    beside = steps.look(w.pools, spec, "run-1", w.pools)

    assert (alone.source, alone.source_read) == (None, False)
    assert beside.source_read


class Silent:
    """A cloud that does not answer at first."""

    def __init__(self, pools, times: int) -> None:
        self.pools, self.times = pools, times

    def __getattr__(self, verb: str):
        def call(*args):
            if self.times:
                self.times -= 1
                raise Unreachable("cloud", "no answer")
            return getattr(self.pools, verb)(*args)

        return call


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_silent_cloud_is_asked_again_for_a_while_only(world, cloud):
    w = world(cloud)

    pool = steps.provision(Silent(w.pools, 3), w.target, "run-1", w.clock, w.say)
    assert pool.state == "active"
    assert "no answer, asking again" in w.said[0]
    with pytest.raises(Unreachable):
        steps.retire(Silent(w.pools, 1000), w.source, w.clock, w.say)


def test_a_pool_that_never_settles_is_unmeasured(world):
    w = world("eks", target={"create_seconds": 100_000})

    with pytest.raises(Unmeasured, match=r"still creating after 40 min"):
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)


def test_of_a_reservation_whose_block_is_named_only_that_blocks_machines_count(world, source_spec, target_spec):
    here = world("gke")
    whole = here.pools.survey(source_spec("gke"), target_spec("gke"), "run-1").reservation
    named = {"name": names.GKE_RESERVATION, "block": names.GKE_BLOCK}
    block = here.pools.survey(source_spec("gke"), target_spec("gke", reservation=named), "run-1").reservation
    assert block == whole
    away = target_spec("gke", reservation={**named, "block": "elsewhere"})
    found = here.pools.survey(source_spec("gke"), away, "run-1").reservation
    assert (found.usable, found.free, found.state) == (False, 0, "without block elsewhere")

    full = {"resource": {"name": "b", "status": "READY", "count": 4, "inUseCount": 3}}
    assert (read.reservation_block(whole, full).free, read.reservation_block(whole, full).usable) == (1, True)
    going = read.reservation_block(whole, {"name": "b", "status": "INVALID", "count": 4})
    assert (going.usable, going.state) == (False, "READY, its block b INVALID")
