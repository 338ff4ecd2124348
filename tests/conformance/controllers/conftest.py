"""What the controllers do, seen by a client: the same tests against the embedded control plane and a real one.

Each test gets a namespace, nodes of its own and a fixture kubelet that runs what is bound to them. Only the
server differs, so an assertion that holds on the real one and fails on ours is a defect of ours.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import urllib3

from infra.clock import SystemClock, rfc3339, rfc3339_micro

Object = dict[str, Any]
PATIENCE = 30.0
"""Seconds until an expected state counts as not coming: the real controllers share two cores with a lot."""

PLURALS = {
    "Namespace": ("api/v1", "namespaces", False),
    "Node": ("api/v1", "nodes", False),
    "Pod": ("api/v1", "pods", True),
    "ConfigMap": ("api/v1", "configmaps", True),
    "ServiceAccount": ("api/v1", "serviceaccounts", True),
    "Event": ("api/v1", "events", True),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "Deployment": ("apis/apps/v1", "deployments", True),
    "ReplicaSet": ("apis/apps/v1", "replicasets", True),
    "StatefulSet": ("apis/apps/v1", "statefulsets", True),
    "DaemonSet": ("apis/apps/v1", "daemonsets", True),
    "Job": ("apis/batch/v1", "jobs", True),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets", True),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False),
}
VERSIONS = {kind: prefix.split("/", 1)[1] for kind, (prefix, _, _) in PLURALS.items()}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A control plane to test: where it is and who may talk to it."""

    flavour: str
    url: str
    token: str = ""
    ca: str | None = None

    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cadata=self.ca) if self.ca else None

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    body: Any
    warning: str = ""


def parsed(data: bytes) -> Any:
    """JSON where it is JSON: unknown groups and some refusals are answered in plain text."""
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode()


@dataclass
class Client:
    """Plain JSON requests."""

    server: Server
    pool: urllib3.PoolManager = field(init=False)

    def __post_init__(self) -> None:
        self.pool = urllib3.PoolManager(ssl_context=self.server.context(), maxsize=4)

    def call(self, method: str, path: str, body: object = None, kind: str = "", **params: object) -> Answer:
        query = f"?{urllib.parse.urlencode(params)}" if params else ""
        content = f"application/{kind}+json" if kind else "application/json"
        answer = self.pool.request(
            method,
            f"{self.server.url}{path}{query}",
            body=None if body is None else json.dumps(body),
            headers=self.server.headers() | {"Content-Type": content, "Accept": "application/json"},
            retries=False,
            timeout=30,
        )
        return Answer(status=answer.status, body=parsed(answer.data), warning=answer.headers.get("Warning", ""))


