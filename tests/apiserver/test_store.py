"""The store that controllers write to directly."""

from __future__ import annotations

import pytest

from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.resources import kind_of
from infra.sandbox.control_plane.store import POD

CONFIG_MAP = kind_of("v1", "ConfigMap")
BUDGET = kind_of("policy/v1", "PodDisruptionBudget")


def pod(name="", node="", **metadata):
    spec = {"containers": [{"name": "main", "image": "app:1"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"namespace": "default", "name": name, **metadata}, "spec": spec}


def test_times_come_from_the_clock(store, clock):
    first = store.create(POD, pod("a", "n1"))
    clock.advance(90)
    left = store.delete(POD, "default", "a", grace=10)

    assert first["metadata"]["creationTimestamp"] == "2026-03-01T12:00:00Z"
    assert left["metadata"]["deletionTimestamp"] == "2026-03-01T12:01:40Z"


def test_what_the_caller_keeps_stays_its_own(store):
    mine = pod("a")
    store.create(POD, mine)
    mine["spec"]["containers"][0]["image"] = "changed"

    assert store.get(POD, "default", "a")["spec"]["containers"][0]["image"] == "app:1"
    assert "terminationGracePeriodSeconds" not in mine["spec"]


def test_pods_are_found_by_node(store):
    store.create(POD, pod("a", "n1"))
    store.create(POD, pod("b", "n2"))
    store.delete(POD, "default", "b", grace=0)

    assert [each["metadata"]["name"] for each in store.pods_on("n1")] == ["a"]
    assert store.pods_on("n2") == []


def test_generated_names_never_collide(store):
    names = {store.create(POD, pod(generateName="p-"))["metadata"]["name"] for _ in range(500)}

    assert len(names) == 500


def test_a_stale_replace_is_a_conflict(store):
    first = store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})
    store.replace(CONFIG_MAP, {**first, "data": {"k": "1"}})

    with pytest.raises(ApiError) as refusal:
        store.replace(CONFIG_MAP, {**first, "data": {"k": "2"}})

    assert (refusal.value.code, refusal.value.reason) == (409, "Conflict")


def test_replace_status_leaves_the_spec_alone(store):
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}
    made = store.create(BUDGET, {"metadata": {"name": "b", "namespace": "default"}, "spec": spec})

    changed = store.replace_status(BUDGET, {**made, "spec": {}, "status": {"disruptionsAllowed": 3}})

    assert (changed["spec"], changed["status"]) == (spec, {"disruptionsAllowed": 3})
    assert changed["metadata"]["generation"] == 1


def test_delete_of_another_uid_does_nothing(store):
    store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})

    assert store.delete(CONFIG_MAP, "default", "a", uid="other") is None
    assert store.get(CONFIG_MAP, "default", "a") is not None


def test_subscribers_hear_of_writes_in_order_even_of_their_own(store):
    heard = []

    def first(event, kind, obj, old):
        if kind is CONFIG_MAP and obj["metadata"]["name"] == "a":
            store.create(CONFIG_MAP, {"metadata": {"name": "b", "namespace": "default"}})

    store.subscribe(first)
    store.subscribe(lambda event, kind, obj, old: heard.append((event, obj["metadata"]["name"])))

    store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "default"}})

    assert heard == [("ADDED", "a"), ("ADDED", "b")]


def test_a_create_in_no_namespace_is_refused(store):
    with pytest.raises(ApiError) as refusal:
        store.create(CONFIG_MAP, {"metadata": {"name": "a", "namespace": "none"}})

    assert refusal.value.code == 404


def test_the_same_seed_gives_the_same_names(clock):
    from infra.sandbox.control_plane.store import NAMESPACE, Store

    def names():
        made = Store(clock, seed=3)
        made.create(NAMESPACE, {"metadata": {"name": "default"}})
        return made.create(POD, pod(generateName="p-"))["metadata"]["name"]

    assert names() == names()
