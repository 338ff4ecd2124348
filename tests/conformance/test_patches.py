"""Merge, strategic and JSON patch, and what is refused about them."""

from __future__ import annotations

import json

import pytest

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def containers(pod):
    return {each["name"]: each["image"] for each in pod["spec"]["containers"]}


def template(ns, *names):
    """A ReplicationController-free carrier of a pod spec that may change: a Deployment at zero."""
    labels = {"app": "d"}
    spec = {"containers": [{"name": name, "image": f"{name}:1"} for name in names]}
    body = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    return ns.api.ok("POST", ns.path("deployments", group="apps/v1"), body)


def patch_deployment(ns, body, kind=STRATEGIC):
    return ns.api.ok("PATCH", ns.path("deployments", "d", "apps/v1"), body, content_type=kind)


def test_merge_patch_merges_maps_and_deletes_by_null(ns):
    ns.config_map("a", {"x": "1", "y": "2"})

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"x": None, "z": "3"}}, content_type=MERGE)

    assert made["data"] == {"y": "2", "z": "3"}


def test_merge_patch_replaces_lists_as_a_whole(ns):
    template(ns, "a", "b")

    body = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "c:1"}]}}}}
    made = patch_deployment(ns, body, MERGE)

    assert containers(made["spec"]["template"]) == {"c": "c:1"}


def test_strategic_patch_merges_containers_by_name(ns):
    template(ns, "a", "b")

    body = {
        "spec": {"template": {"spec": {"containers": [{"name": "b", "image": "b:2"}, {"name": "c", "image": "c:1"}]}}}
    }
    made = patch_deployment(ns, body)

    assert containers(made["spec"]["template"]) == {"a": "a:1", "b": "b:2", "c": "c:1"}


def test_strategic_patch_deletes_an_element_by_directive(ns):
    template(ns, "a", "b")

    body = {"spec": {"template": {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}}}
    made = patch_deployment(ns, body)

    assert containers(made["spec"]["template"]) == {"b": "b:1"}


def test_strategic_patch_replaces_a_list_by_directive(ns):
    template(ns, "a", "b")

    body = {"spec": {"template": {"spec": {"containers": [{"name": "z", "image": "z:1"}, {"$patch": "replace"}]}}}}
    made = patch_deployment(ns, body)

    assert containers(made["spec"]["template"]) == {"z": "z:1"}


def test_strategic_patch_orders_elements_as_told(ns):
    template(ns, "a", "b")

    pod = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "a:2"}]}
    made = patch_deployment(ns, {"spec": {"template": {"spec": pod}}})

    assert [each["name"] for each in made["spec"]["template"]["spec"]["containers"]] == ["b", "a"]


def test_strategic_patch_retains_only_named_keys(ns):
    template(ns, "a")

    strategy = {"$retainKeys": ["type"], "type": "Recreate"}
    made = patch_deployment(ns, {"spec": {"strategy": strategy}})

    assert made["spec"]["strategy"] == {"type": "Recreate"}


def test_strategic_patch_merges_node_conditions_by_type(api):
    name = "conformance-strategic-node"
    api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    path = f"/api/v1/nodes/{name}/status"
    for kind, status in (("A", "True"), ("B", "True"), ("A", "False")):
        body = {"status": {"conditions": [{"type": kind, "status": status}]}}
        made = api.ok("PATCH", path, body, content_type=STRATEGIC)
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert {each["type"]: each["status"] for each in made["status"]["conditions"]} == {"A": "False", "B": "True"}


def test_strategic_patch_adds_to_finalizers_and_takes_from_them(ns):
    ns.config_map("a", finalizers=["x.example/one"])
    path = ns.path("configmaps", "a")

    added = ns.api.ok("PATCH", path, {"metadata": {"finalizers": ["x.example/two"]}}, content_type=STRATEGIC)
    assert added["metadata"]["finalizers"] == ["x.example/two", "x.example/one"]

    body = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.example/one", "x.example/two"]}}
    taken = ns.api.ok("PATCH", path, body, content_type=STRATEGIC)
    assert "finalizers" not in taken["metadata"]


def test_strategic_patch_of_taints_replaces_them(api):
    name = "conformance-strategic-taints"
    api.ok(
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": name}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}},
    )
    body = {"spec": {"taints": [{"key": "b", "value": "1", "effect": "NoSchedule"}]}}
    made = api.ok("PATCH", f"/api/v1/nodes/{name}", body, content_type=STRATEGIC)
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert [each["key"] for each in made["spec"]["taints"]] == ["b"]


def test_json_patch_adds_replaces_removes_and_tests(ns):
    ns.config_map("a", {"x": "1", "y": "2"})
    operations = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "9"},
        {"op": "remove", "path": "/data/y"},
        {"op": "add", "path": "/data/z", "value": "3"},
    ]

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), operations, content_type=JSON_PATCH)

    assert made["data"] == {"x": "9", "z": "3"}


def test_json_patch_escapes_slashes(ns):
    ns.config_map("a", labels={"x.example/y": "1"})
    operations = [{"op": "replace", "path": "/metadata/labels/x.example~1y", "value": "2"}]

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), operations, content_type=JSON_PATCH)

    assert made["metadata"]["labels"] == {"x.example/y": "2"}


