"""ReplicaSets: as many active pods as spec.replicas says."""

from __future__ import annotations

from infra.sandbox.control_plane.controllers import pods
from infra.sandbox.control_plane.controllers.cluster import REPLICA_SET, Cluster, is_terminating_namespace
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    available_in,
    condition,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    with_condition,
    without_condition,
)
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.view import PodFacts
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError

SOURCE = "replicaset-controller"
BURST = 500
"""Pods made or deleted in one reconcile, as the real controller bounds it."""


class ReplicaSets:
    """Makes and deletes pods, and counts them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("replicaset", self.reconcile)
        cluster.on(REPLICA_SET, lambda event, obj, old: self._queue.add(key_of(obj)))
        cluster.own_pods(REPLICA_SET, self._queue, self._bare_pod_changed)

    def _bare_pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        for candidate in self._cluster.store.list(REPLICA_SET, pod["metadata"]["namespace"]):
            if label_matcher(candidate["spec"].get("selector"))(labels_of(pod)):
                self._queue.add(key_of(candidate))

    def reconcile(self, key: Key) -> None:
        """Bring one ReplicaSet to its number of pods and write its status."""
        replica_set = self._cluster.get(REPLICA_SET, key)
        if replica_set is None:
            return
        mine = pods.claimed(self._cluster, replica_set, REPLICA_SET)
        active = [pod for pod in mine if pod.active]
        failure: ApiError | None = None
        if not is_deleting(replica_set):
            failure = self._manage(replica_set, active)
        # Counted before the pods made or deleted just now, as the real controller does; their events come next.
        terminating = sum(pod.deleting and not pod.finished for pod in mine)
        self._write_status(replica_set, active, terminating, failure)
        if failure is not None and not is_terminating_namespace(failure):
            raise failure

    def _manage(self, replica_set: Object, active: list[PodFacts]) -> ApiError | None:
        surplus = len(active) - replica_set["spec"].get("replicas", 1)
        try:
            if surplus < 0:
                template = replica_set["spec"]["template"]
                for _ in range(min(-surplus, BURST)):
                    self._cluster.create_pod(template, replica_set, REPLICA_SET, source=SOURCE)
            elif surplus > 0:
                for pod in self._victims(replica_set, active, min(surplus, BURST)):
                    self._cluster.delete_pod(pod, replica_set, REPLICA_SET, source=SOURCE)
        except ApiError as error:
            return error
        return None

    def _victims(self, replica_set: Object, active: list[PodFacts], count: int) -> list[PodFacts]:
        if count >= len(active):
            return active
        related = self._siblings_pods(replica_set) or active
        return pods.removal_order(active, related, self._cluster.now())[:count]

    def _siblings_pods(self, replica_set: Object) -> list[PodFacts]:
        """Pods of all ReplicaSets that share this one's controller: they count as crowding a node."""
        owner = controller_of(replica_set)
        if owner is None:
            return []
        view = self._cluster.view
        return [
            pod
            for place in view.dependents_of(owner["uid"])
            if place.kind.key == REPLICA_SET.key
            for sibling in (self._cluster.get(REPLICA_SET, place.key),)
            if sibling is not None
            for pod in view.pods_of(sibling["metadata"]["uid"])
        ]

    def _write_status(
        self, replica_set: Object, active: list[PodFacts], terminating: int, failure: ApiError | None
    ) -> None:
        now = self._cluster.now()
        spec = replica_set["spec"]
        wanted = (spec["template"].get("metadata") or {}).get("labels") or {}
        wait = spec.get("minReadySeconds") or 0
        ready = [pod for pod in active if pod.ready]
        pauses = [available_in(pod.ready_since, wait, now) for pod in ready] if wait else []
        available = len(ready) - sum(pause > 0 for pause in pauses)
        labelled = sum(pod.has_labels(wanted) for pod in active)
        conditions = list((replica_set.get("status") or {}).get("conditions") or ())
        known = condition(replica_set, "ReplicaFailure")
        if failure is not None and known is None:
            reason = "FailedCreate" if len(active) < spec.get("replicas", 1) else "FailedDelete"
            conditions = with_condition(
                conditions,
                {
                    "type": "ReplicaFailure",
                    "status": "True",
                    "lastTransitionTime": self._cluster.stamp(),
                    "reason": reason,
                    "message": failure.message,
                },
            )
        elif failure is None and known is not None:
            conditions = without_condition(conditions, "ReplicaFailure")
        status: Object = {"replicas": len(active)}
        counts = {"fullyLabeledReplicas": labelled, "readyReplicas": len(ready), "availableReplicas": available}
        status |= {name: count for name, count in counts.items() if count}
        status["terminatingReplicas"] = terminating
        status["observedGeneration"] = replica_set["metadata"].get("generation", 1)
        if conditions:
            status["conditions"] = conditions
        self._cluster.write_status(REPLICA_SET, replica_set, status)
        if available < len(ready):
            self._queue.add_after(key_of(replica_set), min(pause for pause in pauses if pause > 0))
