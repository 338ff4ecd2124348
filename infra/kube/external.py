"""Pools that something else owns (Karpenter, a self-managed group, bare metal): nodes by label, read only.

Such a pool can be drained and proven; making and deleting it is its owner's work, and asking for it is refused
with the owner's command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from infra.errors import BadSpec, NotFound, Refused
from infra.kube.api import Kube
from infra.model.contract import ProvePool, unproven
from infra.model.pools import Pool, PoolState, Request
from infra.model.survey import Survey

MACHINE_LABEL = "node.kubernetes.io/instance-type"
ZONE_LABEL = "topology.kubernetes.io/zone"
KARPENTER = "karpenter.sh/nodepool"
GPU = "nvidia.com/gpu"


class ExternalPools:
    """Nodes by label selector. Fulfils `infra.model.contract.Pools`; what it cannot do raises `Refused`."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def find(self, pool: Any) -> Pool | None:
        """The nodes that carry every label of the selector; None when there are none."""
        selector = selector_of(pool)
        wanted = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        nodes = list(self.kube.list("/api/v1/nodes", {"labelSelector": wanted}))
        if not nodes:
            return None
        return read_pool(pool.name, selector, nodes, getattr(pool, "machine_type", None))

    def survey(self, source: Any, target: Any, run: str) -> Survey:
        """What is there. There is no cloud to ask, so nothing more can be known before the nodes stand."""
        ours = source.kind == "external"
        before = self.find(source) if ours else None
        return Survey(kind="external", source=before, source_read=ours, existing=self.find(target))

    def render(self, target: Any, run: str) -> list[Request]:
        """Nothing: the owner makes the nodes."""
        return []

    def create(self, target: Any, run: str) -> Pool:
        """Take the nodes that are there. `NotFound`: the owner has made none yet."""
        found = self.find(target)
        if found is None:
            raise NotFound(
                f"external pool {target.name}",
                f"no node carries {dict(target.selector)}",
                expected="nodes made by the pool's owner",
                remedy="make the nodes (for Karpenter: apply the NodePool), then run again",
            )
        return found

    def fence_for_run(self, pool: Any, run: str) -> Mapping[str, Any]:
        """Nothing is changed: an autoscaler that refills this pool is its owner's to stop."""
        return {}

    def release(self, pool: Any) -> None:
        """Nothing to release: there is no configuration of ours."""

    def unfence(self, pool: Any, prior: Mapping[str, Any]) -> None:
        """Nothing to put back."""

    def delete(self, pool: Any, prove: ProvePool = unproven) -> None:
        """Absent is success; otherwise refused, with the owner's command."""
        found = self.find(pool)
        if found is None:
            return
        karpenter = dict(found.node_selector).get(KARPENTER)
        raise Refused(
            f"external pool {found.name}",
            f"{found.nodes} nodes are not managed here",
            expected="its owner deletes them",
            remedy=f"kubectl delete nodepool.karpenter.sh {karpenter}"
            if karpenter
            else "scale the owner of these nodes to 0, or set retire.enabled: false",
        )


def selector_of(pool: Any) -> dict[str, str]:
    """From a spec's `selector` or a read pool's `node_selector`. An empty one would select every node: refused."""
    selector = dict(getattr(pool, "selector", None) or getattr(pool, "node_selector", None) or {})
    if not selector:
        raise BadSpec(
            f"external pool {pool.name}",
            "has no selector",
            expected="at least one node label",
            remedy="kubectl get nodes --show-labels",
        )
    return selector


def read_pool(
    name: str, selector: Mapping[str, str], nodes: Iterable[Mapping[str, Any]], machine_type: str | None
) -> Pool:
    """Nodes as one pool. GPUs per node: the capacity that most of them report, since nothing else states it."""
    listed = list(nodes)
    labels = [node["metadata"].get("labels") or {} for node in listed]
    types = Counter(label[MACHINE_LABEL] for label in labels if MACHINE_LABEL in label)
    gpus = Counter(int((node.get("status") or {}).get("capacity", {}).get(GPU, 0)) for node in listed)
    usual = gpus.most_common(1)[0][0]
    return Pool(
        kind="external",
        name=name,
        identity=",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        state=PoolState.ACTIVE,
        machine_type=machine_type or (types.most_common(1)[0][0] if types else ""),
        nodes=len(listed),
        zones=tuple(sorted({label[ZONE_LABEL] for label in labels if ZONE_LABEL in label})),
        node_selector=dict(selector),
        gpus={GPU: usual} if usual else {},
        labels=dict(selector),
    )
