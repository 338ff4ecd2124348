"""A large cluster to look at, in a process of its own: lists in pages and by label, and nothing that can change.

python -m tests.bench.list_server '{"nodes": 5000, "pods": 100000}'   prints "ready URL", serves until its input ends
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

ROOT = Path(__file__).parents[2]
TIME = "2026-01-01T00:00:00Z"
EFA, GPU, MACHINE = "vpc.amazonaws.com/efa", "nvidia.com/gpu", "p5en.48xlarge"
PLUGINS = ("nvidia-device-plugin-daemonset", "aws-efa-k8s-device-plugin", "fsx-csi-node", "kube-proxy")
REPLICAS = 50
Raw = dict[str, Any]


def node(index: int, pool: str) -> Raw:
    have = {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: "8", EFA: "16"}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": TIME, "lastTransitionTime": TIME}
    name = f"{pool}-{index:05d}"
    labels = {"pool": pool, "node.kubernetes.io/instance-type": MACHINE, "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "creationTimestamp": TIME},
        "spec": {"providerID": f"aws:///us-east-2a/{name}"},
        "status": {"capacity": have, "allocatable": have, "conditions": [ready]},
    }


def pod(name: str, namespace: str, on: str, owner: Raw, labels: Raw, requests: Raw) -> Raw:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": TIME}
    container = {"name": "main", "image": "registry.example/image:1", "resources": {"requests": requests}}
    return {
        "metadata": {
            "name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": TIME, "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "controller": True, **owner}],
        },
        "spec": {"nodeName": on, "containers": [container], "tolerations": [{"operator": "Exists"}]},
        "status": {"phase": "Running", "conditions": [ready], "startTime": TIME,
                   "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0}]},
    }  # fmt: skip


def lists(nodes: int, pods: int, plugins: bool) -> dict[str, list[Raw]]:
    """Two fifths of the nodes are the old pool, two fifths the new one, empty; the rest and its pods are others'."""
    sizes = {"old": nodes * 2 // 5, "new": nodes * 2 // 5, "other": nodes - 2 * (nodes * 2 // 5)}
    all_nodes = [node(i, pool) for pool, count in sizes.items() for i in range(count)]
    busy = [n["metadata"]["name"] for n in all_nodes if n["metadata"]["labels"]["pool"] != "new"]
    apps = pods // REPLICAS
    found: dict[str, list[Raw]] = {"/api/v1/nodes": all_nodes, "/api/v1/pods": []}
    for i in range(apps * REPLICAS):
        app = i % apps
        owner = {"kind": "ReplicaSet", "name": f"app-{app}-rs", "uid": f"rs-{app}"}
        found["/api/v1/pods"].append(
            pod(f"app-{app}-{i}", "work", busy[i % len(busy)], owner, {"app": f"app-{app}"}, {"cpu": "2"})
        )
    meta = [{"name": f"app-{a}", "namespace": "work", "uid": f"uid-app-{a}"} for a in range(apps)]
    spec = [{"replicas": REPLICAS, "selector": {"matchLabels": {"app": m["name"]}}} for m in meta]
    template = {"template": {"spec": {"containers": []}}}
    found["/apis/apps/v1/deployments"] = [
        {"metadata": m, "spec": {**s, **template}} for m, s in zip(meta, spec, strict=True)
    ]
    found["/apis/apps/v1/replicasets"] = [
        {
            "metadata": {**m, "name": m["name"] + "-rs", "uid": f"rs-{a}", "ownerReferences": [
                {"apiVersion": "apps/v1", "controller": True, "kind": "Deployment", "name": m["name"], "uid": m["uid"]}
            ]},
            "spec": {**s, **template},
        }
        for a, (m, s) in enumerate(zip(meta, spec, strict=True))
    ]  # fmt: skip
    healthy = REPLICAS
    found["/apis/policy/v1/poddisruptionbudgets"] = [
        {
            "metadata": m, "spec": {"maxUnavailable": "25%", "selector": s["selector"]},
            "status": {"disruptionsAllowed": healthy // 4, "currentHealthy": healthy,
                       "desiredHealthy": healthy - healthy // 4,
                       "expectedPods": healthy, "observedGeneration": 1},
        }
        for m, s in zip(meta, spec, strict=True)
    ]  # fmt: skip
    if plugins:
        add_plugins(found)
    return found


def add_plugins(found: dict[str, list[Raw]]) -> None:
    """A pod of each DaemonSet on every node; one node's EFA plugin has had no image for 271 days."""
    found["/apis/apps/v1/daemonsets"] = []
    for name in PLUGINS:
        labels = {"name": name}
        template = {
            "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": f"x/{name}:1"}]}
        }
        meta = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "creationTimestamp": TIME}
        ready = {"desiredNumberScheduled": len(found["/api/v1/nodes"]), "numberReady": len(found["/api/v1/nodes"])}
        found["/apis/apps/v1/daemonsets"].append(
            {"metadata": meta, "spec": {"selector": {"matchLabels": labels}, "template": template}, "status": ready}
        )
        for n in found["/api/v1/nodes"]:
            on = n["metadata"]["name"]
            owner = {"kind": "DaemonSet", "name": name, "uid": f"uid-{name}"}
            found["/api/v1/pods"].append(pod(f"{name}-{on}", "kube-system", on, owner, labels, {}))
    broken = found["/api/v1/nodes"][0]
    broken["status"] = {**broken["status"], "allocatable": {**broken["status"]["allocatable"], EFA: "0"}}


