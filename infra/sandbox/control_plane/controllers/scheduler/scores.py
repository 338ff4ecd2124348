"""Which of the nodes that will do is best: empty ones first, pods of one owner apart, wishes honoured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.sandbox.control_plane.controllers.scheduler.needs import Needs
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.selectors import node_term_matches, tolerates

_SPREAD_WEIGHT = 2
_TAINT_WEIGHT = 3
_NODE_WISH_WEIGHT = 2
_POD_WISH_WEIGHT = 2


def best(nodes: Sequence[NodeState], needs: Needs, wishes: Mapping[str, float]) -> NodeState:
    """The node with the highest score; the first of equals.

    Args:
        wishes: weight of preferred pod affinity by node name, empty when there is none.
    """
    if len(nodes) == 1:
        return nodes[0]
    most = max((node.owners.get(needs.owner, 0) for node in nodes), default=0)
    node_wishes = _scaled({node.name: _node_wish(node, needs) for node in nodes}) if _has_node_wish(needs) else {}
    pod_wishes = _scaled(wishes)
    tainted = any(taint.get("effect") == "PreferNoSchedule" for node in nodes for taint in node.taints)
    taints = _scaled({node.name: -_soft_taints(node, needs) for node in nodes}) if tainted else {}
    chosen, highest = nodes[0], -1.0
    for node in nodes:
        score = _room(node)
        if most:
            score += _SPREAD_WEIGHT * 100.0 * (most - node.owners.get(needs.owner, 0)) / most
        if node_wishes:
            score += _NODE_WISH_WEIGHT * node_wishes[node.name]
        if pod_wishes:
            score += _POD_WISH_WEIGHT * pod_wishes.get(node.name, 0.0)
        if taints:
            score += _TAINT_WEIGHT * taints[node.name]
        if score > highest:
            chosen, highest = node, score
    return chosen


def _room(node: NodeState) -> float:
    """Share of cpu and memory that is free, 0 to 100; pods that ask for nothing still fill a node a little."""
    allocatable, used = node.allocatable, node.used
    cpu = allocatable.get("cpu", 0)
    memory = allocatable.get("memory", 0)
    room = 0.0
    if cpu:
        room += 50.0 * (cpu - used.get("cpu", 0)) / cpu
    if memory:
        room += 50.0 * (memory - used.get("memory", 0)) / memory
    return room - node.pods / (node.most_pods or 1)


def _preferred_terms(needs: Needs) -> Sequence[Mapping[str, object]]:
    affinity = (needs.spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms: Sequence[Mapping[str, object]] = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return terms


def _has_node_wish(needs: Needs) -> bool:
    return bool(_preferred_terms(needs))


def _node_wish(node: NodeState, needs: Needs) -> float:
    return sum(
        float(str(each["weight"]))
        for each in _preferred_terms(needs)
        if isinstance(each["preference"], dict) and node_term_matches(each["preference"], node.labels, node.name)
    )


def _soft_taints(node: NodeState, needs: Needs) -> float:
    tolerations = needs.spec.get("tolerations") or ()
    return float(
        sum(
            taint.get("effect") == "PreferNoSchedule" and not any(tolerates(each, taint) for each in tolerations)
            for taint in node.taints
        )
    )


def _scaled(values: Mapping[str, float]) -> dict[str, float]:
    """To 0..100, the highest at 100."""
    if not values:
        return {}
    low, high = min(values.values()), max(values.values())
    if high == low:
        return dict.fromkeys(values, 0.0)
    return {name: 100.0 * (value - low) / (high - low) for name, value in values.items()}
