"""The ways in which a gang leaves, side by side in one move: waited for, left to its owner, at its next checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from infra.kube.api import MERGE_PATCH
from infra.model.record import PRIOR, RUN
from infra.model.spec import Drain
from tasks.drain import move
from tasks.rules.gangs import ended_words
from tasks.rules.outcome import End

OLD, NEW = ("old-0", "old-1"), ("new-0", "new-1")
JOBS, PODS = "/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"


def members(build, name):
    """UID to node of a gang's pods."""
    found = {}
    for pod in build.pods():
        if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == name:
            found[pod["metadata"]["uid"]] = pod["spec"].get("nodeName")
    return found


def test_each_gang_leaves_in_the_way_that_its_rule_says_and_one_that_does_not_holds_the_move(
    kube, build, kubelet, fast_clock, checkpointing
):
    for name in OLD:
        build.node(name)
    for name in NEW:
        build.node(name, "new", unschedulable=True)
    rules = [
        {"namespace": "default", "name": "ends", "mode": "wait", "max_wait": "30m"},
        {"namespace": "default", "name": "stays", "mode": "wait", "max_wait": "2m"},
        {"namespace": "default", "name": "own", "mode": "leave", "max_wait": "30m"},
        {"namespace": "default", "name": "saved", "mode": "checkpoint", "max_wait": "30m"},
    ]
    for each in rules:
        build.job(each["name"], 2, gpus=1)
    build.until_ready(8)
    for name in NEW:
        build.uncordon(name)
    before = members(build, "stays")
    drain = Drain.model_validate({"waves": {"canary": 0, "size": 2}, "workloads": rules})

    def owners(line):
        """What those do whose gangs are theirs: one ends it, the other moves it."""
        if line.startswith("job default/ends: waiting"):
            kube.delete(f"{JOBS}/ends")
        elif line.startswith("job default/own: waiting"):
            for pod in build.pods():
                if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == "own":
                    kube.delete(f"{PODS}/{pod['metadata']['name']}")

    with checkpointing("saved", fast_clock):
        report = move(kube, drain, OLD, NEW, "r1", fast_clock, owners)

    (wave,) = report.waves
    ends = {g.workload.removeprefix("job default/"): g for g in wave.gangs}
    assert report.end is End.FAILED
    assert (ends["stays"].code, ends["stays"].stopped) == ("gang-still-there", "")
    assert members(build, "stays") == before
    assert not members(build, "ends")
    for name in ("own", "saved"):
        assert set(members(build, name).values()) <= set(NEW)
    assert (ends["own"].stopped, ends["own"].end) == ("", End.DRAINED)
    assert ends["saved"].checkpoint >= ends["saved"].asked
    told = {name: ended_words(asdict(end)) for name, end in ends.items()}
    assert told["stays"].startswith("has not left the source pool by itself within 2 minutes, and was not touched")
    assert told["own"] == told["ends"] == "left by itself"
    assert told["saved"].startswith("moved, 2 ranks, checkpoint of ")
    for job in kube.list(JOBS):
        assert not job["spec"].get("suspend")
        assert PRIOR not in job["metadata"].get("annotations", {})

    kube.delete(f"{JOBS}/stays")
    build.until(lambda: not members(build, "stays"), "its end")
    again = move(kube, drain, OLD, NEW, "r1", fast_clock, lambda _: None)
    assert again.ok, again.to_dict()


def test_a_gang_that_was_stopped_runs_again_although_a_node_cannot_be_put_back(kube, build, kubelet, fast_clock):
    for name in OLD:
        build.node(name)
    build.job("llm", 2, gpus=1)
    build.until_ready(2)
    build.node("new-0", "new")
    said = []

    def spoil(line):
        """The old label of a node that the server will not take back, and then the end of the run."""
        said.append(line)
        if "starting again" not in line:
            return
        for name in OLD:
            node = kube.request("GET", f"/api/v1/nodes/{name}")
            memory = json.loads(node["metadata"]["annotations"][PRIOR])
            memory["labels"][RUN] = "no label!"
            body = {"metadata": {"annotations": {PRIOR: json.dumps(memory)}}}
            kube.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)
        raise KeyboardInterrupt

    drain = Drain.model_validate({"workloads": [{"namespace": "default", "name": "llm", "mode": "restart"}]})
    with pytest.raises(KeyboardInterrupt):
        move(kube, drain, OLD, ["new-0"], "r1", fast_clock, spoil)

    assert any(line.startswith("could not put all nodes back") for line in said)
    assert "as they were before: job default/llm" in said
    assert kube.request("GET", f"{JOBS}/llm")["spec"]["suspend"] is False
