"""What long life leaves in a sound cluster: pods that ended and were replaced, init containers begun many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.model.verdict import Outcome
from tasks.audit import of_objects

Raw = dict[str, Any]
LONG_AGO, TAKEN = "2026-01-01T00:00:00Z", "2026-10-31T00:00:00Z"
PLUGINS = ("nvidia-device-plugin-daemonset", "aws-efa-k8s-device-plugin")
DEVICES = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}


def node(name: str, machine: str = "ml.p5en.48xlarge") -> Raw:
    labels = {"sagemaker.amazonaws.com/node-health-status": "Schedulable", "node.kubernetes.io/instance-type": machine}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": TAKEN, "lastTransitionTime": LONG_AGO}
    status = {"capacity": DEVICES, "allocatable": DEVICES, "conditions": [ready]}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def daemonset(name: str) -> Raw:
    metadata = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"}
    template = {"spec": {"containers": [{"name": "c"}], "tolerations": [{"operator": "Exists"}]}}
    status = {"desiredNumberScheduled": 2, "numberReady": 2}
    return {"kind": "DaemonSet", "metadata": metadata, "spec": {"template": template}, "status": status}


def pod(owner: str, on: str, phase: str = "Running", *, kind: str = "DaemonSet", name: str = "") -> Raw:
    reference = {"kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}
    metadata = {"name": name or f"{owner}-{on * 5}", "namespace": "kube-system", "ownerReferences": [reference]}
    well = phase == "Running"
    ready = {"type": "Ready", "status": str(well), "lastTransitionTime": LONG_AGO}
    running = {"name": "c", "ready": well, "restartCount": 0, "state": {"running": {"startedAt": LONG_AGO}}}
    status = {"phase": phase, "conditions": [ready], "containerStatuses": [running]}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": [{"name": "c"}]},
        "status": status,
    }


def sound() -> list[Raw]:
    return [
        *map(node, "ab"),
        *map(daemonset, PLUGINS),
        *(pod(name, on) for name in PLUGINS for on in "ab"),
    ]


def begun_often(objects: list[Raw], *, init: bool, restarts: int = 40) -> None:
    """The node was rebooted many times, or the container waited for a driver; it has ended well, or runs, since."""
    last = objects[-1]
    part = "initContainerStatuses" if init else "containerStatuses"
    last["spec"]["initContainers"] = [{"name": "i"}]
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": LONG_AGO}}
    runs = {"running": {"startedAt": LONG_AGO}}
    last["status"][part] = [
        {"name": "i" if init else "c", "ready": True, "restartCount": restarts, "state": done if init else runs}
        | ({} if init else {"lastState": done})
    ]


def without_heartbeats(objects: list[Raw]) -> None:
    """As tools leave it that make dumps fit to be shown."""
    begun_often(objects, init=False)
    for obj in objects[:2]:
        del obj["status"]["conditions"][0]["lastHeartbeatTime"]
    objects[4]["status"]["conditions"][0]["lastTransitionTime"] = TAKEN


def replaced(kind: str, old: str, new: str, *, elsewhere: bool = True) -> Callable[[list[Raw]], None]:
    """An owner's pod that has ended, and the one that it made after it."""
    owner = "coredns-5d78c9869d"

    def add(objects: list[Raw]) -> None:
        objects += [
            pod(owner, "a", old, kind=kind, name=f"{owner}-old01"),
            pod(owner, "b" if elsewhere else "a", new, kind=kind, name=f"{owner}-new01"),
        ]

    return add


SOUND: dict[str, Callable[[list[Raw]], Any]] = {
    "as it is": lambda _: None,
    "an init container of many reboots": lambda objects: begun_often(objects, init=True),
    "a container that crashed in its youth, without heartbeats": without_heartbeats,
    "evicted, and replaced on another node": replaced("ReplicaSet", "Failed", "Running"),
    "a node that was shut down": replaced("StatefulSet", "Succeeded", "Running"),
    "a job's second try": replaced("Job", "Failed", "Succeeded"),
}
HARM: dict[str, tuple[Callable[[list[Raw]], Any], Outcome]] = {
    "ended, and none in its place": (
        lambda objects: objects.append(pod("x", "a", "Failed", kind="ReplicaSet")),
        Outcome.FAIL,
    ),
    "replaced by one that does not run": (replaced("ReplicaSet", "Failed", "Pending"), Outcome.FAIL),
    "a job's tries, all in vain": (replaced("Job", "Failed", "Failed"), Outcome.FAIL),
    "a DaemonSet's, and the other is of another node": (replaced("DaemonSet", "Failed", "Running"), Outcome.FAIL),
    "HyperPod's machine that nobody knows": (
        lambda objects: objects.append(plain("ml.p9.48xlarge")),
        Outcome.UNMEASURED,
    ),
}


def plain(machine: str) -> Raw:
    """A node that shows no device, of which only its machine's name tells that it should."""
    found = node("c", machine)
    found["status"] |= {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
    return found


@pytest.mark.parametrize("name", SOUND)
def test_what_was_overcome_is_no_fault(name: str) -> None:
    objects = sound()
    SOUND[name](objects)
    found = of_objects(objects)
    assert (found.outcome, found.findings) == (Outcome.PASS, ())


@pytest.mark.parametrize("name", HARM)
def test_what_nothing_replaced_is_no_pass(name: str) -> None:
    harm, outcome = HARM[name]
    objects = sound()
    harm(objects)
    assert of_objects(objects).outcome is outcome
