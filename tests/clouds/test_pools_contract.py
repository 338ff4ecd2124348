"""One contract, two clouds: what every adapter of `Pools` does, asked over the wire of the simulated clouds."""

from __future__ import annotations

import pytest

from infra.errors import CloudError, Conflict, NoCapacity, NotFound, Unmeasured
from infra.model.pools import IssueClass, PoolState
from infra.model.record import UNPROVEN_TAINT
from tasks import pools as steps

pytestmark = pytest.mark.parametrize("cloud", ["eks", "gke"])


def test_finds_the_source_with_its_selector_and_gpus(world, cloud):
    w = world(cloud)

    found = w.pools.find(w.source)

    assert (found.state, found.nodes, found.gpus) == (PoolState.ACTIVE, 3, {"nvidia.com/gpu": 8})
    assert list(found.node_selector.values()) == ["gpu-old"]
    assert found.rdma == {}  # made without RDMA interfaces, so its nodes need not advertise any
    assert found.ours == ""


def test_a_source_with_rdma_is_expected_to_advertise_it(world, cloud):
    w = world(cloud, source={"rdma": True})

    expected = (
        {"vpc.amazonaws.com/efa": 16}
        if cloud == "eks"
        else {f"networking.gke.io.networks/rdma-{i}": 1 for i in range(8)}
    )
    assert w.pools.find(w.source).rdma == expected


def test_an_absent_pool_is_none_and_an_absent_cluster_is_an_error(world, cloud):
    w = world(cloud)

    assert w.pools.find(w.target) is None
    w.pools.cluster = "nowhere"
    with pytest.raises(NotFound, match=r"cluster .*nowhere.*next: check"):
        w.pools.find(w.target)


def test_provision_makes_the_pool_and_its_nodes(world, cloud):
    w = world(cloud)

    pool = steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert (pool.state, pool.nodes, pool.ours) == (PoolState.ACTIVE, 2, "run-1")
    assert pool.zones == (w.target.subnet and "us-east-2a",) if cloud == "eks" else ("europe-west4-b",)
    assert len(w.registry.machines) == 2
    for machine in w.registry.machines.values():
        taints = {(t["key"], t["value"], t["effect"]) for t in machine.taints}
        assert (UNPROVEN_TAINT, "run-1", "NoSchedule") in taints
        assert ("team", "training", "NoExecute") in taints
        assert machine.rdma
        assert machine.labels["poolshift.dev/run"] == "run-1"


def test_provision_again_adopts_and_makes_nothing_twice(world, cloud):
    w = world(cloud)
    first = w.pools.create(w.target, "run-1")

    again = steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert again.identity == first.identity
    assert len(w.registry.machines) == 2


def test_a_name_that_belongs_to_somebody_else_is_a_conflict(world, cloud):
    w = world(cloud)
    w.pools.create(w.target, "run-1")

    with pytest.raises(Conflict, match=r"belongs to run run-1.*next: choose another target.name"):
        w.pools.create(w.target, "run-2")
    foreign = w.target.model_copy(update={"name": "gpu-old"})
    with pytest.raises(Conflict, match=r"belongs to somebody else"):
        w.pools.create(foreign, "run-1")


def test_our_own_pool_of_another_spec_is_a_conflict(world, cloud):
    w = world(cloud)
    w.pools.create(w.target, "run-1")

    with pytest.raises(Conflict, match="another spec"):
        w.pools.create(w.target.model_copy(update={"nodes": 3}), "run-1")


def test_a_stockout_is_no_capacity_with_the_clouds_own_words(world, cloud):
    w = world(cloud, target={"outcome": "stockout"})

    with pytest.raises(NoCapacity) as error:
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert "apacity" in error.value.observed or "STOCKOUT" in error.value.observed
    assert "poolshift rollback" in error.value.remedy
    found = w.pools.find(w.target)
    assert found.state is PoolState.FAILED  # it is still there: never assume absence
    assert found.issues[0].issue_class is IssueClass.CAPACITY


def test_a_degraded_pool_is_read_and_not_waited_out(world, cloud):
    w = world(cloud, target={"outcome": "degraded", "nodes_joined": 1, "create_seconds": 120})
    started = w.clock.now()

    with pytest.raises(NoCapacity, match="degraded"):
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert (w.clock.now() - started).total_seconds() < 180
    assert len(w.registry.machines) == 1


