"""Garbage collection by owner references: in the background, in the foreground, or leaving orphans."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane.controllers.cluster import Cluster
from infra.sandbox.control_plane.controllers.objects import Object, is_deleting, key_of
from infra.sandbox.control_plane.controllers.view import Place
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.resources import Kind

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


class GarbageCollector:
    """Looks at an object when its owners may be gone, and at an owner that waits for its dependents. Keys are UIDs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = cluster.work.queue("garbage", self.reconcile)
        cluster.on_every(self._changed)

    def _changed(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        uid = meta["uid"]
        owners = meta.get("ownerReferences") or ()
        if event == "DELETED":
            self._cluster.events.forget(uid)
            for place in self._cluster.view.dependents_of(uid):
                self._enqueue(place)
            for each in owners:
                owner = self._cluster.view.places.get(each["uid"])
                if owner is not None and each.get("blockOwnerDeletion"):
                    self._queue.add(("", each["uid"]))
            return
        finalizers = meta.get("finalizers") or ()
        if (is_deleting(obj) and (ORPHAN in finalizers or FOREGROUND in finalizers)) or (
            owners
            and (old is None or (old["metadata"].get("ownerReferences") or ()) != owners)
            and any(not self._is_known(each, meta.get("namespace")) for each in owners)
        ):
            self._queue.add(("", uid))

    def _is_known(self, reference: Object, namespace: str | None) -> bool:
        place = self._cluster.view.places.get(reference["uid"])
        return place is not None and (not place.key[0] or place.key[0] == namespace)

    def _enqueue(self, place: Place) -> None:
        obj = self._cluster.get(place.kind, place.key)
        if obj is not None:
            self._queue.add(("", obj["metadata"]["uid"]))

    def reconcile(self, key: Key) -> None:
        """Finish a deletion that waits for dependents, or delete an object that has lost its owners."""
        place = self._cluster.view.places.get(key[1])
        obj = self._cluster.get(place.kind, place.key) if place is not None else None
        if place is None or obj is None or obj["metadata"]["uid"] != key[1]:
            return
        finalizers = obj["metadata"].get("finalizers") or ()
        if is_deleting(obj) and ORPHAN in finalizers:
            self._orphan_dependents(place.kind, obj)
        elif is_deleting(obj) and FOREGROUND in finalizers:
            self._delete_dependents(place.kind, obj)
        elif not is_deleting(obj):
            self._collect(place.kind, obj)

    def _collect(self, kind: Kind, obj: Object) -> None:
        references = obj["metadata"].get("ownerReferences") or ()
        solid, waiting, gone = self._classify(obj, references)
        if not references or (solid and not waiting and not gone):
            return
        if solid:
            self._patch(kind, obj, ownerReferences=solid)
            return
        if waiting and self._cluster.view.dependents_of(obj["metadata"]["uid"]):
            self._cluster.delete(kind, obj, propagation="Foreground")
            return
        self._cluster.delete(kind, obj, propagation=self._policy(obj))

    def _policy(self, obj: Object) -> str:
        finalizers = obj["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            return "Orphan"
        return "Foreground" if FOREGROUND in finalizers else "Background"

    def _classify(
        self, obj: Object, references: list[Object] | tuple[Object, ...]
    ) -> tuple[list[Object], list[Object], list[Object]]:
        """Owners that live, that wait for this object to go, and that are gone."""
        solid: list[Object] = []
        waiting: list[Object] = []
        gone: list[Object] = []
        for each in references:
            place = self._cluster.view.places.get(each["uid"])
            owner = self._cluster.get(place.kind, place.key) if place is not None else None
            if owner is None or not self._is_known(each, obj["metadata"].get("namespace")):
                gone.append(each)
            elif is_deleting(owner) and FOREGROUND in (owner["metadata"].get("finalizers") or ()):
                waiting.append(each)
            else:
                solid.append(each)
        return solid, waiting, gone

    def _dependents(self, obj: Object) -> list[tuple[Kind, Object]]:
        found = []
        for place in self._cluster.view.dependents_of(obj["metadata"]["uid"]):
            dependent = self._cluster.get(place.kind, place.key)
            if dependent is not None:
                found.append((place.kind, dependent))
        return found

    def _orphan_dependents(self, kind: Kind, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        for dependent_kind, dependent in self._dependents(obj):
            left = [each for each in dependent["metadata"]["ownerReferences"] if each["uid"] != uid]
            self._patch(dependent_kind, dependent, ownerReferences=left or None)
        self._drop_finalizer(kind, obj, ORPHAN)

    def _delete_dependents(self, kind: Kind, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        blocked = False
        for _, dependent in self._dependents(obj):
            reference = next(each for each in dependent["metadata"]["ownerReferences"] if each["uid"] == uid)
            blocked = blocked or bool(reference.get("blockOwnerDeletion"))
            if not is_deleting(dependent):
                self._queue.add(("", dependent["metadata"]["uid"]))
        if not blocked:
            self._drop_finalizer(kind, obj, FOREGROUND)

    def _drop_finalizer(self, kind: Kind, obj: Object, finalizer: str) -> None:
        current = self._cluster.get(kind, key_of(obj))
        if current is None or current["metadata"]["uid"] != obj["metadata"]["uid"]:
            return
        left = [each for each in current["metadata"].get("finalizers") or () if each != finalizer]
        self._patch(kind, current, finalizers=left or None)

    def _patch(self, kind: Kind, obj: Object, **fields: Any) -> None:
        self._cluster.patch_meta(kind, obj, **fields)
