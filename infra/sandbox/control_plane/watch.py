"""Watches: each one a filter over the events of its kind, with what it missed replayed first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.history import Change, Event
from infra.sandbox.control_plane.listing import Query, page
from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.selectors import Matcher
from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]
Render = Callable[[Object], Object]
Write = Callable[[bytes], Any]

BACKLOG = 20_000
"""Events that a slow reader may fall behind; then its watch ends, as on the real server, and it lists again."""
BOOKMARK_SECONDS = 30.0
"""Wall-clock time between bookmarks of a quiet watch."""
INITIAL_END = {"annotations": {"k8s.io/initial-events-end": "true"}}


class Watcher:
    """One watch: what it wants, and the lines not yet sent."""

    def __init__(self, kind: Kind, namespace: str | None, matcher: Matcher, render: Render | None) -> None:
        self.kind = kind
        self.namespace = namespace
        self.matcher = matcher
        self.render = render
        self.lines: list[bytes] = []
        self.awake = asyncio.Event()
        self.overrun = False

    def offer(self, event: Event, obj: Object, old: Object | None, shared: dict[str, bytes]) -> None:
        """Take an event if it concerns this watch; an object that leaves the selection is a deletion to it."""
        if self.namespace is not None and obj["metadata"].get("namespace") != self.namespace:
            return
        if not self.matcher.empty:
            is_in = event != "DELETED" and self.matcher(obj)
            was_in = old is not None and self.matcher(old)
            if not is_in and not was_in:
                return
            event = "DELETED" if not is_in else "MODIFIED" if was_in else "ADDED"
        self._take(event, obj, shared)

    def _take(self, event: str, obj: Object, shared: dict[str, bytes]) -> None:
        if len(self.lines) >= BACKLOG:
            self.overrun = True
            self.awake.set()
            return
        if self.render is not None:
            self.lines.append(line(event, self.render(obj)))
        else:
            written = shared.get(event)
            if written is None:
                written = shared[event] = line(event, as_seen(self.kind, obj))
            self.lines.append(written)
        self.awake.set()

    def add(self, event: str, obj: Object) -> None:
        """Send an object that no selector has to judge."""
        self._take(event, obj, {})


def as_seen(kind: Kind, obj: Object) -> Object:
    """A stored object under the version that the reader asked for."""
    return obj


def line(event: str, obj: Object) -> bytes:
    """One event on the wire."""
    return orjson.dumps({"type": event, "object": obj}, option=orjson.OPT_APPEND_NEWLINE)


class Hub:
    """Hands every write to the watches of its kind."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watchers: dict[tuple[str, str], set[Watcher]] = {}
        self._closing = False
        store.subscribe(self._told)

    def _told(self, event: Event, kind: Kind, obj: Object, old: Object | None) -> None:
        watchers = self._watchers.get(kind.key)
        if watchers:
            by_version: dict[str, dict[str, bytes]] = {}
            for watcher in watchers:
                watcher.offer(event, obj, old, by_version.setdefault(watcher.kind.api_version, {}))

    def close(self) -> None:
        """End every watch."""
        self._closing = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.awake.set()

    def open(self, watcher: Watcher, version: str, *, initial: bool, bookmarks: bool) -> None:
        """Start a watch: replay what came after `version`, or show what is there ("" and "0"). 410 if forgotten.

        `initial` is the streaming list: what is there first, then a bookmark that says so.
        """
        kind, store = watcher.kind, self._store
        if initial or version in ("", "0"):
            for obj in page(store, kind, Query(namespace=watcher.namespace, matcher=watcher.matcher)).items:
                watcher.add("ADDED", obj)
            if initial and bookmarks:
                watcher.lines.append(self.bookmark(kind, INITIAL_END))
                watcher.awake.set()
        else:
            for _, event, obj, old in self._missed(kind, version):
                watcher.offer(event, obj, old, {})
        self._watchers.setdefault(kind.key, set()).add(watcher)

    def _missed(self, kind: Kind, version: str) -> list[Change]:
        try:
            since = int(version)
        except ValueError:
            why = f'Invalid value: "{version}": strconv.ParseUint: parsing "{version}": invalid syntax'
            raise errors.internal(f"resourceVersion: {why}") from None
        history = self._store.history(kind)
        if since < history.compacted:
            raise errors.expired(f"too old resource version: {since} ({history.compacted})")
        return history.since(since)

    def bookmark(self, kind: Kind, metadata: Object | None = None) -> bytes:
        """How far this watch has seen."""
        marked = {**(metadata or {}), "resourceVersion": str(self._store.version), "creationTimestamp": None}
        return line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": marked})

    async def run(self, watcher: Watcher, write: Write, seconds: float | None, *, bookmarks: bool) -> None:
        """Send lines until the reader leaves, the time is up, or it falls behind."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds if seconds else None
        try:
            while not self._closing:
                if watcher.lines:
                    chunk, watcher.lines = b"".join(watcher.lines), []
                    await write(chunk)
                    continue
                if watcher.overrun or (end is not None and loop.time() >= end):
                    return
                watcher.awake.clear()
                pause = BOOKMARK_SECONDS if end is None else min(BOOKMARK_SECONDS, max(end - loop.time(), 0))
                try:
                    async with asyncio.timeout(pause):
                        await watcher.awake.wait()
                except TimeoutError:
                    if bookmarks:
                        watcher.lines.append(self.bookmark(watcher.kind))
        finally:
            self._watchers[watcher.kind.key].discard(watcher)
