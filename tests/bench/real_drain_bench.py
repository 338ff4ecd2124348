"""The drain on a real control plane: against kubectl drain, Karpenter and a reference loop that knows the budgets.

    python -m tests.bench.real_drain_bench [NODES] [PODS]

Needs the binaries (`make control-plane`); Karpenter takes part when it is built. One control plane serves all
parties in turn: the pods go from one pool to the other and back, 20 Deployments without budgets, then with 50 %.
Control plane, node agent and the party share the machine, so ratios within one run say something, and seconds only what
this machine was doing.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from infra.clock import SystemClock
from infra.kube.api import Kube, connect
from infra.kube.view import View
from infra.model.spec import Cluster
from infra.sandbox import real
from infra.sandbox.access import Access, Api
from infra.sandbox.agent import Agent
from infra.sandbox.nodes import add_node
from infra.sandbox.run import LoopThread
from tasks.drain import DrainOptions, drain_nodes
from tests.bench import karpenter_peer

DEPLOYMENTS = 20
WRITERS = 16
KUBECTL_SHARE = 4  # kubectl is read on a quarter of the nodes: its time is strictly linear in them
LABEL = "bench/pool"


@dataclass(kw_only=True)
class Bench:
    """The cluster: two pools of the same size, of which one holds all pods."""

    access: Access
    api: Api
    kube: Kube
    kubeconfig: Path
    nodes: int
    pods: int
    full: str = "a"
    more: dict[str, list[str]] = field(default_factory=dict)  # pools whose nodes somebody else has named

    @property
    def empty(self) -> str:
        """The other pool."""
        return "b" if self.full == "a" else "a"

    def names(self, pool: str) -> list[str]:
        """A pool's nodes."""
        return self.more.get(pool) or [f"{pool}-{number:03d}" for number in range(self.nodes)]

    def settle(self) -> None:
        """Wait until every Deployment has all its pods, and every budget has counted them."""
        each = self.pods // DEPLOYMENTS
        while True:
            deployments = self.api.list_items("/apis/apps/v1/namespaces/default/deployments")
            budgets = self.api.list_items("/apis/policy/v1/namespaces/default/poddisruptionbudgets")
            ready = all((d.get("status") or {}).get("availableReplicas") == each for d in deployments)
            if ready and all(b["status"].get("currentHealthy") == each for b in budgets):
                return
            time.sleep(0.5)

    def cordon(self, names: list[str], cordoned: bool) -> None:
        """Set or lift the cordon."""
        for name in names:
            body = {"spec": {"unschedulable": cordoned or None}}
            self.api.request("PATCH", f"/api/v1/nodes/{name}", body, content_type="application/merge-patch+json")

    def gather(self) -> None:
        """Before a party's turn: all pods on one pool, the other one open, both uncordoned but for the party's work."""
        self.cordon(self.names(self.empty), False)
        self.settle()


@contextlib.contextmanager
def cluster(nodes: int, pods: int) -> Iterator[Bench]:
    """A real control plane with the agent and the workloads on pool a."""
    thread = LoopThread("simulated-nodes")
    with TemporaryDirectory() as folder, real.start() as plane:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(json.dumps(plane.kubeconfig_dict))
        access = Access.from_kubeconfig(plane.kubeconfig_dict)
        agent = Agent(access, SystemClock())
        thread.call(agent.start())
        try:
            bench = Bench(
                access=access,
                api=Api(access),
                kube=connect(Cluster(kubeconfig=str(kubeconfig))),
                kubeconfig=kubeconfig,
                nodes=nodes,
                pods=pods,
            )
            for pool in ("b", "a"):
                for name in bench.names(pool):
                    add_node(
                        bench.api, name=name, pool_labels={LABEL: pool}, machine_type="m7i.8xlarge", zone="us-east-2a"
                    )
            bench.cordon(bench.names("b"), True)
            for number in range(DEPLOYMENTS):
                bench.api.request("POST", "/apis/apps/v1/namespaces/default/deployments", deployment(number, pods))
            bench.settle()
            yield bench
            bench.api.close()
        finally:
            thread.call(agent.stop())
            thread.stop()


