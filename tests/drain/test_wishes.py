"""Pause, resume and cancel as another shell asks for them: in the record, heard by whoever runs the migration."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from flows import cli
from flows.commands.options import load_spec
from infra.clock import rfc3339_micro
from infra.errors import NotFound, Refused
from infra.kube import records
from infra.model.record import RUN, Step, StepRecord, StepState
from infra.model.spec import Cluster, MigrationSpec
from infra.model.verdict import Finding
from tasks import outlook
from tasks.observe import held_by
from tasks.run import Run
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
    assert "counts for one that is just starting, or when it is run next" in ask(
        cluster, "r1", Wish.PAUSE, by="ann", reason="lunch"
    )

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


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def lease(holder, ago):
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": rfc3339_micro(NOW - timedelta(seconds=ago)),
    }


def test_a_holder_of_two_pools_is_named_once_and_when_it_is_overdue_for_how_long():
    assert held_by([lease("a", 3), lease("a", 4)], NOW) == (("a",), {})
    assert held_by([lease("a", 400), lease("a", 402), lease("b", 1)], NOW) == (("a", "b"), {"a": 402})
    assert held_by([{}, {"holderIdentity": "c"}], NOW) == (("c",), {})


def test_status_says_of_a_dead_holder_that_it_does_not_renew(kube, cluster, capsys):
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", "{}")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
    for name in ("pool-old", "pool-new"):
        meta = {"name": name, "namespace": kube.namespace, "labels": {RUN: "r1"}}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease("r1/h/7/b", 9)}
        kube.request("POST", path, body=body)
    assert cli.run(["status", "--kubeconfig", cluster.kubeconfig]) == 0
    out = capsys.readouterr().out
    assert out.count("r1/h/7/b") == 1
    assert "not renewed for" in out


@pytest.mark.parametrize(("kept", "where", "gone"), [({}, "us-east-2", True), ({"kept": True}, "us-east-2", False),
                                                     ({}, "eu-west-1", False)])  # fmt: skip
def test_a_source_that_a_run_of_ours_has_retired_is_no_misspelt_name(kube, kept, where, gone):
    spec = load_spec("infra/examples/sandbox-eks.yaml", MigrationSpec, None, None)
    other = {**spec.model_dump(mode="json"), "source": {**spec.source.model_dump(mode="json"), "region": where}}
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", json.dumps(other))
    step = StepRecord(step=Step.RETIRE, state=StepState.DONE, started="", finished="2026-01-01T00:00:00Z", data=kept)
    records.write_step(kube, "r1", step)
    missing = Finding.block("source-not-found", "eks pool gpu-old", "does not exist", "the pool", "correct source.name")
    (found,) = outlook.source_retired(Run(spec=spec, kube=kube), [missing])

    if gone:
        assert found.observed == "is gone: run r1 retired it at 2026-01-01T00:00:00Z"
        assert "correct source.name" not in found.remedy
    else:
        assert found == missing
