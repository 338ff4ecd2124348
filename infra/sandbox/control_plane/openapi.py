"""/openapi/v3: enough for kubectl to leave validation to the server, and for `kubectl explain`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from infra.sandbox.control_plane.resources import Kind, Registry, distilled

Object = dict[str, Any]

REF = re.compile(r"#/components/schemas/(.+)")
VERBS = (("get", "list"), ("post", "create"))
ITEM_VERBS = (("get", "get"), ("put", "update"), ("patch", "patch"), ("delete", "delete"))
WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")


def index(registry: Registry) -> Object:
    """GET /openapi/v3."""
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}"}
    return {"paths": paths}


def document(registry: Registry, group: str, version: str, custom: dict[str, Object]) -> Object | None:
    """GET /openapi/v3/apis/GROUP/VERSION; `custom` are schemas of custom kinds by Kind. None if there is nothing."""
    kinds = [kind for kind in registry if (kind.group, kind.version) == (group, version)]
    if not kinds:
        return None
    schemas: dict[str, Object] = {}
    paths: dict[str, Object] = {}
    for kind in kinds:
        if kind.custom:
            name = f"{'.'.join(reversed(kind.group.split('.')))}.{kind.version}.{kind.kind}"
            gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
            schemas[name] = {**custom.get(kind.kind, {}), "x-kubernetes-group-version-kind": [gvk]}
        elif kind.schema:
            _collect(kind.schema, schemas)
        paths.update(_paths(kind))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": distilled()["version"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _collect(name: str, into: dict[str, Object]) -> None:
    """A schema and everything that it refers to."""
    if name in into:
        return
    into[name] = distilled()["schemas"][name]
    for reference in _references(into[name]):
        _collect(reference, into)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                match = REF.fullmatch(value)
                if match:
                    yield match.group(1)
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _paths(kind: Kind) -> dict[str, Object]:
    collection = kind.path("{namespace}" if kind.namespaced else None)
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    return {
        collection: {method: _operation(verb, gvk) for method, verb in VERBS if verb in kind.verbs},
        collection + "/{name}": {method: _operation(verb, gvk) for method, verb in ITEM_VERBS if verb in kind.verbs},
    }


def _operation(verb: str, gvk: Object) -> Object:
    parameters = []
    if verb in ("create", "update", "patch"):
        parameters = [
            {"in": "query", "name": name, "schema": {"type": "string", "uniqueItems": True}}
            for name in WRITE_PARAMETERS
        ]
    action = {"create": "post", "update": "put"}.get(verb, verb)
    return {
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }
