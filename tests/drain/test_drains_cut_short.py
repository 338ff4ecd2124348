"""A drain on its own that is disturbed: by who takes its cordon off, by a server that answers no more, by a garbled
memory. What it leaves is said, with the next step.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from infra.errors import Forbidden, Refused
from infra.kube.api import MERGE_PATCH
from infra.model.record import PRIOR, RUN
from infra.model.workload import Budget, Pod
from tasks.drain import DrainOptions, drain_nodes
from tasks.fence import cordon, unfence
from tasks.rules.fencing import prior_of
from tasks.rules.lanes import Job
from tasks.rules.outcome import End
from tasks.rules.standing import standing
from tests.drain.refusing import answering

UNKNOWN_TO_IT = 401, b'{"kind":"Status","code":401,"reason":"Unauthorized","message":"Unauthorized"}'


@pytest.fixture
def pools(build, kubelet):
    for name in ("old-0", "old-1"):
        build.node(name, "old")
    build.node("new-0", "new", unschedulable=True)
    build.deployment("web", 4)
    build.until_ready(4)
    return build


def is_cordoned(kube, name):
    return bool(kube.request("GET", f"/api/v1/nodes/{name}")["spec"].get("unschedulable"))


def test_a_node_that_somebody_uncordons_meanwhile_is_closed_again_before_it_is_called_drained(kube, pools):
    pools.uncordon("new-0")
    said = []

    def say(line):
        said.append(line)
        if "cordoned 1 node" in line:
            pools.cordon("old-1")
            pools.uncordon("old-0")

    report = drain_nodes(kube, ["old-0"], DrainOptions(timeout=timedelta(seconds=30)), say=say)

    assert report.nodes == {"old-0": End.DRAINED}, report.to_json()
    assert "somebody had uncordoned old-0: cordoned again" in said
    assert is_cordoned(kube, "old-0")


def test_what_a_drain_could_not_put_back_is_said_and_mended_by_the_same_command(kube, kube_at, url, kubelet, pools):
    kubelet.never_ends = lambda pod: True
    said, ended = [], []

    def answer(method, path):
        if path.endswith("/eviction"):
            ended.append(path)
        return UNKNOWN_TO_IT if ended else None

    with answering(url, answer) as at, pytest.raises(Forbidden):
        drain_nodes(kube_at(at), ["old-0"], DrainOptions(timeout=timedelta(seconds=1)), say=said.append)
    assert is_cordoned(kube, "old-0")
    assert said[-1] == "could not put all back: old-0 may stay cordoned; the same command mends that"

    options = DrainOptions(timeout=timedelta(seconds=1), take_over=True)
    assert drain_nodes(kube, ["old-0"], options).restored == ("old-0",)
    assert not is_cordoned(kube, "old-0")


def test_a_drain_that_gets_no_further_says_what_the_server_answers_and_that_it_sees_nothing():
    started = datetime.now(UTC)
    pods = [Pod(namespace="a", name=f"p{i}", uid=f"u{i}", node="n") for i in range(3)]
    jobs = [Job(pod=p, started=started, code="server-error", said="Unauthorized") for p in pods[:2]]
    jobs.append(Job(pod=pods[2], started=started, budget="a/b", code="server-error", said="Unauthorized"))
    shut = {"a/b": Budget(namespace="a", name="b", allowed=0, desired=1, healthy=1, expected=1)}

    words = standing(jobs, shut, total=3, gone=0, per_second=0.0, rate="held", unseen="401 Unauthorized").wording()

    assert "the server answers 'Unauthorized': a/p0 and 1 more pod" in words
    assert "budget a/b needs 1 healthy of 1 and has 1: it holds a/p2" in words
    assert words.endswith("the cluster cannot be seen: 401 Unauthorized")
    assert standing([], {}, total=3, gone=3, per_second=0.0).wording() == "3 of 3 pods gone (100 %), 0 terminating"


@pytest.mark.parametrize(
    ("holder", "remedy"),
    [
        ("r1", "let it end, or: poolshift rollback r1"),
        (
            "drain-0123456789ab-7-abcdef",
            "let it end, or: poolshift drain n1 --take-over, if it was killed on another machine",
        ),
    ],
)
def test_who_holds_a_node_is_named_with_how_that_is_ended(holder, remedy):
    raw = {"metadata": {"name": "n1", "annotations": {PRIOR: json.dumps({"run": holder})}}}
    with pytest.raises(Refused) as refused:
        prior_of(raw, "mine")
    assert refused.value.remedy == remedy


def test_a_node_whose_memory_is_garbled_is_named_once_the_others_are_put_back(kube, pools):
    cordon(kube, ["old-0", "old-1"], "r1")
    garbled = {"metadata": {"annotations": {PRIOR: "{"}}}
    kube.request("PATCH", "/api/v1/nodes/old-0", body=garbled, content_type=MERGE_PATCH)

    with pytest.raises(Refused, match=r"old-0.*unreadable") as refused:
        unfence(kube, "r1")
    assert (is_cordoned(kube, "old-0"), is_cordoned(kube, "old-1")) == (True, False)
    assert "kubectl uncordon old-0" in refused.value.remedy
    assert f"kubectl label node old-0 {RUN}-" in refused.value.remedy