class Kubelet(threading.Thread):
    """Runs what is bound to its nodes: Pending pods become Running and Ready, deleted ones end and go at once.

    Annotations of a pod say otherwise: `conformance/ready: "false"` runs it unready, `conformance/linger` keeps it
    terminating, `conformance/idle` leaves it Pending.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.client = Client(server)
        self.server = server
        self.nodes: set[str] = set()
        self.stopping = False
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        while not self.stopping:
            listed = self.client.call("GET", "/api/v1/pods").body
            for pod in listed["items"]:
                self.handle(pod)
            self.watch(listed["metadata"]["resourceVersion"])

    def watch(self, version: str) -> None:
        where = urllib.parse.urlsplit(self.server.url)
        context = self.server.context()
        assert where.hostname is not None
        self.connection = (
            http.client.HTTPSConnection(where.hostname, where.port, context=context)
            if context
            else http.client.HTTPConnection(where.hostname, where.port)
        )
        try:
            path = f"/api/v1/pods?watch=true&resourceVersion={version}&timeoutSeconds=300"
            self.connection.request("GET", path, headers=self.server.headers())
            for line in self.connection.getresponse():
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self.handle(event["object"])
        except (OSError, ValueError, http.client.HTTPException):
            pass  # cut by stop, or by a server that closes watches: list again
        finally:
            self.connection.close()

    def stop(self) -> None:
        self.stopping = True
        if self.connection is not None and self.connection.sock is not None:
            self.connection.sock.shutdown(2)
        self.join(timeout=10)
        self.client.pool.clear()

    def handle(self, pod: Object) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        if spec.get("nodeName") not in self.nodes:
            return
        wishes = meta.get("annotations") or {}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta.get("deletionTimestamp"):
            if "conformance/linger" not in wishes:
                if pod["status"].get("phase") == "Running":  # Jobs wait for a terminal phase before they replace
                    ended = {"status": {"phase": "Failed"}}
                    self.client.call("PATCH", f"{path}/status", ended, kind="strategic-merge-patch")
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                self.client.call("DELETE", path, options)
        elif pod["status"].get("phase", "Pending") == "Pending" and "conformance/idle" not in wishes:
            status = running(pod, ready=wishes.get("conformance/ready") != "false")
            self.client.call("PATCH", f"{path}/status", {"status": status}, kind="strategic-merge-patch")


def running(pod: Object, *, ready: bool) -> Object:
    """The status of a pod whose containers have started."""
    now = rfc3339(SystemClock().now())
    state = "True" if ready else "False"
    names = [container["name"] for container in pod["spec"]["containers"]]
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": "10.0.0.9",
        "podIPs": [{"ip": "10.0.0.9"}],
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": now}
            for kind, status in (
                ("Initialized", "True"),
                ("ContainersReady", state),
                ("Ready", state),
            )
        ],
        "containerStatuses": [
            {
                "name": name,
                "image": "none",
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "started": True,
                "state": {"running": {"startedAt": now}},
            }
            for name in names
        ],
    }


@dataclass
class Cluster:
    """A namespace of one test, with its nodes and the verbs that tests speak."""

    client: Client
    kubelet: Kubelet
    namespace: str
    nodes: list[str] = field(default_factory=list)

    @property
    def flavour(self) -> str:
        return self.client.server.flavour

    @property
    def minor(self) -> int:
        """Of the server's version: 36 in 1.36. The embedded one answers as the newest that is tried."""
        return int(self.call("GET", "/version").body["minor"].rstrip("+"))

    def call(self, method: str, path: str, body: object = None, kind: str = "", **params: object) -> Answer:
        return self.client.call(method, path, body, kind, **params)

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        prefix, plural, namespaced = PLURALS[kind]
        parts = [prefix, *(["namespaces", self.namespace] if namespaced else []), plural, name, sub]
        return "/" + "/".join(part for part in parts if part)

    def create(self, kind: str, name: str, **fields: Any) -> Object:
        """POST; `fields` are top-level fields, `labels`, `annotations` and `finalizers` go into metadata."""
        answer = self.call("POST", self.path(kind), self.object(kind, name, **fields))
        assert answer.status == 201, answer
        return answer.body

    def object(self, kind: str, name: str, **fields: Any) -> Object:
        inside = ("labels", "annotations", "finalizers", "ownerReferences")
        meta = {"name": name} | {key: fields.pop(key) for key in inside if key in fields}
        return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": meta, **fields}

    def get(self, kind: str, name: str) -> Object | None:
        answer = self.call("GET", self.path(kind, name))
        assert answer.status in (200, 404), answer
        return answer.body if answer.status == 200 else None

    def list(self, kind: str, selector: str = "") -> list[Object]:
        answer = self.call("GET", self.path(kind), labelSelector=selector)
        assert answer.status == 200, answer
        return sorted(answer.body["items"], key=lambda item: item["metadata"]["name"])

    def patch(self, kind: str, name: str, body: Object, sub: str = "", how: str = "merge-patch") -> Object:
        answer = self.call("PATCH", self.path(kind, name, sub), body, kind=how)
        assert answer.status == 200, answer
        return answer.body

    def delete(self, kind: str, name: str, **options: Any) -> Answer:
        return self.call("DELETE", self.path(kind, name), options or None)

    def evict(self, name: str, **options: Any) -> Answer:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        if options:
            body["deleteOptions"] = options
        return self.call("POST", self.path("Pod", name, "eviction"), body)

    def scale(self, kind: str, name: str, replicas: int) -> None:
        self.patch(kind, name, {"spec": {"replicas": replicas}})

    def until(self, kind: str, name: str, holds: Callable[[Object], object], patience: float = PATIENCE) -> Object:
        """The object, as soon as it exists and `holds` is true of it."""

        def look() -> Object | None:
            found = self.get(kind, name)
            return found if found is not None and holds(found) else None

        return self.eventually(look, lambda: self.get(kind, name))

    def until_gone(self, kind: str, name: str) -> None:
        self.eventually(lambda: self.get(kind, name) is None, lambda: self.get(kind, name))

    def until_pods(self, count: int, selector: str = "", ready: bool = True) -> list[Object]:
        """Exactly `count` pods that are not terminating, all Ready if wanted."""

        def look() -> list[Object] | None:
            pods = [pod for pod in self.list("Pod", selector) if "deletionTimestamp" not in pod["metadata"]]
            good = len(pods) == count and all(is_ready(pod) for pod in pods if ready)
            return pods if good else None

        if count == 0:
            self.eventually(lambda: look() is not None, lambda: self.list("Pod", selector))
            return []
        return self.eventually(look, lambda: [pod["status"] for pod in self.list("Pod", selector)])

    def eventually(
        self, look: Callable[[], Any], last: Callable[[], object] = lambda: "", patience: float = PATIENCE
    ) -> Any:
        """What `look` returns once it is true; fails after `patience` seconds with what `last` shows."""
        deadline = time.monotonic() + patience
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"not reached in {patience:.0f} s; last seen: {json.dumps(last(), default=str)[:3000]}")
            time.sleep(0.03)

    def budget(self, name: str, labels: Object | None = None, **spec: Any) -> None:
        selector = {} if labels is None else {"matchLabels": labels}
        self.create("PodDisruptionBudget", name, spec={"selector": selector, **spec})

    def counted(self, name: str) -> Object:
        """The budget's status once its controller has seen this generation."""
        return self.until(
            "PodDisruptionBudget",
            name,
            lambda b: b["status"].get("observedGeneration") == b["metadata"]["generation"],
        )["status"]

    def counts(self, name: str, allowed: int, current: int, desired: int, expected: int) -> Object:
        """Wait for exactly these four numbers; returns the status."""
        wanted = {
            "disruptionsAllowed": allowed,
            "currentHealthy": current,
            "desiredHealthy": desired,
            "expectedPods": expected,
        }
        return self.until(
            "PodDisruptionBudget",
            name,
            lambda b: all(b["status"].get(key) == number for key, number in wanted.items()),
        )["status"]

    def node(self, suffix: str = "a", **more: Any) -> str:
        """A Ready node with 8 CPU, 32 GiB and room for 110 pods, labelled pool=<namespace>. `allocatable` adds."""
        name = f"{self.namespace}-{suffix}"
        labels = {"pool": self.namespace, "kubernetes.io/hostname": name} | more.get("labels", {})
        room = {"cpu": "8", "memory": "32Gi", "pods": "110", **more.get("allocatable", {})}
        self.nodes.append(name)
        self.kubelet.nodes.add(name)
        self.create("Node", name, labels=labels, spec={"taints": more.get("taints", [])})
        lease = {"holderIdentity": name, "renewTime": rfc3339_micro(SystemClock().now())}
        self.call(
            "POST",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": lease},
        )
        now = rfc3339(SystemClock().now())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "up",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        self.patch("Node", name, {"status": status}, sub="status")
        self.until("Node", name, lambda n: not any("not-ready" in t["key"] for t in n["spec"].get("taints", [])))
        return name

    def silence_nodes(self) -> None:
        """From now on no pod of this test gets Ready, and none that is deleted goes."""
        self.kubelet.nodes.difference_update(self.nodes)

    def template(self, app: str = "web", **more: Any) -> Object:
        """A pod template that fits the test's nodes only. `spec` and `annotations` add."""
        return {
            "metadata": {"labels": {"app": app}, "annotations": more.get("annotations", {})},
            "spec": {
                "nodeSelector": {"pool": self.namespace},
                "containers": [{"name": "main", "image": "none", **more.get("container", {})}],
                **more.get("spec", {}),
            },
        }

    def pod(self, name: str, app: str = "bare", **more: Any) -> Object:
        template = self.template(app, **more)
        return self.create(
            "Pod",
            name,
            labels=template["metadata"]["labels"],
            annotations=template["metadata"]["annotations"],
            spec=template["spec"],
            **{key: more[key] for key in ("finalizers", "ownerReferences") if key in more},
        )

    def running_pod(self, name: str, app: str = "bare", **more: Any) -> Object:
        self.pod(name, app, **more)
        return self.until("Pod", name, lambda pod: pod["status"].get("phase") == "Running")

    def workload(self, kind: str, name: str, replicas: int = 1, **more: Any) -> Object:
        """A Deployment, ReplicaSet or StatefulSet called `name` over pods app=`name`. `spec` and `template` add."""
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": self.template(name, **more.get("template", {})),
            **({"serviceName": name} if kind == "StatefulSet" else {}),
            **more.get("spec", {}),
        }
        return self.create(kind, name, spec=spec)

    def job(self, name: str, template: Object | None = None, **spec: Any) -> Object:
        wanted = {"spec": {"restartPolicy": "Never"}} | (template or {})
        return self.create("Job", name, spec={"template": self.template(name, **wanted), **spec})

    def finish(self, pod: str, phase: str = "Succeeded", code: int = 0) -> None:
        """What a kubelet reports when the container has ended."""
        self.until("Pod", pod, lambda found: found["status"].get("phase") == "Running")
        now = rfc3339(SystemClock().now())
        ended = {"exitCode": code, "finishedAt": now, "startedAt": now, "reason": "Completed" if not code else "Error"}
        status = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted"}],
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "none",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        self.patch("Pod", pod, {"status": status}, sub="status", how="strategic-merge-patch")

    def make_ready(self, pod: str, ready: bool) -> None:
        found = self.get("Pod", pod)
        assert found is not None
        self.patch("Pod", pod, {"status": running(found, ready=ready)}, sub="status", how="strategic-merge-patch")

    @staticmethod
    def condition(found: Object, kind: str) -> Object:
        return condition(found, kind)

    def unscheduled(self, pod: str) -> Object:
        """The pod's PodScheduled condition once it is False."""
        found = self.until("Pod", pod, lambda p: condition(p, "PodScheduled").get("status") == "False")
        return condition(found, "PodScheduled")


