"""What the server refuses with 422, and the causes that it gives."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]


def check(kind: Kind, kind_type: Type, new: Object, old: Object | None, sub: str) -> None:
    """Refuse an object that is about to be written."""
