"""Label and field selectors of list, watch and deletecollection, and the selectors inside objects."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.resources import Kind

Object = dict[str, Any]
Labels = dict[str, str]
Test = Callable[[Labels], bool]

NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
TOKEN = re.compile(r"\s*(!=|==|=|!|,|\(|\)|<|>|[^\s!=,()<>]+)\s*")

FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "events"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("resource.k8s.io", "resourceslices"): ("spec.nodeName", "spec.driver"),
}
"""Field selectors that each resource supports beside metadata.name and metadata.namespace."""


class Matcher:
    """A parsed pair of selectors.

    Attributes:
        node: the node of a `spec.nodeName=` selector, None without one; lists use the index then.
        name: of a `metadata.name=` selector.
        empty: matches everything.

    """

    __slots__ = ("_fields", "_labels", "empty", "name", "node")

    def __init__(self, labels: Test | None, fields: tuple[tuple[str, bool, str], ...]) -> None:
        self._labels = labels
        self._fields = fields
        self.empty = labels is None and not fields
        self.node = next((value for path, equal, value in fields if path == "spec.nodeName" and equal), None)
        self.name = next((value for path, equal, value in fields if path == "metadata.name" and equal), None)

    def __call__(self, obj: Object) -> bool:
        if self._labels is not None and not self._labels(obj["metadata"].get("labels") or {}):
            return False
        return all((field_value(obj, path) == value) is equal for path, equal, value in self._fields)


def field_value(obj: Object, path: str) -> str:
    """A field as selectors see it: "" when absent."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if path == "source" and isinstance(value, dict):
        value = value.get("component") or obj.get("reportingComponent")
    if path == "status.successful":
        value = obj.get("status", {}).get("succeeded", 0)
    if value is None:
        return "false" if path in ("spec.unschedulable", "spec.hostNetwork") else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def matcher(kind: Kind, labels: str, fields: str, selectable: tuple[str, ...] = ()) -> Matcher:
    """Parse both selectors of a request. 400 on a bad one or on a field that the resource does not support."""
    return Matcher(parse_labels(labels) if labels else None, parse_fields(kind, fields, selectable))


def parse_fields(kind: Kind, text: str, selectable: tuple[str, ...] = ()) -> tuple[tuple[str, bool, str], ...]:
    """`a=b,c!=d` as (path, equal, value)."""
    terms = []
    supported = ("metadata.name", "metadata.namespace", *FIELDS.get(kind.key, ()), *selectable)
    for term in filter(None, (text or "").split(",")):
        match = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", term)
        if match is None:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in supported:
            raise errors.bad_request(f"field label not supported: {path}")
        terms.append((path, operator != "!=", value))
    return tuple(terms)


@lru_cache(maxsize=1024)
def parse_labels(text: str) -> Test:
    """The set-based selector language. 400 on a bad one."""
    tests = []
    tokens = _tokens(text)
    position = 0
    while position < len(tokens):
        test, position = _requirement(text, tokens, position)
        tests.append(test)
        if position < len(tokens):
            if tokens[position] != ",":
                raise _unparsable(f"found '{tokens[position]}', expected: ',' or 'end of string'")
            position += 1
            if position == len(tokens):
                raise _unparsable("found '', expected: identifier after ','")
    return lambda labels: all(test(labels) for test in tests)


def _tokens(text: str) -> list[str]:
    return [match.group(1) for match in TOKEN.finditer(text)]


def _requirement(text: str, tokens: list[str], at: int) -> tuple[Test, int]:
    if tokens[at] == "!":
        key = _label_name(text, tokens[at + 1] if at + 1 < len(tokens) else "")
        return (lambda labels: key not in labels), at + 2
    key = _label_name(text, tokens[at])
    operator = tokens[at + 1] if at + 1 < len(tokens) else ","
    if operator == ",":
        return (lambda labels: key in labels), at + 1
    if operator in ("=", "==", "!="):
        value = tokens[at + 2] if at + 2 < len(tokens) and tokens[at + 2] != "," else ""
        _label_value(text, value)
        end = at + (3 if value else 2)
        if operator == "!=":
            return (lambda labels: labels.get(key) != value), end
        return (lambda labels: labels.get(key) == value), end
    if operator in (">", "<"):
        return _compared(text, key, operator, tokens[at + 2] if at + 2 < len(tokens) else ""), at + 3
    if operator in ("in", "notin"):
        values, end = _value_set(text, tokens, at + 2)
        if operator == "in":
            return (lambda labels: labels.get(key) in values), end
        return (lambda labels: labels.get(key) not in values), end
    expected = "in, notin, =, ==, !=, gt, lt"
    raise _unparsable(f"found '{operator}', expected: {expected}")


def _compared(text: str, key: str, operator: str, value: str) -> Test:
    if not value.lstrip("-").isdigit():
        raise _unparsable(f"for 'Gt', 'Lt' operators, the value must be an integer, found '{value}'")
    limit = int(value)

    def test(labels: Labels) -> bool:
        held = labels.get(key, "")
        if not held.lstrip("-").isdigit():
            return False
        return int(held) > limit if operator == ">" else int(held) < limit

    return test


def _value_set(text: str, tokens: list[str], at: int) -> tuple[frozenset[str], int]:
    if at >= len(tokens) or tokens[at] != "(":
        raise _unparsable(f"found '{tokens[at] if at < len(tokens) else ''}' expected: '('")
    try:
        end = tokens.index(")", at)
    except ValueError:
        raise _unparsable("found '', expected: ',', ')' or identifier") from None
    values = [each for each in tokens[at + 1 : end] if each != ","]
    for value in values:
        _label_value(text, value)
    return frozenset(values or [""]), end + 1


def _label_name(text: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise errors.bad_request(f"found '{name}', expected: !, identifier, or 'end of string'")
    return name


def _label_value(text: str, value: str) -> None:
    if not VALUE.fullmatch(value):
        raise _unparsable(f"a valid label must be alphanumeric, '-', '_' or '.': {value!r}")


def _unparsable(why: str) -> errors.ApiError:
    return errors.bad_request(f"unable to parse requirement: {why}")


def matches_selector(selector: Object | None, labels: Labels) -> bool:
    """metav1.LabelSelector against labels; an absent selector matches nothing, an empty one everything."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(expression: Object, labels: Labels) -> bool:
    key, operator = expression["key"], expression["operator"]
    values = expression.get("values") or ()
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    return operator == "DoesNotExist" and key not in labels
