"""Gangs that are not ours to stop: waited for with a limit, or moved by their owner, through whole migrations."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from infra.kube.api import Kube
from infra.model.record import PRIOR, Step, StepState
from infra.sandbox import run as sandboxes
from infra.sandbox import scenario as scenarios
from tasks import report as reporting
from tasks.run import Run
from tests.migration.swapping import load, pool_nodes, walk

JOBS = "/apis/batch/v1/namespaces/train/jobs"
PODS = "/api/v1/namespaces/train/pods"


def owned_job(kube: Kube) -> None:
    """Two ranks on processors alone, which end in a second when told to."""
    container = {"name": "rank", "image": "registry.example.com/rank:1", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"labels": {"app": "own"}, "annotations": {"sandbox.poolshift.dev/run-seconds": "forever"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [container],
        },
    }
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "own"}, "spec": spec}
    kube.request("POST", JOBS, body=body)


def running(kube: Kube, name: str) -> dict[str, str]:
    """Node to pod's UID, of a Job's running pods."""
    found = kube.list(PODS, {"labelSelector": f"batch.kubernetes.io/job-name={name}"})
    return {p["spec"]["nodeName"]: p["metadata"]["uid"] for p in found if p["status"].get("phase") == "Running"}


def until(seen: Any, what: str) -> None:
    end = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.1)


class Owner:
    """Moves its own gang when it is asked to, as mode leave expects: deletes each pod that stands on the old pool."""

    def __init__(self, kube: Kube) -> None:
        self.kube, self.said, self.asked = kube, [], threading.Event()

    def say(self, line: str) -> None:
        self.said.append(line)
        if line.startswith("job train/own: waiting") and not self.asked.is_set():
            self.asked.set()
            for pod in list(self.kube.list(PODS, {"labelSelector": "app=own"})):
                self.kube.delete(f"{PODS}/{pod['metadata']['name']}")


@pytest.mark.slow
def test_a_gang_is_waited_for_to_a_limit_and_one_left_to_its_owner_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    sandbox = sandboxes.start(scenarios.load("gang-training"), "eks", kubeconfig=path, rate=120.0)
    try:
        rules = [
            {"namespace": "train", "name": "gang", "mode": "wait", "max_wait": "3m"},
            {"namespace": "train", "name": "own", "mode": "leave", "max_wait": "20m"},
        ]
        drain = {"waves": {"canary": 0, "size": 5, "settle": "1m"}, "workloads": rules}
        spec = load(
            "eks",
            str(path),
            "patient",
            drain=drain,
            validation={"train_step": False, "proof_sizes": [64 << 20], "sweep_sizes": [256 << 20, 1 << 30]},
            gate={"max_step_ratio": None},
            soak={"duration": "2m", "interval": "1m"},
        )
        run = Run.open(spec)
        kube, owner = run.kube, Owner(run.kube)
        owned_job(kube)
        until(lambda: len(running(kube, "gang")) == 2 and running(kube, "own"), "both gangs")
        before = running(kube, "gang")

        held = walk(spec, owner.say)

        assert (held.step, held.state) == (Step.MIGRATE, StepState.HELD), held.summary
        ends = {g["workload"]: g for g in held.data["waves"][0]["gangs"]}
        assert ends["job train/gang"]["code"] == "gang-still-there"
        assert (ends["job train/own"]["end"], ends["job train/own"]["stopped"]) == ("drained", "")
        assert "job train/gang" in held.summary
        assert running(kube, "gang") == before
        old = {n["metadata"]["name"] for n in pool_nodes(spec, "gpu-old")}
        assert not old & set(running(kube, "own"))
        for name in ("gang", "own"):
            job = kube.request("GET", f"{JOBS}/{name}")
            assert not job["spec"].get("suspend")
            assert PRIOR not in job["metadata"].get("annotations", {})
        told = Path(reporting.write(run)).with_suffix(".md").read_text()
        assert "job train/own: left by itself" in told
        assert "has not left the source pool by itself within 3 minutes, and was not touched: run again" in told

        kube.delete(f"{JOBS}/gang")  # it is done, for its owner
        until(lambda: not running(kube, "gang"), "the gang gone")
        ended = walk(spec, owner.say)

        assert (ended.step, ended.state) == (Step.REPORT, StepState.DONE), ended.summary
        assert run.source_pool() is None
    finally:
        sandbox.stop()
