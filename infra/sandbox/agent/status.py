"""Pod and node status as a kubelet writes it. Pure: objects in, merge patches out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
ADDRESS = "127.0.0.1"  # every simulated node is reached where its agent listens
RUNTIME = "containerd://2.1.4"
KERNEL = "6.1.147-172.266.amzn2023.x86_64"


@dataclass(frozen=True, kw_only=True)
class Container:
    """The state of one container: `kind` is waiting, running or terminated."""

    kind: str
    reason: str = ""
    message: str = ""
    started: str = ""
    finished: str = ""
    exit_code: int = 0
    restarts: int = 0
    last: Object | None = None

    def state(self) -> Object:
        """As `state` or `lastState`."""
        if self.kind == "running":
            return {"running": {"startedAt": self.started}}
        if self.kind == "waiting":
            waiting = {"reason": self.reason}
            return {"waiting": {**waiting, "message": self.message} if self.message else waiting}
        ended: Object = {
            "exitCode": self.exit_code,
            "reason": self.reason or ("Error" if self.exit_code else "Completed"),
        }
        if self.message:
            ended["message"] = self.message
        return {"terminated": {**ended, "startedAt": self.started, "finishedAt": self.finished}}


def container_status(pod: Object, spec: Object, container: Container, *, ready: bool) -> Object:
    """One entry of containerStatuses."""
    uid = pod["metadata"]["uid"]
    begun = container.kind != "waiting" or container.last is not None
    return {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": f"{spec['image']}@sha256:{hashlib.sha256(spec['image'].encode()).hexdigest()}" if begun else "",
        "ready": ready,
        "started": container.kind == "running",
        "restartCount": container.restarts,
        "state": container.state(),
        "lastState": container.last or {},
        **({"containerID": f"containerd://{uid}-{spec['name']}"} if begun else {}),
    }


def condition(kind: str, status: bool, now: str, *, reason: str = "", message: str = "") -> Object:
    """One pod condition."""
    made: Object = {
        "type": kind,
        "status": "True" if status else "False",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def merge_conditions(old: Sequence[Object], new: Sequence[Object]) -> list[Object]:
    """New conditions over old ones of the same type; an unchanged status keeps its transition time."""
    before = {each["type"]: each for each in old}
    for each in new:
        known = before.get(each["type"])
        if known and known["status"] == each["status"]:
            each = {**each, "lastTransitionTime": known.get("lastTransitionTime") or each["lastTransitionTime"]}
        before[each["type"]] = each
    return list(before.values())


def pod_status(
    pod: Object,
    *,
    phase: str,
    now: str,
    address: str,
    containers: Sequence[Container],
    inits: Sequence[Container] = (),
    reason: str = "",
    message: str = "",
) -> Object:
    """The status patch of a pod. `containers` and `inits` are parallel to the spec's lists."""
    old = pod.get("status") or {}
    running = phase == "Running" and all(each.kind == "running" for each in containers)
    names = [spec["name"] for spec in pod["spec"]["containers"]]
    lacking: Object = {} if running else _not_ready(phase, names)
    done_inits = all(each.kind == "terminated" or each.kind == "running" for each in inits)
    conditions = [
        condition("PodReadyToStartContainers", phase in ("Running", "Pending"), now),
        condition("Initialized", done_inits, now, **({} if done_inits else {"reason": "ContainersNotInitialized"})),
        condition("Ready", running, now, **lacking),
        condition("ContainersReady", running, now, **lacking),
        condition("PodScheduled", True, now),
    ]
    status: Object = {
        "phase": phase,
        "conditions": merge_conditions(old.get("conditions") or [], conditions),
        "hostIP": ADDRESS,
        "hostIPs": [{"ip": ADDRESS}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": old.get("startTime") or now,
        "qosClass": old.get("qosClass") or "Burstable",
        "containerStatuses": [
            container_status(pod, spec, each, ready=each.kind == "running" and phase == "Running")
            for spec, each in zip(pod["spec"]["containers"], containers, strict=True)
        ],
    }
    if inits:
        status["initContainerStatuses"] = [
            container_status(pod, spec, each, ready=each.kind != "waiting")
            for spec, each in zip(pod["spec"]["initContainers"], inits, strict=True)
        ]
    if reason:
        status |= {"reason": reason, "message": message}
    return {"status": status}


def _not_ready(phase: str, names: Sequence[str]) -> Object:
    if phase == "Succeeded":
        return {"reason": "PodCompleted"}
    if phase == "Failed":
        return {"reason": "PodFailed"}
    return {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(names)}]"}


def node_status(
    node: Object,
    *,
    now: str,
    port: int,
    capacity: Mapping[str, str],
    allocatable: Mapping[str, str],
) -> Object:
    """The status patch that makes a node Ready and says where its kubelet listens."""
    name = node["metadata"]["name"]
    old = (node.get("status") or {}).get("conditions") or []
    conditions = [
        _node_condition(
            "MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available", now
        ),
        _node_condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure", now),
        _node_condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available", now),
        _node_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", now),
    ]
    return {
        "status": {
            "conditions": merge_conditions(old, conditions),
            "addresses": [
                {"type": "InternalIP", "address": ADDRESS},
                {"type": "Hostname", "address": name},
                {"type": "InternalDNS", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": node["metadata"]["uid"].replace("-", ""),
                "systemUUID": node["metadata"]["uid"],
                "bootID": node["metadata"]["uid"],
                "kernelVersion": KERNEL,
                "osImage": "simulated",
                "containerRuntimeVersion": RUNTIME,
                "kubeletVersion": "v1.36.3",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "capacity": dict(capacity),
            "allocatable": dict(allocatable),
        }
    }


def _node_condition(kind: str, status: str, reason: str, message: str, now: str) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
