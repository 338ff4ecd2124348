"""Nodes: taints that follow their conditions, and what happens when one stops to report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.sandbox.control_plane.controllers.cluster import LEASE, NODE, POD, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, condition, is_deleting, key_of, with_condition
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key

SOURCE = "node-controller"
GRACE_SECONDS = 50.0
STARTUP_GRACE_SECONDS = 60.0
STALL_SECONDS = 3.0
"""Wall-clock silence that is needed besides the grace period. On a clock that runs 60 times faster a short stall of
this process would otherwise look like nodes that died."""

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
CORDONED = "node.kubernetes.io/unschedulable"
LEASE_NAMESPACE = "kube-node-lease"

_TAINT_OF = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
}
_MANAGED = frozenset({*_TAINT_OF.values(), CORDONED})
_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(slots=True)
class _Probe:
    """When a node last gave a sign of life, on the store's clock and on the wall clock."""

    at: datetime
    wall: float
    heartbeat: str | None
    lease: str | None = None


def no_schedule_taints(node: Object) -> list[str]:
    """Keys of the NoSchedule taints that a node's conditions and cordon ask for."""
    keys = [
        _TAINT_OF[each["type"], each["status"]]
        for each in (node.get("status") or {}).get("conditions") or ()
        if (each.get("type"), each.get("status")) in _TAINT_OF
    ]
    if (node.get("spec") or {}).get("unschedulable"):
        keys.append(CORDONED)
    return keys