def condition(found: Object, kind: str) -> Object:
    """A status condition, or {}."""
    conditions = found["status"].get("conditions") or []
    return next((item for item in conditions if item["type"] == kind), {})


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


@pytest.fixture(scope="session")
def server(api: Any) -> Server:
    """The one that the API's half of the suite talks to."""
    return Server(flavour=api.flavour, url=api.url, token=api.token, ca=api.ca)


@pytest.fixture(scope="session")
def kubelet(server: Server) -> Iterator[Kubelet]:
    thread = Kubelet(server)
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    made.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", GANGS)
    yield made
    made.pool.clear()


@pytest.fixture
def gangs(client: Client) -> str:
    """The apiVersion of a custom kind Gang with status and scale. It is there from the start of the session."""
    return "example.test/v1"


GANGS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gangs.example.test"},
    "spec": {
        "group": "example.test",
        "scope": "Namespaced",
        "names": {"plural": "gangs", "singular": "gang", "kind": "Gang", "listKind": "GangList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
                },
            }
        ],
    },
}


_numbers = itertools.count()


@pytest.fixture
def cluster(client: Client, kubelet: Kubelet) -> Iterator[Cluster]:
    made = Cluster(client=client, kubelet=kubelet, namespace=f"t{next(_numbers)}-{os.getpid()}")
    made.create("Namespace", made.namespace)
    if made.flavour == "real":  # pods are refused until the account is there
        made.until("ServiceAccount", "default", bool)
    yield made
    made.delete("Namespace", made.namespace)
    for name in made.nodes:
        made.delete("Node", name)
        made.client.call("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}")
