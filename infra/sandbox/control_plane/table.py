"""meta.k8s.io/v1 Table: what kubectl asks for so that the server chooses the columns."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.sandbox.control_plane import columns, wording
from infra.sandbox.control_plane.resources import Kind

Object = dict[str, Any]

PLAIN = ("Name|Age", lambda obj, now: [obj["metadata"]["name"], wording.age(obj, now)])
INTEGERS = frozenset({"Desired", "Current", "Up-to-date", "Available", "Data", "Value", "Count", "Allowed Disruptions"})


class Printer:
    """Shows objects of one kind as rows; `custom` are the additionalPrinterColumns of a custom kind."""

    def __init__(self, kind: Kind, now: datetime, custom: list[Object]) -> None:
        self._kind = kind
        self._now = now
        self._custom = custom
        self._header, self._cells = columns.COLUMNS.get(kind.key, PLAIN)

    def table(self, objects: list[Object], metadata: Object, include: str) -> Object:
        """A Table of objects; `include` says how much of each object a row carries: None, Metadata, Object."""
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": self._definitions(),
            "rows": [{"cells": self._row(obj), "object": _carried(obj, include)} for obj in objects],
        }

    def _definitions(self) -> list[Object]:
        if self._custom:
            listed = [_definition("Name", "string", 0)]
            listed += [_definition(each["name"], each["type"], each.get("priority", 0)) for each in self._custom]
            return listed
        names = self._header.split("|")
        kinds = ["integer" if name.lstrip("*") in INTEGERS else "string" for name in names]
        return [
            _definition(name.lstrip("*"), kind, int(name.startswith("*")))
            for name, kind in zip(names, kinds, strict=True)
        ]

    def _row(self, obj: Object) -> list[Any]:
        if not self._custom:
            return list(self._cells(obj, self._now))
        return [obj["metadata"]["name"], *(self._custom_cell(obj, each) for each in self._custom)]

    def _custom_cell(self, obj: Object, column: Object) -> Any:
        value = _at(obj, column["jsonPath"])
        if column["type"] == "date":
            return wording.since(value, self._now) if value else None
        return value


def _definition(name: str, kind: str, priority: int) -> Object:
    form = "name" if name == "Name" else ""
    return {"name": name, "type": kind, "format": form, "description": name, "priority": priority}


def _carried(obj: Object, include: str) -> Object | None:
    if include == "None":
        return None
    return obj if include == "Object" else partial(obj)


def partial(obj: Object) -> Object:
    """An object without its content."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _at(obj: Any, path: str) -> Any:
    """The value at a simple JSONPath: `.spec.nodes`, `.status.conditions[0].type`, `[?(@.type=="Ready")].status`."""
    for part in _parts(path):
        if isinstance(obj, list):
            obj = _pick(obj, part)
        elif isinstance(obj, dict):
            obj = obj.get(part)
        else:
            return None
    return obj


def _parts(path: str) -> list[str]:
    parts, current, depth = [], "", 0
    for letter in path.lstrip("."):
        if (letter == "." and depth == 0) or letter == "[":
            if depth == 0 and current:
                parts.append(current.replace("\\", ""))
                current = ""
            depth += letter == "["
            continue
        if letter == "]":
            depth -= 1
            parts.append(current.strip("'"))
            current = ""
            continue
        current += letter
    return [*parts, current.replace("\\", "")] if current else parts


def _pick(elements: list[Any], part: str) -> Any:
    if part.lstrip("-").isdigit():
        at = int(part)
        return elements[at] if -len(elements) <= at < len(elements) else None
    field, _, wanted = part.removeprefix("?(@.").removesuffix(")").partition("==")
    return next((each for each in elements if str(each.get(field)) == wanted.strip("\"'")), None)
