"""Events of the controllers: repeated ones are counted, floods of similar ones are combined and then dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from infra.clock import rfc3339, rfc3339_micro
from infra.sandbox.control_plane.controllers.objects import Object
from infra.sandbox.control_plane.controllers.work import Key, WorkLoop
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import Kind, kind_of

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

EVENT = kind_of("v1", "Event")

_SIMILAR = 10
"""Different messages with one reason about one object before they are combined (client-go's aggregator)."""
_SIMILAR_SECONDS = 600
_BURST = 25
"""Events of one source about one object before they are dropped; one more every 300 s (client-go's spam filter)."""
_REFILL_SECONDS = 300
_LIFE_SECONDS = 3600
"""The API server keeps an event for an hour."""


@dataclass(slots=True)
class _Flood:
    tokens: float
    at: datetime


@dataclass(slots=True)
class _Similar:
    since: datetime
    messages: set[str] = field(default_factory=set)


class Recorder:
    """Writes events to the store. Losing an event is never an error."""

    def __init__(self, store: Store, work: WorkLoop) -> None:
        self._store = store
        self._clock = store.clock
        self._known: dict[tuple[str, str, str, str], Key] = {}
        self._similar: dict[tuple[str, str, str], _Similar] = {}
        self._floods: dict[tuple[str, str], _Flood] = {}
        self._expiry = work.queue("event expiry", self._expire)
        self._by_object: dict[str, set[tuple[str, str, str, str]]] = {}

    def emit(
        self, about: Object, kind: Kind, severity: str, reason: str, message: str, source: str, *, action: str = ""
    ) -> None:
        """Say something about an object.

        `severity` is Normal or Warning, `source` the component as the real one names itself
        ("deployment-controller"), `action` belongs to the newer form of events, as the scheduler writes them.
        """
        uid = about["metadata"].get("uid") or about["metadata"]["name"]
        now = self._clock.now()
        message = self._combined(uid, reason, source, message, now)
        if self._is_flood(uid, source, now):
            return
        known = self._known.get((uid, reason, source, message))
        if known is not None and self._count(known, now):
            return
        self._create(about, kind, severity, reason, message, source, action, now)

    def forget(self, uid: str) -> None:
        """An object is gone: drop what was kept about it."""
        for known in self._by_object.pop(uid, ()):
            self._known.pop(known, None)
            self._similar.pop(known[:3], None)
            self._floods.pop((known[2], uid), None)

    def _combined(self, uid: str, reason: str, source: str, message: str, now: datetime) -> str:
        similar = self._similar.setdefault((uid, reason, source), _Similar(now))
        if (now - similar.since).total_seconds() > _SIMILAR_SECONDS:
            similar.since = now
            similar.messages.clear()
        similar.messages.add(message)
        return message if len(similar.messages) <= _SIMILAR else f"(combined from similar events): {message}"

    def _is_flood(self, uid: str, source: str, now: datetime) -> bool:
        flood = self._floods.setdefault((source, uid), _Flood(float(_BURST), now))
        flood.tokens = min(_BURST, flood.tokens + (now - flood.at).total_seconds() / _REFILL_SECONDS)
        flood.at = now
        if flood.tokens < 1:
            return True
        flood.tokens -= 1
        return False

    def _count(self, key: Key, now: datetime) -> bool:
        event = self._store.get(EVENT, key[0], key[1])
        if event is None:
            return False
        if event.get("eventTime"):
            count = (event.get("series") or {}).get("count", 1) + 1
            changed: Object = {"series": {"count": count, "lastObservedTime": rfc3339_micro(now)}}
        else:
            changed = {"count": event.get("count", 1) + 1, "lastTimestamp": rfc3339(now)}
        try:
            self._store.replace(EVENT, {**event, **changed})
        except ApiError:
            return False
        return True

    def _create(
        self,
        about: Object,
        kind: Kind,
        severity: str,
        reason: str,
        message: str,
        source: str,
        action: str,
        now: datetime,
    ) -> None:
        meta = about["metadata"]
        namespace = meta.get("namespace") or "default"
        name = f"{meta['name']}.{token_hex(8)}"
        involved = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "name": meta["name"],
            "namespace": meta.get("namespace"),
            "uid": meta.get("uid"),
            "resourceVersion": meta.get("resourceVersion"),
        }
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {k: v for k, v in involved.items() if v},
            "reason": reason,
            "message": message,
            "type": severity,
            "reportingComponent": source,
        }
        if action:
            event |= {
                "eventTime": rfc3339_micro(now),
                "action": action,
                "reportingInstance": f"{source}-sandbox",
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
            }
        else:
            stamp = rfc3339(now)
            event |= {
                "source": {"component": source},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
                "eventTime": None,
                "reportingInstance": "",
            }
        try:
            self._store.create(EVENT, event)
        except ApiError:
            return  # a namespace that is going takes no events
        uid = meta.get("uid") or meta["name"]
        known = (uid, reason, source, message)
        self._known[known] = (namespace, name)
        self._by_object.setdefault(uid, set()).add(known)
        self._expiry.add_after((namespace, name), _LIFE_SECONDS)

    def _expire(self, key: Key) -> None:
        try:
            self._store.delete(EVENT, key[0], key[1])
        except ApiError:
            return  # gone with its namespace
