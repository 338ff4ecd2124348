"""The checks that need more than one node and its resources: affinity between pods, and topology spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.objects import Object
from infra.sandbox.control_plane.controllers.scheduler.needs import Needs, Spread
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.scheduler.snapshot import Snapshot
from infra.sandbox.control_plane.controllers.selectors import required_node_affinity_matches, untolerated

SPREAD = "node(s) didn't match pod topology spread constraints"
SPREAD_NO_LABEL = f"{SPREAD} (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
OTHERS_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"

Check = Callable[[NodeState], tuple[str, bool]]
"""A node to (reason it will not do or "", whether removing pods could help)."""

_FINE = ("", True)


@dataclass(frozen=True)
class _SpreadCount:
    spread: Spread
    counts: Counter[str]
    least: int
    own: int


def spread_check(snapshot: Snapshot, needs: Needs, pod: Object) -> Check:
    """The DoNotSchedule constraints of a pod, with the counts of this moment."""
    prepared = [_count(snapshot, needs, spread, pod) for spread in needs.spreads]

    def check(node: NodeState) -> tuple[str, bool]:
        for each in prepared:
            domain = node.labels.get(each.spread.term.topology)
            if domain is None:
                return SPREAD_NO_LABEL, False
            if each.counts[domain] + each.own - each.least > each.spread.max_skew:
                return SPREAD, True
        return _FINE

    return check


def _count(snapshot: Snapshot, needs: Needs, spread: Spread, pod: Object) -> _SpreadCount:
    by_node = snapshot.counts(spread.term).by_node
    tolerations = needs.spec.get("tolerations") or ()
    topologies = [each.term.topology for each in needs.spreads]
    domains: Counter[str] = Counter()
    for node in snapshot.nodes.values():
        if any(topology not in node.labels for topology in topologies):
            continue
        if spread.honours_affinity and not required_node_affinity_matches(needs.spec, node.labels, node.name):
            continue
        if spread.honours_taints and untolerated(node.taints, tolerations, ("NoSchedule", "NoExecute")):
            continue
        domains[node.labels[spread.term.topology]] += by_node.get(node.name, 0)
    least = min(domains.values(), default=0) if len(domains) >= spread.min_domains else 0
    own = int(spread.term.means(pod, snapshot.labels_of_namespace))
    return _SpreadCount(spread, domains, least, own)


def affinity_check(snapshot: Snapshot, needs: Needs, pod: Object) -> Check:
    """Required affinity and anti-affinity of a pod, and that of the pods that run, with the counts of this moment."""
    attracted = [(term.topology, snapshot.domains(term)) for term in needs.attract]
    repelled = [(term.topology, snapshot.domains(term)) for term in needs.repel]
    others = snapshot.repelled_domains(pod)
    # The first pod of a group that only wants its own kind would never start otherwise.
    first_of_its_kind = not any(domains for _, domains in attracted) and all(
        term.means(pod, snapshot.labels_of_namespace) for term in needs.attract
    )

    def check(node: NodeState) -> tuple[str, bool]:
        labels = node.labels
        for topology, domains in attracted:
            if topology not in labels:
                return AFFINITY, False
            if not domains[labels[topology]] and not first_of_its_kind:
                return AFFINITY, False
        for topology, domains in repelled:
            if topology in labels and domains[labels[topology]]:
                return ANTI_AFFINITY, True
        for topology, values in others:
            if labels.get(topology) in values:
                return OTHERS_ANTI_AFFINITY, True
        return _FINE

    return check


def pod_wishes(snapshot: Snapshot, needs: Needs, nodes: list[NodeState]) -> dict[str, float]:
    """Weight of preferred affinity and anti-affinity by node name."""
    if not needs.preferred:
        return {}
    counted = [(weight, term.topology, snapshot.domains(term)) for weight, term in needs.preferred]
    return {
        node.name: float(
            sum(
                weight * domains[node.labels[topology]]
                for weight, topology, domains in counted
                if topology in node.labels
            )
        )
        for node in nodes
    }
