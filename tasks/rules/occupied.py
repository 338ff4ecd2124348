"""Is a pool that is to be proven free to be measured? Pure."""

from __future__ import annotations

from collections.abc import Sequence

from infra.model.cluster import Node
from infra.model.record import PROBE
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot
from tasks.rules.readiness import device_resources
from tasks.rules.wording import and_more, plural


def judge(snapshot: Snapshot, nodes: Sequence[Node], pool: str) -> list[Finding]:
    """Pods that hold devices of the pool: a probe would wait for them, and what it measured would be of both.

    Usual after a rollback from the soak, which leaves the work where it runs.
    """
    holding = [(node, pod) for node in nodes for pod in snapshot.pods_by_node.get(node.name, ()) if _holds(pod, node)]
    if not holding:
        return []
    taken = sorted({node.name for node, _ in holding})
    pods = sorted(pod.key for _, pod in holding)
    return [
        Finding(
            level=Level.BLOCK,
            code="target-busy",
            object=pool,
            observed=f"{plural(len(pods), 'pod')} hold devices on {plural(len(taken), 'node')}: {and_more(pods, 3)}",
            expected="no pod that asks for GPUs or RDMA devices before the pool is proven",
            remedy=f"poolshift drain {' '.join(taken[:4])}{' ...' if len(taken) > 4 else ''} --ignore-daemonsets, then"
            " kubectl uncordon them; or name another target.name",
        )
    ]


def _holds(pod: Pod, node: Node) -> bool:
    if pod.finished or PROBE in pod.labels:
        return False
    return any(pod.requests.get(name, 0) for name in device_resources(node))
