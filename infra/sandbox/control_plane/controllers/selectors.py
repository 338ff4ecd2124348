"""Label selectors, node selectors and taints, as the API machinery reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Labels = Mapping[str, str]
Matcher = Callable[[Labels], bool]


def _nothing(labels: Labels) -> bool:
    return False


def _requirement(key: str, operator: str, values: Sequence[str]) -> Matcher:
    if operator == "In":
        wanted = frozenset(values)
        return lambda labels: labels.get(key) in wanted
    if operator == "NotIn":
        unwanted = frozenset(values)
        return lambda labels: labels.get(key) not in unwanted
    if operator == "Exists":
        return lambda labels: key in labels
    if operator == "DoesNotExist":
        return lambda labels: key not in labels
    if operator in ("Gt", "Lt") and len(values) == 1 and _is_int(values[0]):
        limit = int(values[0])
        more = operator == "Gt"
        return lambda labels: (
            _is_int(labels.get(key)) and (int(labels[key]) > limit) is more and int(labels[key]) != limit
        )
    return _nothing


def _is_int(text: str | None) -> bool:
    return text is not None and text.lstrip("-").isdigit()


def label_matcher(selector: Mapping[str, Any] | None) -> Matcher:
    """A LabelSelector as a function of labels. A missing selector matches nothing, an empty one everything."""
    if selector is None:
        return _nothing
    exact = dict(selector.get("matchLabels") or {})
    expressions = [
        _requirement(item["key"], item["operator"], item.get("values") or ())
        for item in selector.get("matchExpressions") or ()
    ]
    if not expressions and len(exact) == 1:
        [(key, value)] = exact.items()
        return lambda labels: labels.get(key) == value
    return lambda labels: all(labels.get(k) == v for k, v in exact.items()) and all(e(labels) for e in expressions)


def describe_selector(selector: Mapping[str, Any] | None) -> str:
    """A LabelSelector as Go's %v prints it, for messages."""
    chosen = selector or {}
    pairs = " ".join(f"{key}:{value}" for key, value in sorted((chosen.get("matchLabels") or {}).items()))
    expressions = ",".join(
        "LabelSelectorRequirement{"
        f"Key:{each['key']},Operator:{each['operator']},Values:[{' '.join(each.get('values') or ())}],}}"
        for each in chosen.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{pairs},}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )


def node_term_matches(term: Mapping[str, Any], labels: Labels, name: str) -> bool:
    """One nodeSelectorTerm against a node. A term without any requirement matches nothing."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_requirement(e["key"], e["operator"], e.get("values") or ())(labels) for e in expressions) and all(
        _requirement(f["key"], f["operator"], f.get("values") or ())({"metadata.name": name}) for f in fields
    )


def required_node_affinity_matches(spec: Mapping[str, Any], labels: Labels, name: str) -> bool:
    """The nodeSelector and requiredDuringSchedulingIgnoredDuringExecution of a pod spec against a node."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if affinity is None:
        return True
    return any(node_term_matches(term, labels, name) for term in affinity.get("nodeSelectorTerms") or ())


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether one toleration accepts one taint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    if operator != "Equal":
        return False
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")


def untolerated(
    taints: Iterable[Mapping[str, Any]], tolerations: Sequence[Mapping[str, Any]], effects: Sequence[str]
) -> Mapping[str, Any] | None:
    """The first taint with one of `effects` that no toleration accepts."""
    for taint in taints:
        if taint.get("effect") in effects and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None
