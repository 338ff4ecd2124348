"""Collects the causes of a 422, worded as the real server words them."""

from __future__ import annotations

import re
from typing import Any

import orjson

from infra.sandbox.control_plane.errors import Cause

Object = dict[str, Any]

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]+")
PERCENT = re.compile(r"[0-9]+%")

LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
NAME_PART_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NOT_NEGATIVE = "must be greater than or equal to 0"
IMMUTABLE = "field is immutable"


def shown(value: Any) -> str:
    """A value as the real server prints it in a cause."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


class Refusals:
    """What is wrong with one object, in order of discovery."""

    def __init__(self) -> None:
        self.causes: list[Cause] = []

    def _add(self, reason: str, path: str, message: str) -> None:
        self.causes.append(Cause(reason=reason, message=message, field=path))

    def invalid(self, path: str, value: Any, why: str) -> None:
        self._add("FieldValueInvalid", path, f"Invalid value: {shown(value)}: {why}")

    def required(self, path: str, why: str = "") -> None:
        self._add("FieldValueRequired", path, f"Required value: {why}" if why else "Required value")

    def forbidden(self, path: str, why: str) -> None:
        self._add("FieldValueForbidden", path, f"Forbidden: {why}")

    def unsupported(self, path: str, value: Any, supported: tuple[str, ...]) -> None:
        listed = ", ".join(f'"{each}"' for each in supported)
        self._add("FieldValueNotSupported", path, f"Unsupported value: {shown(value)}: supported values: {listed}")

    def duplicate(self, path: str, value: Any) -> None:
        self._add("FieldValueDuplicate", path, f"Duplicate value: {shown(value)}")

    def not_found(self, path: str, value: Any) -> None:
        self._add("FieldValueNotFound", path, f"Not found: {shown(value)}")

    def too_long(self, path: str, limit: int) -> None:
        self._add("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")

    # Rules that many kinds share

    def not_negative(self, path: str, value: Any) -> None:
        if isinstance(value, int) and value < 0:
            self.invalid(path, value, NOT_NEGATIVE)

    def unchanged(self, path: str, new: Any, old: Any) -> None:
        if new != old:
            self.invalid(path, new, IMMUTABLE)

    def one_of(self, path: str, value: Any, supported: tuple[str, ...]) -> None:
        if value is not None and value not in supported:
            self.unsupported(path, value, supported)

    def int_or_percent(self, path: str, value: Any) -> None:
        if isinstance(value, int):
            self.not_negative(path, value)
        elif value is not None:
            if not PERCENT.fullmatch(value):
                why = (
                    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
                    "regex used for validation is '[0-9]+%')"
                )
                self.invalid(path, value, why)
            elif int(value[:-1]) > 100:
                self.invalid(path, value, "must not be greater than 100%")

    def dns_label(self, path: str, value: str) -> None:
        if len(value) > 63:
            self.invalid(path, value, "must be no more than 63 characters")
        if not DNS_LABEL.fullmatch(value):
            dotted = DNS_SUBDOMAIN.fullmatch(value)
            self.invalid(path, value, "must not contain dots" if dotted else LABEL_RULE)

    def qualified_name(self, path: str, value: str) -> None:
        prefix, slash, name = value.rpartition("/")
        if slash and not (DNS_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
            self.invalid(path, value, f"prefix part {SUBDOMAIN_RULE}" if prefix else "prefix part must be non-empty")
        if not name:
            self.invalid(path, value, "name part must be non-empty")
        elif len(name) > 63:
            self.invalid(path, value, "name part must be no more than 63 characters")
        if not QUALIFIED.fullmatch(name):
            self.invalid(path, value, NAME_PART_RULE)

    def labels(self, path: str, labels: Object) -> None:
        for key, value in labels.items():
            self.qualified_name(path, key)
            self.label_value(path, value)

    def label_value(self, path: str, value: str) -> None:
        if len(value) > 63:
            self.invalid(path, value, "must be no more than 63 characters")
        if value and not QUALIFIED.fullmatch(value):
            self.invalid(path, value, LABEL_VALUE_RULE)

    def selector(self, path: str, selector: Object | None) -> None:
        if not selector:
            return
        self.labels(f"{path}.matchLabels", selector.get("matchLabels") or {})
        for index, each in enumerate(selector.get("matchExpressions") or ()):
            where = f"{path}.matchExpressions[{index}]"
            operator, values = each.get("operator"), each.get("values") or ()
            if operator in ("In", "NotIn") and not values:
                self.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            elif operator in ("Exists", "DoesNotExist") and values:
                self.forbidden(f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
            elif operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
                self.invalid(f"{where}.operator", operator, "not a valid selector operator")
            self.qualified_name(f"{where}.key", each.get("key", ""))