class Pages:
    """What a path and a query answer; objects are encoded once."""

    def __init__(self, found: dict[str, list[Raw]]) -> None:
        self.lists = {
            path: [
                (item["metadata"].get("labels") or {}, item["metadata"].get("namespace", ""), orjson.dumps(item))
                for item in items
            ]
            for path, items in found.items()
        }

    def answer(self, path: str, query: dict[str, list[str]]) -> bytes | None:
        namespace = ""
        if "/namespaces/" in path:
            head, _, rest = path.partition("/namespaces/")
            namespace, _, plural = rest.partition("/")
            path = f"{head}/{plural}"
        if path not in self.lists:
            return None
        wanted = [pair.split("=", 1) for pair in (query.get("labelSelector") or [""])[0].split(",") if pair]
        items = [
            data
            for labels, its, data in self.lists[path]
            if (not namespace or its == namespace) and all(labels.get(k) == v for k, v in wanted)
        ]
        at, limit = int((query.get("continue") or ["0"])[0]), int((query.get("limit") or ["500"])[0])
        more = f',"continue":"{at + limit}"' if at + limit < len(items) else ""
        head = f'{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"1"{more}}},"items":['
        return head.encode() + b",".join(items[at : at + limit]) + b"]}"


def serve(pages: Pages) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = pages.answer(url.path, parse_qs(url.query))
            gone = b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}'
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body or gone)))
            self.end_headers()
            self.wfile.write(body or gone)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextmanager
def cluster(nodes: int, pods: int, *, plugins: bool = False) -> Iterator[tuple[str, str]]:
    """(URL, kubeconfig) of such a cluster."""
    size = json.dumps({"nodes": nodes, "pods": pods, "plugins": plugins})
    command = [sys.executable, "-m", "tests.bench.list_server", size]
    with (
        TemporaryDirectory() as folder,
        Popen(command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True) as server,
    ):
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().split()[1]
        kubeconfig = Path(folder) / "kubeconfig"
        named = {"clusters": [{"name": "b", "cluster": {"server": url}}], "users": [{"name": "b", "user": {}}]}
        contexts = {"contexts": [{"name": "b", "context": {"cluster": "b", "user": "b"}}], "current-context": "b"}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **named, **contexts}))
        yield url, str(kubeconfig)
        server.stdin.close()
        server.wait()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    running = serve(Pages(lists(given["nodes"], given["pods"], given["plugins"])))
    print(f"ready http://127.0.0.1:{running.server_port}", flush=True)
    sys.stdin.read()
