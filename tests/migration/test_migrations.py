"""Whole migrations, as a person runs them: the founding story refused, the same spec passing, on both clouds."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from infra.model.record import FENCE_TAINT, PRIOR, RUN, Step, StepState
from tasks.opening import is_closed
from tests.migration.looks import assert_migrated, pods, pool_nodes, taints


def assert_refused(here: Any, before: dict[str, str], image: str) -> None:
    """The gate is held for the right reasons, the old pool as it was, the new one fenced off, nothing left running."""
    record = here.record()
    assert record.steps[Step.GATE].state is StepState.HELD
    assert Step.MIGRATE not in record.steps
    readiness = json.dumps(dict(record.steps[Step.READINESS].data))
    assert "plugin-image-missing" in readiness
    assert image in readiness
    validate = json.dumps(dict(record.steps[Step.VALIDATE].data))
    assert "on TCP sockets on 2 of 2 ranks" in validate
    assert pods(here.kube) == before
    old, new = pool_nodes(here.kube, "gpu-old"), pool_nodes(here.kube, "gpu-rdma")
    assert old
    assert new
    assert all(FENCE_TAINT not in taints(n) and not n["spec"].get("unschedulable") for n in old)
    assert all(is_closed(n) for n in new)
    assert not list(here.kube.list("/apis/batch/v1/namespaces/poolshift/jobs"))


def test_a_pool_whose_plugin_never_started_is_refused_and_passes_once_it_is_mended(stage: Callable[..., Any]) -> None:
    here = stage("plugin-image-missing", "eks")
    before = pods(here.kube)

    ended = here.migrate()
    assert ended.code == 3, ended.err
    assert_refused(here, before, "aws-efa-k8s-device-plugin")

    container = {"name": "aws-efa-k8s-device-plugin", "image": "example.com/efa:v9"}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    path = "/apis/apps/v1/namespaces/kube-system/daemonsets/aws-efa-k8s-device-plugin"
    here.kube.request("PATCH", path, body=patch, content_type="application/strategic-merge-patch+json")
    ended = here.run("migrate", str(here.spec), "--json")
    assert_migrated(here, ended, before)
    status = here.run("status", "--json")
    assert json.loads(status.out)[0]["at"] == "after report"


@pytest.mark.slow
def test_a_refused_migration_is_rolled_back_without_a_trace(stage: Callable[..., Any]) -> None:
    here = stage("plugin-image-missing", "gke")
    before = pods(here.kube)

    ended = here.migrate()
    assert ended.code == 3, ended.err
    assert_refused(here, before, "nccl-plugin-gib")

    ended = here.run("rollback", str(here.spec), "--remove-target")
    assert ended.code == 0, ended.err
    assert pool_nodes(here.kube, "gpu-rdma") == []
    assert pods(here.kube) == before
    assert json.loads(here.run("status", "--json").out) == []
    for node in pool_nodes(here.kube, "gpu-old"):
        assert not {RUN, PRIOR} & {*node["metadata"]["labels"], *node["metadata"].get("annotations", {})}


@pytest.mark.slow
def test_a_rollback_after_the_work_moved_opens_the_old_pool_and_closes_the_new_one(stage: Callable[..., Any]) -> None:
    here = stage("healthy")
    assert here.migrate(failpoint="migrate:recorded").code == -signal.SIGKILL
    there = pods(here.kube)

    ended = here.run("rollback", str(here.spec))

    assert ended.code == 0, ended.err
    assert f"{len(there)} pods stay on" in ended.err
    assert "poolshift drain --kubeconfig" in ended.err
    assert "--selector eks.amazonaws.com/nodegroup=gpu-rdma" in ended.err
    old, new = pool_nodes(here.kube, "gpu-old"), pool_nodes(here.kube, "gpu-rdma")
    assert all(FENCE_TAINT not in taints(n) and not n["spec"].get("unschedulable") for n in old)
    assert all(is_closed(n) for n in new)
    assert pods(here.kube) == there
    assert json.loads(here.run("status", "--json").out) == []
