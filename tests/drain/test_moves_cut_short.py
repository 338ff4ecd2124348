"""A move that does not end well leaves nothing half done: what is not empty is as it was, what is empty stays so."""

from __future__ import annotations

import pytest

from infra.errors import Forbidden, Refused
from infra.kube.api import MERGE_PATCH
from infra.model.record import PRIOR, RUN
from infra.model.spec import Drain
from tasks.drain import move
from tasks.rules.outcome import End
from tests.drain.operating import JOBS, drain, open_new, two_pools
from tests.drain.refusing import refusing

OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1")


@pytest.fixture
def pools(build, kubelet):
    return two_pools(build, OLD, NEW)


def marked(kube, pool="old"):
    """Nodes of a pool that are not as they were: cordoned, tainted or with our mark."""
    listed = [n for n in kube.list("/api/v1/nodes") if n["metadata"]["labels"]["pool"] == pool]
    return {
        n["metadata"]["name"]
        for n in listed
        if n["spec"].get("unschedulable") or n["spec"].get("taints") or PRIOR in n["metadata"].get("annotations", {})
    }


def run_one(kube, clock, spec=None, source=OLD, say=lambda _: None):
    return move(kube, spec or Drain.model_validate({"waves": {"size": 1}}), source, NEW, "r1", clock, say)


def test_a_node_that_the_failure_budget_lets_fail_is_put_back_and_named(kube, pools, fast_clock):
    pools.deployment("web", 6)
    pools.pod("alone", "old-1")
    pools.job("llm", 2, gpus=8, nodeSelector={"pool": "old"})  # which the target cannot take
    pools.until_ready(9)
    open_new(pools, NEW)
    spec = Drain.model_validate({"waves": {"size": 1, "failure_budget": 3}})

    report = run_one(kube, fast_clock, spec)

    failed = {name for name, end in report.nodes.items() if end is End.FAILED}
    assert report.end is End.FAILED
    assert "old-1" in failed
    assert report.reason.startswith(f"{len(failed)} node")
    assert "default/alone" in report.reason or "job default/llm" in report.reason
    assert set(report.restored) == failed
    assert marked(kube) == set(OLD) - failed
    assert RUN not in kube.request("GET", f"{JOBS}/llm")["metadata"].get("labels", {})


@pytest.mark.parametrize("refused", ["a target node of another run", "a list"])
def test_what_is_refused_at_the_start_leaves_no_fence(kube, kube_at, url, pools, fast_clock, refused):
    open_new(pools, NEW)
    if refused == "a list":
        with refusing(url, lambda _, path: "poddisruptionbudgets" in path) as at, pytest.raises(Forbidden):
            run_one(kube_at(at), fast_clock)
    else:
        held = {"metadata": {"labels": {RUN: "other"}, "annotations": {PRIOR: '{"run":"other"}'}}}
        kube.request("PATCH", "/api/v1/nodes/new-0", body=held, content_type=MERGE_PATCH)
        with pytest.raises(Refused, match="held by run other"):
            run_one(kube, fast_clock)
    assert marked(kube) == set()


def test_a_node_that_was_emptied_stays_closed_when_the_next_start_is_refused(kube, pools, fast_clock):
    pools.deployment("web", 3)
    pools.until_ready(3)
    open_new(pools, NEW)
    assert run_one(kube, fast_clock, source=OLD[:1]).ok
    held = {"metadata": {"annotations": {PRIOR: '{"run":"other","cordoned":true}'}}}
    kube.request("PATCH", f"/api/v1/nodes/{OLD[2]}", body=held, content_type=MERGE_PATCH)
    before = marked(kube)

    with pytest.raises(Refused, match="other"):
        run_one(kube, fast_clock)

    assert OLD[0] in before
    assert marked(kube) == before


def done_when(seen):
    """A double of what makes pods succeed."""

    def step(kube):
        for pod in kube.list("/api/v1/namespaces/default/pods"):
            if seen(pod) and pod["status"].get("phase") != "Succeeded":
                path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
                kube.request("PATCH", path, body={"status": {"phase": "Succeeded"}}, content_type=MERGE_PATCH)

    return step


@pytest.mark.parametrize("ending", [2, 1])
def test_a_gang_whose_ranks_end_before_all_were_seen_to_run_has_moved(
    kube, kubelet, pools, fast_clock, operate, ending
):
    """Of `ending` ranks the pods succeed on the target before they were seen to run."""
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools, NEW)

    def ends(pod):
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        return int(index) < ending and pod["spec"].get("nodeName", "").startswith("new")

    kubelet.never_runs = ends
    operate(done_when(ends))

    report = run_one(kube, fast_clock, drain())

    gang = next(g for w in report.waves for g in w.gangs)
    assert (gang.end, gang.ended, gang.harm) == (End.DRAINED, "complete" if ending == 2 else "", None)
    assert report.ok, report.to_dict()
    assert PRIOR not in kube.request("GET", f"{JOBS}/llm")["metadata"].get("annotations", {})


def test_a_gang_that_failed_on_the_target_is_harm_with_what_to_do_and_emptied_nodes_stay_closed(
    kube, kubelet, pools, fast_clock, operate
):
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools, NEW)
    kubelet.never_runs = lambda pod: pod["spec"].get("nodeName", "").startswith("new")
    failed = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}

    def fail(kube):
        job = kube.request("GET", f"{JOBS}/llm")
        if "started" in job["metadata"].get("annotations", {}).get(PRIOR, ""):
            kube.request("PATCH", f"{JOBS}/llm/status", body=failed, content_type=MERGE_PATCH)
            for pod in kube.list("/api/v1/namespaces/default/pods"):
                kube.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")

    operate(fail)
    for _ in range(2):  # a second run finds it as the first has left it
        report = run_one(kube, fast_clock, drain())
        assert "has failed since it was started again" in report.reason
        assert "delete it or make it anew" in report.reason
        assert marked(kube) == {next(iter(report.nodes))}


@pytest.mark.parametrize("owner", ["deletes it", "wants fewer ranks"])
def test_a_gang_that_its_owner_changes_while_it_is_stopped_is_told_by_that(kube, pools, fast_clock, owner):
    pools.job("llm", 2, gpus=8)
    pools.until_ready(2)
    open_new(pools, NEW)

    def say(line):
        if "starting again" in line and owner == "deletes it":
            kube.delete(f"{JOBS}/llm")
        elif "starting again" in line:
            kube.request("PATCH", f"{JOBS}/llm", body={"spec": {"parallelism": 1}}, content_type=MERGE_PATCH)

    report = run_one(kube, fast_clock, drain(), say=say)

    if owner == "deletes it":
        assert "its owner has deleted it" in report.reason
        assert "make it anew for the target if it is still wanted" in report.reason
    else:
        assert report.ok, report.to_dict()
