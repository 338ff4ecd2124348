from __future__ import annotations

import pytest

from infra.kube import records
from infra.model.record import FENCE_TAINT, PRIOR
from infra.model.spec import Drain
from tasks.drain import move, verify_empty
from tasks.rules.outcome import End
from tests.drain import operating

OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1", "new-2")
DRAIN = Drain.model_validate({"waves": {"size": 1}})


@pytest.fixture
def pools(build, kubelet):
    return operating.two_pools(build, OLD, NEW)


def open_new(build):
    operating.open_new(build, NEW)


def nodes(build):
    return {n["metadata"]["name"]: n for n in build.kube.list("/api/v1/nodes")}


def homes(build):
    return {p["spec"].get("nodeName") for p in build.pods() if p["status"].get("phase") == "Running"}


def test_all_work_moves_wave_by_wave_and_the_source_is_proven_empty(kube, pools, fast_clock):
    pools.deployment("web", 6, budget={"maxUnavailable": 2})
    pools.until_ready(6)
    open_new(pools)
    seen = []

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, seen.append, on_wave=lambda w: seen.append(w))

    assert report.ok, report.to_dict()
    assert verify_empty(kube, OLD) == []
    assert homes(pools) <= set(NEW)
    assert [len(w.nodes) for w in report.waves] == [1, 1, 1]
    assert all(FENCE_TAINT in str(nodes(pools)[n]["spec"]["taints"]) for n in OLD)


def test_a_gang_moves_as_one_after_a_checkpoint_was_seen(kube, pools, fast_clock, checkpointing):
    pools.job("llm", 3, gpus=8)
    pools.until_ready(3)
    open_new(pools)

    with checkpointing("llm", fast_clock):
        report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    gang = report.waves[0].gangs[0]
    assert gang.end is End.DRAINED
    assert gang.checkpoint >= gang.asked
    assert report.tally.sent == 0
    job = kube.request("GET", "/apis/batch/v1/namespaces/default/jobs/llm")
    assert job["spec"]["suspend"] is False
    assert PRIOR not in job["metadata"].get("annotations", {})
    assert homes(pools) == set(NEW)


def test_a_gang_without_a_checkpoint_is_neither_stopped_nor_evicted(kube, pools, fast_clock):
    pools.job("llm", 3, gpus=8)
    pools.until_ready(3)
    open_new(pools)
    rule = {"namespace": "default", "name": "llm", "max_wait": "30s"}

    report = move(kube, Drain.model_validate({"workloads": [rule]}), OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.end is End.FAILED
    assert report.waves[0].gangs[0].code == "no-checkpoint"
    assert report.tally.sent == 0
    assert homes(pools) == set(OLD)
    assert not any(
        n["spec"].get("unschedulable") or PRIOR in str(n)
        for n in nodes(pools).values()
        if "old" in str(n["metadata"]["labels"])
    )


def test_a_gang_whose_ranks_do_not_run_on_the_target_has_not_moved(kube, kubelet, pools, fast_clock):
    pools.job("llm", 3, gpus=8)
    pools.until_ready(3)
    open_new(pools)
    kubelet.never_runs = lambda pod: pod["spec"]["nodeName"] == "new-1"
    rule = {"namespace": "default", "name": "llm", "mode": "restart"}
    drain = Drain.model_validate({"workloads": [rule], "pod_deadline": "20s"})

    report = move(kube, drain, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.waves[0].gangs[0].code == "gang-not-running"
    assert report.waves[0].gangs[0].reason.startswith("2 of 3 ranks run")
    assert not report.ok


def test_a_gang_that_finds_no_room_stays_whole(kube, pools, fast_clock):
    pools.job("llm", 3, gpus=8)
    pools.until_ready(3)
    open_new(pools)
    pools.pod("squatter", "new-0", gpus=8)

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.waves[0].gangs[0].code == "gang-without-room"
    assert homes(pools) >= set(OLD)


def test_no_source_nodes_at_all_is_no_success(kube, fast_clock):
    assert move(kube, DRAIN, (), (), "r1", fast_clock, lambda _: None).end is End.UNKNOWN


def test_a_source_node_that_has_gone_counts_when_no_pod_names_it(kube, pools, fast_clock):
    kube.delete("/api/v1/nodes/old-2")
    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)
    assert report.ok
    assert report.nodes["old-2"] is End.DRAINED


def test_a_failed_wave_restores_every_node_that_is_not_empty(kube, pools, fast_clock):
    pools.deployment("web", 6)
    pools.pod("alone", "old-1")
    pools.until_ready(7)
    open_new(pools)

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.end is End.FAILED
    assert report.nodes["old-0"] is End.DRAINED
    assert report.waves[-1].left[0].code == "unmanaged"
    found = nodes(pools)
    assert found["old-0"]["spec"]["unschedulable"] is True
    for name in ("old-1", "old-2"):
        assert not found[name]["spec"].get("unschedulable")
        assert not found[name]["spec"].get("taints")
        assert PRIOR not in found[name]["metadata"].get("annotations", {})
    assert set(report.restored) == {"old-1", "old-2"}


def test_replacements_that_never_get_ready_stop_the_run_after_the_canary(kube, kubelet, pools, fast_clock):
    pools.deployment("web", 6)
    pools.until_ready(6)
    open_new(pools)
    kubelet.never_ready = lambda pod: pod["spec"]["nodeName"].startswith("new")

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.end is End.FAILED
    assert len(report.waves) == 1
    assert report.waves[0].harm[0].code == "replacements-not-ready"


def test_a_wave_that_did_harm_holds_the_next_start_too_until_it_is_mended(kube, kubelet, pools, fast_clock):
    pools.deployment("web", 6)
    pools.until_ready(6)
    open_new(pools)
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", "{}")
    broken = [True]
    kubelet.never_ready = lambda pod: broken[0] and pod["spec"]["nodeName"].startswith("new")
    move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    again = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)
    assert not again.ok
    assert again.waves == ()
    assert "did harm: deployment default/web" in again.reason

    broken[0] = False
    for pod in pools.kube.list("/api/v1/pods"):
        if not pod["spec"]["nodeName"].startswith("old"):
            pools.kube.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
    assert move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None).ok


