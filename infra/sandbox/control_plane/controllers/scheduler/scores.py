"""How good a node is for a pod: empty nodes first, pods of one owner apart, wishes honoured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infra.sandbox.control_plane.controllers.scheduler.needs import Needs
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.selectors import node_term_matches, tolerates

_SIBLING = 100.0
"""What a pod of the same owner on the node costs: as much as the node being full."""
_SOFT_TAINT = 300.0
_NODE_WISH = 2.0
_POD_WISH = 200.0


def score(node: NodeState, needs: Needs) -> float:
    """Higher is better. Free cpu and memory count 0 to 100; the rest is weighed against that."""
    allocatable, used = node.allocatable, node.used
    value = -node.pods / (node.most_pods or 1)
    cpu = allocatable.get("cpu", 0)
    if cpu:
        value += 50.0 * (cpu - used.get("cpu", 0)) / cpu
    memory = allocatable.get("memory", 0)
    if memory:
        value += 50.0 * (memory - used.get("memory", 0)) / memory
    if needs.owner:
        value -= _SIBLING * node.owners.get(needs.owner, 0)
    for term in needs.node_wishes:
        if node_term_matches(term["preference"], node.labels, node.name):
            value += _NODE_WISH * term["weight"]
    if node.soft_taints:
        tolerations = needs.spec.get("tolerations") or ()
        value -= _SOFT_TAINT * sum(not any(tolerates(t, taint) for t in tolerations) for taint in node.soft_taints)
    return value


def best(nodes: Sequence[NodeState], needs: Needs, wishes: Mapping[str, float]) -> NodeState:
    """The node with the highest score; the first of equals. `wishes` is preferred pod affinity by node name."""
    reach = max((abs(value) for value in wishes.values()), default=0.0)

    def total(node: NodeState) -> float:
        return score(node, needs) + (_POD_WISH * wishes.get(node.name, 0.0) / reach if reach else 0.0)

    return max(nodes, key=total)
