"""Training Jobs that keep checkpoints and write one when asked."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clock import parse_time, rfc3339
from infra.errors import Conflict, Unreachable
from infra.kube.api import Kube
from infra.kube.inside import run_in
from infra.sandbox.agent.checkpoints import REQUESTED, WRITE_SECONDS, WRITTEN
from infra.sandbox.scenario import manifests

JOB = "/apis/batch/v1/namespaces/train/jobs/pretrain"


@pytest.fixture
def training(clusters) -> Any:
    cluster = clusters(rate=600.0)
    for name in ("a", "b"):
        cluster.node(name)
    cluster.create(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
            "spec": {
                "selector": {"matchLabels": {"name": "d"}},
                "template": {
                    "metadata": {"labels": {"name": "d"}},
                    "spec": {"containers": [{"name": "d", "image": "registry.example.com/d:1"}]},
                },
            },
        }
    )
    for obj in manifests("pretrain"):
        cluster.create(obj)
    cluster.wait(lambda: cluster.status(JOB).get("ready") == 2)
    return cluster


def kube_of(cluster) -> Kube:
    from kubernetes import client as k8s

    configuration = k8s.Configuration()
    configuration.host = cluster.access.url
    client = k8s.ApiClient(configuration)
    return Kube(client=client, server=cluster.access.url, context="", namespace="poolshift", clock=cluster.clock)


def annotation(cluster, name: str) -> str:
    return str((cluster.get(JOB)["metadata"].get("annotations") or {}).get(name, ""))


def test_checkpoints_are_kept_and_one_is_written_when_asked(training):
    first = training.wait(lambda: annotation(training, WRITTEN))
    asked = training.clock.now()
    body = {"metadata": {"annotations": {REQUESTED: rfc3339(asked)}}}
    training.api.request("PATCH", JOB, body, content_type="application/merge-patch+json")
    written = training.wait(lambda: (t := annotation(training, WRITTEN)) != first and t)
    took = (parse_time(written) - asked).total_seconds()
    assert took >= WRITE_SECONDS - 1
    later = training.wait(lambda: (t := annotation(training, WRITTEN)) != written and t)
    assert (parse_time(later) - parse_time(written)).total_seconds() > 500


def test_a_suspended_job_writes_no_checkpoint(training):
    before = training.wait(lambda: annotation(training, WRITTEN))
    patch = {"spec": {"suspend": True}, "metadata": {"annotations": {REQUESTED: "now"}}}
    training.api.request("PATCH", JOB, patch, content_type="application/merge-patch+json")
    training.wait(lambda: not training.status(JOB).get("active"))
    suspended = annotation(training, WRITTEN)
    begin = training.clock.now()
    training.wait(lambda: (training.clock.now() - begin).total_seconds() > 200)
    assert annotation(training, WRITTEN) == suspended
    assert parse_time(suspended) >= parse_time(before)


def test_a_command_in_a_rank_writes_a_checkpoint_and_prints_its_time(training):
    training.wait(lambda: annotation(training, WRITTEN))
    pods = training.get("/api/v1/namespaces/train/pods")["items"]
    rank = next(p["metadata"]["name"] for p in pods if p["metadata"]["name"].startswith("pretrain"))
    asked, kube = training.clock.now(), kube_of(training)

    printed = run_in(kube, "train", rank, ("checkpoint",))

    assert (parse_time(printed.strip()) - asked).total_seconds() >= WRITE_SECONDS - 1
    assert annotation(training, WRITTEN) == printed.strip()
    with pytest.raises(Conflict, match="ended with status 127"):
        run_in(kube, "train", rank, ("save-now",))
    with pytest.raises(Unreachable, match="cannot run checkpoint"):
        run_in(kube, "train", "nobody", ("checkpoint",))