@pytest.mark.parametrize("at", ["wave 1 done", "wave 2 of 3 (1 node): cordoning", "wave 2 done"])
def test_a_move_that_was_killed_goes_on_where_it_stood(kube, pools, fast_clock, killed_when, at):
    pools.deployment("web", 6, budget={"maxUnavailable": 2})
    pools.until_ready(6)
    open_new(pools)

    killed_when(at)
    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert sum(len(w.nodes) for w in report.waves) == (1 if at == "wave 2 done" else 2)
    assert verify_empty(kube, OLD) == []
    pools.until_ready(6)


@pytest.mark.parametrize("at", ["asking for a checkpoint", "stopping", "starting again"])
def test_a_gang_whose_move_was_killed_runs_whole_on_the_target(kube, pools, fast_clock, checkpointing, killed_when, at):
    pools.job("llm", 3, gpus=8)
    pools.until_ready(3)
    open_new(pools)

    with checkpointing("llm", fast_clock):
        killed_when(at)
        report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    pools.until_ready(3)
    assert homes(pools) == set(NEW)
    job = kube.request("GET", "/apis/batch/v1/namespaces/default/jobs/llm")
    assert PRIOR not in job["metadata"].get("annotations", {})


def test_a_single_replica_is_never_down_and_its_budget_no_obstacle(kube, pools, fast_clock):
    pools.deployment("db", 1, budget={"minAvailable": 1})
    pools.until_ready(1)
    open_new(pools)

    report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.ok, report.to_dict()
    assert report.tally.sent == 0
    pools.until_ready(1)
    assert homes(pools) < set(NEW)
    deployment = kube.request("GET", "/apis/apps/v1/namespaces/default/deployments/db")
    assert deployment["spec"]["replicas"] == 1
    assert PRIOR not in deployment["metadata"].get("annotations", {})


def test_a_second_replica_that_never_gets_ready_is_taken_back(kube, kubelet, pools, fast_clock):
    pools.deployment("db", 1, budget={"minAvailable": 1})
    pools.until_ready(1)
    open_new(pools)
    kubelet.never_ready = lambda pod: True
    drain = Drain.model_validate({"pod_deadline": "20s"})

    report = move(kube, drain, OLD, NEW, "r1", fast_clock, lambda _: None)

    assert report.end is End.FAILED
    deployment = kube.request("GET", "/apis/apps/v1/namespaces/default/deployments/db")
    assert deployment["spec"]["replicas"] == 1
    pools.until_ready(1)
    assert homes(pools) <= set(OLD)
