"""Small pure readings of Kubernetes objects (plain dicts) that every controller needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import orjson

from infra.clock import parse_time

Object = dict[str, Any]

_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels and no look-alikes: what hashes and generated names are drawn from."""


def key_of(obj: Object) -> tuple[str, str]:
    """Namespace ("" when it has none) and name."""
    meta = obj["metadata"]
    return meta.get("namespace") or "", meta["name"]


def is_deleting(obj: Object) -> bool:
    """Has a deletion timestamp."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def controller_of(obj: Object) -> Object | None:
    """The owner reference with controller: true."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Object = reference
            return found
    return None


def owner_reference(owner: Object, api_version: str, kind: str) -> Object:
    """The reference that a controller puts on what it makes."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Object, kind: str) -> Object | None:
    """The condition of that type in status, or None."""
    for item in (obj.get("status") or {}).get("conditions") or ():
        if item.get("type") == kind:
            found: Object = item
            return found
    return None


def with_condition(conditions: Iterable[Object] | None, new: Object) -> list[Object]:
    """Conditions with `new` in the place of the one of its type (at the end when there was none)."""
    result = []
    placed = False
    for item in conditions or ():
        if item.get("type") == new["type"]:
            result.append(new)
            placed = True
        else:
            result.append(item)
    if not placed:
        result.append(new)
    return result


def without_condition(conditions: Iterable[Object] | None, kind: str) -> list[Object]:
    """Conditions less the one of that type."""
    return [item for item in conditions or () if item.get("type") != kind]


def is_finished(pod: Object) -> bool:
    """Succeeded or Failed."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def seconds_since(text: str | None, now: datetime) -> float:
    """How long ago an RFC 3339 time was; endless when it is missing."""
    return (now - parse_time(text)).total_seconds() if text else math.inf


def available_in(ready_since: str | None, min_ready_seconds: int, now: datetime) -> float:
    """Seconds until a ready pod counts as available; 0 when it does."""
    if min_ready_seconds <= 0:
        return 0.0
    return max(0.0, min_ready_seconds - seconds_since(ready_since, now)) if ready_since else float(min_ready_seconds)


def scaled(value: int | str | None, total: int, *, up: bool) -> int:
    """An int-or-percent against a total, as intstr.GetScaledValueFromIntOrPercent does.

    ValueError for a string that is no percentage, in the words of the real one.
    """
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    digits = value[:-1] if value.endswith("%") else ""
    if not digits.isdigit():
        msg = f'invalid value for IntOrString: invalid value "{value}": not a percentage'
        raise ValueError(msg)
    share = int(digits) * total / 100
    return math.ceil(share) if up else math.floor(share)


def template_hash(template: Any, collisions: int = 0) -> str:
    """A short stable hash of a pod template, in the form of a pod-template-hash.

    FNV-1a, as the real one, but over sorted JSON and not over Go's dump of the struct: same form, other value.
    """
    value = 2166136261
    for byte in orjson.dumps([template, collisions], option=orjson.OPT_SORT_KEYS):
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return "".join(_NAME_ALPHABET[ord(char) % len(_NAME_ALPHABET)] for char in str(value))


def labels_of(obj: Object) -> Mapping[str, str]:
    """Labels, empty when there are none."""
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found
