"""What controllers look up all the time, kept current by the store's events.

Pods by owner, node and namespace; objects by UID and by owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.objects import Object, condition, controller_of, key_of, labels_of
from infra.sandbox.control_plane.controllers.selectors import Matcher
from infra.sandbox.control_plane.controllers.work import Key
from infra.sandbox.control_plane.resources import Kind


@dataclass(slots=True, eq=False)
class PodFacts:
    """The few facts of a pod that every reconcile reads, computed once a write."""

    key: Key
    obj: Object
    uid: str
    node: str
    phase: str
    ready: bool
    ready_since: str | None
    deleting: bool
    finished: bool
    """Succeeded or Failed."""
    active: bool
    """Neither finished nor on its way out."""
    owner: str
    """UID of the controller, "" for a bare pod."""
    judged_by: object = None
    """The selector that `selected` speaks of; the very dict, which stays the same while its owner's spec does."""
    selected: bool = False
    labelled_by: object = None
    labelled: bool = False
    """Carries all labels of `labelled_by`, its owner's template labels."""

    def is_selected(self, selector: Object | None, matches: Matcher) -> bool:
        """Whether the owner's selector matches, remembered until one of them changes."""
        if self.judged_by is not selector or selector is None:
            self.judged_by = selector
            self.selected = matches(labels_of(self.obj))
        return self.selected

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Whether the pod carries all these labels, remembered like that too."""
        if self.labelled_by is not wanted:
            own = labels_of(self.obj)
            self.labelled_by = wanted
            self.labelled = all(own.get(key) == value for key, value in wanted.items())
        return self.labelled


def facts_of(pod: Object) -> PodFacts:
    """Read a pod."""
    status = pod.get("status") or {}
    phase = status.get("phase") or "Pending"
    finished = phase in ("Succeeded", "Failed")
    deleting = bool(pod["metadata"].get("deletionTimestamp"))
    ready = condition(pod, "Ready")
    is_ready = ready is not None and ready.get("status") == "True"
    owner = controller_of(pod)
    return PodFacts(
        key=key_of(pod),
        obj=pod,
        uid=pod["metadata"]["uid"],
        node=pod["spec"].get("nodeName") or "",
        phase=phase,
        ready=is_ready,
        ready_since=ready.get("lastTransitionTime") if ready and is_ready else None,
        deleting=deleting,
        finished=finished,
        active=not deleting and not finished,
        owner=owner["uid"] if owner else "",
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is stored."""

    kind: Kind
    key: Key


class View:
    """Indexes over the store. Reads are current: events arrive before a write returns."""

    def __init__(self) -> None:
        self.pods: dict[Key, PodFacts] = {}
        self._by_owner: dict[str, dict[Key, PodFacts]] = {}
        self._by_node: dict[str, dict[Key, PodFacts]] = {}
        self._by_namespace: dict[str, dict[Key, PodFacts]] = {}
        self._bare: dict[str, dict[Key, PodFacts]] = {}
        self.places: dict[str, Place] = {}
        """UID of every object that exists."""
        self._dependents: dict[str, dict[str, Place]] = {}

    def pods_of(self, owner_uid: str) -> list[PodFacts]:
        """Pods whose controller has this UID, in order of creation."""
        return list(self._by_owner.get(owner_uid, {}).values())

    def pods_on(self, node: str) -> list[PodFacts]:
        """Pods bound to a node."""
        return list(self._by_node.get(node, {}).values())

    def pods_in(self, namespace: str) -> Iterable[PodFacts]:
        """Pods of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def bare_pods_in(self, namespace: str) -> list[PodFacts]:
        """Pods of a namespace that no controller owns."""
        return list(self._bare.get(namespace, {}).values())

    def dependents_of(self, owner_uid: str) -> list[Place]:
        """Objects that name this UID among their owners."""
        return list(self._dependents.get(owner_uid, {}).values())

    def apply(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        """Take one event of the store."""
        self._track_owners(event, kind, obj, old)
        if kind.key == ("", "pods"):
            self._track_pod(event, obj)

    def _track_owners(self, event: str, kind: Kind, obj: Object, old: Object | None) -> None:
        meta = obj["metadata"]
        uid = meta["uid"]
        owners = meta.get("ownerReferences") or ()
        before = (old["metadata"].get("ownerReferences") or ()) if old is not None else ()
        if event == "DELETED":
            self.places.pop(uid, None)
            for reference in [*owners, *before]:
                self._forget_dependent(reference["uid"], uid)
            return
        if uid not in self.places:
            self.places[uid] = Place(kind, key_of(obj))
        if owners == before and event == "MODIFIED":
            return
        place = self.places[uid]
        for reference in before:
            self._forget_dependent(reference["uid"], uid)
        for reference in owners:
            self._dependents.setdefault(reference["uid"], {})[uid] = place

    def _forget_dependent(self, owner_uid: str, uid: str) -> None:
        known = self._dependents.get(owner_uid)
        if known is not None:
            known.pop(uid, None)
            if not known:
                del self._dependents[owner_uid]

    def _track_pod(self, event: str, obj: Object) -> None:
        key = key_of(obj)
        before = self.pods.get(key)
        now = None if event == "DELETED" else facts_of(obj)
        if before is not None and (
            now is None or (before.owner, before.node, before.uid) != (now.owner, now.node, now.uid)
        ):
            _drop(self._by_owner, before.owner, key)
            _drop(self._by_node, before.node, key)
            _drop(self._bare, key[0], key)
        if now is None:
            self.pods.pop(key, None)
            _drop(self._by_namespace, key[0], key)
            return
        self.pods[key] = now
        self._by_namespace.setdefault(key[0], {})[key] = now
        if now.node:
            self._by_node.setdefault(now.node, {})[key] = now
        if now.owner:
            self._by_owner.setdefault(now.owner, {})[key] = now
        else:
            self._bare.setdefault(key[0], {})[key] = now


def _drop(index: dict[str, dict[Key, PodFacts]], name: str, key: Key) -> None:
    known = index.get(name)
    if known is not None:
        known.pop(key, None)
        if not known:
            del index[name]
