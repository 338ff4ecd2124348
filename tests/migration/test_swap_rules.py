"""Slices of a swap: sizes, order, room for gangs, one gate over all slices. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.kube.wire import Shared
from infra.kube.wire import node as read_node
from infra.kube.wire import pod as read_pod
from infra.model.spec import Drain
from infra.model.verdict import Gate, Outcome, Verdict
from infra.model.workload import Snapshot
from tasks.rules import swap
from tasks.rules.placement import TargetShape

GPUS = {"nvidia.com/gpu": 8, "pods": 110}


def sizes(target: int, free: int, size: int) -> list[tuple[int, int, int]]:
    return [(s.give, s.add, s.total) for s in swap.sizes(target, free, size)]


@pytest.mark.parametrize(
    ("target", "free", "size", "expected"),
    [
        (4, 0, 2, [(2, 2, 2), (2, 2, 4)]),
        (5, 0, 2, [(2, 2, 2), (3, 3, 5)]),
        (5, 0, 4, [(3, 3, 3), (2, 2, 5)]),
        (2, 0, 4, [(2, 2, 2)]),
        (4, 1, 2, [(1, 2, 2), (2, 2, 4)]),
        (4, 3, 2, [(0, 2, 2), (1, 2, 4)]),
        (1, 0, 2, [(1, 1, 1)]),
        (7, 0, 3, [(3, 3, 3), (2, 2, 5), (2, 2, 7)]),
    ],
)
def test_slices_use_what_is_free_first_and_leave_no_node_alone(
    target: int, free: int, size: int, expected: list[tuple[int, int, int]]
) -> None:
    assert sizes(target, free, size) == expected


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_slice_is_never_larger_than_what_was_freed_for_it(size: int) -> None:
    for target in range(2, 40):
        for free in (0, 1, 4, 50):
            check_sizes(target, free, size)


def check_sizes(target: int, free: int, size: int) -> None:
    room, total = free, 0
    for step in swap.sizes(target, free, size):
        room += step.give - step.add
        total += step.add
        assert room >= 0
        assert step.total == total
        assert 2 <= step.add <= size + 1
    assert total == target


def node(name: str) -> Any:
    raw = {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    raw["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return read_node(raw)


def pod(name: str, on: str, gpus: int, job: str = "") -> Any:
    owner = [{"kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True, "apiVersion": "batch/v1"}]
    meta = {"name": name, "namespace": "train", "uid": f"uid-{name}", "ownerReferences": owner if job else []}
    asks = {"requests": {"nvidia.com/gpu": str(gpus)}}
    spec = {"nodeName": on, "containers": [{"name": "c", "resources": asks}]}
    return read_pod({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Shared())


def job(name: str, pods: int) -> Any:
    from infra.model.workload import Workload

    return Workload(
        api_version="batch/v1", kind="Job", namespace="train", name=name, uid=f"uid-{name}", replicas=pods, indexed=True
    )


def plan(pods: list[Any], jobs: list[Any], *, nodes: int = 4, target: int = 4, free: int = 0) -> swap.SwapPlan:
    names = [f"n{i}" for i in range(nodes)]
    snapshot = Snapshot(nodes=tuple(node(n) for n in names), pods=tuple(pods), workloads=tuple(jobs))
    shape = TargetShape(allocatable=GPUS, nodes=target)
    return swap.plan(snapshot, Drain(), names, shape, swap.sizes(target, free, 2))


def codes(found: swap.SwapPlan) -> list[str]:
    return [f.code for f in found.findings]


def test_idle_nodes_make_the_first_slice_and_a_gang_the_one_that_it_fits_behind() -> None:
    gang = [pod("g-0", "n0", 8, "g"), pod("g-1", "n1", 8, "g")]

    found = plan(gang, [job("g", 2)])

    assert not found.blocked, codes(found)
    assert [s.nodes for s in found.slices] == [("n2", "n3"), ("n0", "n1")]
    assert [s.pods for s in found.slices] == [0, 2]
    assert found.rest == ()


def test_a_gang_larger_than_what_can_be_freed_before_it_is_refused_with_the_numbers() -> None:
    gang = [pod(f"g-{i}", f"n{i}", 8, "g") for i in range(4)]

    found = plan(gang, [job("g", 4)], nodes=6, target=6)

    assert codes(found) == ["gang-never-fits"]
    assert (
        "2 of its 4 pods find no room on the 2 target nodes that are proven when slice 2" in found.findings[0].observed
    )
    by_hand = "until the swap has ended: stop job train/g after a checkpoint: kubectl -n train patch jobs.batch g"
    assert by_hand in found.findings[0].remedy


def test_a_gang_that_fits_behind_machines_which_are_free_already_is_no_obstacle() -> None:
    gang = [pod(f"g-{i}", f"n{i}", 8, "g") for i in range(4)]

    found = plan(gang, [job("g", 4)], nodes=6, target=6, free=2)

    assert not found.blocked, codes(found)
    assert [len(s.nodes) for s in found.slices] == [0, 2, 2]


def test_a_pool_without_idle_nodes_may_not_give_up_a_gang_before_there_is_a_target() -> None:
    found = plan([pod(f"g-{i}", f"n{i}", 8, "g") for i in range(4)], [job("g", 4)])

    assert "gang-in-first-slice" in codes(found)


def test_work_of_the_first_slice_must_fit_on_the_other_source_nodes() -> None:
    small = [pod(f"p{i}", f"n{i}", 4) for i in range(4)]
    large = [pod(f"p{i}", f"n{i}", 6) for i in range(4)]

    assert codes(plan(small, [])) == []
    assert {f.object for f in plan(large, []).findings} == {"slice 1", "slice 2"}


def test_a_target_of_one_node_cannot_be_proven() -> None:
    assert "swap-slice-of-one" in codes(plan([], [], target=1))


def test_more_than_the_source_has_cannot_be_given_up() -> None:
    assert "swap-source-too-small" in codes(plan([], [], nodes=2, target=4))


def gate(**outcomes: Outcome) -> Gate:
    verdicts = tuple(Verdict(check=name, outcome=outcome) for name, outcome in outcomes.items())
    return Gate(name="proof", required=("a", "b"), verdicts=verdicts)


PASS, FAIL, UNMEASURED = Outcome.PASS, Outcome.FAIL, Outcome.UNMEASURED


@pytest.mark.parametrize(
    ("gates", "uids", "pool", "expected"),
    [
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS, b=PASS)}, {1: ["x"], 2: ["y"]}, ["x", "y"], PASS),
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS, b=FAIL)}, {1: ["x"], 2: ["y"]}, ["x", "y"], FAIL),
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS)}, {1: ["x"], 2: ["y"]}, ["x", "y"], UNMEASURED),
        ({1: gate(a=PASS, b=PASS)}, {1: ["x"]}, ["x"], UNMEASURED),  # a slice is missing
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS, b=PASS)}, {1: ["x"], 2: ["y"]}, ["x", "y", "z"], UNMEASURED),
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS, b=PASS)}, {1: ["x"], 2: ["y"]}, ["x", "new"], UNMEASURED),
        ({1: gate(a=PASS, b=PASS), 2: gate(a=PASS, b=PASS)}, {1: [], 2: []}, [], UNMEASURED),
        ({}, {}, ["x"], UNMEASURED),
    ],
)
def test_the_gate_over_all_slices_passes_only_when_each_passed_and_every_node_is_of_one(
    gates: dict[int, Gate], uids: dict[int, list[str]], pool: list[str], expected: Outcome
) -> None:
    found = swap.combine(gates, uids, pool, 2)

    assert found.outcome is expected
    json.dumps([v.to_dict() for v in found.verdicts])