def test_a_failed_json_patch_test_is_422(ns):
    ns.config_map("a")
    operations = [{"op": "test", "path": "/data/a", "value": "other"}]

    status, _, body = ns.api.request("PATCH", ns.path("configmaps", "a"), operations, content_type=JSON_PATCH)

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["message"] == "the server rejected our request due to an error in our request"


def test_a_json_patch_that_is_no_list_is_400(ns):
    ns.config_map("a")

    status, _, body = ns.api.request("PATCH", ns.path("configmaps", "a"), {"op": "add"}, content_type=JSON_PATCH)

    assert (status, body["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_an_unknown_patch_type_is_415(ns, kind):
    ns.config_map("a")

    status, _, body = ns.api.request("PATCH", ns.path("configmaps", "a"), {"data": {}}, content_type=kind)

    assert (status, body["reason"]) == (415, "UnsupportedMediaType")


def test_a_patch_of_a_missing_object_is_404(ns):
    status, _, body = ns.api.request("PATCH", ns.path("configmaps", "none"), {"data": {}}, content_type=MERGE)

    assert (status, body["reason"]) == (404, "NotFound")


def test_a_patch_with_a_stale_version_is_409(ns):
    first = ns.config_map("a")
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"a": "2"}}, content_type=MERGE)
    body = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"a": "3"}}

    status, _, answer = ns.api.request("PATCH", ns.path("configmaps", "a"), body, content_type=MERGE)

    assert (status, answer["reason"]) == (409, "Conflict")


def test_a_patch_that_changes_nothing_keeps_the_version(ns):
    first = ns.config_map("a")

    second = ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": first["data"]}, content_type=MERGE)

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_a_patch_cannot_rename(ns):
    ns.config_map("a")

    status, _, body = ns.api.request(
        "PATCH", ns.path("configmaps", "a"), {"metadata": {"name": "b"}}, content_type=MERGE
    )

    assert status in (400, 422)
    assert body["status"] == "Failure"


def test_force_is_only_for_apply(ns):
    ns.config_map("a")

    status, _, body = ns.api.request(
        "PATCH", ns.path("configmaps", "a"), {"data": {}}, {"force": "true"}, content_type=MERGE
    )

    assert status == 422
    assert body["details"]["causes"][0]["field"] == "force"


def test_strict_patch_refuses_unknown_fields_and_warn_says_so(ns):
    ns.config_map("a")
    path, body = ns.path("configmaps", "a"), {"nonsense": 1}

    status, _, answer = ns.api.request("PATCH", path, body, {"fieldValidation": "Strict"}, content_type=MERGE)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert 'unknown field "nonsense"' in answer["message"]

    status, headers, _ = ns.api.request("PATCH", path, body, {"fieldValidation": "Warn"}, content_type=MERGE)
    assert (status, headers["warning"]) == (200, '299 - "unknown field \\"nonsense\\""')

    status, headers, made = ns.api.request("PATCH", path, body, {"fieldValidation": "Ignore"}, content_type=MERGE)
    assert status == 200
    assert "warning" not in headers
    assert "nonsense" not in made


def test_strict_create_refuses_unknown_fields(ns):
    body = {"metadata": {"name": "a"}, "nonsense": 1}

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body, {"fieldValidation": "Strict"})

    assert (status, answer["reason"]) == (400, "BadRequest")
    assert answer["message"] == (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: unknown field "nonsense"'
    )


def test_strict_create_refuses_duplicate_fields(ns):
    body = '{"metadata": {"name": "a"}, "data": {"k": "1"}, "data": {"k": "2"}}'

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body, {"fieldValidation": "Strict"})

    assert (status, answer["reason"]) == (400, "BadRequest")
    assert 'duplicate field "data"' in answer["message"]


def test_the_default_field_validation_is_a_warning(ns):
    body = {"metadata": {"name": "a"}, "nonsense": 1}

    status, headers, _ = ns.api.request("POST", ns.path("configmaps"), body)

    assert (status, headers["warning"]) == (201, '299 - "unknown field \\"nonsense\\""')


def test_an_unknown_field_validation_is_422(ns):
    status, _, answer = ns.api.request(
        "POST", ns.path("configmaps"), {"metadata": {"name": "a"}}, {"fieldValidation": "Maybe"}
    )

    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["details"]["causes"][0]["field"] == "fieldValidation"


def test_a_wrong_type_is_400_and_names_the_field(ns):
    body = {"metadata": {"name": "d"}, "spec": {"replicas": "three"}}

    status, _, answer = ns.api.request("POST", ns.path("deployments", group="apps/v1"), body)

    assert (status, answer["reason"]) == (400, "BadRequest")
    assert (
        "cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32" in answer["message"]
    )


def test_a_dry_run_patch_stores_nothing(ns):
    ns.config_map("a")

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"a": "2"}}, {"dryRun": "All"}, content_type=MERGE)

    assert made["data"] == {"a": "2"}
    assert ns.api.ok("GET", ns.path("configmaps", "a"))["data"] == {"a": "1"}


def test_a_body_over_three_megabytes_is_413(ns):
    body = json.dumps({"metadata": {"name": "a"}, "data": {"k": "x" * (4 * 1024 * 1024)}})

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body)

    assert (status, answer["reason"]) == (413, "RequestEntityTooLarge")
