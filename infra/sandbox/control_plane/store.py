"""The objects, in memory: one writer (the event loop), versions that only grow, events after each write.

Objects are plain dicts and never change once stored: a write makes a new dict that shares what stayed the
same. Callers must not mutate what they get.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import orjson

from infra.clock import Clock, SystemClock, rfc3339
from infra.sandbox.control_plane import admission, deletion, errors, strategy
from infra.sandbox.control_plane.history import Change, Event, History
from infra.sandbox.control_plane.resources import Kind, Registry, by_plural

Object = dict[str, Any]
Objects = list[Object]
Key = tuple[str, str]
Finish = Callable[[Object, Object | None], Object]
"""Checks and completes the object that is about to be written, given the one it replaces."""
Subscriber = Callable[[Event, Kind, Object, Object | None], None]

NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""What the real server draws generated names from: no vowels, no look-alikes."""

POD = by_plural("", "v1", "pods")
BUDGET = by_plural("policy", "v1", "poddisruptionbudgets")
NAMESPACE = by_plural("", "v1", "namespaces")


def copied(obj: Object) -> Object:
    """A deep copy by way of JSON, which also proves that it is JSON."""
    fresh: Object = orjson.loads(orjson.dumps(obj))
    return fresh


class Shelf:
    """The objects of one resource, by namespace ("" if it has none) and name, with cached order."""

    def __init__(self) -> None:
        self.by_namespace: dict[str, dict[str, Object]] = {}
        self._names: dict[str, list[str]] = {}
        self._namespaces: list[str] | None = None
        self.count = 0

    def get(self, namespace: str, name: str) -> Object | None:
        objects = self.by_namespace.get(namespace)
        return objects.get(name) if objects else None

    def put(self, namespace: str, name: str, obj: Object) -> None:
        objects = self.by_namespace.get(namespace)
        if objects is None:
            objects = self.by_namespace[namespace] = {}
            self._namespaces = None
        if name not in objects:
            self._names.pop(namespace, None)
            self.count += 1
        objects[name] = obj

    def drop(self, namespace: str, name: str) -> None:
        objects = self.by_namespace[namespace]
        del objects[name]
        self._names.pop(namespace, None)
        self.count -= 1
        if not objects:
            del self.by_namespace[namespace]
            self._namespaces = None

    def names(self, namespace: str) -> list[str]:
        """Names of one namespace in order."""
        names = self._names.get(namespace)
        if names is None:
            names = self._names[namespace] = sorted(self.by_namespace.get(namespace, ()))
        return names

    def namespaces(self) -> list[str]:
        """Namespaces that hold something, in order."""
        if self._namespaces is None:
            self._namespaces = sorted(self.by_namespace)
        return self._namespaces


