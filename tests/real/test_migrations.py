"""Whole migrations on the real control plane, ending as they do on the embedded one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from infra.kube import records
from infra.kube.api import Kube
from infra.model.record import PREFIX, Step

pytestmark = [pytest.mark.real, pytest.mark.slow]
BOUNDARIES = [step.value for step in Step if step is not Step.APPROVAL]
CLOUDS = ["eks", "gke"]
WORKLOADS = {
    "Deployment": "/apis/apps/v1/deployments",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Job": "/apis/batch/v1/jobs",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
}


def end_state(kube: Kube) -> dict[str, Any]:
    """What is left at the end, without uids, times and generated names."""
    pools: dict[str, list[str]] = {}
    for node in kube.list("/api/v1/nodes"):
        labels = node["metadata"]["labels"]
        pool = labels.get("eks.amazonaws.com/nodegroup") or labels["cloud.google.com/gke-nodepool"]
        pools.setdefault(pool, []).append(json.dumps(_node(node)))
    found = records.list_runs(kube)
    return {
        "nodes": {pool: sorted(nodes) for pool, nodes in pools.items()},
        "workloads": {
            f"{kind} {item['metadata']['namespace']}/{item['metadata']['name']}": _workload(item)
            for kind, path in WORKLOADS.items()
            for item in kube.list(path)
        },
        "pods": sorted(_pod(pod) for pod in kube.list("/api/v1/pods") if "nodeName" in pod["spec"]),
        "steps": [{step.value: entry.state.value for step, entry in record.steps.items()} for record in found],
        "ours": sorted(
            item["metadata"]["name"]
            for path in ("/apis/batch/v1/namespaces/poolshift/jobs", "/api/v1/namespaces/poolshift/services")
            for item in kube.list(path)
        ),
    }


def _node(node: dict[str, Any]) -> dict[str, Any]:
    meta, spec = node["metadata"], node["spec"]
    marks = {**meta.get("labels", {}), **meta.get("annotations", {})}
    allocatable = node["status"]["allocatable"]
    return {
        "cordoned": bool(spec.get("unschedulable")),
        "taints": sorted(f"{t['key']}:{t['effect']}" for t in spec.get("taints") or ()),
        "ours": sorted(key for key in marks if key.startswith(PREFIX)),
        "devices": {key: value for key, value in sorted(allocatable.items()) if "/" in key},
    }


def _workload(item: dict[str, Any]) -> dict[str, Any]:
    spec, status, meta = item.get("spec") or {}, item.get("status") or {}, item["metadata"]
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    return {
        "wanted": spec.get("replicas", spec.get("parallelism")),
        "suspended": bool(spec.get("suspend")),
        "active": status.get("active"),
        "failed": status.get("failed"),
        "ours": sorted(key for key in marks if key.startswith(PREFIX) and "checkpoint" not in key),
    }


def _pod(pod: dict[str, Any]) -> str:
    """Whose pod it is, and where. Plugins' pods stay a while after their node has gone, on both servers."""
    meta = pod["metadata"]
    owner = (meta.get("ownerReferences") or [{}])[0]
    if owner.get("kind") == "DaemonSet":
        return f"{meta['namespace']} plugin"
    return f"{meta['namespace']} {owner.get('kind')} {pod['status']['phase']}"


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("scenario", ["healthy", "plugin-image-missing", "pdb-blocked", "gang-training"])
def test_a_migration_ends_as_on_the_embedded_server(stage: Callable[..., Any], scenario: str, cloud: str) -> None:
    ends = {}
    for flavour in ("embedded", "real"):
        here = stage(scenario, cloud, flavour)
        ended = here.run("migrate", str(here.spec()))
        state = end_state(here.kube)
        state["pods"] = sorted(set(state["pods"]) - {"kube-system plugin"})
        ends[flavour] = {"exit": ended.code, **state}
        here.sandbox.stop()
    assert ends["real"] == ends["embedded"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_migration_killed_at_every_boundary_in_turn_goes_on(stage: Callable[..., Any], cloud: str) -> None:
    here = stage("healthy", cloud, "real")
    spec = str(here.spec())
    for step in BOUNDARIES:
        ended = here.run("migrate", spec, failpoint=f"{step}:acted")
        assert ended.code == -signal.SIGKILL, f"at {step}\n{ended.err[-3000:]}"
    ended = here.run("migrate", spec)
    assert ended.code == 0, ended.err
    state = end_state(here.kube)
    assert list(state["nodes"]) == ["gpu-rdma"]
    assert state["ours"] == []
    assert all(workload["ours"] == [] and not workload["suspended"] for workload in state["workloads"].values())


def test_an_api_server_that_is_away_during_the_drain_is_waited_for(stage: Callable[..., Any]) -> None:
    here = stage("healthy", "eks", "real")
    spec = here.spec(settle="3m")  # the controllers take up to a minute more to come back (their watches' backoff)
    command = [sys.executable, "-m", "flows.cli", "migrate", str(spec), "--kubeconfig", str(here.kubeconfig)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=here.env)
    assert process.stderr is not None
    lines: list[str] = []
    draining = threading.Event()

    def follow() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if "wave 2" in line:
                draining.set()

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        assert draining.wait(400), "".join(lines)
        here.sandbox.plane.stop_process("kube-apiserver")
        time.sleep(30)  # on the wall clock: how long an outage lasts is what is tried here
        here.sandbox.plane.start_process("kube-apiserver")
        process.wait(timeout=600)
    except subprocess.TimeoutExpired:
        pytest.fail("the migration did not end: " + "".join(lines[-40:]))
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()
    assert here.sandbox.plane.failure() is None
    assert here.sandbox.agent.failures == []
    assert process.returncode == 0, "".join(lines[-40:])
    assert list(end_state(here.kube)["nodes"]) == ["gpu-rdma"]


def test_a_token_that_is_not_accepted_any_more_says_what_to_renew(stage: Callable[..., Any]) -> None:
    here = stage("healthy", "eks", "real")
    stale = here.folder / "stale.kubeconfig"
    token = here.sandbox.document["users"][0]["user"]["token"]
    stale.write_text(here.kubeconfig.read_text().replace(token, "expired"))
    ended = here.run("migrate", str(here.spec()), kubeconfig=stale)
    assert ended.code == 1
    assert "401" in ended.err
    assert "renew the kubeconfig's credentials" in ended.err
