"""A control plane in a thread, a kubelet small enough to read, and builders of objects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from infra.clock import Clock, ScaledClock, SystemClock, rfc3339
from infra.errors import PoolshiftError
from infra.kube.api import MERGE_PATCH, Kube
from infra.kube.watch import Changed, Synced, Watch
from infra.model.gangs import GangKind
from infra.sandbox.control_plane import run_in_thread
from tests.drain.operating import operating

Raw = dict[str, Any]


def make_kube(url: str, clock: Clock | None = None) -> Kube:
    from kubernetes import client as k8s

    configuration = k8s.Configuration()
    configuration.host = url
    configuration.retries = False
    configuration.connection_pool_maxsize = 40
    return Kube(
        client=k8s.ApiClient(configuration),
        server=url,
        context="test",
        namespace="poolshift",
        clock=clock or SystemClock(),
    )


class Kubelet:
    """Runs every pod that is bound to a node, and lets go of those that are told to end.

    `never_runs`, `never_ready` and `never_ends` are asked for each pod; what they hold back stays held back.
    """

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.never_runs: Callable[[Raw], bool] = lambda _: False
        self.never_ready: Callable[[Raw], bool] = lambda _: False
        self.never_ends: Callable[[Raw], bool] = lambda _: False
        self.address = ""
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._watch = Watch(kube, "/api/v1/pods", lambda raw, _: dict(raw), self._queue)
        self._stop = threading.Event()
        self._done: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._watch.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._watch.stop()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(4) as pool:
            beaten = time.monotonic()
            while not self._stop.is_set():
                if time.monotonic() - beaten > 10:
                    beaten = time.monotonic()
                    pool.submit(self._beat)
                try:
                    item = self._queue.get(timeout=0.05)
                except Empty:
                    continue
                objects = item.objects if isinstance(item, Synced) else ()
                if isinstance(item, Changed) and not item.gone:
                    objects = (item.object,)
                for raw in objects:
                    pool.submit(self._look, raw)

    def _beat(self) -> None:
        """On a busy machine a test may outlast the time after which silent nodes are taken for dead."""
        for node in self.kube.list("/api/v1/nodes"):
            name, conditions = node["metadata"]["name"], (node.get("status") or {}).get("conditions") or ()
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            beaten = [{**c, "lastHeartbeatTime": now} for c in conditions]
            self._quietly("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": beaten}})

    def _look(self, pod: Raw) -> None:
        meta, status = pod["metadata"], pod.get("status") or {}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if not (pod.get("spec") or {}).get("nodeName"):
            return
        if not meta.get("deletionTimestamp") and self.never_runs(pod):
            return
        if meta.get("deletionTimestamp"):
            if not self.never_ends(pod) and (meta["uid"], "end") not in self._done:
                self._done.add((meta["uid"], "end"))
                body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                self._quietly("DELETE", path, body)
        elif status.get("phase", "Pending") == "Pending" and (meta["uid"], "run") not in self._done:
            self._done.add((meta["uid"], "run"))
            ready = not self.never_ready(pod)
            address = {"podIP": self.address} if self.address else {}
            self._quietly("PATCH", f"{path}/status", {"status": {**running(ready), **address}})

    def _quietly(self, method: str, path: str, body: Raw) -> None:
        kind = MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            self.kube.request(method, path, body=body, content_type=kind)
        except Exception:  # the pod went while we looked at it
            return


def running(ready: bool = True) -> Raw:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    word = "True" if ready else "False"
    return {
        "phase": "Running",
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
            {"type": "Ready", "status": word, "lastTransitionTime": now},
        ],
        "containerStatuses": [
            {
                "name": "c",
                "image": "i",
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
        ],
    }


@pytest.fixture
def fast_clock() -> ScaledClock:
    """A minute in a second: deadlines of minutes pass in seconds."""
    now = datetime.now(UTC)
    return ScaledClock(origin=now, started=now.timestamp(), rate=60.0)


@pytest.fixture
def url() -> Iterator[str]:
    url, stop = run_in_thread()
    yield url
    stop()


@pytest.fixture
def kubeconfig(url: str, tmp_path: Path) -> str:
    """The path of a kubeconfig that names the server."""
    path = tmp_path / "kubeconfig"
    named = {"cluster": {"server": url}, "user": {}, "context": {"cluster": "c", "user": "u"}}
    lists = {f"{kind}s": [{"name": kind[0], kind: value}] for kind, value in named.items()}
    path.write_text(json.dumps({**lists, "current-context": "c"}))
    return str(path)


@pytest.fixture
def kube(url: str) -> Iterator[Kube]:
    found = make_kube(url)
    yield found
    close(found)


@pytest.fixture
def kube_at() -> Iterator[Callable[[str], Kube]]:
    """Clients of other addresses (a proxy), closed at the end."""
    made: list[Kube] = []

    def make(url: str) -> Kube:
        made.append(make_kube(url))
        return made[-1]

    yield make
    for kube in made:
        close(kube)


@pytest.fixture
def operate(kube_at: Callable[[str], Kube], url: str) -> Iterator[Callable[..., Any]]:
    """Starts doubles of controllers; what one of them raised fails the test."""
    with operating(kube_at, url) as start:
        yield start


def close(kube: Kube) -> None:
    """Idle connections too, so that the server sees them end."""
    kube.client.rest_client.pool_manager.clear()


@pytest.fixture
def kubelet(url: str) -> Iterator[Kubelet]:
    found = Kubelet(make_kube(url))
    found.start()
    yield found
    found.stop()
    close(found.kube)


@pytest.fixture
def checkpointing(url: str) -> Callable[[str, Clock], AbstractContextManager[None]]:
    """A job that answers each request for a checkpoint with the time of one just made."""

    @contextmanager
    def answering(name: str, clock: Clock) -> Iterator[None]:
        kube, stop = make_kube(url), threading.Event()
        path = f"/apis/batch/v1/namespaces/default/jobs/{name}"

        def answer() -> None:
            while not stop.wait(0.05):
                notes = kube.request("GET", path)["metadata"].get("annotations") or {}
                asked = notes.get("poolshift.dev/checkpoint-requested")
                if asked and notes.get("poolshift.dev/checkpointed-at", "") < asked:
                    body = {"metadata": {"annotations": {"poolshift.dev/checkpointed-at": rfc3339(clock.now())}}}
                    kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        stop.set()
        thread.join()
        close(kube)

    return answering


@pytest.fixture
def killed_when(url: str, fast_clock: ScaledClock) -> Callable[[str], None]:
    """Run a move in a process of its own and kill -9 it when it prints a line with this text."""

    def run(text: str) -> None:
        script = Path(__file__).with_name("child_move.py")
        root = Path(__file__).parents[2]
        arguments = [sys.executable, str(script), url, fast_clock.origin.isoformat(), str(fast_clock.started)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        with subprocess.Popen(arguments, cwd=root, env=environment, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            seen = []
            for line in child.stdout:
                seen.append(line)
                if text in line:
                    child.kill()
                    return
            pytest.fail(f"the move never said {text!r}: {seen}")

    return run


class Build:
    """Creates objects on a cluster and waits for what controllers make of them."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def node(self, name: str, pool: str = "old", **spec: Any) -> Raw:
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "8"}
        self.kube.request(
            "POST",
            "/api/v1/nodes",
            body={
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"pool": pool, "kubernetes.io/hostname": name}},
                "spec": spec,
            },
        )
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
        status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [condition]}}
        self.kube.request("PATCH", f"/api/v1/nodes/{name}/status", body=status, content_type=MERGE_PATCH)
        return self.kube.request(
            "PATCH", f"/api/v1/nodes/{name}", body={"spec": {"taints": None}}, content_type=MERGE_PATCH
        )

    def cordon(self, name: str) -> None:
        body = {"spec": {"unschedulable": True}}
        self.kube.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)

    def uncordon(self, name: str) -> None:
        body = {"spec": {"unschedulable": None}}
        self.kube.request("PATCH", f"/api/v1/nodes/{name}", body=body, content_type=MERGE_PATCH)

    def deployment(
        self, name: str, replicas: int, *, namespace: str = "default", budget: Raw | None = None, **pod: Any
    ) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": pod_spec(**pod)}
        self.kube.request(
            "POST",
            f"/apis/apps/v1/namespaces/{namespace}/deployments",
            body={
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name},
                "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
            },
        )
        if budget is not None:
            self.budget(name, labels, namespace=namespace, **budget)

    def definition(self, row: GangKind, scope: str = "Namespaced") -> None:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": row.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"kind": row.kind, "plural": row.plural, "singular": row.kind.lower()}
        self.kube.request(
            "POST",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            body={
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{row.plural}.{row.group}"},
                "spec": {"group": row.group, "names": names, "scope": scope, "versions": [version]},
            },
        )
        self.until(lambda: self.served(row), f"{row.kind} is served")

    def served(self, row: GangKind) -> bool:
        try:
            return self.kube.get(row.path()) is not None
        except PoolshiftError:
            return False

    def budget(self, name: str, labels: Raw, *, namespace: str = "default", **spec: Any) -> None:
        self.kube.request(
            "POST",
            f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
            body={
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name},
                "spec": {"selector": {"matchLabels": labels}, **spec},
            },
        )

    def job(self, name: str, ranks: int, *, namespace: str = "default", **pod: Any) -> None:
        self.kube.request(
            "POST",
            f"/apis/batch/v1/namespaces/{namespace}/jobs",
            body={
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {
                    "completionMode": "Indexed",
                    "completions": ranks,
                    "parallelism": ranks,
                    "template": {"spec": {**pod_spec(**pod), "restartPolicy": "Never"}},
                },
            },
        )

    def pod(self, name: str, node: str, *, namespace: str = "default", labels: Raw | None = None, **spec: Any) -> None:
        self.kube.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            body={
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": labels or {}},
                "spec": {"nodeName": node, **pod_spec(**spec)},
            },
        )

    def pods(self, namespace: str = "default") -> list[Raw]:
        return list(self.kube.list(f"/api/v1/namespaces/{namespace}/pods"))

    def until(self, seen: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Look again until it is so: what controllers do takes its time, and this is its limit."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if seen():
                return
            pause.wait(0.05)
        pytest.fail(f"never seen: {what}")

    def until_ready(self, count: int, namespace: str = "default") -> None:
        def ready() -> bool:
            found = [p for p in self.pods(namespace) if is_ready(p)]
            return len(found) == count

        self.until(ready, f"{count} pods Ready")


def is_ready(pod: Raw) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def pod_spec(**more: Any) -> Raw:
    gpus = more.pop("gpus", 0)
    container: Raw = {"name": "c", "image": "registry.example/i:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **more}


@pytest.fixture
def build(kube: Kube) -> Build:
    return Build(kube)
