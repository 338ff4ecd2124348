"""Deployments: one ReplicaSet a pod template, rolled from old to new within surge and unavailability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.sandbox.control_plane.controllers import rollout
from infra.sandbox.control_plane.controllers.cluster import DEPLOYMENT, REPLICA_SET, Cluster, is_terminating_namespace
from infra.sandbox.control_plane.controllers.generations import SOURCE, Generations, Sets
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    condition,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    without_condition,
)
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError


class Deployments:
    """Makes, scales and removes ReplicaSets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("deployment", self.reconcile)
        self._generations = Generations(cluster)
        cluster.on(DEPLOYMENT, lambda event, obj, old: self._queue.add(key_of(obj)))
        cluster.on(REPLICA_SET, self._set_changed)

    def _set_changed(self, event: str, replica_set: Object, old: Object | None) -> None:
        namespace = replica_set["metadata"]["namespace"]
        for each in (controller_of(replica_set), controller_of(old) if old is not None else None):
            if each is not None and each["kind"] == "Deployment":
                self._queue.add((namespace, each["name"]))
        if self._generations.note_bare(event, replica_set):
            for deployment in self._cluster.store.list(DEPLOYMENT, namespace):
                if label_matcher(deployment["spec"].get("selector"))(labels_of(replica_set)):
                    self._queue.add(key_of(deployment))

    def reconcile(self, key: Key) -> None:
        """Move one Deployment a step nearer to its template and size, and write its status."""
        deployment = self._cluster.get(DEPLOYMENT, key)
        if deployment is None:
            return
        sets = self._generations.find(deployment)
        if is_deleting(deployment):
            self._write(deployment, rollout.counted_status(deployment, sets.all, sets.new, self._cluster.stamp()))
            return
        deployment = self._mark_paused(deployment)
        try:
            if deployment["spec"].get("paused") or self._is_scaling(deployment, sets):
                self._scale_only(deployment)
            elif rollout.is_rolling(deployment):
                self._roll(deployment)
            else:
                self._recreate(deployment)
        except ApiError as error:
            if not is_terminating_namespace(error):
                raise

    def _current(self, deployment: Object) -> Object:
        return self._cluster.get(DEPLOYMENT, key_of(deployment)) or deployment

    def _mark_paused(self, deployment: Object) -> Object:
        if not rollout.has_deadline(deployment):
            return deployment
        known = condition(deployment, "Progressing")
        if known is not None and known.get("reason") == "ProgressDeadlineExceeded":
            return deployment
        paused = bool(deployment["spec"].get("paused"))
        marked = known is not None and known.get("reason") == "DeploymentPaused"
        if paused == marked:
            return deployment
        word = "Paused" if paused else "Resumed"
        status = dict(deployment.get("status") or {})
        rollout.set_condition(
            status,
            rollout.new_condition(
                "Progressing", "Unknown", f"Deployment{word}", f"Deployment is {word.lower()}", self._cluster.stamp()
            ),
        )
        return self._cluster.write_status(DEPLOYMENT, deployment, status)

    # Scaling

    def _say(self, deployment: Object, message: str) -> None:
        self._cluster.events.emit(deployment, DEPLOYMENT, "Normal", "ScalingReplicaSet", message, SOURCE)

    def _resize(self, deployment: Object, replica_set: Object, count: int) -> bool:
        """Scale one ReplicaSet and keep its annotations about the Deployment's size. True if its size changed."""
        bounds = rollout.bounds_of(deployment)
        annotations = {
            **(replica_set["metadata"].get("annotations") or {}),
            rollout.DESIRED: str(bounds.replicas),
            rollout.MAXIMUM: str(bounds.most),
        }
        before = rollout.size(replica_set)
        if before == count and annotations == (replica_set["metadata"].get("annotations") or {}):
            return False
        self._cluster.write(
            REPLICA_SET,
            {
                **replica_set,
                "metadata": {**replica_set["metadata"], "annotations": annotations},
                "spec": {**replica_set["spec"], "replicas": count},
            },
        )
        if before == count:
            return False
        way = "up" if before < count else "down"
        self._say(deployment, f"Scaled {way} replica set {replica_set['metadata']['name']} from {before} to {count}")
        return True

    def _resize_all(self, deployment: Object, sizes: Mapping[str, int]) -> bool:
        changed = False
        namespace = deployment["metadata"]["namespace"]
        for name, count in sizes.items():
            replica_set = self._cluster.store.get(REPLICA_SET, namespace, name)
            if replica_set is not None:
                changed |= self._resize(deployment, replica_set, count)
        return changed

    def _is_scaling(self, deployment: Object, sets: Sets) -> bool:
        replicas = deployment["spec"].get("replicas", 1)
        return any(
            rollout.size(each) > 0 and rollout.annotated(each, rollout.DESIRED) not in (None, replicas)
            for each in sets.all
        )

    def _scale_only(self, deployment: Object) -> None:
        sets = self._generations.prepare(deployment, create=False)
        deployment = self._current(deployment)
        replicas = deployment["spec"].get("replicas", 1)
        active = [each for each in sets.all if rollout.size(each) > 0]
        latest = active[0] if len(active) == 1 else (sets.new or (sets.old[-1] if sets.old else None))
        if len(active) <= 1:
            if latest is not None and rollout.size(latest) != replicas:
                self._resize(deployment, latest, replicas)
        elif _is_saturated(replicas, sets.new):
            self._resize_all(deployment, {each["metadata"]["name"]: 0 for each in sets.old if rollout.size(each)})
        elif rollout.is_rolling(deployment):
            self._resize_all(deployment, rollout.proportional_sizes(deployment, active))
        if deployment["spec"].get("paused"):
            self._clean_up(deployment, sets.old)
        self._finish(deployment, judge=False)

    # Strategies

    def _roll(self, deployment: Object) -> None:
        sets = self._generations.prepare(deployment, create=True)
        deployment = self._current(deployment)
        new = sets.new
        if new is None:
            return
        bounds = rollout.bounds_of(deployment)
        if rollout.size(new) != bounds.replicas:
            count = bounds.replicas
            if rollout.size(new) < count:
                count = rollout.new_set_size(deployment, sets.all, rollout.size(new))
            if count != rollout.size(new) and self._resize(deployment, new, count):
                self._finish(deployment)
                return
        if self._shrink_old(deployment, sets, new, bounds):
            self._finish(deployment)
            return
        if rollout.is_complete(deployment, deployment.get("status") or {}):
            self._clean_up(deployment, sets.old)
        self._finish(deployment)

    def _shrink_old(self, deployment: Object, sets: Sets, new: Object, bounds: rollout.Bounds) -> bool:
        old = [each for each in sets.old if rollout.size(each) > 0]
        if not old:
            return False
        not_yet = rollout.size(new) - rollout.counted(new, "availableReplicas")
        most = sum(rollout.size(each) for each in sets.all) - bounds.least_available - not_yet
        if most <= 0:
            return False
        sizes, _ = rollout.sizes_after_cleanup(old, most)
        changed = self._resize_all(deployment, sizes)
        old = [self._cluster.get(REPLICA_SET, key_of(each)) or each for each in old]
        available = rollout.total([*sets.old, new], "availableReplicas")
        changed |= self._resize_all(deployment, rollout.sizes_after_scale_down(old, available, bounds))
        return changed

    def _recreate(self, deployment: Object) -> None:
        sets = self._generations.prepare(deployment, create=False)
        deployment = self._current(deployment)
        sizes = {each["metadata"]["name"]: 0 for each in sets.old if rollout.size(each)}
        if self._resize_all(deployment, sizes) or self._old_pods_left(sets):
            self._finish(deployment)
            return
        if sets.new is None:
            sets = self._generations.prepare(deployment, create=True)
            deployment = self._current(deployment)
        if sets.new is not None:
            replicas = deployment["spec"].get("replicas", 1)
            if rollout.size(sets.new) != replicas:
                self._resize(deployment, sets.new, replicas)
        if rollout.is_complete(deployment, deployment.get("status") or {}):
            self._clean_up(deployment, sets.old)
        self._finish(deployment)

    def _old_pods_left(self, sets: Sets) -> bool:
        return any(
            not pod.finished for each in sets.old for pod in self._cluster.view.pods_of(each["metadata"]["uid"])
        ) or bool(rollout.total(sets.old, "replicas"))

    def _clean_up(self, deployment: Object, old: Sequence[Object]) -> None:
        """Remove the oldest empty ReplicaSets beyond revisionHistoryLimit."""
        alive = [each for each in old if not is_deleting(each)]
        surplus = len(alive) - deployment["spec"].get("revisionHistoryLimit", 10)
        for each in sorted(alive, key=rollout.revision_of)[: max(0, surplus)]:
            generation = each["metadata"].get("generation", 1)
            if (
                rollout.counted(each, "replicas") == 0
                and rollout.size(each) == 0
                and generation <= rollout.counted(each, "observedGeneration")
            ):
                self._cluster.delete(REPLICA_SET, each)

    # Status

    def _finish(self, deployment: Object, *, judge: bool = True) -> None:
        deployment = self._current(deployment)
        sets = self._generations.find(deployment)
        now = self._cluster.now()
        stamp = self._cluster.stamp()
        status = rollout.counted_status(deployment, sets.all, sets.new, stamp)
        if judge:
            rollout.judge_progress(deployment, status, sets.new, now, stamp)
            _copy_replica_failure(status, sets)
        self._write(deployment, status)
        progressing = condition({"status": status}, "Progressing")
        if (
            judge
            and progressing is not None
            and rollout.has_deadline(deployment)
            and progressing.get("reason") not in ("ProgressDeadlineExceeded", "NewReplicaSetAvailable")
        ):
            left = (rollout.deadline_of(deployment, progressing) - now).total_seconds()
            self._queue.add_after(key_of(deployment), max(left, 0) + 1)

    def _write(self, deployment: Object, status: Object) -> None:
        if not status.get("conditions"):
            status.pop("conditions", None)
        self._cluster.write_status(DEPLOYMENT, self._current(deployment), status)


def _is_saturated(replicas: int, new: Object | None) -> bool:
    return (
        new is not None
        and rollout.size(new) == replicas
        and rollout.annotated(new, rollout.DESIRED) == replicas
        and rollout.counted(new, "availableReplicas") == replicas
    )


def _copy_replica_failure(status: Object, sets: Sets) -> None:
    """A ReplicaSet that cannot make its pods shows on the Deployment."""
    ordered = ([sets.new] if sets.new is not None else []) + sets.old
    failures = [found for each in ordered if (found := condition(each, "ReplicaFailure")) is not None]
    if not failures:
        status["conditions"] = without_condition(status.get("conditions"), "ReplicaFailure")
        return
    failure = failures[0]
    rollout.set_condition(
        status,
        {
            "type": "ReplicaFailure",
            "status": failure["status"],
            "lastUpdateTime": failure["lastTransitionTime"],
            "lastTransitionTime": failure["lastTransitionTime"],
            "reason": failure.get("reason", ""),
            "message": failure.get("message", ""),
        },
    )
