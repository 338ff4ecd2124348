"""What the server remembers, and what it says when it no longer does."""

from __future__ import annotations

import asyncio
import json

import pytest

from infra.sandbox.control_plane import listing
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.history import Change, History
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.selectors import matcher
from infra.sandbox.control_plane.watch import BACKLOG, Hub, Watcher

CONFIG_MAP = by_plural("", "v1", "configmaps")
EVERYTHING = matcher(CONFIG_MAP, "", "")


def make(store, *names):
    for name in names:
        store.create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "default"}})


def query(**more):
    return listing.Query(namespace="default", matcher=EVERYTHING, **more)


def test_a_full_ring_forgets_its_oldest_change_and_knows_it():
    history = History(capacity=2)
    for version in (1, 2, 3):
        history.append(Change(version, "ADDED", {}, None))

    assert history.compacted == 1
    assert [change.version for change in history.since(1)] == [2, 3]


def test_a_continue_token_from_a_forgotten_moment_is_410_and_offers_another(store):
    make(store, "a", "b", "c")
    first = listing.page(store, CONFIG_MAP, query(limit=1))
    make(store, "d")
    store.compact()

    with pytest.raises(ApiError) as refusal:
        listing.page(store, CONFIG_MAP, query(limit=1, token=first.token))

    assert (refusal.value.code, refusal.value.reason) == (410, "Expired")
    token = refusal.value.to_status()["metadata"]["continue"]
    rest = listing.page(store, CONFIG_MAP, query(token=token))
    assert [each["metadata"]["name"] for each in rest.items] == ["b", "c", "d"]


def test_a_watch_from_a_forgotten_version_is_410(store):
    hub = Hub(store)
    make(store, "a")
    version = str(store.version)
    make(store, "b")
    store.compact()
    watcher = Watcher(CONFIG_MAP, None, EVERYTHING, None)

    with pytest.raises(ApiError) as refusal:
        hub.open(watcher, version, initial=False, bookmarks=False)

    assert (refusal.value.code, refusal.value.reason) == (410, "Expired")
    assert refusal.value.message.startswith("too old resource version: ")


def test_a_list_of_the_future_is_504(store):
    with pytest.raises(ApiError) as refusal:
        listing.page(store, CONFIG_MAP, query(version=store.version + 100))

    assert (refusal.value.code, refusal.value.reason) == (504, "Timeout")
    assert refusal.value.details["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_an_earlier_moment_is_listed_as_it_was(store):
    make(store, "a", "b")
    moment = store.version
    store.delete(CONFIG_MAP, "default", "a")
    make(store, "c")
    store.replace(CONFIG_MAP, {"metadata": {"name": "b", "namespace": "default"}, "data": {"k": "v"}})

    page = listing.page(store, CONFIG_MAP, query(version=moment))

    assert [(each["metadata"]["name"], each.get("data")) for each in page.items] == [("a", None), ("b", None)]


def test_a_reader_that_falls_behind_is_cut_off(store):
    hub = Hub(store)
    watcher = Watcher(CONFIG_MAP, None, EVERYTHING, None)
    hub.open(watcher, str(store.version), initial=False, bookmarks=False)
    obj = store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})
    watcher.lines = [b""] * BACKLOG

    watcher.offer("MODIFIED", obj, obj, {})

    assert watcher.overrun


def test_a_watch_sends_what_is_written_while_it_runs(store):
    async def watch():
        hub = Hub(store)
        watcher = Watcher(CONFIG_MAP, "default", EVERYTHING, None)
        hub.open(watcher, str(store.version), initial=False, bookmarks=False)
        seen = []

        async def write(chunk):
            seen.extend(json.loads(line) for line in chunk.splitlines())
            hub.close()

        running = asyncio.create_task(hub.run(watcher, write, None, bookmarks=False))
        await asyncio.sleep(0)
        make(store, "late")
        async with asyncio.timeout(5):
            await running
        return seen

    assert [(each["type"], each["object"]["metadata"]["name"]) for each in asyncio.run(watch())] == [("ADDED", "late")]
