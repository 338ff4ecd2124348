"""The parties of the real drain's benchmark that are Python, each in a process of its own, so that neither the node
agent nor the other party takes its turns.

    python -m tests.bench.drain_parties ours|loop KUBECONFIG NODE...      prints one line of JSON
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from infra.sandbox.access import Access, Api

WRITERS = 16
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """How one party did. `seconds` and `cpu` (user and system, of its process) are of the drain alone."""

    seconds: float
    cpu: float
    pods: int
    requests: int
    sent: int
    refused: int

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of processor time a pod."""
        return 1000 * self.cpu / max(1, self.pods)

    @property
    def refusals(self) -> float:
        """Share of the evictions that was refused."""
        return self.refused / max(1, self.sent)


def take_turn(party: str, kubeconfig: Path, nodes: Sequence[str], limit: float) -> Turn | None:
    """Let a party drain the nodes, as a child; None: it had not ended after `limit` seconds and was killed."""
    command = [sys.executable, "-m", "tests.bench.drain_parties", party, str(kubeconfig), *nodes]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    return Turn(**json.loads(done.stdout.splitlines()[-1]))


def ours(kubeconfig: str, nodes: Sequence[str]) -> Turn:
    """`poolshift drain` on its defaults."""
    from infra.kube.api import connect
    from infra.model.spec import Cluster
    from tasks.drain import DrainOptions, drain_nodes

    kube = connect(Cluster(kubeconfig=kubeconfig))
    began, used = time.perf_counter(), time.process_time()
    report = drain_nodes(kube, nodes, DrainOptions())
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    if report.exit_code:
        raise SystemExit(f"the drain failed: {report.to_json()}")
    tally = report.tally
    return Turn(
        seconds=seconds,
        cpu=cpu,
        pods=report.leaving,
        requests=report.requests,
        sent=tally.sent,
        refused=tally.refused,
    )


@dataclass(kw_only=True)
class Loop:
    """The reference: one watch on pods and one on budgets, evict while a budget is free. Nothing more."""

    access: Access
    api: Api
    where: dict[str, str] = field(default_factory=dict)  # pod -> app, for pods that have to go
    free: dict[str, int] = field(default_factory=dict)  # app -> evictions that its budget still allows
    refused: int = 0
    sent: int = 0
    requests: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    asked: set[str] = field(default_factory=set)
    flying: Counter[str] = field(default_factory=Counter)  # app -> evictions without an answer yet

    def connection(self) -> http.client.HTTPSConnection:
        url = urlsplit(self.access.url)
        context = ssl.create_default_context(cadata=self.access.ca)
        return http.client.HTTPSConnection(str(url.hostname), url.port, context=context)

    def ask(self, connection: http.client.HTTPSConnection, method: str, path: str, body: Any = None) -> Any:
        headers = self.access.headers() | {"Content-Type": "application/json"}
        self.requests += 1
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def follow(self, path: str, version: str, seen: Any) -> None:
        connection = self.connection()
        connection.request("GET", f"{path}?watch=true&resourceVersion={version}", headers=self.access.headers())
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

    def run(self, nodes: Sequence[str]) -> int:
        """Empty the nodes; returns how many pods were there."""
        for name in nodes:
            cordon(self.api, name, True)
        connection = self.connection()
        _, pods = self.ask(connection, "GET", "/api/v1/pods")
        _, found = self.ask(connection, "GET", "/apis/policy/v1/poddisruptionbudgets")
        connection.close()
        for pod in pods["items"]:
            if pod["spec"].get("nodeName") in nodes:
                self.where[pod["metadata"]["name"]] = pod["metadata"]["labels"]["app"]
        wanted = len(self.where)
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
        return wanted


def cordon(api: Api, name: str, cordoned: bool) -> None:
    """Set or lift the cordon."""
    body = {"spec": {"unschedulable": cordoned or None}}
    api.request("PATCH", f"/api/v1/nodes/{name}", body, content_type="application/merge-patch+json")


def plain_loop(kubeconfig: str, nodes: Sequence[str]) -> Turn:
    """The plain loop."""
    access = Access.from_kubeconfig(json.loads(Path(kubeconfig).read_text()))
    api = Api(access)
    began, used = time.perf_counter(), time.process_time()
    loop = Loop(access=access, api=api)
    pods = loop.run(nodes)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    requests = loop.requests + len(nodes) + 2  # and the watches
    return Turn(seconds=seconds, cpu=cpu, pods=pods, requests=requests, sent=loop.sent, refused=loop.refused)


if __name__ == "__main__":
    who, where, *names = sys.argv[1:]
    print(json.dumps(asdict({"ours": ours, "loop": plain_loop}[who](where, names))))