class NodeLifecycle:
    """Judges the health of nodes, and taints them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("node lifecycle", self.reconcile)
        self._late_pods = cluster.work.queue("pods of lost nodes", self._mark_late_pod)
        self._probes: dict[str, _Probe] = {}
        cluster.on(NODE, self._node_changed)
        cluster.on(LEASE, self._lease_changed)
        cluster.on(POD, self._pod_changed)
        cluster.work.jump_hooks.append(self._clock_jumped)

    # Signs of life

    def _node_changed(self, event: str, node: Object, old: Object | None) -> None:
        name = node["metadata"]["name"]
        if event == "DELETED":
            self._probes.pop(name, None)
            self._say(node, "RemovingNode", f"Removing Node {name} from Controller")
            return
        ready = condition(node, "Ready")
        heartbeat = ready.get("lastHeartbeatTime") if ready is not None else None
        probe = self._probes.get(name)
        if probe is None:
            self._probes[name] = _Probe(self._cluster.now(), time.monotonic(), heartbeat)
            self._say(node, "RegisteredNode", f"Registered Node {name} in Controller")
        elif heartbeat is not None and heartbeat != probe.heartbeat:
            probe.heartbeat = heartbeat
            self._renew(probe)
        if old is None or _health_part(node) != _health_part(old):
            self._queue.add(("", name))

    def _lease_changed(self, event: str, lease: Object, old: Object | None) -> None:
        meta = lease["metadata"]
        probe = self._probes.get(meta["name"]) if meta.get("namespace") == LEASE_NAMESPACE else None
        renewed = (lease.get("spec") or {}).get("renewTime")
        if probe is not None and event != "DELETED" and renewed != probe.lease:
            probe.lease = renewed
            self._renew(probe)

    def _renew(self, probe: _Probe) -> None:
        probe.at, probe.wall = self._cluster.now(), time.monotonic()

    def _clock_jumped(self) -> None:
        """Nobody could have renewed anything in time that did not pass."""
        for probe in self._probes.values():
            self._renew(probe)

    def _pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        """A pod that gets bound to a node that is away is not ready."""
        name = pod["spec"].get("nodeName")
        if event == "DELETED" or not name or (old is not None and old["spec"].get("nodeName") == name):
            return
        node = self._cluster.store.get(NODE, None, name)
        ready = condition(node, "Ready") if node is not None else None
        if ready is not None and ready.get("status") != "True":
            self._late_pods.add(key_of(pod))

    def _mark_late_pod(self, key: Key) -> None:
        pod = self._cluster.view.pods.get(key)
        if pod is not None and pod.ready:
            self._mark_pod(pod)

    # Judgement

    def reconcile(self, key: Key) -> None:
        """Judge one node, and make an appointment for the next time."""
        node = self._cluster.store.get(NODE, None, key[1])
        probe = self._probes.get(key[1])
        if node is None or probe is None:
            return
        ready = condition(node, "Ready")
        was_ready = ready is not None and ready.get("status") == "True"
        grace = GRACE_SECONDS if ready is not None else STARTUP_GRACE_SECONDS
        left = self._silence_left(probe, grace)
        if left <= 0:
            node = self._mark_unknown(node)
        else:
            self._queue.add_after(key, left)
        self._taint(node)
        if left <= 0 and was_ready:
            # Only of a node that fell silent: one that says itself that it is not ready speaks for its pods, too.
            self._say(node, "NodeNotReady", f"Node {key[1]} status is now: NodeNotReady")
            for pod in self._cluster.view.pods_on(key[1]):
                if pod.ready:
                    self._mark_pod(pod)

    def _silence_left(self, probe: _Probe, grace: float) -> float:
        """Seconds of the store's clock until the node counts as lost; 0 when it does."""
        left = (probe.at + timedelta(seconds=grace) - self._cluster.now()).total_seconds()
        real_second = self._cluster.clock.real_seconds(1.0)
        if left <= 0 and real_second > 0:
            return max(0.0, (STALL_SECONDS - (time.monotonic() - probe.wall)) / real_second)
        return left

    def _mark_unknown(self, node: Object) -> Object:
        status = dict(node.get("status") or {})
        conditions = list(status.get("conditions") or ())
        stamp = self._cluster.stamp()
        for kind in _CONDITIONS:
            known = next((each for each in conditions if each["type"] == kind), None)
            if known is None:
                conditions.append(
                    {
                        "type": kind,
                        "status": "Unknown",
                        "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
                        "lastTransitionTime": stamp,
                        "reason": "NodeStatusNeverUpdated",
                        "message": "Kubelet never posted node status.",
                    }
                )
            elif known["status"] != "Unknown":
                conditions = with_condition(
                    conditions,
                    {
                        **known,
                        "status": "Unknown",
                        "lastTransitionTime": stamp,
                        "reason": "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status.",
                    },
                )
        status["conditions"] = conditions
        return self._cluster.write_status(NODE, node, status)

    def _taint(self, node: Object) -> Object:
        """NoSchedule as the conditions ask; NoExecute while the node is not ready, unless all nodes are away."""
        spec = node.get("spec") or {}
        taints = list(spec.get("taints") or ())
        wanted = no_schedule_taints(node)
        kept = [
            each
            for each in taints
            if not (each.get("effect") == "NoSchedule" and each["key"] in _MANAGED and each["key"] not in wanted)
        ]
        present = {each["key"] for each in kept if each.get("effect") == "NoSchedule"}
        stamp = self._cluster.stamp()
        kept += [{"key": key, "effect": "NoSchedule", "timeAdded": stamp} for key in wanted if key not in present]
        ready = condition(node, "Ready")
        if ready is not None:
            executing = _TAINT_OF.get(("Ready", ready.get("status", "")))
            if executing is not None and self._all_away():
                executing = None
            kept = [
                each
                for each in kept
                if each.get("effect") != "NoExecute"
                or each["key"] not in (NOT_READY, UNREACHABLE)
                or each["key"] == executing
            ]
            if executing and not any((t["key"], t.get("effect")) == (executing, "NoExecute") for t in kept):
                kept.append({"key": executing, "effect": "NoExecute", "timeAdded": stamp})
        if kept == taints:
            return node
        changed = {key: value for key, value in spec.items() if key != "taints"}
        if kept:
            changed["taints"] = kept
        return self._cluster.write(NODE, {**node, "spec": changed})

    def _all_away(self) -> bool:
        """With every node away the fault is likely on this side: nothing is thrown off."""
        for node in self._cluster.store.list(NODE):
            ready = condition(node, "Ready")
            if ready is not None and ready.get("status") == "True":
                return False
        return True

    def _mark_pod(self, pod: PodFacts) -> None:
        ready = condition(pod.obj, "Ready")
        if ready is None:
            return
        changed = {**ready, "status": "False", "lastTransitionTime": self._cluster.stamp()}
        status = {**pod.obj["status"], "conditions": with_condition(pod.obj["status"]["conditions"], changed)}
        self._cluster.write_status(POD, pod.obj, status)
        self._cluster.events.emit(pod.obj, POD, "Warning", "NodeNotReady", "Node is not ready", SOURCE)

    def _say(self, node: Object, reason: str, message: str) -> None:
        if not is_deleting(node):
            self._cluster.events.emit(node, NODE, "Normal", reason, message, SOURCE)


def _health_part(node: Object) -> tuple[object, ...]:
    """What a judgement depends on; the time stamps of a heartbeat leave it equal."""
    spec = node.get("spec") or {}
    states = [(each.get("type"), each.get("status")) for each in (node.get("status") or {}).get("conditions") or ()]
    return spec.get("taints"), bool(spec.get("unschedulable")), states
