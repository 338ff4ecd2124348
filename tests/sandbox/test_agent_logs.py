"""Logs through the API server, as kubectl asks for them."""

from __future__ import annotations

import re

import pytest
import urllib3

from infra.clock import parse_time
from infra.sandbox.access import Answer

STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")


@pytest.fixture(scope="module")
def trainer(cluster) -> str:
    """A pod of a Job whose log grows: a training step every six seconds."""
    cluster.node("n-log")
    annotations = {"sandbox.poolshift.dev/run-seconds": "forever"}
    gpus = {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    container = {"name": "main", "image": "registry.example.com/a:1", "resources": gpus}
    template = {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "nodeName": "n-log", "containers": [container]},
    }
    meta = {"name": "train", "namespace": "default"}
    cluster.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"template": template}})
    pods = "/api/v1/namespaces/default/pods"
    name = cluster.wait(
        lambda: next(
            (p["metadata"]["name"] for p in cluster.get(pods)["items"] if p["status"].get("phase") == "Running"), ""
        )
    )
    path = f"{pods}/{name}"
    cluster.wait(lambda: cluster.log(path).count("step") > 12)
    return path


def test_a_training_log_grows_and_says_that_it_is_simulated(cluster, trainer):
    first = cluster.log(trainer)
    assert "(simulated)" in first
    assert cluster.wait(lambda: len(cluster.log(trainer)) > len(first))


def test_tail_lines_are_the_last_ones(cluster, trainer):
    lines = cluster.log(trainer, tailLines="3").splitlines()
    assert len(lines) == 3
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert cluster.log(trainer, tailLines="0") == ""


def test_timestamps_are_those_of_the_sandbox_clock(cluster, trainer):
    lines = cluster.log(trainer, timestamps="true").splitlines()
    assert all(STAMP.match(line) for line in lines)
    assert parse_time(lines[-1].split()[0][:26] + "Z") <= cluster.clock.now()


def test_limit_bytes_cuts(cluster, trainer):
    assert len(cluster.log(trainer, limitBytes="20").encode()) == 20


def test_follow_goes_on_until_the_container_ends(cluster):
    path = cluster.pod(
        "p-follow",
        node="n-log",
        annotations={"sandbox.poolshift.dev/run-seconds": "120"},
        restartPolicy="Never",
    )
    cluster.wait(lambda: cluster.status(path).get("phase") == "Running")
    with urllib3.PoolManager() as pool:
        answer = pool.request("GET", f"{cluster.access.url}{path}/log?follow=true", timeout=20)
        assert answer.data.decode() == "main: started (simulated)\n"
    assert cluster.wait(lambda: cluster.status(path).get("phase") == "Succeeded")


def test_previous_is_the_run_before(cluster):
    crash = {"sandbox.poolshift.dev/run-seconds": "1", "sandbox.poolshift.dev/exit-code": "1"}
    path = cluster.pod("p-previous", node="n-log", annotations=crash)
    with pytest.raises(Answer):
        cluster.log(path, previous="true")
    assert cluster.wait(lambda: "started" in cluster.log(path, previous="true"))


def test_a_pod_that_is_gone_has_no_log(cluster):
    path = cluster.pod("p-gone", node="n-log")
    cluster.wait(lambda: cluster.log(path))
    cluster.api.request("DELETE", path)
    cluster.wait(lambda: cluster.gone(path))
    with pytest.raises(Answer):
        cluster.log(path)
