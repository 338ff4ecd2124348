"""Selectors, pages, watches, bookmarks, 410."""

from __future__ import annotations

import pytest

MERGE = "application/merge-patch+json"


def names(listed: dict) -> list[str]:
    return [each["metadata"]["name"] for each in listed["items"]]


def events(found: list[dict], kinds: tuple[str, ...] = ("ADDED", "MODIFIED", "DELETED")) -> list[tuple[str, str]]:
    return [(each["type"], each["object"]["metadata"]["name"]) for each in found if each["type"] in kinds]


@pytest.fixture
def labelled(ns):
    """ConfigMaps a (tier=1, x), b (tier=2, x), c (no tier)."""
    for name, labels in (("a", {"tier": "1", "x": ""}), ("b", {"tier": "2", "x": ""}), ("c", {"set": "t"})):
        ns.config_map(name, labels={**labels, "test": "t"})
    return ns


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=1", "a"),
        ("tier==1", "a"),
        ("tier!=1", "bc"),
        ("tier in (1,2)", "ab"),
        ("tier in (1, 3)", "a"),
        ("tier notin (1)", "bc"),
        ("tier", "ab"),
        ("!tier", "c"),
        ("x,tier=2", "b"),
        ("x=", "ab"),
        ("tier>1", "b"),
        ("tier<2", "a"),
    ],
)
def test_label_selectors(labelled, selector, expected):
    listed = labelled.api.ok("GET", labelled.path("configmaps"), params={"labelSelector": f"test=t,{selector}"})

    assert names(listed) == list(expected)


@pytest.mark.parametrize("selector", ["a in (", "=x", "a b", "a=b,", "a in b"])
def test_a_bad_label_selector_is_400(ns, selector):
    status, _, body = ns.api.request("GET", ns.path("configmaps"), params={"labelSelector": selector})

    assert (status, body["reason"]) == (400, "BadRequest")


def test_field_selectors_of_pods(ns):
    ns.pod("a")
    ns.running_pod("b")

    def select(fields: str) -> list[str]:
        return names(ns.api.ok("GET", ns.path("pods"), params={"fieldSelector": fields}))

    assert select("spec.nodeName=nowhere") == ["b"]
    assert select("spec.nodeName=") == ["a"]
    assert select("status.phase!=Running") == ["a"]
    assert select("metadata.name=a,status.phase=Pending") == ["a"]
    assert select(f"metadata.namespace={ns.name}") == ["a", "b"]


def test_an_unsupported_field_selector_is_400(ns):
    status, _, body = ns.api.request("GET", ns.path("pods"), params={"fieldSelector": "spec.priority=0"})

    assert (status, body["reason"]) == (400, "BadRequest")
    assert "field label not supported: spec.priority" in body["message"]


def test_a_list_is_in_order_and_carries_a_version(labelled):
    listed = labelled.api.ok("GET", labelled.path("configmaps"), params={"labelSelector": "test"})

    assert names(listed) == ["a", "b", "c"]
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert listed["metadata"]["resourceVersion"].isdigit()


def test_items_of_a_list_carry_no_kind_of_their_own(labelled):
    listed = labelled.api.ok("GET", labelled.path("configmaps"))

    assert not any("kind" in each or "apiVersion" in each for each in listed["items"])


def test_an_empty_list_has_items(ns):
    listed = ns.api.ok("GET", ns.path("deployments", group="apps/v1"))

    assert listed["items"] == []


def test_a_list_pages(ns):
    for name in "abcde":
        ns.pod(name)

    first = ns.api.ok("GET", ns.path("pods"), params={"limit": 2})
    assert names(first) == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 3
    token = first["metadata"]["continue"]
    second = ns.api.ok("GET", ns.path("pods"), params={"limit": 2, "continue": token})
    assert names(second) == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    last = ns.api.ok("GET", ns.path("pods"), params={"limit": 2, "continue": second["metadata"]["continue"]})
    assert names(last) == ["e"]
    assert "continue" not in last["metadata"]


def test_pages_show_one_moment(ns):
    for name in "abcd":
        ns.config_map(name, labels={"page": "1"})
    query = {"limit": 2, "labelSelector": "page"}
    first = ns.api.ok("GET", ns.path("configmaps"), params=query)
    ns.config_map("bb", labels={"page": "1"})
    ns.config_map("cc", labels={"page": "1"})
    ns.api.ok("DELETE", ns.path("configmaps", "d"))

    rest = ns.api.ok("GET", ns.path("configmaps"), params={**query, "continue": first["metadata"]["continue"]})

    assert names(first) + names(rest) == ["a", "b", "c", "d"]


def test_a_selector_hides_the_remaining_count(labelled):
    listed = labelled.api.ok("GET", labelled.path("configmaps"), params={"limit": 1, "labelSelector": "test"})

    assert "continue" in listed["metadata"]
    assert "remainingItemCount" not in listed["metadata"]


def test_a_bad_continue_token_is_400(ns):
    status, _, body = ns.api.request("GET", ns.path("pods"), params={"limit": 1, "continue": "nonsense"})

    assert (status, body["reason"]) == (400, "BadRequest")
    assert "continue key is not valid" in body["message"]


