"""JSON merge patch, strategic merge patch and JSON patch."""

from __future__ import annotations

from typing import Any

import jsonpatch
import jsonpointer

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]
JSON_PATCH_LIMIT = 10_000


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, maps merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(result.get(key), value)
        else:
            result[key] = value
    return result


def json_patch(target: Object, operations: Any) -> Object:
    """RFC 6902. 400 if it is no list of operations, 422 if one of them does not apply."""
    if not isinstance(operations, list):
        raise errors.bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > JSON_PATCH_LIMIT:
        count = len(operations)
        raise errors.ApiError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {JSON_PATCH_LIMIT}, got {count}",
        )
    try:
        patched: Object = jsonpatch.apply_patch(target, operations)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException):
        raise errors.ApiError(
            422, "Invalid", "the server rejected our request due to an error in our request", {}
        ) from None
    return patched


def strategic(target: Any, patch: Object, kind: Type | None) -> Object:
    """Strategic merge: lists with a merge key merge by it, `$patch`, `$deleteFromPrimitiveList`, `$setElementOrder`."""
    if patch.get("$patch") == "delete":
        return {}
    if patch.get("$patch") == "replace":
        return _plain_map({key: value for key, value in patch.items() if key != "$patch"})
    result = dict(target) if isinstance(target, dict) else {}
    retained = patch.get("$retainKeys")
    if retained is not None:
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key in ("$retainKeys", "$patch"):
            continue
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            if name in result:
                result[name] = [each for each in result[name] if each not in value]
            continue
        if key.startswith("$setElementOrder/"):
            continue
        field = _field(kind, key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = strategic(result.get(key), value, field)
        elif isinstance(value, list) and field is not None and "merge" in field.patch_strategies:
            result[key] = _merge_list(result.get(key) or [], value, field)
        else:
            result[key] = value
    _reorder(result, target if isinstance(target, dict) else {}, patch, kind)
    return result


def _field(kind: Type | None, name: str) -> Type | None:
    if kind is None:
        return None
    return kind.fields.get(name) if kind.form == "object" else kind.items


def _plain_map(patch: Object) -> Object:
    plain: Object = _plain(patch)
    return plain


def _plain(value: Any) -> Any:
    """A patch that replaces, without its directives and nulls."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if each is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _merge_list(present: list[Any], patch: list[Any], field: Type) -> list[Any]:
    key = field.merge_key
    if not key:
        merged = [*present, *(each for each in patch if each not in present)]
        return _ordered(merged, patch, present, key)
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in patch):
        return [_plain(each) for each in patch if each.get("$patch") != "replace"]
    result = list(present)
    for element in patch:
        if not isinstance(element, dict) or key not in element:
            raise errors.internal(f"map: {go_map(element)} does not contain declared merge key: {key}")
        at = next((i for i, each in enumerate(result) if each.get(key) == element[key]), None)
        if element.get("$patch") == "delete":
            result = [each for each in result if each.get(key) != element[key]]
        elif at is None:
            result.append(strategic({}, element, field.items))
        else:
            result[at] = strategic(result[at], element, field.items)
    return _ordered(result, patch, present, key)


def _reorder(result: Object, before: Object, patch: Object, kind: Type | None) -> None:
    """`$setElementOrder/x` lists the wanted order of x."""
    for directive, wanted in patch.items():
        if not directive.startswith("$setElementOrder/"):
            continue
        name = directive.partition("/")[2]
        elements, field = result.get(name), _field(kind, name)
        if isinstance(elements, list):
            key = field.merge_key if field is not None else ""
            result[name] = _ordered(elements, wanted, before.get(name) or [], key)


def _ordered(merged: list[Any], wanted: list[Any], live: list[Any], key: str) -> list[Any]:
    """Elements of the patch in its order, the others put in where the live list had them, as the real server does."""
    order = list(dict.fromkeys(_identity(each, key) for each in wanted))
    served = {_identity(each, key): place for place, each in enumerate(live)}
    named = {_identity(each, key): each for each in merged}
    patched = [each for each in order if each in named]
    others = [each for each in named if each not in order]
    result: list[Any] = []
    while others or patched:
        if not patched or (others and _stands_before(served, others[0], patched[0])):
            result.append(named[others.pop(0)])
        else:
            result.append(named[patched.pop(0)])
    return result


def _stands_before(served: dict[Any, int], left: Any, right: Any) -> bool:
    return left in served and right in served and served[left] < served[right]


def _identity(element: Any, key: str) -> Any:
    return element.get(key) if key and isinstance(element, dict) else element


def go_map(value: Any) -> str:
    """A value as Go's %v prints it."""
    if isinstance(value, dict):
        return "map[" + " ".join(f"{key}:{go_map(each)}" for key, each in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(go_map(each) for each in value) + "]"
    if value is None:
        return "<nil>"
    return str(value).lower() if isinstance(value, bool) else str(value)
