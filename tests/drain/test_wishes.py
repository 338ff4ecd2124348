"""Pause, resume and cancel as another shell asks for them: in the record, heard by whoever runs the migration."""

from __future__ import annotations

import json

import pytest

from infra.errors import NotFound, Refused
from infra.kube import records
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import Cluster
from tasks.wishes import Heard, Wish, ask, standing


@pytest.fixture
def cluster(url, tmp_path):
    path = tmp_path / "kubeconfig"
    named = {"name": "x"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": {"server": url}}],
        "users": [{**named, "user": {}}],
        "contexts": [{**named, "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return Cluster(kubeconfig=str(path))


def test_a_wish_is_heard_and_can_be_taken_back(kube, cluster):
    with pytest.raises(NotFound):
        ask(cluster, "r1", Wish.PAUSE, by="ann", reason="lunch")
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", "{}")
    assert "no process runs it now" in ask(cluster, "r1", Wish.PAUSE, by="ann", reason="lunch")

    heard = Heard(kube=kube, run="r1")
    assert heard.paused().startswith("paused by ann at ")
    assert heard.paused().endswith(": lunch")
    assert heard.cancelled() == ""
    asked = kube.requests
    for _ in range(100):
        heard.cancelled()
    assert kube.requests - asked <= 1  # looked at all the time, read now and then

    ask(cluster, "r1", Wish.CANCEL, by="bob", reason="")
    assert "poolshift rollback r1" in ask(cluster, "r1", Wish.CANCEL, by="bob", reason="")
    assert Heard(kube=kube, run="r1").cancelled().startswith("cancelled by bob at ")
    with pytest.raises(Refused, match="resume r1 takes that back"):
        ask(cluster, "r1", Wish.PAUSE, by="ann", reason="")
    ask(cluster, "r1", Wish.RESUME, by="bob", reason="")
    fresh = Heard(kube=kube, run="r1")
    assert (fresh.paused(), fresh.cancelled()) == ("", "")
    record = records.read(kube, "r1")
    assert record is not None
    assert standing(record) == ""


def test_a_run_that_has_ended_takes_no_wish(kube, cluster):
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", "{}")
    step = StepRecord(step=Step.RETIRE, state=StepState.DONE, started="2026-01-01T00:00:00Z", summary="retired")
    records.write_step(kube, "r1", step)
    with pytest.raises(Refused, match="has ended"):
        ask(cluster, "r1", Wish.CANCEL, by="bob", reason="")
