"""ControllerRevisions: the pod templates that a StatefulSet or DaemonSet has had."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.cluster import REVISION, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, controller_of, owner_reference, template_hash
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import Kind

HASH_LABEL = "controller-revision-hash"


@dataclass(frozen=True)
class Revisions:
    """All revisions of a set in order, and the one of its template."""

    all: list[Object]
    update: Object


def template_of(revision: Object) -> Object:
    """The pod template that a revision holds."""
    template: Object = revision["data"]["spec"]["template"]
    return {key: value for key, value in template.items() if key != "$patch"}


def find(cluster: Cluster, owner: Object, kind: Kind, *, hash_label: str) -> Revisions:
    """The revisions of a set; the one of its present template is made, or moved to the front, as needed.

    `hash_label` is the label that holds the hash in a revision's name.
    """
    known = []
    for place in cluster.view.dependents_of(owner["metadata"]["uid"]):
        revision = cluster.get(REVISION, place.key) if place.kind.key == REVISION.key else None
        if revision is None:
            continue
        reference = controller_of(revision)
        if reference is not None and reference["uid"] == owner["metadata"]["uid"]:
            known.append(revision)
    known.sort(key=lambda each: (each["revision"], each["metadata"]["creationTimestamp"], each["metadata"]["name"]))
    data = {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}
    number = known[-1]["revision"] + 1 if known else 1
    equal = [each for each in known if each["data"] == data]
    if not equal:
        made = _create(cluster, owner, kind, data, number, hash_label)
        return Revisions([*known, made], made)
    newest = equal[-1]
    if newest is not known[-1]:
        moved = cluster.write(REVISION, {**newest, "revision": number})
        known = [*(each for each in known if each is not newest), moved]
        newest = moved
    return Revisions(known, newest)


def _create(cluster: Cluster, owner: Object, kind: Kind, data: Object, number: int, hash_label: str) -> Object:
    meta = owner["metadata"]
    labels = (owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
    collisions = (owner.get("status") or {}).get("collisionCount", 0)
    while True:
        digest = template_hash(data, collisions)
        revision: Object = {
            "apiVersion": REVISION.api_version,
            "kind": REVISION.kind,
            "metadata": {
                "name": f"{meta['name'][:223]}-{digest}",
                "namespace": meta["namespace"],
                "labels": {**labels, hash_label: digest},
                "annotations": dict(meta.get("annotations") or {}),
                "ownerReferences": [owner_reference(owner, kind.api_version, kind.kind)],
            },
            "data": data,
            "revision": number,
        }
        try:
            return cluster.store.create(REVISION, revision)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            collisions += 1


def trim(cluster: Cluster, owner: Object, revisions: list[Object], live: Collection[str]) -> None:
    """Delete the oldest revisions beyond revisionHistoryLimit; those named in `live` are in use and stay."""
    unused = [each for each in revisions if each["metadata"]["name"] not in live]
    limit = owner["spec"].get("revisionHistoryLimit", 10)
    for each in unused[: max(0, len(unused) - limit)]:
        cluster.delete(REVISION, each)
