"""PyTorchJobs and RayClusters by their real operators, on a real control plane; only the nodes are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from infra.clock import rfc3339
from infra.kube.api import MERGE_PATCH
from infra.model.gangs import row_of
from infra.model.record import PRIOR
from infra.model.spec import Drain
from tasks.drain import move
from tasks.fence import unfence
from tasks.gangs import forget_moved, restore
from tests.real.gang_pools import NEW, OLD, POOL, add_pools, homes, pod_template, until
from tests.real.operators import running

pytestmark = [pytest.mark.real, pytest.mark.slow]
PYTORCH, RAY = row_of("kubeflow.org", "PyTorchJob"), row_of("ray.io", "RayCluster")
ASKED, WRITTEN = "poolshift.dev/checkpoint-requested", "poolshift.dev/checkpointed-at"


@pytest.fixture(scope="module")
def pools(stage: Callable[..., Any]) -> Any:
    here = stage("healthy", "eks", "real")
    add_pools(here)
    return here


def drain(**rule: Any) -> Drain:
    rule = {"namespace": "default", "checkpoint": {"via": "annotation"}, "rehome": True, **rule}
    return Drain.model_validate({"workloads": [rule], "waves": {"canary": 0, "size": 2}, "pod_deadline": "3m"})


def create(kube: Any, row: Any, name: str, spec: dict[str, Any]) -> None:
    meta = {"apiVersion": f"{row.group}/{row.version}", "kind": row.kind, "metadata": {"name": name}}
    kube.request("POST", row.path("default"), body={**meta, "spec": spec})


@contextmanager
def saving(kube: Any, row: Any, name: str) -> Iterator[None]:
    """A training program that writes a checkpoint when its annotation asks for one, and says when."""
    over = Event()

    def work() -> None:
        answered = ""
        while not over.wait(1.0):
            asked = kube.get(row.path("default", name))["metadata"].get("annotations", {}).get(ASKED, "")
            if asked != answered:
                body = {"metadata": {"annotations": {WRITTEN: rfc3339(kube.clock.now())}}}
                kube.request("PATCH", row.path("default", name), body=body, content_type=MERGE_PATCH)
                answered = asked

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def end(kube: Any, row: Any, name: str, run: str) -> None:
    """The run is over, and so is the gang."""
    unfence(kube, run)
    forget_moved(kube, run)
    kube.delete(row.path("default", name))
    until(lambda: not list(kube.list("/api/v1/namespaces/default/pods")), "its pods gone")


@pytest.fixture(scope="module")
def training(pools: Any) -> Iterator[Any]:
    with running("training-operator", pools.kube, pools.kubeconfig):
        yield pools.kube


def rank_template(container: str) -> dict[str, Any]:
    template = pod_template()
    template["spec"]["containers"][0]["name"] = container
    del template["spec"]["restartPolicy"]
    return template


def test_a_pytorchjob_is_saved_stopped_rehomed_and_runs_whole_on_the_target(training: Any) -> None:
    kube, said = training, []
    role = {"replicas": 1, "restartPolicy": "OnFailure", "template": rank_template("pytorch")}
    create(kube, PYTORCH, "llm", {"pytorchReplicaSpecs": {"Master": role, "Worker": role}})
    label = "training.kubeflow.org/job-name=llm"
    until(lambda: sorted(homes(kube, label).values()) == sorted(OLD), "master and worker on the old pool")

    with saving(kube, PYTORCH, "llm"):
        report = move(kube, drain(name="llm", kind="PyTorchJob"), OLD, NEW, "r1", kube.clock, said.append)

    gang = report.waves[0].gangs[0]
    assert report.ok, (report.to_dict(), said)
    assert (gang.workload, gang.ranks) == ("pytorchjob default/llm", 2)
    assert gang.checkpoint >= gang.asked  # whole seconds
    assert report.tally.sent == 0
    assert sorted(homes(kube, label).values()) == sorted(NEW)
    path = PYTORCH.path("default", "llm")
    root = kube.get(path)
    assert {c["type"]: c["status"] for c in root["status"]["conditions"]}["Suspended"] == "False"
    selectors = [r["template"]["spec"]["nodeSelector"] for r in root["spec"]["pytorchReplicaSpecs"].values()]
    assert selectors == [{POOL: "gpu-b"}] * 2

    # Stopped by hand, it goes back to what its owner wrote.
    kube.request("PATCH", path, body={"spec": {"runPolicy": {"suspend": True}}}, content_type=MERGE_PATCH)
    until(lambda: not homes(kube, label), "its pods gone")
    assert restore(kube, "r1") == ("pytorchjob default/llm (its template: put back)",)
    root = kube.get(path)
    selectors = [r["template"]["spec"]["nodeSelector"] for r in root["spec"]["pytorchReplicaSpecs"].values()]
    assert selectors == [{POOL: "gpu-a"}] * 2
    assert PRIOR not in root["metadata"].get("annotations", {})
    end(kube, PYTORCH, "llm", "r1")


@pytest.fixture(scope="module")
def kuberay(pools: Any) -> Iterator[Any]:
    with running("kuberay", pools.kube, pools.kubeconfig):
        yield pools.kube


def test_a_ray_cluster_moves_with_its_head(kuberay: Any) -> None:
    kube, said = kuberay, []
    head, worker = rank_template("ray-head"), rank_template("ray-worker")
    del head["spec"]["containers"][0]["resources"]
    group = {"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 2, "rayStartParams": {}}
    spec = {
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": [{**group, "template": worker}],
    }
    create(kube, RAY, "llm", spec)
    label = "ray.io/cluster=llm"
    until(lambda: len(homes(kube, label)) == 3, "head and workers Running")
    assert set(homes(kube, label).values()) == set(OLD)

    with saving(kube, RAY, "llm"):
        report = move(kube, drain(name="llm", kind="RayCluster"), OLD, NEW, "r2", kube.clock, said.append)

    gang = report.waves[0].gangs[0]
    assert report.ok, (report.to_dict(), said)
    assert (gang.workload, gang.ranks) == ("raycluster default/llm", 3)
    assert gang.checkpoint >= gang.asked  # whole seconds
    assert (len(homes(kube, label)), set(homes(kube, label).values())) == (3, set(NEW))
    assert kube.get(RAY.path("default", "llm"))["spec"]["suspend"] is False
    end(kube, RAY, "llm", "r2")
