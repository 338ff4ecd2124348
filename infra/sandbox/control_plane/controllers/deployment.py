"""Deployments: one ReplicaSet a pod template, rolled from old to new within surge and unavailability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.sandbox.control_plane.controllers import rollout
from infra.sandbox.control_plane.controllers.cluster import DEPLOYMENT, REPLICA_SET, Cluster, is_terminating_namespace
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    condition,
    controller_of,
    is_deleting,
    key_of,
    labels_of,
    owner_reference,
    template_hash,
    without_condition,
)
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.errors import ApiError

SOURCE = "deployment-controller"


@dataclass(frozen=True)
class Sets:
    """The ReplicaSets of a Deployment: the one of its template, if there is one, and the others."""

    new: Object | None
    old: list[Object]

    @property
    def all(self) -> list[Object]:
        return [*self.old, self.new] if self.new is not None else self.old


class Deployments:
    """Makes, scales and removes ReplicaSets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("deployment", self.reconcile)
        self._bare_sets: dict[str, set[str]] = {}
        cluster.on(DEPLOYMENT, lambda event, obj, old: self._queue.add(key_of(obj)))
        cluster.on(REPLICA_SET, self._set_changed)

    def _set_changed(self, event: str, replica_set: Object, old: Object | None) -> None:
        namespace = replica_set["metadata"]["namespace"]
        for each in (controller_of(replica_set), controller_of(old) if old is not None else None):
            if each is not None and each["kind"] == "Deployment":
                self._queue.add((namespace, each["name"]))
        bare = self._bare_sets.setdefault(namespace, set())
        if controller_of(replica_set) is not None or event == "DELETED":
            bare.discard(replica_set["metadata"]["name"])
        else:
            bare.add(replica_set["metadata"]["name"])
            for deployment in self._cluster.store.list(DEPLOYMENT, namespace):
                if label_matcher(deployment["spec"].get("selector"))(labels_of(replica_set)):
                    self._queue.add(key_of(deployment))

    def reconcile(self, key: Key) -> None:
        """Move one Deployment a step nearer to its template and size, and write its status."""
        deployment = self._cluster.get(DEPLOYMENT, key)
        if deployment is None:
            return
        sets = self._find_sets(deployment)
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

    # ReplicaSets

    def _find_sets(self, deployment: Object) -> Sets:
        matches = label_matcher(deployment["spec"].get("selector"))
        uid = deployment["metadata"]["uid"]
        mine = []
        for place in self._cluster.view.dependents_of(uid):
            replica_set = self._cluster.get(REPLICA_SET, place.key) if place.kind.key == REPLICA_SET.key else None
            if replica_set is None:
                continue
            if matches(labels_of(replica_set)):
                mine.append(replica_set)
            elif not is_deleting(deployment):
                left = [r for r in replica_set["metadata"]["ownerReferences"] if r["uid"] != uid]
                self._cluster.patch_meta(REPLICA_SET, replica_set, ownerReferences=left or None)
        if not is_deleting(deployment):
            mine += self._adopt_sets(deployment)
        mine.sort(key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
        template = deployment["spec"]["template"]
        plain = {**template, "metadata": {**(template.get("metadata") or {})}}
        plain["metadata"]["labels"] = dict(plain["metadata"].get("labels") or {})
        new = next((each for each in mine if rollout.plain_template(each) == plain), None)
        return Sets(new, [each for each in mine if each is not new])

    def _adopt_sets(self, deployment: Object) -> list[Object]:
        namespace = deployment["metadata"]["namespace"]
        matches = label_matcher(deployment["spec"].get("selector"))
        adopted = []
        for name in sorted(self._bare_sets.get(namespace, ())):
            bare = self._cluster.store.get(REPLICA_SET, namespace, name)
            if bare is not None and not is_deleting(bare) and matches(labels_of(bare)):
                references = [*(bare["metadata"].get("ownerReferences") or ())]
                references.append(owner_reference(deployment, DEPLOYMENT.api_version, DEPLOYMENT.kind))
                adopted.append(self._cluster.patch_meta(REPLICA_SET, bare, ownerReferences=references))
        return adopted

    def _sets(self, deployment: Object, *, create: bool) -> Sets:
        """The ReplicaSets, with revisions and annotations in order; the new one is made if `create`."""
        sets = self._find_sets(deployment)
        revision = max((rollout.revision_of(each) for each in sets.old), default=0) + 1
        if sets.new is not None:
            return Sets(self._refresh_new(deployment, sets.new, revision), sets.old)
        if not create:
            return sets
        return Sets(self._create_new(deployment, sets, revision), sets.old)

    def _refresh_new(self, deployment: Object, new: Object, revision: int) -> Object:
        annotations = _annotations_for(deployment, new, revision)
        wait = deployment["spec"].get("minReadySeconds") or 0
        if annotations != (new["metadata"].get("annotations") or {}) or wait != (
            new["spec"].get("minReadySeconds") or 0
        ):
            changed = {**new, "metadata": {**new["metadata"], "annotations": annotations}}
            changed["spec"] = {k: v for k, v in new["spec"].items() if k != "minReadySeconds"}
            if wait:
                changed["spec"]["minReadySeconds"] = wait
            return self._cluster.write(REPLICA_SET, changed)
        conditions: list[Object] = []
        if rollout.has_deadline(deployment) and condition(deployment, "Progressing") is None:
            message = f'Found new replica set "{new["metadata"]["name"]}"'
            conditions.append(self._condition("Progressing", "True", "FoundNewReplicaSet", message))
        self._note_revision(deployment, annotations[rollout.REVISION], conditions)
        return new

    def _create_new(self, deployment: Object, sets: Sets, revision: int) -> Object:
        spec = deployment["spec"]
        template = spec["template"]
        meta = template.get("metadata") or {}
        collisions = (deployment.get("status") or {}).get("collisionCount", 0)
        digest = template_hash(template, collisions)
        labels = {**(meta.get("labels") or {}), rollout.HASH_LABEL: digest}
        selector = spec.get("selector") or {}
        count = rollout.new_set_size(deployment, sets.old, 0)
        name = f"{deployment['metadata']['name'][: 253 - len(digest) - 1]}-{digest}"
        new: Object = {
            "apiVersion": REPLICA_SET.api_version,
            "kind": REPLICA_SET.kind,
            "metadata": {
                "name": name,
                "namespace": deployment["metadata"]["namespace"],
                "labels": labels,
                "annotations": _annotations_for(deployment, None, revision),
                "ownerReferences": [owner_reference(deployment, DEPLOYMENT.api_version, DEPLOYMENT.kind)],
            },
            "spec": {
                "replicas": count,
                "selector": {
                    **selector,
                    "matchLabels": {**(selector.get("matchLabels") or {}), rollout.HASH_LABEL: digest},
                },
                "template": {**template, "metadata": {**meta, "labels": labels}},
            },
        }
        if spec.get("minReadySeconds"):
            new["spec"]["minReadySeconds"] = spec["minReadySeconds"]
        made = self._store_new(deployment, new)
        if count:
            self._say(deployment, f"Scaled up replica set {name} from 0 to {count}")
        conditions = []
        if rollout.has_deadline(deployment):
            conditions.append(
                self._condition("Progressing", "True", "NewReplicaSetCreated", f'Created new replica set "{name}"')
            )
        self._note_revision(deployment, str(revision), conditions)
        return made

    def _store_new(self, deployment: Object, new: Object) -> Object:
        try:
            return self._cluster.store.create(REPLICA_SET, new)
        except ApiError as error:
            if error.reason == "AlreadyExists":  # another template with the same hash: try the next one
                status = dict(deployment.get("status") or {})
                status["collisionCount"] = status.get("collisionCount", 0) + 1
                self._write(deployment, status)
            elif not is_terminating_namespace(error):
                message = f'Failed to create new replica set "{new["metadata"]["name"]}": {error.message}'
                self._note_revision(
                    deployment, "", [self._condition("Progressing", "False", "ReplicaSetCreateError", message)]
                )
                self._cluster.events.emit(deployment, DEPLOYMENT, "Warning", "ReplicaSetCreateError", message, SOURCE)
            raise

    def _condition(self, kind: str, status: str, reason: str, message: str) -> Object:
        return rollout.new_condition(kind, status, reason, message, self._cluster.stamp())

    def _note_revision(self, deployment: Object, revision: str, conditions: Sequence[Object]) -> None:
        """The revision annotation and conditions go in by the status, so the generation stays."""
        current = self._current(deployment)
        annotations = dict(current["metadata"].get("annotations") or {})
        status = dict(current.get("status") or {})
        for each in conditions:
            rollout.set_condition(status, each)
        if revision:
            annotations[rollout.REVISION] = revision
        if annotations == (current["metadata"].get("annotations") or {}) and status == (current.get("status") or {}):
            return
        changed = {**current, "metadata": {**current["metadata"], "annotations": annotations}, "status": status}
        self._cluster.store.replace_status(DEPLOYMENT, changed)

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
            self._condition("Progressing", "Unknown", f"Deployment{word}", f"Deployment is {word.lower()}"),
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
        sets = self._sets(deployment, create=False)
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
        sets = self._sets(deployment, create=True)
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
        sets = self._sets(deployment, create=False)
        deployment = self._current(deployment)
        sizes = {each["metadata"]["name"]: 0 for each in sets.old if rollout.size(each)}
        if self._resize_all(deployment, sizes) or self._old_pods_left(sets):
            self._finish(deployment)
            return
        if sets.new is None:
            sets = self._sets(deployment, create=True)
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
        sets = self._find_sets(deployment)
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


def _annotations_for(deployment: Object, replica_set: Object | None, revision: int) -> dict[str, str]:
    """The Deployment's annotations, the revision (which only grows) and, on a new set, the Deployment's size."""
    own: dict[str, str] = dict((replica_set["metadata"].get("annotations") or {}) if replica_set is not None else {})
    inherited = deployment["metadata"].get("annotations") or {}
    annotations = {**own, **{k: v for k, v in inherited.items() if k not in rollout.NOT_COPIED}}
    before = own.get(rollout.REVISION, "")
    if not before.isdigit() or int(before) < revision:
        annotations[rollout.REVISION] = str(revision)
        if before:
            past = [each for each in own.get(rollout.REVISION_HISTORY, "").split(",") if each]
            annotations[rollout.REVISION_HISTORY] = ",".join([*past, before])
    if replica_set is None:
        bounds = rollout.bounds_of(deployment)
        annotations[rollout.DESIRED] = str(bounds.replicas)
        annotations[rollout.MAXIMUM] = str(bounds.most)
    return annotations


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
