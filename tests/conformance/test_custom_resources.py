"""CustomResourceDefinitions: served once created, structural schemas, columns."""

from __future__ import annotations

import itertools
import os

import pytest

MERGE = "application/merge-patch+json"
GROUP = "conformance.poolshift.dev"
_numbers = itertools.count()

SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["nodes"],
            "properties": {
                "nodes": {"type": "integer", "minimum": 1},
                "mode": {"type": "string", "enum": ["ring", "tree"], "default": "ring"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "links": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "rate": {"type": "integer"}},
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    },
}


@pytest.fixture
def probes(api):
    """A fresh custom kind; the path of its collection in the namespace default."""
    number = f"{os.getpid()}x{next(_numbers)}"
    plural, kind = f"probes{number}", f"Probe{number}"
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": SCHEMA},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Nodes", "type": "integer", "jsonPath": ".spec.nodes"}],
    }
    body = {
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [version],
        },
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.ok("POST", definitions, body)
    path = f"/apis/{GROUP}/v1/namespaces/default/{plural}"

    def established(made):
        held = {each["type"]: each["status"] for each in made["status"].get("conditions") or ()}
        return held.get("Established") == "True"

    api.until(f"{definitions}/{plural}.{GROUP}", established)
    api.until(path, bool)
    yield path, kind
    api.request("DELETE", f"{definitions}/{plural}.{GROUP}")


def probe(kind, name="p", **spec):
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": {"nodes": 2, **spec}}


def test_a_custom_resource_is_served_and_discovered(api, probes):
    path, kind = probes

    made = api.ok("POST", path, probe(kind))

    assert (made["kind"], made["metadata"]["generation"]) == (kind, 1)
    resources = api.ok("GET", f"/apis/{GROUP}/v1")["resources"]
    assert {f"{path.rpartition('/')[2]}", f"{path.rpartition('/')[2]}/status"} <= {each["name"] for each in resources}


def test_defaults_and_pruning(api, probes):
    path, kind = probes

    made = api.ok("POST", path, probe(kind, nonsense=1, free={"any": {"thing": 1}}))

    assert made["spec"] == {"nodes": 2, "mode": "ring", "free": {"any": {"thing": 1}}}


def test_items_of_a_custom_list_carry_their_kind(api, probes):
    path, kind = probes
    api.ok("POST", path, probe(kind))

    listed = api.ok("GET", path)

    assert listed["kind"] == f"{kind}List"
    assert listed["items"][0]["kind"] == kind


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"nodes": 0}, "spec.nodes", "FieldValueInvalid"),
        ({"nodes": "many"}, "spec.nodes", "FieldValueTypeInvalid"),
        ({"mode": "star"}, "spec.mode", "FieldValueNotSupported"),
        ({"links": [{"rate": 1}]}, "spec.links[0].name", "FieldValueRequired"),
    ],
)
def test_the_schema_is_enforced(api, probes, spec, field, reason):
    path, kind = probes

    status, _, body = api.request("POST", path, probe(kind, **spec))

    assert (status, body["reason"]) == (422, "Invalid")
    assert (field, reason) in {(each["field"], each["reason"]) for each in body["details"]["causes"]}


def test_strict_refuses_unknown_fields(api, probes):
    path, kind = probes

    status, _, body = api.request("POST", path, probe(kind, nonsense=1), {"fieldValidation": "Strict"})

    assert (status, body["reason"]) == (400, "BadRequest")
    assert 'strict decoding error: unknown field "spec.nonsense"' in body["message"]


def test_status_is_apart_and_does_not_count_as_a_generation(api, probes):
    path, kind = probes
    api.ok("POST", path, {**probe(kind), "status": {"phase": "early"}})

    patched = api.ok(
        "PATCH", f"{path}/p/status", {"spec": {"nodes": 9}, "status": {"phase": "done"}}, content_type=MERGE
    )
    assert (patched["spec"]["nodes"], patched["status"]) == (2, {"phase": "done"})
    assert patched["metadata"]["generation"] == 1

    changed = api.ok("PATCH", f"{path}/p", {"spec": {"nodes": 3}, "status": {"phase": "x"}}, content_type=MERGE)
    assert (changed["metadata"]["generation"], changed["status"]) == (2, {"phase": "done"})


def test_strategic_patch_is_415(api, probes):
    path, kind = probes
    api.ok("POST", path, probe(kind))

    status, _, body = api.request(
        "PATCH", f"{path}/p", {"spec": {"nodes": 3}}, content_type="application/strategic-merge-patch+json"
    )

    assert (status, body["reason"]) == (415, "UnsupportedMediaType")
    assert "application/merge-patch+json" in body["message"]


def test_apply_merges_lists_by_the_schemas_keys(api, probes):
    path, kind = probes
    api.apply(f"{path}/p", probe(kind, links=[{"name": "a", "rate": 1}]), "me")
    status, made = api.apply(f"{path}/p", probe(kind, links=[{"name": "b", "rate": 2}]), "you")

    assert status == 200
    assert [each["name"] for each in made["spec"]["links"]] == ["a", "b"]


def test_replace_without_a_version_is_422(api, probes):
    path, kind = probes
    api.ok("POST", path, probe(kind))

    status, _, body = api.request("PUT", f"{path}/p", probe(kind, nodes=3))

    assert status == 422
    assert body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


def test_its_columns_are_in_the_table(api, probes):
    path, kind = probes
    api.ok("POST", path, probe(kind))

    _, _, table = api.request("GET", path, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})

    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "Nodes"]
    assert table["rows"][0]["cells"] == ["p", 2]


def test_a_deleted_definition_takes_its_objects_and_its_path(api, probes):
    path, kind = probes
    api.ok("POST", path, probe(kind))
    name = f"{path.rpartition('/')[2]}.{GROUP}"

    api.ok("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")

    api.until(path, bool, gone=True)


def test_a_definition_under_a_wrong_name_is_422(api):
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "things", "kind": "Thing"}
    body = {
        "metadata": {"name": "wrong.example"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }

    status, _, answer = api.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)

    assert (status, answer["reason"]) == (422, "Invalid")
    assert any(each["field"] == "metadata.name" for each in answer["details"]["causes"])