def test_an_exact_version_lists_the_past(ns):
    first = ns.config_map("a", labels={"past": "1"})
    ns.config_map("b", labels={"past": "1"})
    version = first["metadata"]["resourceVersion"]

    query = {"resourceVersion": version, "resourceVersionMatch": "Exact", "labelSelector": "past"}
    listed = ns.api.ok("GET", ns.path("configmaps"), params=query)

    assert names(listed) == ["a"]
    assert listed["metadata"]["resourceVersion"] == version


def test_a_version_match_without_a_version_is_422(ns):
    status, _, body = ns.api.request("GET", ns.path("pods"), params={"resourceVersionMatch": "Exact"})

    assert (status, body["reason"]) == (422, "Invalid")


def test_a_list_over_all_namespaces(ns):
    ns.pod("only-here")

    listed = ns.api.ok("GET", "/api/v1/pods", params={"fieldSelector": "metadata.name=only-here"})

    assert [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in listed["items"]] == [
        (ns.name, "only-here")
    ]


def test_partial_metadata_leaves_the_content_out(ns):
    ns.config_map("a")
    accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

    _, _, listed = ns.api.request("GET", ns.path("configmaps"), headers={"Accept": accept})

    assert listed["kind"] == "PartialObjectMetadataList"
    assert not any("data" in each for each in listed["items"])


def test_a_watch_from_a_version_sees_what_came_after(ns):
    first = ns.config_map("a")
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"a": "2"}}, content_type=MERGE)
    ns.config_map("b")
    ns.api.ok("DELETE", ns.path("configmaps", "a"))

    query = {"resourceVersion": first["metadata"]["resourceVersion"]}
    found = ns.api.watch(ns.path("configmaps"), query, until=lambda seen: len(seen) >= 3)

    assert events(found) == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    versions = [int(each["object"]["metadata"]["resourceVersion"]) for each in found]
    assert versions == sorted(versions)
    assert found[0]["object"]["kind"] == "ConfigMap"


def test_a_watch_without_a_version_starts_with_what_is_there(ns):
    ns.pod("a")

    found = ns.api.watch(ns.path("pods"), {}, until=lambda seen: len(seen) >= 1)

    assert events(found)[0] == ("ADDED", "a")


def test_an_object_that_leaves_the_selector_is_deleted_to_the_watch(ns):
    made = ns.config_map("a", labels={"x": "1"})
    patch = {"metadata": {"labels": {"x": "2"}}}
    ns.api.ok("PATCH", ns.path("configmaps", "a"), patch, content_type=MERGE)
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"metadata": {"labels": {"x": "1"}}}, content_type=MERGE)

    query = {"labelSelector": "x=1", "resourceVersion": made["metadata"]["resourceVersion"]}
    found = ns.api.watch(ns.path("configmaps"), query, until=lambda seen: len(seen) >= 2)

    assert events(found) == [("DELETED", "a"), ("ADDED", "a")]


def test_a_watch_by_field_follows_the_field(ns):
    made = ns.pod("a", nodeName="nowhere")
    ns.report("a", "Running")

    query = {"fieldSelector": "status.phase=Running", "resourceVersion": made["metadata"]["resourceVersion"]}
    found = ns.api.watch(ns.path("pods"), query, until=lambda seen: len(seen) >= 1)

    assert events(found) == [("ADDED", "a")]


def test_a_streaming_list_ends_its_beginning_with_a_bookmark(ns):
    ns.pod("a")
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "resourceVersion": "",
        "allowWatchBookmarks": "true",
    }

    found = ns.api.watch(ns.path("pods"), query, until=lambda seen: bool(seen) and seen[-1]["type"] == "BOOKMARK")

    assert [each["type"] for each in found] == ["ADDED", "BOOKMARK"]
    assert found[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert found[-1]["object"]["kind"] == "Pod"


def test_a_watch_ends_when_its_time_is_up(ns):
    found = ns.api.watch(ns.path("pods"), {"timeoutSeconds": 1}, until=lambda _: False)

    assert found == []


def test_a_watch_from_a_forgotten_version_is_an_error_event_of_410(api):
    found = api.watch("/api/v1/pods", {"resourceVersion": "1"}, until=lambda seen: len(seen) >= 1)

    if api.flavour == "real" and (not found or found[0]["type"] != "ERROR"):
        pytest.skip("this server still remembers its first version")
    if api.flavour == "embedded":
        return  # nothing was forgotten yet; tests/apiserver compacts
    assert found[0]["object"]["code"] == 410
    assert found[0]["object"]["reason"] == "Expired"


def test_a_watch_version_that_is_no_number_is_refused(ns):
    status, _, body = ns.api.request("GET", ns.path("pods"), params={"watch": "true", "resourceVersion": "abc"})

    assert status == 500
    assert "reason" not in body


def test_a_watch_of_one_object_by_name(ns):
    ns.config_map("a")
    ns.config_map("b")

    query = {"fieldSelector": "metadata.name=b"}
    found = ns.api.watch(ns.path("configmaps"), query, until=lambda seen: len(seen) >= 1)

    assert events(found) == [("ADDED", "b")]


def test_delete_collection_takes_what_the_selector_names(labelled):
    labelled.api.ok("DELETE", labelled.path("configmaps"), params={"labelSelector": "tier"})

    listed = labelled.api.ok("GET", labelled.path("configmaps"), params={"labelSelector": "test"})
    assert names(listed) == ["c"]