def test_nodes_that_do_not_join_are_a_cloud_error(world, cloud):
    w = world(cloud, target={"outcome": "create-failed"})

    with pytest.raises(CloudError, match=r"failed to (join|register)"):
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)


def test_a_reservation_without_room_gives_no_machine(world, cloud):
    w = world(cloud, reservation={"total": 4, "used": 3})

    with pytest.raises(NoCapacity):
        steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    assert w.registry.machines == {}


def test_retire_follows_the_deletion_to_its_end(world, cloud):
    w = world(cloud)

    steps.retire(w.pools, w.source, w.clock, w.say)

    assert w.pools.find(w.source) is None
    assert sorted(w.registry.left) == ["old-0", "old-1", "old-2"]
    assert w.said[-1] == "pool gpu-old: gone"
    assert not any(line.endswith(": active") for line in w.said), "reads as if it came back"


def test_retire_of_an_absent_pool_is_success(world, cloud):
    w = world(cloud)

    steps.retire(w.pools, w.target, w.clock, w.say)

    assert w.registry.left == []


def test_retire_continues_a_deletion_that_an_earlier_process_began(world, cloud):
    w = world(cloud)
    w.pools.delete(w.source)
    w.pools.delete(w.source)  # asked twice: still one deletion

    steps.retire(w.pools, w.source, w.clock, w.say)

    assert w.pools.find(w.source) is None


def test_a_failed_deletion_is_reported_and_can_be_repeated(world, cloud):
    w = world(cloud)
    w.running.faults.delete_failure = "the security group has dependents"

    with pytest.raises(CloudError, match="dependents"):
        steps.retire(w.pools, w.source, w.clock, w.say)
    steps.retire(w.pools, w.source, w.clock, w.say)

    assert w.pools.find(w.source) is None


def test_a_deletion_kills_nodes_whatever_runs_on_them(world, cloud):
    """The danger that the product guards against: the cloud asks nobody."""
    w = world(cloud)

    w.pools.delete(w.source)
    w.clock.advance(3600)
    w.pools.find(w.source)

    assert len(w.registry.left) == 3


def test_fencing_fixes_the_size_and_unfencing_puts_it_back(world, cloud):
    w = world(cloud)
    before = w.pools.find(w.source)

    prior = w.pools.fence_for_run(w.source, "run-1")
    fenced = w.pools.find(w.source)
    w.pools.unfence(w.source, prior)
    after = w.pools.find(w.source)

    assert before.bounds == (0, 5)
    assert fenced.bounds is None
    assert (after.bounds, after.tags, after.nodes) == (before.bounds, before.tags, before.nodes)


def test_fencing_again_returns_the_first_prior_state(world, cloud):
    w = world(cloud)

    first = w.pools.fence_for_run(w.source, "run-1")
    second = w.pools.fence_for_run(w.source, "run-1")

    assert second == first


def test_unfencing_an_absent_pool_is_success(world, cloud):
    w = world(cloud)
    prior = w.pools.fence_for_run(w.source, "run-1")
    steps.retire(w.pools, w.source, w.clock, w.say)

    w.pools.unfence(w.source, prior)


def test_releasing_drops_our_taint_and_no_other(world, cloud):
    w = world(cloud)
    steps.provision(w.pools, w.target, "run-1", w.clock, w.say)

    w.pools.release(w.target)
    w.pools.release(w.target)

    taints = (
        w.running.servers[0].groups.groups["gpu-rdma"]["taints"]
        if cloud == "eks"
        else [{"key": t.key} for t in w.running.servers[1].pools.pools["gpu-rdma"].config.taints]
    )
    keys = [t["key"] for t in taints]
    assert UNPROVEN_TAINT not in keys
    assert "team" in keys


def test_what_is_rendered_is_what_is_sent(world, cloud):
    w = world(cloud)
    rendered = w.pools.render(w.target, "run-1")
    sent = []
    edge = w.pools.aws if cloud == "eks" else w.pools.gcp
    inner = edge.call

    def record(verb, what, body):
        sent.append((verb.removeprefix("container."), body))
        return inner(verb, what, body)

    edge.call = record
    w.pools.create(w.target, "run-1")

    wanted = [(request.verb.removeprefix("container."), request.body) for request in rendered]
    assert [call for call in sent if call[0] in {verb for verb, _ in wanted}] == wanted


