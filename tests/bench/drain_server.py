"""A cluster to drain, in a process of its own: an old pool full of Deployments and an empty new one.

    python -m tests.bench.drain_server NODES PODS BUDGETS   prints "ready URL", serves until its input ends

The kubelet is the plainest there can be (grace 0, ready at once), so what is measured is the drain.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any

from infra.sandbox.control_plane import ControlPlane
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import Store

NODE = by_plural("", "v1", "nodes")
POD = by_plural("", "v1", "pods")
DEPLOYMENT = by_plural("apps", "v1", "deployments")
BUDGET = by_plural("policy", "v1", "poddisruptionbudgets")
Raw = dict[str, Any]


class Kubelet:
    """Runs what is bound and removes what is told to end, in the server's own loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.loop = asyncio.get_running_loop()
        store.subscribe(self.see)

    def see(self, event: str, kind: Any, obj: Raw, old: Raw | None) -> None:
        if kind.key != POD.key or event == "DELETED" or not obj["spec"].get("nodeName"):
            return
        meta = obj["metadata"]
        if "deletionTimestamp" in meta:
            self.loop.call_soon(self.end, meta["namespace"], meta["name"], meta["uid"])
        elif (obj.get("status") or {}).get("phase", "Pending") == "Pending":
            self.loop.call_soon(self.run, meta["namespace"], meta["name"])

    def end(self, namespace: str, name: str, uid: str) -> None:
        self.store.delete(POD, namespace, name, uid=uid, grace=0)

    def run(self, namespace: str, name: str) -> None:
        pod = self.store.get(POD, namespace, name)
        if pod is not None and pod["spec"].get("nodeName"):
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
            conditions = [*(pod["status"].get("conditions") or ()), ready]
            self.store.replace_status(POD, {**pod, "status": {"phase": "Running", "conditions": conditions}})


def fill(store: Store, nodes: int, pods: int, budgets: int) -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    amounts = {"cpu": "96", "memory": "512Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    for pool in ("old", "new"):
        for i in range(nodes):
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
    owners = max(20, budgets)
    for i in range(owners):
        labels = {"app": f"app-{i}"}
        container = {"name": "c", "image": "registry.example/i:1", "resources": {"requests": {"cpu": "1"}}}
        template = {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        }
        spec = {"replicas": pods // owners, "selector": {"matchLabels": labels}, "template": template}
        store.create(DEPLOYMENT, {"metadata": {"name": f"app-{i}", "namespace": "default"}, "spec": spec})
        if i < budgets:
            spec = {"maxUnavailable": "50%", "selector": {"matchLabels": labels}}
            store.create(BUDGET, {"metadata": {"name": f"app-{i}", "namespace": "default"}, "spec": spec})


async def main(nodes: int, pods: int, budgets: int) -> None:
    plane = ControlPlane()
    url = await plane.start()
    Kubelet(plane.store)
    fill(plane.store, nodes, pods, budgets)
    wanted = pods // max(20, budgets) * max(20, budgets)
    while True:
        await asyncio.sleep(0.1)
        found = plane.store.list(POD)
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
    await plane.stop()


if __name__ == "__main__":
    asyncio.run(main(*(int(word) for word in sys.argv[1:4])))
