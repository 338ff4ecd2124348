"""DaemonSets: one pod on every node that suits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from infra.sandbox.control_plane.controllers import pods as owned
from infra.sandbox.control_plane.controllers import revisions
from infra.sandbox.control_plane.controllers.cluster import (
    DAEMON_SET,
    NODE,
    Cluster,
    is_terminating_namespace,
)
from infra.sandbox.control_plane.controllers.daemon_placement import (
    Fit,
    daemon_spec,
    judge_node,
    pinned,
    target_node,
)
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    available_in,
    is_deleting,
    key_of,
    labels_of,
    scaled,
)
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError

SOURCE = "daemonset-controller"
BURST = 250
"""Pods made or deleted in one reconcile, as the real controller bounds it."""
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 900.0


class DaemonSets:
    """Makes and deletes daemon pods and counts them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("daemonset", self.reconcile)
        self._backoffs: dict[tuple[str, str], tuple[float, datetime]] = {}
        cluster.on(DAEMON_SET, lambda event, obj, old: self._queue.add(key_of(obj)))
        cluster.own_pods(DAEMON_SET, self._queue, self._bare_pod_changed)
        cluster.on(NODE, self._node_changed)

    def _bare_pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        for daemon_set in self._cluster.store.list(DAEMON_SET, pod["metadata"]["namespace"]):
            if label_matcher(daemon_set["spec"].get("selector"))(labels_of(pod)):
                self._queue.add(key_of(daemon_set))

    def _node_changed(self, event: str, node: Object, old: Object | None) -> None:
        """Heartbeats are ignored; labels and taints are not."""
        if event == "MODIFIED" and old is not None and _placement(node) == _placement(old):
            return
        for daemon_set in self._cluster.store.list(DAEMON_SET):
            self._queue.add(key_of(daemon_set))

    def reconcile(self, key: Key) -> None:
        """Bring one DaemonSet to one pod a node and write its status."""
        daemon_set = self._cluster.get(DAEMON_SET, key)
        if daemon_set is None or is_deleting(daemon_set):
            return
        history = revisions.find(self._cluster, daemon_set, DAEMON_SET, hash_label=revisions.HASH_LABEL)
        digest = labels_of(history.update)[revisions.HASH_LABEL]
        spec = daemon_spec(daemon_set["spec"]["template"]["spec"])
        nodes = self._cluster.store.list(NODE)
        fits = {node["metadata"]["name"]: judge_node(spec, node) for node in nodes}
        failure: ApiError | None = None
        try:
            self._place(daemon_set, spec, fits, digest)
            self._roll(daemon_set, spec, fits, digest)
        except ApiError as error:
            failure = error
        pods = self._pods_by_node(daemon_set)
        live = {history.update["metadata"]["name"]} | {
            f"{key[1]}-{labels_of(pod.obj).get(revisions.HASH_LABEL)}" for group in pods.values() for pod in group
        }
        revisions.trim(self._cluster, daemon_set, history.all, live)
        self._write_status(daemon_set, fits, pods, digest)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure

    def _pods_by_node(self, daemon_set: Object) -> dict[str, list[PodFacts]]:
        groups: dict[str, list[PodFacts]] = {}
        for pod in owned.claimed(self._cluster, daemon_set, DAEMON_SET):
            node = target_node(pod)
            if node and not (pod.finished and pod.deleting):
                groups.setdefault(node, []).append(pod)
        for group in groups.values():
            group.sort(key=lambda pod: (not pod.node, pod.obj["metadata"]["creationTimestamp"], pod.key))
        return groups

    # Place

    def _place(self, daemon_set: Object, spec: Object, fits: dict[str, Fit], digest: str) -> None:
        pods = self._pods_by_node(daemon_set)
        missing: list[str] = []
        gone: list[PodFacts] = []
        for node, fit in fits.items():
            present = pods.get(node, [])
            if fit.run and not present:
                missing.append(node)
            elif fit.stay:
                gone += self._surplus(daemon_set, node, present, digest)
                if _surge(daemon_set) and fit.run and not any(not pod.deleting for pod in present):
                    missing.append(node)
            else:
                gone += [pod for pod in present if not pod.deleting]
        gone += [pod for node, group in pods.items() if node not in fits for pod in group if not pod.node]
        self._write_pods(daemon_set, spec, missing, gone, digest)

    def _surplus(self, daemon_set: Object, node: str, pods: list[PodFacts], digest: str) -> list[PodFacts]:
        """Pods of a suitable node to delete: finished ones, and all but the oldest of those that run."""
        gone = []
        running = []
        for pod in pods:
            if pod.deleting:
                continue
            if pod.phase == "Failed":
                if self._may_replace_failed(daemon_set, node):
                    say = f"Found failed daemon pod {pod.key[0]}/{pod.key[1]} on node {node}, will try to kill it"
                    self._cluster.events.emit(daemon_set, DAEMON_SET, "Warning", "FailedDaemonPod", say, SOURCE)
                    gone.append(pod)
            elif pod.phase == "Succeeded":
                say = f"Found succeeded daemon pod {pod.key[0]}/{pod.key[1]} on node {node}, will try to delete it"
                self._cluster.events.emit(daemon_set, DAEMON_SET, "Normal", "SucceededDaemonPod", say, SOURCE)
                gone.append(pod)
            else:
                running.append(pod)
        if not _surge(daemon_set):
            return gone + running[1:]
        new = [pod for pod in running if _is_updated(pod, digest)]
        old = [pod for pod in running if not _is_updated(pod, digest)]
        gone += new[1:] + old[1:]
        if new and old and (not old[0].ready or self._is_available(daemon_set, new[0])):
            gone.append(old[0])
        return gone

    def _may_replace_failed(self, daemon_set: Object, node: str) -> bool:
        """A node whose daemon pods keep failing gets a new one ever more rarely."""
        now = self._cluster.now()
        key = (daemon_set["metadata"]["uid"], node)
        pause, last = self._backoffs.get(key, (0.0, now))
        elapsed = (now - last).total_seconds()
        if elapsed < pause:
            self._queue.add_after(key_of(daemon_set), pause - elapsed)
            return False
        if elapsed > 2 * _LONGEST_BACKOFF_SECONDS:
            pause = 0.0
        self._backoffs[key] = (min(max(pause * 2, _FIRST_BACKOFF_SECONDS), _LONGEST_BACKOFF_SECONDS), now)
        return True

    def _write_pods(
        self, daemon_set: Object, spec: Object, missing: list[str], gone: list[PodFacts], digest: str
    ) -> None:
        template = daemon_set["spec"]["template"]
        meta = template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), revisions.HASH_LABEL: digest}
        generation = (daemon_set["metadata"].get("annotations") or {}).get("deprecated.daemonset.template.generation")
        if generation:
            labels["pod-template-generation"] = generation
        for node in missing[:BURST]:
            one = {"metadata": {**meta, "labels": labels}, "spec": pinned(spec, node)}
            self._cluster.create_pod(one, daemon_set, DAEMON_SET, source=SOURCE)
        for pod in gone[:BURST]:
            self._cluster.delete_pod(pod, daemon_set, DAEMON_SET, source=SOURCE)

    # Update

    def _is_available(self, daemon_set: Object, pod: PodFacts) -> bool:
        wait = daemon_set["spec"].get("minReadySeconds") or 0
        return pod.ready and available_in(pod.ready_since, wait, self._cluster.now()) <= 0

    def _roll(self, daemon_set: Object, spec: Object, fits: dict[str, Fit], digest: str) -> None:
        """Replace pods of old templates within maxUnavailable, or add new ones beside them within maxSurge."""
        strategy = daemon_set["spec"].get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return
        pods = self._pods_by_node(daemon_set)
        desired = sum(fit.run for fit in fits.values())
        rolling = strategy.get("rollingUpdate") or {}
        most_unavailable = scaled(rolling.get("maxUnavailable", 1), desired, up=True)
        surge = scaled(rolling.get("maxSurge", 0), desired, up=True)
        if surge == 0:
            self._replace_old(daemon_set, pods, max(most_unavailable, 1), digest)
        else:
            self._surge_new(daemon_set, spec, fits, pods, surge, digest)

    def _replace_old(
        self, daemon_set: Object, pods: dict[str, list[PodFacts]], most_unavailable: int, digest: str
    ) -> None:
        unavailable = 0
        at_once: list[PodFacts] = []
        candidates: list[PodFacts] = []
        for group in pods.values():
            new, old = _split(group, digest)
            if len(new) > 1 or len(old) > 1 or bool(new) == bool(old):
                unavailable += 1
            elif new:
                unavailable += not self._is_available(daemon_set, new[0])
            elif not self._is_available(daemon_set, old[0]):
                at_once.append(old[0])
                unavailable += 1
            else:
                candidates.append(old[0])
        left = max(0, most_unavailable - unavailable)
        self._write_pods(daemon_set, {}, [], at_once + candidates[:left], digest)

    def _surge_new(
        self,
        daemon_set: Object,
        spec: Object,
        fits: dict[str, Fit],
        pods: dict[str, list[PodFacts]],
        surge: int,
        digest: str,
    ) -> None:
        used = 0
        gone: list[PodFacts] = []
        at_once: list[str] = []
        candidates: list[str] = []
        for node, group in pods.items():
            new, old = _split(group, digest)
            if len(new) > 1 or len(old) > 1:
                used += 1
            elif not old or node not in fits:
                continue
            elif new:
                if self._is_available(daemon_set, new[0]):
                    gone.append(old[0])
                else:
                    used += 1
            elif not fits[node].run:
                if not self._is_available(daemon_set, old[0]):
                    gone.append(old[0])
            elif self._is_available(daemon_set, old[0]):
                candidates.append(node)
            else:
                at_once.append(node)
        self._write_pods(daemon_set, spec, at_once + candidates[: max(0, surge - used)], gone, digest)

    # Status

    def _write_status(
        self, daemon_set: Object, fits: dict[str, Fit], pods: dict[str, list[PodFacts]], digest: str
    ) -> None:
        should = [node for node, fit in fits.items() if fit.run]
        leading = [pods[node][0] for node in should if pods.get(node)]
        ready = [pod for pod in leading if pod.ready]
        available = sum(self._is_available(daemon_set, pod) for pod in ready)
        status: Object = {
            "currentNumberScheduled": len(leading),
            "numberMisscheduled": sum(bool(pods.get(node)) for node, fit in fits.items() if not fit.run),
            "desiredNumberScheduled": len(should),
            "numberReady": len(ready),
            "observedGeneration": daemon_set["metadata"].get("generation", 1),
        }
        counts = {
            "updatedNumberScheduled": sum(_is_updated(pod, digest) for pod in leading),
            "numberAvailable": available,
            "numberUnavailable": len(should) - available,
        }
        status |= {name: count for name, count in counts.items() if count}
        for kept in ("collisionCount", "conditions"):
            if (daemon_set.get("status") or {}).get(kept):
                status[kept] = daemon_set["status"][kept]
        self._cluster.write_status(DAEMON_SET, daemon_set, status)
        wait = daemon_set["spec"].get("minReadySeconds") or 0
        if available < len(ready):
            now = self._cluster.now()
            pauses = [available_in(pod.ready_since, wait, now) for pod in ready]
            self._queue.add_after(key_of(daemon_set), min((each for each in pauses if each > 0), default=wait))


def _placement(node: Object) -> tuple[object, object]:
    return node["metadata"].get("labels"), (node.get("spec") or {}).get("taints")


def _surge(daemon_set: Object) -> bool:
    rolling = (daemon_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return rolling.get("maxSurge") not in (None, 0, "0%", "0")


def _is_updated(pod: PodFacts, digest: str) -> bool:
    return labels_of(pod.obj).get(revisions.HASH_LABEL) == digest


def _split(group: Iterable[PodFacts], digest: str) -> tuple[list[PodFacts], list[PodFacts]]:
    """Pods that are to stay, by whether they are of the present template."""
    staying = [pod for pod in group if not pod.deleting]
    return [p for p in staying if _is_updated(p, digest)], [p for p in staying if not _is_updated(p, digest)]