def test_rendering_twice_gives_the_same_tokens(world, cloud):
    w = world(cloud)

    assert w.pools.render(w.target, "run-1") == w.pools.render(w.target, "run-1")
    assert w.pools.render(w.target, "run-1") != w.pools.render(w.target, "run-2")


def test_the_scenario_shared_by_both_pools_has_no_blocking_finding(world, cloud):
    from infra.model.spec import MigrationSpec

    w = world(cloud)
    spec = MigrationSpec(name="run-1", source=w.source, target=w.target)

    findings = steps.preflight(w.pools, spec, "run-1", w.clock.now())

    near = {"eks": ("warn", "fabric-nearness-unknown"), "gke": ("info", "fabric-nearness")}[cloud]
    others = {("info", "addons")} if cloud == "eks" else set()
    assert {(f.level, f.code) for f in findings} == {("info", "source-autoscaled"), near, *others}
    assert w.pools.survey(w.source, w.target, "run-1").unread == {}


def test_a_source_that_does_not_exist_is_named(world, cloud):
    w = world(cloud)
    missing = w.source.model_copy(update={"name": "typo"})

    with pytest.raises(NotFound, match=r"typo.*does not exist"):
        w.pools.fence_for_run(missing, "run-1")


def _made_again(w, cloud):
    """Somebody deletes the source pool and makes another one under its name."""
    w.pools.delete(w.source)
    w.clock.advance(3600)
    assert w.pools.find(w.source) is None
    w.pools.create(w.target.model_copy(update={"name": w.source.name}), "other")
    w.clock.advance(3600)
    return w.pools.find(w.source)


def test_a_pool_made_again_under_the_same_name_is_not_deleted(world, cloud):
    w = world(cloud)
    first = w.pools.find(w.source)
    again = _made_again(w, cloud)

    with pytest.raises(Conflict, match="another pool of that name"):
        steps.retire(w.pools, w.source, w.clock, w.say, made=first.made)

    assert w.pools.find(w.source) == again


def test_a_pool_made_again_after_ours_was_asked_to_go_is_let_alone(world, cloud):
    w = world(cloud)
    first = w.pools.find(w.source)
    again = _made_again(w, cloud)

    steps.retire(w.pools, w.source, w.clock, w.say, made=first.made, begun=True)

    assert w.pools.find(w.source) == again
    assert "another pool has its name since" in w.said[-1]


def test_a_pool_that_cannot_be_told_from_a_later_one_is_not_deleted(world, cloud):
    w = world(cloud)

    with pytest.raises(Unmeasured, match="no identity beyond its name"):
        steps.retire(w.pools, w.source, w.clock, w.say, made=())

    assert w.pools.find(w.source).state is PoolState.ACTIVE


def test_a_pool_that_appears_when_ours_is_gone_is_not_deleted(world, cloud):
    """Between the look that finds nothing and the request that clears up after it."""
    w = world(cloud)
    first = w.pools.find(w.source)
    again = _made_again(w, cloud)

    class Early:
        """The look was taken before the other pool was made."""

        delete = staticmethod(w.pools.delete)

        def find(self, pool):
            return None

    with pytest.raises(Conflict):
        steps.retire(Early(), w.source, w.clock, w.say, made=first.made)

    assert w.pools.find(w.source) == again


def test_the_proof_is_asked_at_the_moment_of_each_request_and_not_before_a_long_wait(world, cloud):
    """What a busy cloud makes wait for half an hour must not be deleted on what was true before."""
    w = world(cloud, target={"create_seconds": 1300})
    w.pools.create(w.target, "run-1")  # keeps a whole GKE cluster busy
    started, proven = w.clock.now(), []
    edge = w.pools.aws if cloud == "eks" else w.pools.gcp
    inner, accepted = edge.call, []

    def record(verb, what, body):
        answer = inner(verb, what, body)
        if "delete_node" in verb:
            accepted.append(w.clock.now())
        return answer

    edge.call = record
    steps.retire(w.pools, w.source, w.clock, w.say, lambda: proven.append(w.clock.now()))

    assert len(accepted) == 1
    assert proven[-1] == accepted[0]
    assert cloud == "eks" or (accepted[0] - started).total_seconds() > 1000
