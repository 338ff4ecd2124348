"""`kill -9` at moments that dice choose, in the middle of waves and of gangs; the next start loses nothing.

`DRAIN_KILLS=200` chooses how many kills, `SEED=7` where the dice begin. Each cluster takes three in turn.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.kube.api import MERGE_PATCH
from infra.model.record import FENCE_TAINT, PRIOR
from infra.model.spec import Drain
from tasks.drain import move, verify_empty
from tests.migration.observer import Observer

pytestmark = pytest.mark.slow

OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1", "new-2")
DRAIN = Drain.model_validate({"waves": {"size": 1, "settle": "30m"}})
PER_CLUSTER = 3
SEED = int(os.environ.get("SEED", "1"))
CLUSTERS = -(-int(os.environ.get("DRAIN_KILLS", "60")) // PER_CLUSTER)


@pytest.fixture
def beating(kube_at, url):
    """Heartbeats of all nodes: killing takes longer than the node lifecycle controller believes a silent one."""
    kube, stop = kube_at(url), threading.Event()

    def beat():
        while not stop.wait(5.0):
            for node in kube.list("/api/v1/nodes"):
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
                path = f"/api/v1/nodes/{node['metadata']['name']}/status"
                kube.request("PATCH", path, body={"status": {"conditions": [ready]}}, content_type=MERGE_PATCH)

    thread = threading.Thread(target=beat)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture
def work(build, kubelet, beating):
    """A budgeted Deployment, one of a single replica, and a gang, on the old nodes; the new ones stand open."""
    for name in OLD:
        build.node(name)
    build.deployment("web", 6, budget={"maxUnavailable": 2})
    build.deployment("one", 1)
    build.job("llm", 3, gpus=8)
    build.until_ready(10)
    for name in NEW:
        build.node(name, pool="new")
    return build


def killed_at_random(url, clock, rng):
    """A move in a process of its own; True when it was killed before it was done."""
    script = Path(__file__).with_name("child_move.py")
    root = Path(__file__).parents[2]
    lines, delay = rng.randint(1, 22), rng.choice([0.0, 0.0, rng.uniform(0, 0.3), rng.uniform(0, 1.5)])
    arguments = [sys.executable, str(script), url, clock.origin.isoformat(), str(clock.started)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(arguments, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as child:
        blow = threading.Timer(delay, child.kill)
        for number, _ in enumerate(child.stdout, start=1):
            if number == lines:
                blow.start()
        child.wait()
        blow.cancel()
        assert child.returncode in (0, -9)
    return child.returncode == -9


@pytest.mark.parametrize("seed", range(SEED, SEED + CLUSTERS))
def test_a_move_killed_anywhere_ends_as_one_never_disturbed(kube, url, work, fast_clock, checkpointing, seed):
    rng = random.Random(seed)
    with checkpointing("llm", fast_clock), Observer(kube) as seen:
        for _ in range(PER_CLUSTER):
            if not killed_at_random(url, fast_clock, rng):
                break
        told: list[str] = []
        report = move(kube, DRAIN, OLD, NEW, "r1", fast_clock, told.append)
        assert report.ok, "\n".join([*told, report.reason])
        work.until_ready(10)

    assert seen.broken() == []
    assert verify_empty(kube, OLD) == []
    assert {p["spec"]["nodeName"] for p in work.pods()} <= set(NEW)
    for name in OLD:
        node = kube.request("GET", f"/api/v1/nodes/{name}")
        assert node["spec"]["unschedulable"] is True
        assert FENCE_TAINT in {t["key"] for t in node["spec"]["taints"]}
    for path in ("/apis/batch/v1/jobs", "/apis/apps/v1/deployments"):
        for found in kube.list(path):
            assert PRIOR not in (found["metadata"].get("annotations") or {})
            assert found["spec"].get("replicas", 1) in (1, 6)
