"""An external pool is known by its nodes' labels: nodes that lost them are not nodes that are gone."""

from __future__ import annotations

import pytest

from infra.kube import records
from infra.kube.api import MERGE_PATCH
from infra.model.record import StepState
from infra.model.spec import MigrationSpec
from infra.model.verdict import Outcome
from tasks.facts import LEAVING
from tasks.retiring import retire
from tasks.run import Run


@pytest.fixture
def run(kubeconfig, kube, build, tmp_path, monkeypatch):
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    pools = {
        key: {"kind": "external", "name": key, "selector": {"pool": word}}
        for key, word in (("source", "old"), ("target", "new"))
    }
    spec = MigrationSpec.model_validate({"name": "r1", "cluster": {"kubeconfig": kubeconfig}, **pools})
    build.node("old-0", "old")
    build.node("new-0", "new")
    found = Run.open(spec)
    found.record()
    emptied = kube.request("GET", "/api/v1/nodes/old-0")["metadata"]["uid"]
    records.write_note(kube, "r1", LEAVING, {"made": [], "nodes": [emptied]})
    return found


def test_a_source_whose_labels_went_is_not_retired_before_its_nodes_are_gone(kube, run):
    body = {"metadata": {"labels": {"pool": None}}}
    kube.request("PATCH", "/api/v1/nodes/old-0", body=body, content_type=MERGE_PATCH)

    done = retire(run)
    assert (done.state, done.data["outcome"]) == (StepState.HELD, Outcome.UNMEASURED)
    assert done.summary == "not gone: there is old-0 of it without its labels: kubectl get nodes -L pool"

    kube.delete("/api/v1/nodes/old-0")
    assert retire(run).state is StepState.DONE
