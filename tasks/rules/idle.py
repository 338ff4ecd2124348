"""Which nodes of a pool may be measured without taking anything away from work that runs there. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection

from infra.model.cluster import Node
from infra.model.record import HELD, PRIOR
from infra.model.workload import Snapshot


def idle_nodes(snapshot: Snapshot, nodes: Collection[Node], resources: Collection[str]) -> list[Node]:
    """Ready nodes on which no unfinished pod asks for any of these resources (GPUs, RDMA devices), by name.

    A node that somebody else has cordoned is left alone: it may be in repair.
    """
    return sorted(
        (
            node
            for node in nodes
            if node.ready
            and node.deletion is None
            and (not node.unschedulable or _cordoned_by_us(node))
            and not any(
                not pod.finished and any(pod.requests.get(r, 0) for r in resources)
                for pod in snapshot.pods_by_node.get(node.name, ())
            )
        ),
        key=lambda node: node.name,
    )


def _cordoned_by_us(node: Node) -> bool:
    if node.annotations.get(HELD):
        return True
    try:
        prior = json.loads(node.annotations.get(PRIOR) or "{}")
    except ValueError:
        return False
    return isinstance(prior, dict) and bool(prior.get("cordoned"))
