"""Reading objects by their type.

It does what decoding into Go structs does on the real server: unknown fields are dropped and reported, wrong types
are refused, empty optional lists and maps vanish, quantities and times get their canonical form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from infra.clock import parse_time, rfc3339, rfc3339_micro
from infra.sandbox.control_plane import quantity
from infra.sandbox.control_plane.schema import Type

Object = dict[str, Any]

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "bytes": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
    "int-or-string": (int, str),
}


class DecodeError(ValueError):
    """A value of the wrong type; the message is the one of the real decoder.

    Attributes:
        path: of the value.
        wanted: the JSON type that the schema has there.
        found: the JSON type of the value.

    """

    def __init__(self, message: str, *, path: str = "", wanted: str = "", found: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.wanted = wanted
        self.found = found


@dataclass(slots=True)
class Problems:
    """Fields that a strict reader would have refused, in order of appearance."""

    unknown: list[str] = field(default_factory=list)

    def worded(self) -> list[str]:
        return [f'unknown field "{path}"' for path in self.unknown]


def read(
    kind: Type, value: Any, problems: Problems, *, custom: bool = False, keep_empty: bool = False, known: Any = None
) -> Any:
    """`value` as the server would hold it. DecodeError on a wrong type.

    `keep_empty` keeps empty lists and maps; parts that `value` shares with `known`, which was read before, are
    taken as they are.
    """
    return _Reader(problems, custom, keep_empty or custom).read(kind, value, "", "", known)


class _Reader:
    """One pass over one object; custom resources keep their empty values and get their defaults."""

    def __init__(self, problems: Problems, custom: bool, keep_empty: bool) -> None:
        self._problems = problems
        self._custom = custom
        self._keep_empty = keep_empty

    def read(self, kind: Type, value: Any, path: str, owner: str, known: Any = None) -> Any:
        form = kind.form
        if form == "any":
            return value
        if form == "object":
            return self._struct(kind, value, path, owner, known)
        if form == "array":
            if not isinstance(value, list):
                raise _mismatch(value, "[]" + _go_name(kind.items), path, owner, kind.form)
            items = kind.items or Type(form="any")
            seen = {id(each) for each in known} if isinstance(known, list) else ()
            return [
                each if id(each) in seen else self.read(items, each, f"{path}[{index}]", owner)
                for index, each in enumerate(value)
            ]
        if form == "map":
            if not isinstance(value, dict):
                raise _mismatch(value, "map[string]" + _go_name(kind.items), path, owner, kind.form)
            items = kind.items or Type(form="any")
            if items.form == "string" and all(type(each) is str for each in value.values()):
                return value
            scalar = items.form in SCALARS  # the real decoder leaves the key of a map out of its messages
            return {
                key: self.read(items, each, path if scalar else f"{path}.{key}", owner) for key, each in value.items()
            }
        return self._scalar(kind, value, path, owner)

    def _struct(self, kind: Type, value: Any, path: str, owner: str, known: Any) -> Object:
        if not isinstance(value, dict):
            raise _mismatch(value, kind.go or f"v1.{kind.name}", path, owner, kind.form)
        fields, required, result = kind.fields, kind.required, {}
        prefix = f"{path}." if path else ""
        before = known if isinstance(known, dict) else {}
        for name, each in value.items():
            held = before.get(name)
            if each is held and held is not None:
                result[name] = each
                continue
            field_type = fields.get(name)
            if field_type is None:
                if kind.open or (kind.embedded and name in ("apiVersion", "kind", "metadata")):
                    result[name] = each
                else:
                    self._problems.unknown.append(prefix + name)
                continue
            if each is None:
                if field_type.limits.get("nullable") or field_type.form == "any":
                    result[name] = None
                continue
            read = self.read(field_type, each, prefix + name, kind.name or owner, held)
            if not read and not self._keep_empty and name not in required and field_type.form in ("array", "map"):
                continue
            result[name] = read
        if not self._keep_empty:
            _complete(kind, result)
        if self._custom:
            for name, field_type in fields.items():
                if field_type.default is not None and name not in result:
                    result[name] = field_type.default
        return result

    def _scalar(self, kind: Type, value: Any, path: str, owner: str) -> Any:
        form = kind.form
        allowed = SCALARS.get(form)
        if allowed is not None:
            if type(value) in allowed:
                return value
            if form == "integer" and type(value) is float and value.is_integer():
                return int(value)
            raise _mismatch(value, kind.go or form, path, owner, kind.form)
        return _quantity(value) if form == "quantity" else _time(value, form)


def _complete(kind: Type, result: Object) -> None:
    """Add what Go writes of a struct even when it is unset."""
    for name, zero in kind.zeros.items():
        result.setdefault(name, zero)
    for name in kind.nulls:
        result.setdefault(name, None)
    for name in kind.inline:
        if name not in result and kind.fields[name].form == "object":
            result[name] = {}
            _complete(kind.fields[name], result[name])


def _quantity(value: Any) -> str:
    try:
        return quantity.canonical(value)
    except (ValueError, TypeError):
        raise DecodeError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ) from None


def _time(value: Any, form: str) -> str:
    if form == "time" and type(value) is str:
        if TIME.fullmatch(value):
            return value
        try:
            return rfc3339(parse_time(value))
        except ValueError:
            pass
    elif type(value) is str and MICRO_TIME.fullmatch(value):
        return value if value.endswith("Z") else rfc3339_micro(parse_time(value))
    if form == "micro-time" and type(value) is str and TIME.fullmatch(value):
        layout = "2006-01-02T15:04:05.000000Z07:00"
        raise DecodeError(f'parsing time "{value}" as "{layout}": cannot parse "Z" as ".000000"')
    layout = "2006-01-02T15:04:05Z07:00" if form == "time" else "2006-01-02T15:04:05.000000Z07:00"
    raise DecodeError(f'parsing time "{value}" as "{layout}": cannot parse "{value}" as "2006"')


def _mismatch(value: Any, wanted: str, path: str, owner: str, form: str) -> DecodeError:
    names = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
    found = names.get(type(value), "null")
    where = re.sub(r"\[\d+\]", "", path)
    message = f"json: cannot unmarshal {found} into Go struct field {owner}.{where} of type {wanted}"
    wanted_form = "object" if form == "map" else form
    return DecodeError(message, path=path, wanted=wanted_form, found={"bool": "boolean"}.get(found, found))


def _go_name(kind: Type | None) -> str:
    if kind is None:
        return "interface {}"
    return kind.go or (f"v1.{kind.name}" if kind.name else kind.form)
