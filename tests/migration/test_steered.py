"""A migration that people hold, end or interrupt between and in waves, with real processes; each time it goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from flows import orchestrator
from infra.errors import NotFound
from infra.kube.api import Kube
from infra.model.record import FENCE_TAINT, Step, StepState
from tests.migration.looks import pool_nodes, taints

DRAIN = {
    "waves": {"canary": 1, "size": 1, "settle": "4h"},
    **dict.fromkeys(("pod_deadline", "wave_deadline", "deadline"), "900h"),  # nobody waits for them
}


def add_slow_pods(kube: Kube) -> None:
    """Two on each node, which never end by themselves once they are asked to."""
    labels = {"app": "slow"}
    resources = {"requests": {"cpu": "1"}}
    spec = {
        "terminationGracePeriodSeconds": 2_000_000,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [{"name": "c", "image": "registry.example/slow:1", "resources": resources}],
    }
    metadata = {"labels": labels, "annotations": {"sandbox.poolshift.dev/exit-seconds": "1000000"}}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "slow", "namespace": "serving"},
        "spec": {"replicas": 8, "selector": {"matchLabels": labels}, "template": {"metadata": metadata, "spec": spec}},
    }
    kube.request("POST", "/apis/apps/v1/namespaces/serving/deployments", body=body)


@contextmanager
def letting_go(kube: Kube) -> Iterator[None]:
    """Meanwhile slow pods that were asked to end do."""
    over = threading.Event()
    path = "/api/v1/namespaces/serving/pods"

    def follow() -> None:
        while not over.wait(0.2):
            for pod in kube.list(path, {"labelSelector": "app=slow"}):
                if pod["metadata"].get("deletionTimestamp"):
                    with suppress(NotFound):
                        kube.request("DELETE", f"{path}/{pod['metadata']['name']}", body={"gracePeriodSeconds": 0})

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What it says on standard error, up to the line with these words."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return "".join(said)
    pytest.fail(f"never said {words!r}:\n{''.join(said)[-3000:]}")


def the_rest(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and its last words."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def of_ours(kube: Kube) -> dict[str, list[str]]:
    """What we have left on each node of the source."""
    return {
        n["metadata"]["name"]: [
            *(t for t in taints(n) if "poolshift" in t),
            *(a for a in n["metadata"].get("annotations") or {} if a.startswith("poolshift.dev")),
            *(["cordoned"] if n["spec"].get("unschedulable") else []),
        ]
        for n in pool_nodes(kube, "gpu-old")
    }


def cancel_in_prefect(url: str, run: str) -> None:
    """As its UI does."""
    named = {"flow_runs": {"name": {"any_": [f"migrate {run}"]}}, "sort": "START_TIME_DESC", "limit": 1}
    runs: Any = orchestrator.post(url, "/flow_runs/filter", named)
    state = {"type": "CANCELLING", "name": "Cancelling"}
    answer: Any = orchestrator.post(url, f"/flow_runs/{runs[0]['id']}/set_state", {"state": state})
    assert answer["status"] == "ACCEPT"


@pytest.mark.slow
def test_a_migration_is_cancelled_paused_and_interrupted_in_its_waves_and_goes_on_each_time(
    stage: Callable[..., Any], prefect_url: str
) -> None:
    here = stage("healthy", "eks", drain=DRAIN)
    add_slow_pods(here.kube)
    name = here.spec.stem

    # Prefect's own cancel, where no runner watches over the process: as if nothing had been begun.
    process = here.start("migrate", str(here.spec))
    read_until(process, "wave 1 of 3")
    cancel_in_prefect(prefect_url, name)
    code, err = the_rest(process)
    assert code == -signal.SIGTERM, err
    assert f"the same command goes on with run {name}" in err
    assert not any(of_ours(here.kube).values()), of_ours(here.kube)

    # A pause takes effect between two waves, and says so to whoever looks.
    process = here.start("migrate", str(here.spec))
    read_until(process, "wave 1 of 3 (1 node): cordoning")
    assert here.run("pause", name, "--by", "ann", "--reason", "lunch").code == 0
    with letting_go(here.kube):
        said = read_until(process, "waits: paused by ann")
    assert "wave 1 of 3: 1 of 1 node empty" in said
    assert "cordoning" not in said
    status = here.run("status", name).out
    assert "wave 2 of 3 (1 node): waits: paused by ann" in status
    assert re.search(rf"lunch; poolshift resume (--kubeconfig \S+ )?{name} takes it back", status)
    assert here.run("resume", name).code == 0
    read_until(process, "wave 2 of 3 (1 node): cordoning")

    # A cancellation ends the wave: exactly the node that is empty stays closed.
    assert here.run("cancel", name, "--by", "Bob", "--reason", "not today").code == 0
    code, err = the_rest(process)
    assert code == 5, err
    assert "cancelled by Bob at " in err
    assert re.search(rf"poolshift resume .*{name} and run it again, or: poolshift rollback .*{name}", err)
    closed = {node: marks for node, marks in of_ours(here.kube).items() if marks}
    assert len(closed) == 1, closed
    assert FENCE_TAINT in next(iter(closed.values()))
    folder = here.kubeconfig.parent
    assert here.run("report", name, "--into", str(folder)).code == 0
    told = (folder / "report.md").read_text()
    assert "# Cancelled by Bob at " in told
    assert re.search(rf"1\. to go on where it stood: poolshift resume .*{name}, then poolshift migrate", told)
    assert f"Cordoned or fenced off until one of the commands below: {next(iter(closed))}." in told

    # Ctrl-C.
    assert here.run("resume", name).code == 0
    process = here.start("migrate", str(here.spec))
    read_until(process, "(1 node): cordoning")
    process.send_signal(signal.SIGINT)
    code, err = the_rest(process)
    assert code == 130, err
    assert "interrupted; run the same command again to continue" in err
    assert {node for node, marks in of_ours(here.kube).items() if marks} == set(closed)

    with letting_go(here.kube):
        ended = here.migrate()
    assert ended.code == 0, ended.err
    record = here.record()
    assert record.steps[Step.RETIRE].state is StepState.DONE
    rows = record.notes["waves-shown"]["rows"]  # also those of the processes before
    assert rows[0]["nodes"] in closed
    assert sum(row["empty"].startswith("1 of 1") for row in rows) >= 2
