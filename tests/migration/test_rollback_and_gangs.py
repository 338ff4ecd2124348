"""A rollback of a run that was ended with a gang stopped, and of one that has not moved anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.clock import rfc3339
from infra.errors import Refused
from infra.kube import records, switches
from infra.kube.api import MERGE_PATCH
from infra.kube.leases import hold
from infra.model.gangs import SURGE_KIND, row_of
from infra.model.pools import Pool, PoolState
from infra.model.record import Step, StepRecord, StepState
from infra.sandbox import run as sandboxes
from infra.sandbox import scenario as scenarios
from tasks import fence, gangs, migration, opening, undo
from tasks.draining import Request, drain
from tasks.run import Run, perform
from tests.migration.swapping import load, pool_nodes

OLD, NEW = "gpu-old", "gpu-rdma"
JOB = row_of("batch", "Job")
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
JOBS = "/apis/batch/v1/namespaces/train/jobs"


@pytest.fixture
def provisioned(tmp_path: Path) -> Iterator[Run]:
    """A run on a sandbox with a gang, whose target pool is made and held."""
    path = tmp_path / "kubeconfig"
    sandbox = sandboxes.start(scenarios.load("gang-training"), "eks", kubeconfig=path, rate=240.0)
    said: list[str] = []
    run = Run.open(load("eks", str(path), "there-and-back"), say=said.append)
    run.record()
    for step in (Step.PLAN, Step.PROVISION):
        perform(run, step, getattr(migration, step.value))
    yield run
    sandbox.stop()


def ranks(run: Run) -> dict[str, str]:
    """Live pods of the gang, by the node on which they run."""
    pods = run.kube.list("/api/v1/namespaces/train/pods", {"labelSelector": "app=gang"})
    return {
        p["spec"].get("nodeName", ""): p["metadata"]["uid"]
        for p in pods
        if p["status"].get("phase") == "Running" and not p["metadata"].get("deletionTimestamp")
    }


def until(seen: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 30
    while not seen():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.1)


def names(run: Run, pool: str) -> set[str]:
    return {n["metadata"]["name"] for n in pool_nodes(run.spec, pool)}


def opened(run: Run) -> bool:
    """Are all target nodes open, with their GPUs?"""
    new = sorted(names(run, NEW))
    opening.hold_nodes(run.kube, {"eks.amazonaws.com/nodegroup": NEW})
    opening.open_nodes(run.kube, new)
    found = pool_nodes(run.spec, NEW)
    return len(found) == 4 and all(
        (n["status"].get("allocatable") or {}).get("nvidia.com/gpu") == "8" and not opening.is_closed(n) for n in found
    )


def stop_the_gang(run: Run) -> None:
    """As the run leaves it when it is ended between stop and start."""
    root = ["batch", "Job", "train", "gang"]
    noted = {"run": run.name, "stage": "stopped", "before": False, "root": root, "version": "v1", "ranks": 2}
    raw = run.kube.request("GET", f"{JOBS}/gang")
    switches.note(run.kube, JOB, raw, {**noted, "owners": [raw["metadata"]["uid"]]}, switches.stop_patch(JOB))


def raise_the_replicas(run: Run) -> None:
    """As the run leaves a Deployment when it is ended while the second replica starts."""
    raw = run.kube.request("GET", f"{DEPLOYMENTS}/inference")
    before = raw["spec"]["replicas"]
    switches.note(
        run.kube,
        SURGE_KIND,
        raw,
        {"run": run.name, "stage": "raised", "before": before},
        {"spec": {"replicas": before + 1}},
    )


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def permission(method: str, path: str) -> tuple[str, str] | None:
    """(resource, verb) that a request needs; None for a question about the API itself."""
    parts = path.strip("/").split("/")
    at = 2 if parts[0] == "api" else 3
    if parts[at : at + 1] == ["namespaces"] and len(parts) > at + 2:
        at += 2
    if len(parts) <= at:
        return None
    resource, *named = parts[at:]
    sub = f"/{named[1]}" if len(named) > 1 else ""
    return resource + sub, VERBS.get(method) or ("get" if named else "list")


def test_a_rollback_tells_of_a_closed_target_and_starts_gangs_on_the_source(
    provisioned: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = provisioned
    until(lambda: len(ranks(run)) == 2, "two ranks on the source")

    ended = undo.roll_back(run, remove_target=False)

    assert "gpu-rdma stays, closed to work" in ended["summary"]
    assert "kubectl uncordon -l eks.amazonaws.com/nodegroup=gpu-rdma" in ended["summary"]
    assert "poolshift migrate SPEC" in ended["summary"]

    run.record()
    until(lambda: opened(run), "an open target")
    fence.fence(run.kube, names(run, OLD), run.name)
    began = StepRecord(step=Step.MIGRATE, state=StepState.STARTED, started=rfc3339(run.clock.now()))
    records.write_step(run.kube, run.name, began)
    stop_the_gang(run)
    raise_the_replicas(run)
    until(lambda: not ranks(run), "no rank")
    asked: set[tuple[str, str]] = set()
    send = run.kube.open

    def heard(method: str, path: str, **how: Any) -> Any:
        asked.update(filter(None, [permission(method, path)]))
        return send(method, path, **how)

    monkeypatch.setattr(run.kube, "open", heard)
    with hold(run.kube, ["a-pool"], run.name):
        ended = undo.roll_back(run, remove_target=False)

    assert ("deployments", "patch") in asked
    assert sorted(f"{verb} {what}" for what, verb in asked if verb not in undo.PUT_BACK.get(what, ())) == []
    assert any("job train/gang" in line for line in ended["done"])
    assert run.kube.request("GET", f"{DEPLOYMENTS}/inference")["spec"]["replicas"] == 3
    until(lambda: len(ranks(run)) == 2, "two ranks again")
    assert set(ranks(run)) <= names(run, OLD)


def test_the_way_back_for_work_on_the_target_is_one_that_drain_accepts_and_names_gangs(provisioned: Run) -> None:
    run = provisioned
    until(lambda: opened(run), "an open target")
    stop_the_gang(run)
    fence.fence(run.kube, names(run, OLD), run.name)
    until(lambda: not ranks(run), "no rank")
    gangs.restore(run.kube, run.name)
    until(lambda: len(ranks(run)) == 2, "two ranks on the target")
    began = StepRecord(step=Step.MIGRATE, state=StepState.STARTED, started=rfc3339(run.clock.now()))
    records.write_step(run.kube, run.name, began)
    busy = set(ranks(run))
    for word, refusal in ((None, "what runs on the others cannot be seen"), (NEW, "is not empty")):
        for name in busy:
            body = {"metadata": {"labels": {"eks.amazonaws.com/nodegroup": word}}}
            run.kube.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)
        with pytest.raises(Refused, match=refusal):
            undo.roll_back(run, remove_target=True)

    ended = undo.roll_back(run, remove_target=False)

    way = ended["summary"].split("back with: ")[1]
    stop, emptying = way.split("), then poolshift drain ")
    assert "job train/gang after a checkpoint: kubectl -n train patch jobs.batch gang" in stop
    patch = json.loads(stop.split("-p '")[1].split("'")[0])
    run.kube.request("PATCH", f"{JOBS}/gang", body=patch, content_type=MERGE_PATCH)
    until(lambda: not ranks(run), "no rank")
    request = Request(selector=emptying.split()[1], ignore_daemonsets="--ignore-daemonsets" in emptying, dry_run=True)
    found = drain(run.spec.cluster, request)
    assert found.exit_code == 0, found.to_json()
    start = json.loads(emptying.split(", then start job train/gang again: ")[1].split("-p '")[1].split("'")[0])
    run.kube.request("PATCH", f"{JOBS}/gang", body=start, content_type=MERGE_PATCH)
    until(lambda: len(ranks(run)) == 2, "two ranks on the source")


@pytest.mark.parametrize(
    ("state", "hides"), [("active", True), ("degraded", True), ("deleting", False), ("delete-failed", False)]
)
def test_only_a_pool_that_is_not_going_hides_machines_that_have_no_node(state: str, hides: bool) -> None:
    pool = Pool(kind="eks", name=NEW, identity="i", state=PoolState(state), machine_type="p5.48xlarge", nodes=4)
    assert undo.hides_machines(pool, 1) is hides
    assert not undo.hides_machines(pool, 4)
