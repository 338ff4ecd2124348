"""A cluster to drain, in a process of its own: an old pool full of Deployments and an empty new one.

    python -m tests.bench.drain_server '{"nodes": 40, "pods": 800}'   prints "ready URL", serves until its input ends

The kubelet is the plainest there can be (grace 0, ready after a fixed time), so what is measured is the drain.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from infra.sandbox.control_plane import ControlPlane
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import Store

NODE = by_plural("", "v1", "nodes")
POD = by_plural("", "v1", "pods")
DEPLOYMENT = by_plural("apps", "v1", "deployments")
BUDGET = by_plural("policy", "v1", "poddisruptionbudgets")
OWNERS = 20
BYSTANDERS = "kube-system"
Raw = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """`budgets`: maxUnavailable of the Deployments, in turn; none: no budgets. `ready_after`: seconds until a pod is
    Ready. `bystanders`: further pods, which no one schedules and no one drains.
    """

    nodes: int
    pods: int
    budgets: tuple[int | str, ...] = ()
    ready_after: float = 0.0
    bystanders: int = 0


class Kubelet:
    """Runs what is bound and removes what is told to end, in the server's own loop."""

    def __init__(self, store: Store, ready_after: float) -> None:
        self.store, self.ready_after = store, ready_after
        self.loop = asyncio.get_running_loop()
        store.subscribe(self.see)

    def see(self, event: str, kind: Any, obj: Raw, old: Raw | None) -> None:
        meta = obj["metadata"]
        if kind.key != POD.key or event == "DELETED" or not obj["spec"].get("nodeName"):
            return
        if "deletionTimestamp" in meta:
            self.loop.call_soon(self.end, meta["namespace"], meta["name"], meta["uid"])
        elif (obj.get("status") or {}).get("phase", "Pending") == "Pending":
            self.loop.call_later(self.ready_after, self.run, meta["namespace"], meta["name"])

    def end(self, namespace: str, name: str, uid: str) -> None:
        self.store.delete(POD, namespace, name, uid=uid, grace=0)

    def run(self, namespace: str, name: str) -> None:
        pod = self.store.get(POD, namespace, name)
        if pod is not None and pod["spec"].get("nodeName") and pod["status"].get("phase") != "Running":
            conditions = [*(pod["status"].get("conditions") or ()), ready_condition()]
            self.store.replace_status(POD, {**pod, "status": {"phase": "Running", "conditions": conditions}})


def ready_condition() -> Raw:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "lastTransitionTime": now}


async def beat(store: Store) -> None:
    """Keep the nodes alive, as their kubelets would."""
    while True:
        for node in store.list(NODE):
            ready = {**ready_condition(), "lastHeartbeatTime": ready_condition()["lastTransitionTime"]}
            store.replace_status(NODE, {**node, "status": {**node["status"], "conditions": [ready]}})
        await asyncio.sleep(10)


async def fill(store: Store, size: Size) -> None:
    amounts = {"cpu": "96", "memory": "512Gi", "pods": "110"}
    ready = {**ready_condition(), "lastHeartbeatTime": ready_condition()["lastTransitionTime"]}
    for pool in ("old", "new"):
        for i in range(size.nodes):
            name = f"{pool}-{i:03d}"
            labels = {"pool": pool, "kubernetes.io/hostname": name}
            store.create(
                NODE,
                {
                    "metadata": {"name": name, "labels": labels},
                    "spec": {"unschedulable": pool == "new"},
                },
            )
            node = {**store.require(NODE, None, name)}
            node["spec"] = {k: v for k, v in node["spec"].items() if k != "taints"}
            store.replace(NODE, node)
            node = {**store.require(NODE, None, name)}
            store.replace_status(
                NODE, {**node, "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
            )
    for i in range(OWNERS):
        labels = {"app": f"app-{i}"}
        container = {"name": "c", "image": "registry.example/i:1", "resources": {"requests": {"cpu": "1"}}}
        template = {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        spec = {"replicas": size.pods // OWNERS, "selector": {"matchLabels": labels}, "template": template}
        store.create(DEPLOYMENT, {"metadata": {"name": f"app-{i}", "namespace": "default"}, "spec": spec})
    for i, allowed in zip(range(OWNERS), itertools.cycle(size.budgets), strict=False):
        spec = {"maxUnavailable": allowed, "selector": {"matchLabels": {"app": f"app-{i}"}}}
        store.create(BUDGET, {"metadata": {"name": f"app-{i}", "namespace": "default"}, "spec": spec})
    for i in range(size.bystanders):
        meta = {"name": f"other-{i:06d}", "namespace": BYSTANDERS, "labels": {"app": f"other-{i % 2000}"}}
        container = {"name": "c", "image": "registry.example/i:1"}
        store.create(POD, {"metadata": meta, "spec": {"schedulerName": "none", "containers": [container]}})
        if i % 100 == 0:
            await asyncio.sleep(0)


async def main(size: Size) -> None:
    plane = ControlPlane()
    url = await plane.start()
    Kubelet(plane.store, size.ready_after)
    beating = asyncio.create_task(beat(plane.store))
    await fill(plane.store, size)
    wanted = size.pods // OWNERS * OWNERS
    while True:
        await asyncio.sleep(0.1)
        found = plane.store.list(POD, "default")
        budgets_ok = all(b.get("status", {}).get("disruptionsAllowed") for b in plane.store.list(BUDGET))
        if len(found) >= wanted and budgets_ok and all(p["status"].get("phase") == "Running" for p in found):
            break
    for node in plane.store.list(NODE):
        if node["metadata"]["name"].startswith("new"):
            spec = {k: v for k, v in node["spec"].items() if k not in ("unschedulable", "taints")}
            plane.store.replace(NODE, {**node, "spec": spec})
    await asyncio.sleep(0.5)
    print(f"ready {url}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    beating.cancel()
    await plane.stop()


if __name__ == "__main__":
    asyncio.run(main(Size(**json.loads(sys.argv[1]))))
