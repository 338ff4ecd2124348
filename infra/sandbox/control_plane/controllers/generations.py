"""The ReplicaSets of a Deployment: found, adopted, kept in order of revision, and made for a new template."""

from __future__ import annotations

from collections.abc import Sequence
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
)
from infra.sandbox.control_plane.controllers.selectors import label_matcher
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


class Generations:
    """Finds and makes them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._bare_sets: dict[str, set[str]] = {}

    def note_bare(self, event: str, replica_set: Object) -> bool:
        """Keep track of ReplicaSets that nobody owns. True if this is one."""
        namespace, name = key_of(replica_set)
        bare = self._bare_sets.setdefault(namespace, set())
        if controller_of(replica_set) is not None or event == "DELETED":
            bare.discard(name)
            return False
        bare.add(name)
        return True

    def _current(self, deployment: Object) -> Object:
        return self._cluster.get(DEPLOYMENT, key_of(deployment)) or deployment

    def _say(self, deployment: Object, message: str) -> None:
        self._cluster.events.emit(deployment, DEPLOYMENT, "Normal", "ScalingReplicaSet", message, SOURCE)

    def find(self, deployment: Object) -> Sets:
        """The ReplicaSets of a Deployment; bare ones that it selects are adopted, strays released."""
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

    def prepare(self, deployment: Object, *, create: bool) -> Sets:
        """The ReplicaSets, with revisions and annotations in order; the new one is made if `create`."""
        sets = self.find(deployment)
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
                self._cluster.write_status(DEPLOYMENT, self._current(deployment), status)
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
