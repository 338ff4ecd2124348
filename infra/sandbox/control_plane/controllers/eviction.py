"""Pods that have to leave without anybody asking: NoExecute taints, nodes that are gone, pods that never ran."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from infra.sandbox.control_plane.controllers.cluster import NODE, POD, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, condition, is_deleting, key_of, with_condition
from infra.sandbox.control_plane.controllers.selectors import tolerates
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key

SOURCE = "taint-eviction-controller"
QUARANTINE_SECONDS = 40.0
"""How long a node must be gone before its pods are removed (podgc of the real controller manager)."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def patience(taints: list[Object], tolerations: list[Object]) -> float:
    """Seconds that a pod may stay under these NoExecute taints; infinite when it tolerates them for good."""
    used: list[Object] = []
    for taint in taints:
        accepting = [each for each in tolerations if tolerates(each, taint)]
        if not accepting:
            return 0.0
        used += accepting
    limits = [each["tolerationSeconds"] for each in used if each.get("tolerationSeconds") is not None]
    return max(0.0, float(min(limits))) if limits else math.inf


class Evictions:
    """Removes such pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._taints = cluster.work.queue("taint eviction", self._judge_pod)
        self._since: dict[Key, tuple[str, datetime]] = {}
        """UID, and when the pod first had to be patient."""
        self._orphans = cluster.work.queue("pod gc", self._collect)
        cluster.on(POD, self._pod_changed)
        cluster.on(NODE, self._node_changed)

    def _pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        key = key_of(pod)
        if event == "DELETED":
            self._since.pop(key, None)
            return
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            if is_deleting(pod):
                self._orphans.add(key)
            return
        if old is not None and old["spec"].get("nodeName") == node_name and is_deleting(old) == is_deleting(pod):
            return
        node = self._cluster.store.get(NODE, None, node_name)
        if node is None:
            self._orphans.add_after(key, QUARANTINE_SECONDS)
        else:
            if _executing(node):
                self._taints.add(key)
            if is_deleting(pod) and _is_out_of_service(node):
                self._orphans.add(key)

    def _node_changed(self, event: str, node: Object, old: Object | None) -> None:
        name = node["metadata"]["name"]
        if event == "DELETED":
            for pod in self._cluster.view.pods_on(name):
                self._orphans.add_after(pod.key, QUARANTINE_SECONDS)
            return
        if old is not None and (old.get("spec") or {}).get("taints") == (node.get("spec") or {}).get("taints"):
            return
        if _executing(node) or (old is not None and _executing(old)):
            for pod in self._cluster.view.pods_on(name):
                self._taints.add(pod.key)
        if _is_out_of_service(node):
            for pod in self._cluster.view.pods_on(name):
                self._orphans.add(pod.key)

    # NoExecute taints

    def _judge_pod(self, key: Key) -> None:
        pod = self._cluster.view.pods.get(key)
        node = self._cluster.store.get(NODE, None, pod.node) if pod is not None and pod.node else None
        if pod is None or node is None or pod.deleting:
            return
        taints = _executing(node)
        stay = patience(taints, pod.obj["spec"].get("tolerations") or []) if taints else math.inf
        if stay == math.inf:
            self._since.pop(key, None)
            return
        now = self._cluster.now()
        uid, since = self._since.setdefault(key, (pod.uid, now))
        if uid != pod.uid:
            self._since[key] = (pod.uid, now)
            since = now
        left = stay - (now - since).total_seconds()
        if left > 0:
            self._taints.add_after(key, left)
            return
        text = f"Marking for deletion Pod {key[0]}/{key[1]}"
        self._cluster.events.emit(pod.obj, POD, "Normal", "TaintManagerEviction", text, SOURCE)
        marked = self._mark(
            pod.obj, reason="DeletionByTaintManager", message="Taint manager: deleting due to NoExecute taint"
        )
        self._cluster.delete(POD, marked)

    # Pods without a node

    def _collect(self, key: Key) -> None:
        pod = self._cluster.view.pods.get(key)
        if pod is None:
            return
        if not pod.node:
            if pod.deleting:
                self._remove(pod)
            return
        node = self._cluster.store.get(NODE, None, pod.node)
        if node is None:
            self._remove(pod, reason="DeletionByPodGC", message="PodGC: node no longer exists")
        elif pod.deleting and _is_out_of_service(node):
            ready = condition(node, "Ready")
            if ready is None or ready.get("status") != "True":
                self._remove(pod)

    def _remove(self, pod: PodFacts, *, reason: str = "", message: str = "") -> None:
        obj = pod.obj
        if not pod.finished:
            if reason:
                obj = self._mark(obj, reason=reason, message=message, phase="Failed")
            else:
                obj = self._cluster.write_status(POD, obj, {**obj["status"], "phase": "Failed"})
        self._cluster.delete(POD, obj, grace=0)

    def _mark(self, pod: Object, *, reason: str, message: str, **more: Any) -> Object:
        target = {
            "type": "DisruptionTarget",
            "observedGeneration": pod["metadata"].get("generation", 1),
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._cluster.stamp(),
            "reason": reason,
            "message": message,
        }
        status = {**pod["status"], **more, "conditions": with_condition(pod["status"].get("conditions"), target)}
        return self._cluster.write_status(POD, pod, status)


def _executing(node: Object) -> list[Object]:
    return [each for each in (node.get("spec") or {}).get("taints") or () if each.get("effect") == "NoExecute"]


def _is_out_of_service(node: Object) -> bool:
    return any(each["key"] == OUT_OF_SERVICE for each in (node.get("spec") or {}).get("taints") or ())
