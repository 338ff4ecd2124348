"""What the server refuses with 422: metadata, then what each kind forbids."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from infra.sandbox.control_plane import errors, kindrules
from infra.sandbox.control_plane.refusals import DNS_SUBDOMAIN, SUBDOMAIN_RULE, Refusals
from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]

ANNOTATIONS_LIMIT = 256 * 1024
LABEL_NAMES = frozenset({("", "namespaces"), ("", "services")})
PATH_NAMES = frozenset(
    ("rbac.authorization.k8s.io", plural) for plural in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
)
"""RBAC names may hold almost anything that a path can."""
COMPARED: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("minimum", "greater than or equal to", lambda value, limit: value >= limit),
    ("maximum", "less than or equal to", lambda value, limit: value <= limit),
)


def check(kind: Kind, kind_type: Type, new: Object, old: Object | None, sub: str) -> None:
    """Refuse an object that is about to be written. ApiError 422 with every cause."""
    found = Refusals()
    _metadata(kind, new, old, found)
    if kind.custom:
        _custom(kind_type, new, "", found)
    elif sub != "status" or kind.key == ("policy", "poddisruptionbudgets"):
        rule = kindrules.RULES.get(kind.key)
        if rule is not None:
            rule(new, old, found)
    if found.causes:
        raise errors.invalid(kind.group, kind.kind, new["metadata"]["name"], found.causes)


def _metadata(kind: Kind, new: Object, old: Object | None, found: Refusals) -> None:
    metadata = new["metadata"]
    before = old["metadata"] if old is not None else {}
    if old is None:
        _name(kind, metadata["name"], found)
    labels = metadata.get("labels")
    if labels and labels != before.get("labels"):
        found.labels("metadata.labels", labels)
    annotations = metadata.get("annotations")
    if annotations and annotations != before.get("annotations"):
        _annotations(annotations, found)
    owners = metadata.get("ownerReferences")
    if owners and owners != before.get("ownerReferences"):
        _owners(owners, found)
    if old is not None and before.get("deletionTimestamp"):
        added = [each for each in metadata.get("finalizers", ()) if each not in before.get("finalizers", ())]
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {added}"
            found.forbidden("metadata.finalizers", why.replace("'", '"'))


def _name(kind: Kind, name: str, found: Refusals) -> None:
    if kind.key in PATH_NAMES:
        if name in (".", "..") or "/" in name or "%" in name:
            found.invalid("metadata.name", name, "may not contain '/' or '%'")
        return
    if kind.key in LABEL_NAMES:
        found.dns_label("metadata.name", name)
        return
    if len(name) > 253:
        found.invalid("metadata.name", name, "must be no more than 253 characters")
    if not DNS_SUBDOMAIN.fullmatch(name):
        found.invalid("metadata.name", name, SUBDOMAIN_RULE)


def _annotations(annotations: Object, found: Refusals) -> None:
    total = 0
    for key, value in annotations.items():
        found.qualified_name("metadata.annotations", key.lower())
        total += len(key) + len(value)
    if total > ANNOTATIONS_LIMIT:
        found.too_long("metadata.annotations", ANNOTATIONS_LIMIT)


def _owners(owners: list[Object], found: Refusals) -> None:
    path, controllers = "metadata.ownerReferences", []
    for owner in owners:
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                found.invalid(
                    path + ("" if name == "apiVersion" else f".{name}"), owner.get(name, ""), "must not be empty"
                )
        if owner.get("controller"):
            controllers.append(owner)
    if len(controllers) > 1:
        first, second = controllers[0], controllers[1]
        why = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{first['kind']}/{first['name']} and {second['kind']}/{second['name']}"
        )
        found.invalid(path, owners, why)


# Custom resources


def _custom(kind: Type, value: Any, path: str, found: Refusals) -> None:
    """The validation keywords of a structural schema."""
    if value is None:
        return
    _limits(kind, value, path, found)
    if kind.form == "object" and isinstance(value, dict):
        prefix = f"{path}." if path else ""
        for name in sorted(kind.required):
            if name not in value:
                found.required(prefix + name)
        for name, each in value.items():
            field = kind.fields.get(name)
            if field is not None and (path or name != "metadata"):
                _custom(field, each, prefix + name, found)
    elif kind.form == "array" and isinstance(value, list) and kind.items is not None:
        for index, each in enumerate(value):
            _custom(kind.items, each, f"{path}[{index}]", found)
    elif kind.form == "map" and isinstance(value, dict) and kind.items is not None:
        for name, each in value.items():
            _custom(kind.items, each, f"{path}.{name}", found)


def _limits(kind: Type, value: Any, path: str, found: Refusals) -> None:
    limits = kind.limits
    if not limits:
        return
    if "enum" in limits and value not in limits["enum"]:
        found.unsupported(path, value, tuple(str(each) for each in limits["enum"]))
    if isinstance(value, int | float) and not isinstance(value, bool):
        for keyword, worded, holds in COMPARED:
            if keyword in limits and not holds(value, limits[keyword]):
                found.invalid(path, value, f"{path} in body should be {worded} {limits[keyword]}")
    if isinstance(value, str):
        if len(value) < limits.get("minLength", 0):
            found.invalid(path, value, f"{path} in body should be at least {limits['minLength']} chars long")
        if "maxLength" in limits and len(value) > limits["maxLength"]:
            found.too_long(path, limits["maxLength"])
        if "pattern" in limits and not re.search(limits["pattern"], value):
            found.invalid(path, value, f"{path} in body should match '{limits['pattern']}'")
    if isinstance(value, list):
        if len(value) < limits.get("minItems", 0):
            found.invalid(path, len(value), f"{path} in body should have at least {limits['minItems']} items")
        if "maxItems" in limits and len(value) > limits["maxItems"]:
            found.invalid(path, len(value), f"{path} in body should have at most {limits['maxItems']} items")
