"""A cluster without processes: store, controllers, a clock that is moved by hand, a kubelet of a few lines."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from infra.clock import ManualClock, rfc3339, rfc3339_micro
from infra.sandbox.control_plane import foundation
from infra.sandbox.control_plane.controllers import Controllers
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import Kind, kind_of
from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]

KINDS = {
    name: kind_of(version, name)
    for version, names in {
        "v1": ["Pod", "Node", "Namespace", "Event", "PersistentVolumeClaim", "PersistentVolume", "ConfigMap"],
        "apps/v1": ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ControllerRevision"],
        "batch/v1": ["Job"],
        "policy/v1": ["PodDisruptionBudget"],
        "coordination.k8s.io/v1": ["Lease"],
        "storage.k8s.io/v1": ["StorageClass"],
    }.items()
    for name in names
}


class Kubelet:
    """Runs pods at once on nodes that are not dark; ends deleted ones at once unless told to hold them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.dark: set[str] = set()
        self.holds: set[str] = set()
        """Names of pods that do not end when they are deleted."""
        self.unready: set[str] = set()
        """Names of pods that run but do not get ready."""
        self.idle = False
        """When set, new pods are left Pending."""
        self._todo: list[tuple[str, str]] = []
        store.subscribe(self._told)

    def _told(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        if kind.plural == "pods" and event != "DELETED":
            self._todo.append((obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def work(self) -> bool:
        """Act on every pod that changed. True if anything was done."""
        todo, self._todo = self._todo, []
        done = False
        for namespace, name in dict.fromkeys(todo):
            pod = self._store.get(KINDS["Pod"], namespace, name)
            if pod is not None and pod["spec"].get("nodeName") and pod["spec"]["nodeName"] not in self.dark:
                done |= self._tend(pod)
        return done

    def again(self) -> None:
        """Look at every pod once more."""
        self._todo = [(p["metadata"]["namespace"], p["metadata"]["name"]) for p in self._store.list(KINDS["Pod"])]

    def _tend(self, pod: Object) -> bool:
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            ended = pod["metadata"].get("finalizers") and pod["status"].get("phase") == "Failed"
            if name in self.holds or ended:
                return False
            if pod["metadata"].get("finalizers"):
                self.set_phase(pod, "Failed")
            self._store.delete(KINDS["Pod"], pod["metadata"]["namespace"], name, uid=pod["metadata"]["uid"], grace=0)
            return True
        if self.idle or pod["status"].get("phase") != "Pending":
            return False
        self.set_phase(pod, "Running", ready=name not in self.unready)
        return True

    def set_phase(self, pod: Object, phase: str, *, ready: bool = False, exit_code: int | None = None) -> None:
        """Write a pod's status as a kubelet does."""
        pod = self._store.get(KINDS["Pod"], pod["metadata"]["namespace"], pod["metadata"]["name"]) or pod
        now = rfc3339(self._store.clock.now())
        others = [c for c in pod["status"].get("conditions") or () if c["type"] != "Ready"]
        status = {**pod["status"], "phase": phase}
        status["conditions"] = [
            *others,
            {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
        ]
        if exit_code is not None or phase in ("Succeeded", "Failed"):
            code = exit_code if exit_code is not None else (0 if phase == "Succeeded" else 1)
            status["containerStatuses"] = [
                {
                    "name": pod["spec"]["containers"][0]["name"],
                    "restartCount": 0,
                    "state": {"terminated": {"exitCode": code, "finishedAt": now}},
                }
            ]
        self._store.replace_status(KINDS["Pod"], {**pod, "status": status})


class World:
    """What the tests do and ask."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Store(self.clock, seed=7)
        foundation.lay(self.store)
        self.controllers = Controllers(self.store)
        self.kubelet = Kubelet(self.store)

    def settle(self) -> None:
        """Let controllers and kubelet act until nothing changes any more."""
        while True:
            ran = self.controllers.settle()
            if not self.kubelet.work() and not ran:
                return

    def advance(self, seconds: float, *, alive: bool = True) -> None:
        """Move the clock, with the nodes' heartbeats unless they are dark, and settle."""
        while seconds > 0:
            step = min(seconds, 10.0)
            self.clock.advance(step)
            if alive:
                self.renew()
            self.settle()
            seconds -= step

    def renew(self) -> None:
        """The heartbeat of every node that is not dark."""
        for node in self.store.list(KINDS["Node"]):
            name = node["metadata"]["name"]
            if name in self.kubelet.dark:
                continue
            spec = {"holderIdentity": name, "renewTime": rfc3339_micro(self.clock.now()), "leaseDurationSeconds": 40}
            body = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
            if self.store.get(KINDS["Lease"], "kube-node-lease", name) is None:
                self.store.create(KINDS["Lease"], body)
            else:
                self.store.replace(KINDS["Lease"], body)

    # Making

    def add(self, kind: str, obj: Object) -> Object:
        """Create an object in namespace default unless it says otherwise."""
        obj = copy.deepcopy(obj)
        if KINDS[kind].namespaced:
            obj["metadata"].setdefault("namespace", "default")
        return self.store.create(KINDS[kind], obj)

    def node(
        self,
        name: str,
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: str = "110",
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
        ready: bool = True,
        **resources: str,
    ) -> Object:
        """A Ready node; extra resources with __ for / and _ for -, as in nvidia_com__gpu."""
        amounts = {"cpu": cpu, "memory": memory, "pods": pods}
        amounts |= {key.replace("__", "/").replace("_", "."): value for key, value in resources.items()}
        now = rfc3339(self.clock.now())
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": "KubeletReady",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        spec: Object = {"taints": taints} if taints else {}
        return self.add(
            "Node",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                "spec": spec,
                "status": {"allocatable": amounts, "capacity": amounts, "conditions": [condition]},
            },
        )

    def nodes(self, count: int, **more: Any) -> list[str]:
        """node-0, node-1, …"""
        for number in range(count):
            self.node(f"node-{number}", **more)
        self.settle()
        return [f"node-{number}" for number in range(count)]

    def template(self, app: str, **spec: Any) -> Object:
        """A pod template with one container."""
        requests = spec.pop("requests", None)
        labels = spec.pop("labels", {})
        container: Object = {"name": "main", "image": "example.test/app:1"}
        if requests:
            container["resources"] = {"requests": requests}
            extended = {key: value for key, value in requests.items() if "/" in key}
            if extended:
                container["resources"]["limits"] = extended
        return {"metadata": {"labels": {"app": app, **labels}}, "spec": {"containers": [container], **spec}}

    def deployment(self, name: str, replicas: int = 3, *, strategy: Object | None = None, **spec: Any) -> Object:
        """A Deployment whose pods are labelled app=name."""
        own = {key: spec.pop(key) for key in ("minReadySeconds", "progressDeadlineSeconds", "paused") if key in spec}
        body: Object = {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": self.template(name, **spec),
            **own,
        }
        if strategy:
            body["strategy"] = strategy
        return self.add("Deployment", {"metadata": {"name": name}, "spec": body})

    def stateful_set(self, name: str, replicas: int = 3, **own: Any) -> Object:
        """A StatefulSet whose pods are labelled app=name."""
        template = own.pop("template", None) or self.template(name)
        body = {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **own,
        }
        return self.add("StatefulSet", {"metadata": {"name": name}, "spec": body})

    def daemon_set(self, name: str, *, strategy: Object | None = None, **spec: Any) -> Object:
        """A DaemonSet whose pods are labelled app=name."""
        body: Object = {"selector": {"matchLabels": {"app": name}}, "template": self.template(name, **spec)}
        if strategy:
            body["updateStrategy"] = strategy
        return self.add("DaemonSet", {"metadata": {"name": name}, "spec": body})

    def job(self, name: str, *, template: Object | None = None, **own: Any) -> Object:
        """A Job."""
        body = {"template": template or self.template(name, restartPolicy="Never"), **own}
        return self.add("Job", {"metadata": {"name": name}, "spec": body})

    def pod(self, name: str, *, app: str = "bare", **spec: Any) -> Object:
        """A bare pod."""
        template = self.template(app, **spec)
        return self.add("Pod", {"metadata": {"name": name, **template["metadata"]}, "spec": template["spec"]})

    def budget(self, name: str, app: str, **spec: Any) -> Object:
        """A budget over app=app."""
        body = {"selector": {"matchLabels": {"app": app}}, **spec}
        return self.add("PodDisruptionBudget", {"metadata": {"name": name}, "spec": body})

    # Changing

    def edit(self, kind: str, name: str, namespace: str = "default", **spec: Any) -> Object:
        """Change fields of spec."""
        obj = self.get(kind, name, namespace)
        return self.store.replace(KINDS[kind], {**obj, "spec": {**obj["spec"], **spec}})

    def retemplate(self, kind: str, name: str, **spec: Any) -> None:
        """Change fields of the pod template's spec."""
        obj = self.get(kind, name)
        template = obj["spec"]["template"]
        self.edit(kind, name, template={**template, "spec": {**template["spec"], **spec}})

    def reimage(self, kind: str, name: str, image: str = "example.test/app:2") -> None:
        """A new image in the template."""
        containers = self.get(kind, name)["spec"]["template"]["spec"]["containers"]
        self.retemplate(kind, name, containers=[{**containers[0], "image": image}])

    def meta(self, kind: str, name: str, namespace: str = "default", **fields: Any) -> Object:
        """Change fields of metadata."""
        obj = self.get(kind, name, namespace)
        return self.store.replace(KINDS[kind], {**obj, "metadata": {**obj["metadata"], **fields}})

    def delete(self, kind: str, name: str, namespace: str = "default", **options: Any) -> None:
        """Delete as a client does."""
        self.store.delete(KINDS[kind], namespace, name, **options)

    def finish(self, pod: Object, phase: str = "Succeeded", *, exit_code: int | None = None) -> None:
        """End a pod."""
        self.kubelet.set_phase(pod, phase, exit_code=exit_code)

    # Asking

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """An object that exists."""
        found = self.store.get(KINDS[kind], namespace, name)
        assert found is not None, f"{kind} {name} does not exist"
        return found

    def exists(self, kind: str, name: str, namespace: str = "default") -> bool:
        """Whether an object exists."""
        return self.store.get(KINDS[kind], namespace, name) is not None

    def list(self, kind: str, namespace: str | None = "default") -> list[Object]:
        """Objects of a kind."""
        return self.store.list(KINDS[kind], namespace)

    def pods(self, app: str | None = None, namespace: str | None = "default") -> list[Object]:
        """Pods, those with label app=app if given."""
        return [
            pod
            for pod in self.list("Pod", namespace)
            if app is None or pod["metadata"].get("labels", {}).get("app") == app
        ]

    def status(self, kind: str, name: str, namespace: str = "default") -> Object:
        """The status of an object."""
        found: Object = self.get(kind, name, namespace)["status"]
        return found

    def condition(self, kind: str, name: str, type_: str, namespace: str = "default") -> Object | None:
        """A condition of an object."""
        conditions = self.status(kind, name, namespace).get("conditions") or ()
        return next((each for each in conditions if each["type"] == type_), None)

    def events(self, name: str | None = None, reason: str | None = None) -> list[str]:
        """Messages of events."""
        return [
            event["message"]
            for event in self.list("Event", None)
            if name in (None, event["involvedObject"]["name"]) and reason in (None, event["reason"])
        ]

    def refused(self, call: Any) -> ApiError:
        """The error of a call that the API refuses."""
        with pytest.raises(ApiError) as caught:
            call()
        return caught.value


@pytest.fixture
def world() -> World:
    """A fresh cluster without nodes."""
    return World()
