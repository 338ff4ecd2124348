"""Taking single machines, on both clouds over the wire: exactly those that are named go, and growing takes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra import connect
from infra.errors import Refused
from infra.sandbox.clouds import names
from infra.sandbox.clouds.scaling import scaling_group

CLOUDS = ("eks", "gke")
LATER = 400.0


@pytest.fixture
def shared(world: Callable[..., Any]) -> Callable[[str], Any]:
    """A world whose one reservation holds the source pool."""

    def start(cloud: str, **reservation: Any) -> Any:
        parts = {"reservation": {"total": 3, "source": True, **reservation}}
        return world(cloud, **parts)

    return start


def settle(here: Any) -> None:
    here.clock.advance(LATER)
    here.pools.find(here.source)  # asking runs what is due


@pytest.mark.parametrize("cloud", CLOUDS)
def test_exactly_the_named_machine_goes_and_its_room_comes_back_later(shared: Any, cloud: str) -> None:
    here = shared(cloud)
    here.pools.fence_for_run(here.source, "run-1")  # a fixed size, which Auto Scaling would not go below
    slices = connect.slices(here.pools)
    before = dict(slices.instances(here.source))
    assert len(before) == 3
    gone = sorted(before)[1]

    asked: list[str] = []
    slices.give_up(here.source, [gone], asked.extend)
    slices.give_up(here.source, [gone], asked.extend)  # asked again, as after a kill

    assert slices.instances(here.source)[gone].going
    settle(here)
    assert set(slices.instances(here.source)) == set(before) - {gone}
    assert len(here.registry.left) == 1
    assert here.pools.find(here.source).nodes == 2
    settle(here)
    assert slices.reservation(here.target).free == 1
    slices.give_up(here.source, [gone], asked.extend)
    settle(here)
    assert len(slices.instances(here.source)) == 2
    assert asked == [gone], "proven before the one request that was sent, and before no other"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_machine_that_is_not_proven_right_before_the_request_is_not_asked_to_end(shared: Any, cloud: str) -> None:
    here = shared(cloud)
    here.pools.fence_for_run(here.source, "run-1")
    slices = connect.slices(here.pools)
    before = dict(slices.instances(here.source))

    def refuse(ids: Any) -> None:
        raise Refused(str(ids), "not empty")

    with pytest.raises(Refused, match="not empty"):
        slices.give_up(here.source, before, refuse)

    settle(here)
    assert slices.instances(here.source) == before


@pytest.mark.parametrize("cloud", CLOUDS)
def test_growing_adds_to_what_is_there_and_never_shrinks(shared: Any, cloud: str) -> None:
    here = shared(cloud, total=7)
    target = here.target.model_copy(update={"nodes": 0})
    slices = connect.slices(here.pools)
    here.pools.create(target, "run-1")
    settle(here)
    assert slices.instances(target) == {}

    for size in (2, 2, 4):
        slices.grow(target, size)
        settle(here)
        assert len(slices.instances(target)) == size
        assert here.pools.find(target).nodes == size

    with pytest.raises(Refused, match="to grow, not to shrink"):
        slices.grow(target, 3)
    assert slices.reservation(target).free == 0


@pytest.mark.parametrize("cloud", CLOUDS)
def test_growing_without_room_ends_in_a_state_that_names_the_capacity(shared: Any, cloud: str) -> None:
    here = shared(cloud)
    target = here.target.model_copy(update={"nodes": 0})
    here.pools.create(target, "run-1")
    settle(here)

    connect.slices(here.pools).grow(target, 2)
    settle(here)

    found = here.pools.find(target)
    assert found.state.value == "degraded"
    assert {issue.issue_class.value for issue in found.issues} == {"capacity"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_pool_that_does_not_exist_has_no_machines(shared: Any, cloud: str) -> None:
    here = shared(cloud)

    assert connect.slices(here.pools).instances(here.target) == {}
    asked: list[str] = []
    connect.slices(here.pools).give_up(here.target, ["aws:///us-east-2a/i-0", "gce://p/z/n"], asked.extend)
    assert asked == []


def test_a_group_that_has_grown_unseen_by_eks_loses_no_node_when_it_is_fenced_or_unfenced(world: Any) -> None:
    """EKS shows an older size for a while; sent back, it kills machines that nobody named, budgets or not."""
    here = world("eks")
    groups = here.running.servers[0].groups
    own = groups.groups[here.source.name]
    groups.scaling.resize(own, 5)  # as the cluster autoscaler does
    settle(here)
    assert here.pools.find(here.source).nodes == 3, "EKS does not show it yet"
    before = dict(connect.slices(here.pools).instances(here.source))
    assert len(before) == 5

    prior = here.pools.fence_for_run(here.source, "run-1")
    assert connect.slices(here.pools).instances(here.source) == before
    own["scalingConfig"]["desiredSize"] = 3
    here.pools.unfence(here.source, prior)
    settle(here)

    assert connect.slices(here.pools).instances(here.source) == before
    assert here.registry.left == []


def test_a_machine_that_goes_from_one_of_several_zones_takes_no_other_with_it(world: Any) -> None:
    """AZRebalance would end one of the fuller zone, busy or not."""
    here = world("eks")
    groups = here.running.servers[0].groups
    own = groups.groups[here.source.name]
    own["subnets"] = [names.SUBNET, names.OTHER_SUBNET]
    slices = connect.slices(here.pools)
    before = sorted(slices.instances(here.source))
    assert len({name.split("/")[3] for name in before}) == 2
    alone = next(n for n in before if sum(n.split("/")[3] == o.split("/")[3] for o in before) == 1)

    prior = here.pools.fence_for_run(here.source, "run-1")
    assert here.pools.fence_for_run(here.source, "run-1") == prior
    slices.give_up(here.source, [alone], lambda asked: None)
    settle(here)
    assert sorted(slices.instances(here.source)) == [name for name in before if name != alone]

    here.pools.unfence(here.source, prior)
    assert groups.scaling.suspended[scaling_group(own)] == set()


def test_a_group_whose_rebalancing_its_owner_suspended_stays_so(world: Any) -> None:
    here = world("eks")
    groups = here.running.servers[0].groups
    own = groups.groups[here.source.name]
    own["subnets"] = [names.SUBNET, names.OTHER_SUBNET]
    groups.scaling.suspended[scaling_group(own)] = {"AZRebalance"}

    here.pools.unfence(here.source, here.pools.fence_for_run(here.source, "run-1"))

    assert groups.scaling.suspended[scaling_group(own)] == {"AZRebalance"}