def deployment(number: int, pods: int) -> dict[str, Any]:
    """One of the Deployments; its pods end at once."""
    labels = {"app": f"web-{number}"}
    spec = {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "web", "image": "example.com/web:1", "resources": {"requests": {"cpu": "1"}}}],
    }
    return {
        "metadata": {"name": f"web-{number}"},
        "spec": {
            "replicas": pods // DEPLOYMENTS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def budgets(bench: Bench, wanted: bool) -> None:
    """Put a budget of 50 % over each Deployment, or take all away."""
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    for number in range(DEPLOYMENTS):
        if wanted:
            selector = {"matchLabels": {"app": f"web-{number}"}}
            spec = {"maxUnavailable": "50%", "selector": selector}
            bench.api.request("POST", path, {"metadata": {"name": f"web-{number}"}, "spec": spec})
        else:
            bench.api.request("DELETE", f"{path}/web-{number}")


def ours(bench: Bench) -> tuple[float, float, float]:
    """(seconds, requests a pod, share of the evictions that was refused)."""
    bench.gather()
    began = time.perf_counter()
    report = drain_nodes(bench.kube, bench.names(bench.full), DrainOptions())
    took = time.perf_counter() - began
    if report.exit_code:
        raise SystemExit(f"the drain failed: {report.to_json()}")
    bench.full = bench.empty
    return took, report.requests / report.leaving, report.tally.refused / max(1, report.tally.sent)


def kubectl(bench: Bench) -> float:
    """Seconds of `kubectl drain`, from a part of the nodes; the rest is drained by the reference loop."""
    bench.gather()
    names = bench.names(bench.full)
    part = names[: max(1, len(names) // KUBECTL_SHARE)]
    command = [str(Path(sys.executable).parent / "kubectl"), "--kubeconfig", str(bench.kubeconfig), "drain", *part]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = (time.perf_counter() - began) / len(part) * len(names)
    reference(bench)
    return took


@dataclass(kw_only=True)
class Loop:
    """The reference: one watch on pods and one on budgets, evict while a budget is free. Nothing more."""

    bench: Bench
    where: dict[str, str] = field(default_factory=dict)  # pod -> app, for pods that have to go
    free: dict[str, int] = field(default_factory=dict)  # app -> evictions that its budget still allows
    refused: int = 0
    sent: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    asked: set[str] = field(default_factory=set)
    flying: Counter[str] = field(default_factory=Counter)  # app -> evictions without an answer yet

    def connection(self) -> http.client.HTTPSConnection:
        url = urlsplit(self.bench.access.url)
        context = ssl.create_default_context(cadata=self.bench.access.ca)
        return http.client.HTTPSConnection(str(url.hostname), url.port, context=context)

    def ask(self, connection: http.client.HTTPSConnection, method: str, path: str, body: Any = None) -> Any:
        headers = self.bench.access.headers() | {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def follow(self, path: str, version: str, seen: Any) -> None:
        connection = self.connection()
        connection.request("GET", f"{path}?watch=true&resourceVersion={version}", headers=self.bench.access.headers())
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            for line in connection.getresponse():
                event = json.loads(line)
                with self.changed:
                    seen(event["type"], event["object"])
                    self.changed.notify_all()
                if not self.where:
                    break
        connection.close()

    def pod_seen(self, kind: str, pod: Any) -> None:
        if kind == "DELETED":
            self.where.pop(pod["metadata"]["name"], None)

    def budget_seen(self, kind: str, budget: Any) -> None:
        app = budget["metadata"]["name"]
        self.free[app] = budget["status"].get("disruptionsAllowed", 0) - self.flying[app]

    def take(self) -> str | None:
        """The next pod whose budget is free, charged; None when all have been asked for."""
        with self.changed:
            while True:
                open_ = [name for name in self.where if name not in self.asked]
                if not open_ and not self.where:
                    return None
                for name in open_:
                    app = self.where[name]
                    if self.free.get(app, 1 << 30) > 0:
                        self.free[app] = self.free.get(app, 1 << 30) - 1
                        self.asked.add(name)
                        self.flying[app] += 1
                        return name
                self.changed.wait(1.0)

    def write(self) -> None:
        connection = self.connection()
        while (name := self.take()) is not None:
            app = self.where.get(name, "")
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            status, _ = self.ask(connection, "POST", f"/api/v1/namespaces/default/pods/{name}/eviction", body)
            with self.changed:
                self.sent += 1
                self.flying[app] -= 1
                if status == 429:
                    self.refused += 1
                    self.asked.discard(name)
        connection.close()

    def run(self) -> None:
        names = set(self.bench.names(self.bench.full))
        self.bench.cordon(sorted(names), True)
        connection = self.connection()
        _, pods = self.ask(connection, "GET", "/api/v1/pods")
        _, found = self.ask(connection, "GET", "/apis/policy/v1/poddisruptionbudgets")
        connection.close()
        for pod in pods["items"]:
            if pod["spec"].get("nodeName") in names:
                self.where[pod["metadata"]["name"]] = pod["metadata"]["labels"]["app"]
        for budget in found["items"]:
            self.budget_seen("ADDED", budget)
        watches = [
            ("/api/v1/pods", pods, self.pod_seen),
            ("/apis/policy/v1/poddisruptionbudgets", found, self.budget_seen),
        ]
        for path, listed, seen in watches:
            arguments = (path, listed["metadata"]["resourceVersion"], seen)
            threading.Thread(target=self.follow, args=arguments, daemon=True).start()
        writers = [threading.Thread(target=self.write) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()


def reference(bench: Bench) -> tuple[float, float]:
    """(seconds, share of the evictions that was refused) of the reference loop."""
    bench.gather()
    loop = Loop(bench=bench)
    began = time.perf_counter()
    loop.run()
    took = time.perf_counter() - began
    bench.full = bench.empty
    return took, loop.refused / max(1, loop.sent)


def karpenter(bench: Bench) -> tuple[float, float]:
    """(seconds, share of the evictions that was refused): its NodePool is deleted while it holds all pods."""
    with karpenter_peer.running(bench.api, bench.kubeconfig) as peer:
        bench.more["k"] = peer.add_nodes(bench.nodes, {LABEL: "k"})
        home = bench.full
        bench.cordon(bench.names(bench.empty), True)
        Loop(bench=bench).run()
        bench.full = "k"
        bench.cordon(bench.names(home), False)
        bench.settle()
        names = bench.more.pop("k")
        with View(bench.kube) as view:
            began = time.perf_counter()
            peer.delete_pool()
            while any(view.on_node.get(name) for name in names):
                view.pump(0.2)
            took = time.perf_counter() - began
        refused = peer.refused()
        bench.full = home
        peer.await_gone()
    return took, refused


def main(nodes: int = 40, pods: int = 800) -> None:
    """Print the ratios."""
    absent = karpenter_peer.missing()
    if absent:
        print(f"without Karpenter: {absent}")
    with cluster(nodes, pods) as bench:
        print(f"real control plane, {nodes} nodes, {pods} pods, {DEPLOYMENTS} Deployments")
        free, free_requests, _ = ours(bench)
        plain, _ = reference(bench)
        peer_free = None if absent else karpenter(bench)
        print(f"no budgets: {free:.1f} s, {free_requests:.2f} requests a pod")
        print(f"  the reference loop: {free / plain:.2f} times its {plain:.1f} s (reach 1.2)")
        if peer_free:
            print(f"  Karpenter: {free / peer_free[0]:.2f} times its {peer_free[0]:.1f} s (reach 1.2)")
        budgets(bench, True)
        tight, requests, refused = ours(bench)
        loop, loop_refused = reference(bench)
        peer_tight = None if absent else karpenter(bench)
        slow = kubectl(bench)
        print(
            f"budgets of 50 %: {tight:.1f} s, {requests:.2f} requests a pod, {100 * refused:.1f} % refused (reach 1 %)"
        )
        print(
            f"  the reference loop: {tight / loop:.2f} times its {loop:.1f} s (reach 1); "
            f"refused: {100 * loop_refused:.1f} %"
        )
        if peer_tight:
            print(
                f"  Karpenter: {peer_tight[0] / tight:.1f} times as long (reach 1.8): {peer_tight[0]:.1f} s; "
                f"refused: {100 * peer_tight[1]:.0f} %"
            )
        print(f"  one kubectl drain: {slow / tight:.1f} times as long (reach 8)")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
