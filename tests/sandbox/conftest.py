"""A simulated cluster for the sandbox's own tests: embedded control plane and node agent, on a fast clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.sandbox.access import Access, Answer, Api
from infra.sandbox.agent import Agent, Defects
from infra.sandbox.bringup import PATHS
from infra.sandbox.clock import SandboxClock
from infra.sandbox.control_plane import run_in_thread
from infra.sandbox.nodes import add_node
from infra.sandbox.run import LoopThread
from infra.sandbox.scenario import Defect

RATE = 300.0
PATIENCE = 20.0  # wall-clock limit for what takes a few hundredths of a second


@dataclass
class SimulatedCluster:
    """An API, the agent behind it, and short ways to say what the tests say often."""

    api: Api
    access: Access
    clock: SandboxClock
    agent: Agent
    thread: LoopThread
    names: set[str] = field(default_factory=set)

    def get(self, path: str) -> dict[str, Any]:
        return self.api.request("GET", path)

    def create(self, obj: dict[str, Any]) -> dict[str, Any]:
        path = {**PATHS, "Pod": "/api/v1/namespaces/{}/pods"}[obj["kind"]]
        return self.api.request("POST", path.format(obj["metadata"].get("namespace", "")), obj)

    def node(self, name: str, machine_type: str = "p5en.48xlarge", *, pool: str = "gpu-new", rdma: bool = True) -> str:
        labels = {"eks.amazonaws.com/nodegroup": pool}
        add_node(self.api, name=name, pool_labels=labels, machine_type=machine_type, zone="us-east-2a", rdma=rdma)
        return name

    def pod(self, name: str, *, node: str, **changes: Any) -> str:
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "registry.example.com/a:1"}]}
        meta = {"name": name, "namespace": "default", "annotations": changes.pop("annotations", {})}
        self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, **changes}})
        return f"/api/v1/namespaces/default/pods/{name}"

    def wait(self, look: Callable[[], Any]) -> Any:
        """What `look` returns once it is true. Errors of the API count as not yet."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if found := look():
                    return found
            except (Answer, KeyError, IndexError):
                pass
            time.sleep(0.01)
        raise AssertionError(f"not so within {PATIENCE} s; agent: {self.agent.failures}")

    def status(self, path: str) -> dict[str, Any]:
        return dict(self.get(path).get("status") or {})

    def gone(self, path: str) -> bool:
        try:
            self.get(path)
        except Answer as answer:
            return answer.status == 404
        return False

    def log(self, path: str, **params: str) -> str:
        import urllib3

        query = "&".join(f"{key}={value}" for key, value in params.items())
        with urllib3.PoolManager() as pool:
            answer = pool.request("GET", f"{self.access.url}{path}/log?{query}", retries=False)
            if answer.status != 200:
                raise Answer("GET", f"{path}/log", answer.status, answer.data.decode())
            return answer.data.decode()


def start_cluster(defects: Sequence[Defect] = (), *, rate: float = RATE) -> tuple[SimulatedCluster, Callable[[], None]]:
    clock = SandboxClock(rate)
    url, stop_plane = run_in_thread(clock, 0)
    access = Access(url=url)
    agent = Agent(access, clock, defects=Defects(source_pool="gpu-old", items=defects), seed="tests")
    thread = LoopThread("simulated-nodes")
    thread.call(agent.start())
    cluster = SimulatedCluster(Api(access), access, clock, agent, thread)

    def stop() -> None:
        thread.call(agent.stop())
        thread.stop()
        cluster.api.close()
        stop_plane()

    return cluster, stop


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """One cluster for a module without defects; tests use their own nodes and pods."""
    running, stop = start_cluster()
    yield running
    stop()
    assert running.agent.failures == []


def makers() -> Iterator[Callable[..., SimulatedCluster]]:
    stops: list[Callable[[], None]] = []
    made: list[SimulatedCluster] = []

    def make(*defects: Defect, rate: float = RATE) -> SimulatedCluster:
        running, stop = start_cluster(defects, rate=rate)
        made.append(running)
        stops.append(stop)
        return running

    yield make
    for stop in stops:
        stop()
    assert [each.agent.failures for each in made] == [[] for _ in made]


# Makers of clusters with defects, or with another clock; stopped after the test, or after the module.
clusters = pytest.fixture(makers)
module_clusters = pytest.fixture(scope="module")(makers)