class Store:
    """All objects of one embedded control plane.

    Args:
        clock: where every time stamp comes from.
        seed: makes generated names and uids repeatable; None draws them at random.

    """

    def __init__(self, clock: Clock | None = None, *, seed: int | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.registry = Registry()
        self.version = 1
        self._random = random.Random(seed)
        self._shelves: dict[Key, Shelf] = defaultdict(Shelf)
        self._histories: dict[Key, History] = defaultdict(History)
        self._pods_by_node: dict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        self._subscribers: list[Subscriber] = []
        self._pending: deque[tuple[Kind, Change]] = deque()
        self._dispatching = False
        self._addresses = 0
        self._moment: datetime | None = None
        self._stamp_text = ""

    # Reading

    def get(self, kind: Kind, namespace: str | None, name: str) -> Object | None:
        """One object, or None."""
        return self._shelves[kind.key].get((namespace or "") if kind.namespaced else "", name)

    def require(self, kind: Kind, namespace: str | None, name: str) -> Object:
        """One object, or the 404 of the API."""
        found = self.get(kind, namespace, name)
        if found is None:
            raise errors.not_found(kind.group, kind.plural, name)
        return found

    def list(self, kind: Kind, namespace: str | None = None) -> Objects:
        """Objects of one namespace, or of all, in order of namespace and name."""
        shelf = self._shelves[kind.key]
        namespaces: Iterable[str] = shelf.namespaces() if namespace is None else (namespace,)
        found: Objects = []
        for each in namespaces:
            objects = shelf.by_namespace.get(each)
            if objects:
                found.extend(objects[name] for name in shelf.names(each))
        return found

    def shelf(self, kind: Kind) -> Shelf:
        """The ordered objects of a kind, for readers that page."""
        return self._shelves[kind.key]

    def history(self, kind: Kind) -> History:
        """The recent changes of a kind."""
        return self._histories[kind.key]

    def pods_on(self, node: str) -> Objects:
        """Pods bound to a node, without a scan."""
        return list(self._pods_by_node.get(node, {}).values())

    def count(self, kind: Kind) -> int:
        """How many objects of a kind there are."""
        return self._shelves[kind.key].count

    def now(self) -> str:
        """The time on the store's clock, as Kubernetes writes it."""
        moment = self.clock.now().replace(microsecond=0)
        if moment != self._moment:
            self._moment, self._stamp_text = moment, rfc3339(moment)
        return self._stamp_text

    def suffix(self) -> str:
        """Five characters that make a generated name unique."""
        return "".join(self._random.choices(NAME_ALPHABET, k=5))

    def cluster_ip(self) -> str:
        """The next service address of 10.96.0.0/16."""
        self._addresses += 1
        return f"10.96.{self._addresses // 254 % 256}.{self._addresses % 254 + 1}"

    # Writing

    def create(self, kind: Kind, obj: Object, *, dry_run: bool = False) -> Object:
        """Store a new object as the API would: system fields, defaults, admission. 409 if the name is taken."""
        return self.insert(kind, copied(obj), dry_run=dry_run)

    def replace(self, kind: Kind, obj: Object) -> Object:
        """Replace all but the status. 409 if the object carries another resourceVersion or uid than the stored one."""
        return self.update(kind, copied(obj), part="")

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Replace the status alone. 409 as for `replace`."""
        return self.update(kind, copied(obj), part="status")

    def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace: int | None = None,
        propagation: str | None = None,
    ) -> Object | None:
        """Delete as the API would: gracefully, with finalizers.

        Returns what is left of the object (terminating), or its last state when it is gone at once; None if
        there was none, or one of another uid.
        """
        found = self.get(kind, namespace, name)
        if found is None or (uid is not None and found["metadata"]["uid"] != uid):
            return None
        options = deletion.Options(grace=grace, propagation=propagation)
        return deletion.delete(self, kind, found, options).obj

    def insert(self, kind: Kind, obj: Object, *, dry_run: bool = False, finish: Finish | None = None) -> Object:
        """`create` for an object that the caller hands over for good; `finish` checks and completes it last."""
        metadata = obj.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise errors.internal("resourceVersion should not be set on objects to be created")
        self._stamp(kind, obj, metadata)
        strategy.prepare_create(self, kind, obj)
        admission.admit_create(self, kind, obj)
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if self.get(kind, namespace, name) is not None:
            raise errors.already_exists(kind.group, kind.plural, name)
        if finish is not None:
            obj = finish(obj, None)
        return obj if dry_run else self.commit(kind, "ADDED", obj, None)

    def update(
        self, kind: Kind, obj: Object, *, part: str = "", dry_run: bool = False, finish: Finish | None = None
    ) -> Object:
        """Replace one part ("" or "status") for a caller that hands `obj` over. Equal content is no write."""
        metadata = obj["metadata"]
        old = self.require(kind, metadata.get("namespace"), metadata["name"])
        strategy.check_identity(kind, obj, old)
        new = strategy.prepare_update(kind, obj, old, part)
        if new == old:
            return old
        if finish is not None:
            new = finish(new, old)
        if deletion.released(new):
            # The last finalizer went: the only event is the deletion, and it shows the object as it was.
            return old if dry_run else self.remove(kind, old)
        return new if dry_run else self.commit(kind, "MODIFIED", new, old)

    def commit(self, kind: Kind, event: Event, obj: Object, old: Object | None) -> Object:
        """Write as is, with the next resourceVersion, and tell everybody. No checks."""
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        stored = {**obj, "metadata": metadata}
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        if event == "DELETED":
            self._shelves[kind.key].drop(namespace, name)
        else:
            self._shelves[kind.key].put(namespace, name, stored)
        if kind.key == POD.key:
            self._index_pod((namespace, name), None if event == "DELETED" else stored, old)
        self._announce(kind, Change(self.version, event, stored, old))
        return stored

    def remove(self, kind: Kind, obj: Object) -> Object:
        """Take an object out at once."""
        return self.commit(kind, "DELETED", obj, obj)

    # Telling

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(event, kind, obj, old)` in the loop after each write, in order of the writes."""
        self._subscribers.append(callback)

    def compact(self) -> None:
        """Forget the past: older watches and continue tokens get 410."""
        for kind in self.registry:
            self._histories[kind.key].compact(self.version)

    def _announce(self, kind: Kind, change: Change) -> None:
        self._histories[kind.key].append(change)
        self._pending.append((kind, change))
        if self._dispatching:  # a subscriber writes: its event comes after the one being told
            return
        self._dispatching = True
        try:
            while self._pending:
                told, (_, event, obj, old) = self._pending.popleft()
                for callback in self._subscribers:
                    callback(event, told, obj, old)
        finally:
            self._dispatching = False

    def _index_pod(self, key: tuple[str, str], pod: Object | None, old: Object | None) -> None:
        node = pod["spec"].get("nodeName") if pod else None
        before = old["spec"].get("nodeName") if old else None
        if before and before != node:
            self._pods_by_node[before].pop(key, None)
            if not self._pods_by_node[before]:
                del self._pods_by_node[before]
        if node:
            self._pods_by_node[node][key] = pod or {}

    def _generated(self, kind: Kind, namespace: str | None, base: str) -> str:
        """A free name; five characters collide among thousands, so taken ones are drawn again."""
        name = base[:58] + self.suffix()
        while self.get(kind, namespace, name) is not None:
            name = base[:58] + self.suffix()
        return name

    def _stamp(self, kind: Kind, obj: Object, metadata: Object) -> None:
        """The system fields of a new object."""
        if not kind.namespaced:
            metadata.pop("namespace", None)
        if not metadata.get("name"):
            metadata["name"] = self._generated(kind, metadata.get("namespace"), metadata.get("generateName", ""))
        for system in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
            metadata.pop(system, None)
        metadata["uid"] = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        metadata["creationTimestamp"] = self.now()
        if kind.generation:
            metadata["generation"] = 1
        obj.setdefault("apiVersion", kind.api_version)
        obj.setdefault("kind", kind.kind)
