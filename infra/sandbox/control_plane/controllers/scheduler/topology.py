"""Where pods that match a term run: counts by node, kept current instead of recounted for each decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from infra.sandbox.control_plane.controllers.objects import Object, labels_of
from infra.sandbox.control_plane.controllers.selectors import Matcher, label_matcher

NamespaceLabels = Callable[[str], Mapping[str, str]]
"""Labels of a namespace by name."""


@dataclass(frozen=True, slots=True, eq=False)
class PodTerm:
    """Pods that an affinity term or a spread constraint means, and the topology in which they count."""

    key: bytes
    """Equal for terms that mean the same pods."""
    topology: str
    namespaces: frozenset[str]
    matches: Matcher
    namespace_matches: Matcher | None
    skips_terminating: bool

    @classmethod
    def read(cls, term: Object, namespace: str, own_labels: Mapping[str, str], *, spread: bool = False) -> PodTerm:
        """Read a PodAffinityTerm or TopologySpreadConstraint of a pod with these labels in this namespace."""
        selector = dict(term.get("labelSelector") or {})
        if term.get("labelSelector") is not None:
            extra = [
                {"key": key, "operator": operator, "values": [own_labels[key]]}
                for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
                for key in term.get(field) or ()
                if key in own_labels
            ]
            if extra:
                selector["matchExpressions"] = [*(selector.get("matchExpressions") or ()), *extra]
        namespaces = frozenset(term.get("namespaces") or ())
        wanted = term.get("namespaceSelector")
        if not namespaces and wanted is None:
            namespaces = frozenset({namespace})
        present = term.get("labelSelector") is not None
        return cls(
            key=orjson.dumps(
                [sorted(namespaces), wanted, selector if present else None, spread], option=orjson.OPT_SORT_KEYS
            ),
            topology=term["topologyKey"],
            namespaces=namespaces,
            matches=label_matcher(selector if present else None),
            namespace_matches=label_matcher(wanted) if wanted is not None else None,
            skips_terminating=spread,
        )

    def means(self, pod: Object, namespace_labels: NamespaceLabels) -> bool:
        """Whether a pod counts."""
        namespace = pod["metadata"]["namespace"]
        if namespace not in self.namespaces and not (
            self.namespace_matches is not None and self.namespace_matches(namespace_labels(namespace))
        ):
            return False
        if self.skips_terminating and pod["metadata"].get("deletionTimestamp"):
            return False
        return self.matches(labels_of(pod))


class TermCounts:
    """How many pods that a term means run on each node."""

    def __init__(self, term: PodTerm) -> None:
        self.term = term
        self.by_node: Counter[str] = Counter()

    def change(self, node: str, by: int) -> None:
        """A pod that the term means came (1) or went (-1)."""
        self.by_node[node] += by
        if not self.by_node[node]:
            del self.by_node[node]

    def by_domain(self, topology: str, node_labels: Callable[[str], Mapping[str, str] | None]) -> Counter[str]:
        """Counts by value of a topology label; nodes without it do not count."""
        domains: Counter[str] = Counter()
        for node, count in self.by_node.items():
            value = (node_labels(node) or {}).get(topology)
            if value is not None:
                domains[value] += count
        return domains
