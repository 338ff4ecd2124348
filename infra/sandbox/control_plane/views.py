"""Events have two faces: core/v1 is stored, events.k8s.io/v1 is shown and read by other names."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane.resources import Kind

Object = dict[str, Any]

EVENT_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
UNSET = ("reportingComponent", "reportingInstance")
"""Always there in the stored form, left out when empty in the newer one."""
STORED_NAMES = {new: old for old, new in EVENT_NAMES.items()}


def is_view(kind: Kind) -> bool:
    """Is this kind another face of a stored one?"""
    return (kind.group, kind.plural) != kind.key


def shown(kind: Kind, obj: Object) -> Object:
    """A stored object as readers of `kind` see it."""
    if kind.custom:
        return obj if obj["apiVersion"] == kind.api_version else {**obj, "apiVersion": kind.api_version}
    if not is_view(kind):
        return obj
    seen = {EVENT_NAMES.get(name, name): value for name, value in obj.items() if value or name not in UNSET}
    return seen | {"apiVersion": kind.api_version}


def stored(kind: Kind, obj: Object) -> Object:
    """An object as sent by a writer of `kind`, as it is stored."""
    if not is_view(kind) or kind.custom:
        return obj
    return {STORED_NAMES.get(name, name): value for name, value in obj.items()} | {"apiVersion": "v1"}
