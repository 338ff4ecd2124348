"""The type of each kind: built-in from the distilled OpenAPI, custom from its CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.reading import DecodeError, Problems, read
from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.schema import Type, custom_type, type_of

Object = dict[str, Any]


GO_FORMS = {"integer": "numeric (int or float)", "number": "numeric (int or float)", "array": "list", "object": "map"}
"""How a typed patch words the form that a field has to have."""


class Types:
    """Looks types up, and reads objects by them."""

    def __init__(self) -> None:
        self._custom: dict[tuple[str, str, str], Type] = {}
        self._columns: dict[tuple[str, str, str], list[Object]] = {}
        self._selectable: dict[tuple[str, str, str], tuple[str, ...]] = {}

    def of(self, kind: Kind) -> Type:
        """The type of a kind."""
        if kind.custom:
            return self._custom[kind.group, kind.version, kind.kind]
        return type_of(kind.schema)

    def define(self, group: str, kind: str, version: Object) -> None:
        """Learn a custom kind from one version of its CustomResourceDefinition."""
        key = (group, version["name"], kind)
        self._custom[key] = custom_type(version.get("schema", {}).get("openAPIV3Schema", {}))
        self._columns[key] = version.get("additionalPrinterColumns", [])
        self._selectable[key] = tuple(each["jsonPath"].lstrip(".") for each in version.get("selectableFields", ()))

    def columns(self, kind: Kind) -> list[Object]:
        """The printer columns of a custom kind; built-in kinds have their own printers."""
        return self._columns.get((kind.group, kind.version, kind.kind), [])

    def selectable(self, kind: Kind) -> tuple[str, ...]:
        """Field selectors that a custom kind declares."""
        return self._selectable.get((kind.group, kind.version, kind.kind), ())

    def read(self, call: Call, obj: Object) -> Object:
        """A whole object sent to create or replace. 400 on wrong types, and on unknown fields when strict."""
        kind = call.kind
        prefix = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        try:
            result, problems = self._read(kind, obj)
        except DecodeError as problem:
            raise errors.bad_request(f"{prefix}: {problem}") from None
        if call.validation == "Strict":
            problems = [*call.duplicates(), *problems]
            if problems:
                raise errors.bad_request(f"{prefix}: strict decoding error: {', '.join(problems)}")
        if call.validation == "Warn":
            call.warnings += problems
        return result

    def read_patched(self, call: Call, obj: Object, old: Object, text: Callable[[], str]) -> Object:
        """The outcome of a patch of `old`. 422 on wrong types, and on unknown fields when strict.

        `text` is what the refusal shows of the patch.
        """
        try:
            result, problems = self._read(call.kind, obj, known=old)
        except DecodeError as problem:
            raise self._bad_patch(text(), str(problem)) from None
        if problems and call.validation == "Strict":
            raise self._bad_patch(text(), f"strict decoding error: {', '.join(problems)}")
        if call.validation == "Warn":
            call.warnings += problems
        return result

    def read_applied(self, call: Call, obj: Object) -> Object:
        """A configuration to apply. The real server fails hard on fields that the schema does not have."""
        kind = call.kind
        metadata = obj.get("metadata") or {}
        where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        version = f"{kind.group + '/' if kind.group else ''}{kind.version}"
        prefix = f"failed to create typed patch object ({where}; {version}, Kind={kind.kind})"
        try:
            result, problems = self._read(kind, obj, keep_empty=True)
        except DecodeError as problem:
            wanted = GO_FORMS.get(problem.wanted, problem.wanted)
            text = f".{problem.path}: expected {wanted}, got {problem.found}" if problem.path else str(problem)
            raise errors.internal(f"{prefix}: {text}") from None
        if problems:
            fields = [text.split('"')[1] for text in problems]
            worded = [f".{field}: field not declared in schema" for field in fields]
            text = worded[0] if len(worded) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in worded)
            raise errors.internal(f"{prefix}: {text}")
        return result

    def normal(self, kind: Kind, obj: Object) -> Object:
        """An object put together from valid parts, in the form that is stored."""
        return self._read(kind, obj)[0]

    def _read(
        self, kind: Kind, obj: Object, *, keep_empty: bool = False, known: Object | None = None
    ) -> tuple[Object, list[str]]:
        problems, kind_type = Problems(), self.of(kind)
        try:
            result: Object = read(kind_type, obj, problems, custom=kind.custom, keep_empty=keep_empty, known=known)
        except DecodeError as problem:
            if kind.custom and problem.path:
                raise _bad_custom(kind, obj, problem) from None
            raise
        return result, problems.worded()

    @staticmethod
    def _bad_patch(patch_text: str, why: str) -> errors.ApiError:
        text = f"Invalid value: {orjson.dumps(patch_text).decode()}: {why}"
        cause = errors.Cause(reason="FieldValueInvalid", message=text, field="patch")
        return errors.invalid("", "", "", [cause])


def _bad_custom(kind: Kind, obj: Object, problem: DecodeError) -> errors.ApiError:
    """Custom resources are checked against their schema, not decoded into a type: a wrong type is a 422."""
    where = f"{problem.path} in body must be of type {problem.wanted}"
    text = f'Invalid value: "{problem.found}": {where}: "{problem.found}"'
    cause = errors.Cause(reason="FieldValueTypeInvalid", message=text, field=problem.path)
    return errors.invalid(kind.group, kind.kind, obj.get("metadata", {}).get("name", ""), [cause])
