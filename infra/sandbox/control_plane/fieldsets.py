"""Sets of fields in the form of `managedFields[].fieldsV1`, and what two objects differ in, by type.

A node is a dict of children; `{}` is an owned leaf, `"."` marks an owned node that has children. The whole set
is a node that is not owned itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]
Node = dict[str, Any]

ANY = Type(form="any")
MISSING: Any = object()
UNOWNED = frozenset(
    {
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    }
)
"""Metadata that nobody owns."""


def owned(node: Node) -> bool:
    """Is the node itself a member of the set?"""
    return not node or "." in node


def _children(node: Node) -> Iterator[tuple[str, Node]]:
    return ((key, child) for key, child in node.items() if key != ".")


def union(left: Node, right: Node) -> Node:
    """Members of either (of two whole sets)."""
    result = dict(left)
    for key, child in _children(right):
        result[key] = _union_node(result[key], child) if key in result else child
    return result


def _union_node(left: Node, right: Node) -> Node:
    if not left:
        return _marked(right)
    if not right:
        return _marked(left)
    merged = union(left, right)
    return _marked(merged) if "." in right else merged


def _marked(node: Node) -> Node:
    return node if not node or "." in node else {".": {}, **node}


def difference(left: Node, right: Node) -> Node:
    """Members of `left` that are not in `right` (of two whole sets)."""
    result: Node = {}
    for key, child in _children(left):
        rest = _difference_node(child, right[key]) if key in right else child
        if rest is not None:
            result[key] = rest
    return result


def _difference_node(left: Node, right: Node) -> Node | None:
    children = difference(left, right)
    if owned(left) and not owned(right):
        return _marked(children)
    return children or None


def paths(node: Node, other: Node, prefix: str = "") -> Iterator[str]:
    """Members of both sets, as the real server words their paths: `.spec.containers[name="a"].image`."""
    for key in sorted(_shared(node, other)):
        left, right = node[key], other[key]
        path = prefix + _element(key)
        if owned(left) and owned(right):
            yield path
        yield from paths(left, right, path)


def _shared(node: Node, other: Node) -> Iterator[str]:
    return (key for key in node if key in other and key != ".")


def _element(key: str) -> str:
    form, _, text = key.partition(":")
    if form == "f":
        return f".{text}"
    if form == "v":
        return f"[={text}]"
    pairs = ",".join(f"{name}={orjson.dumps(value).decode()}" for name, value in orjson.loads(text).items())
    return f"[{pairs}]"


# Objects and their fields


def is_atomic(kind: Type, value: Any) -> bool:
    """Does the value have one owner as a whole?"""
    if kind.form in ("object", "map") and isinstance(value, dict):
        return kind.atomic
    if kind.form == "array" and isinstance(value, list):
        return kind.list_type not in ("map", "set")
    return not (kind.form == "any" and isinstance(value, dict))


def child_type(kind: Type, name: str) -> Type:
    """The type of a field of a struct or map."""
    if kind.form == "object":
        return kind.fields.get(name, ANY)
    return kind.items or ANY


def element_key(kind: Type, element: Any) -> str:
    """How a list element is named in a set."""
    if kind.list_type == "map" and isinstance(element, dict):
        items = kind.items or ANY
        keys = {}
        for name in sorted(kind.list_keys):
            field = items.fields.get(name)
            value = element.get(name, field.default if field else None)
            if value is not None:
                keys[name] = value
        return "k:" + orjson.dumps(keys).decode()
    return "v:" + orjson.dumps(element).decode()


def by_key(kind: Type, elements: list[Any]) -> dict[str, Any]:
    """List elements by their name in a set."""
    return {element_key(kind, element): element for element in elements}


def fields_of(kind: Type, obj: Object) -> Node:
    """The whole set of an object that somebody applies."""
    return _without_empty_metadata(_applied(kind, _ownable(obj)))


def all_fields(kind: Type, obj: Object) -> Node:
    """The whole set of an object that somebody creates."""
    return _without_empty_metadata(_created(kind, _ownable(obj), fresh=False))


def _without_empty_metadata(node: Node) -> Node:
    return {key: child for key, child in node.items() if child or key != "f:metadata"}


def _ownable(obj: Object) -> Object:
    rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    if "metadata" in rest:
        rest["metadata"] = {key: value for key, value in rest["metadata"].items() if key not in UNOWNED}
    return rest


def _applied(kind: Type, value: Any) -> Node:
    """An applier owns its leaves, list elements and map entries; structs stand for their fields."""
    if is_atomic(kind, value):
        return {}
    if isinstance(value, list):
        return {element_key(kind, each): _marked(_applied(kind.items or ANY, each)) for each in value}
    node: Node = {}
    for name, each in value.items():
        child = _applied(child_type(kind, name), each)
        known = kind.form == "object" and name in kind.fields
        node[f"f:{name}"] = child if known else _marked(child)
    return node


def _created(kind: Type, value: Any, *, fresh: bool) -> Node:
    """What differs from nothing. Without `fresh` the parent is there in every object, with its inline structs."""
    if is_atomic(kind, value):
        return {}
    if isinstance(value, list):
        return {element_key(kind, each): _marked(_created(kind.items or ANY, each, fresh=True)) for each in value}
    node: Node = {}
    for name, each in value.items():
        if each is None:
            continue
        field = child_type(kind, name)
        always = not fresh and _always_there(kind, name)
        child = _created(field, each, fresh=not always)
        if always:
            if child or (each and is_atomic(field, each)):
                node[f"f:{name}"] = child
        else:
            node[f"f:{name}"] = _marked(child)
    return node


def _always_there(kind: Type, name: str) -> bool:
    """Fields that the server has even in an empty object: nobody creates them as such."""
    if kind.form != "object":
        return False
    return name in kind.inline or name in kind.required or name in kind.zeros or name in ("metadata", "spec")


def compare(kind: Type, old: Object, new: Object) -> tuple[Node, Node]:
    """The whole sets of what was added or changed, and of what was removed."""
    changed, removed = _compare(kind, _ownable(old), _ownable(new))
    return changed or {}, removed or {}


def _compare(kind: Type, old: Any, new: Any) -> tuple[Node | None, Node | None]:
    """None is the empty set here, since `{}` is an owned leaf."""
    if old is new or old == new:
        return None, None
    if is_atomic(kind, new) or is_atomic(kind, old) or type(old) is not type(new):
        return {}, None
    if isinstance(new, list):
        before, after = by_key(kind, old), by_key(kind, new)
        types = dict.fromkeys([*before, *after], kind.items or ANY)
        always: frozenset[str] = frozenset()
    else:
        before = {f"f:{name}": value for name, value in old.items()}
        after = {f"f:{name}": value for name, value in new.items()}
        types = {f"f:{name}": child_type(kind, name) for name in (*old, *new)}
        always = frozenset(f"f:{name}" for name in new if _always_there(kind, name))
    changed: Node = {}
    removed: Node = {}
    for key, each in types.items():
        if key not in before:
            child = _created(each, after[key], fresh=key not in always)
            changed[key] = child if key in always else _marked(child)
        elif key not in after:
            removed[key] = _marked(_created(each, before[key], fresh=True))
        else:
            more, less = _compare(each, before[key], after[key])
            if more is not None:
                changed[key] = more
            if less is not None:
                removed[key] = less
    return changed or None, removed or None
