"""Fence the source pool, guard the target pool, and put both back exactly as they were."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from infra.errors import Conflict, Refused
from infra.kube import nodes as kube_nodes
from infra.kube.api import Kube
from infra.kube.wire import node as read_node
from infra.model.cluster import Node
from infra.model.record import FENCE_TAINT, HELD, PRIOR, RUN
from tasks.rules.fencing import adopt_patch, cordon_patch, fence_patch, guard_patch, restore_patch


def fence(kube: Kube, nodes: Iterable[str], run: str) -> tuple[Node, ...]:
    """Keep new pods off these nodes: our NoSchedule taint and autoscaler annotations, with the prior state noted.

    Idempotent: a node that is fenced by this run costs no write. Returns the nodes as stored (read back).

    Raises:
        Refused: a node is held by another run; no node was changed.
        Conflict: others kept changing a node.

    """
    return _change(kube, nodes, run, fence_patch)


def guard(kube: Kube, nodes: Iterable[str], run: str) -> tuple[Node, ...]:
    """Keep autoscalers from removing fresh, still empty target nodes. Undone by `unfence`. Errors as `fence`."""
    return _change(kube, nodes, run, guard_patch)


def cordon(kube: Kube, nodes: Iterable[str], run: str) -> tuple[Node, ...]:
    """Cordon and take out of load balancers. Returns the nodes as stored: only those may be drained.

    Raises:
        Refused: a node is held by another run; no node was changed.
        Conflict: others kept changing a node, or it does not read back as unschedulable.

    """
    stored = _change(kube, nodes, run, cordon_patch)
    for node in stored:
        if not node.unschedulable:
            raise Conflict(
                f"node {node.name}",
                "reads back as schedulable after our cordon",
                expected="spec.unschedulable true",
                remedy=f"find who uncordons it: kubectl get node {node.name} -o yaml --show-managed-fields",
            )
    return stored


def adopt(kube: Kube, nodes: Iterable[str], old: str, new: str) -> tuple[str, ...]:
    """Make what run `old` has changed on these nodes ours, with its memory: a cordon stays up meanwhile.

    Returns the names of the nodes that were its. Raises Conflict: others kept changing a node.
    """

    def edit(raw: kube_nodes.Raw) -> kube_nodes.Raw | None:
        return adopt_patch(raw, old, new)

    adopted = kube_nodes.change_all(kube, kube_nodes.list_raw(kube, nodes), edit)
    return tuple(sorted(raw["metadata"]["name"] for raw in adopted))


def mend(kube: Kube, run: str, fenced: Iterable[str], cordoned: Iterable[str]) -> tuple[str, ...]:
    """Put back what somebody has taken off since: our taint, and the cordon of nodes that are empty already.

    Costs one listing when all is as it was. Returns the names of the nodes that were mended. Errors as `fence`.
    """
    empty = set(cordoned)

    def patch(raw: kube_nodes.Raw, run: str) -> kube_nodes.Raw | None:
        """The taint first; a node that lacks both is met again for its cordon."""
        found = fence_patch(raw, run)
        return cordon_patch(raw, run) if found is None and raw["metadata"]["name"] in empty else found

    raws = kube_nodes.list_raw(kube, [*fenced, *empty])
    needy = [raw for raw in raws if patch(raw, run) is not None]
    kube_nodes.change_all(kube, needy, partial(_edit, run=run, patch=patch))
    return tuple(sorted(raw["metadata"]["name"] for raw in needy))


def _change(kube: Kube, nodes: Iterable[str], run: str, patch: kube_nodes.Patch) -> tuple[Node, ...]:
    raws = kube_nodes.list_raw(kube, nodes)
    for raw in raws:
        patch(raw, run)  # a node of another run refuses here, before any is changed
    return tuple(read_node(raw) for raw in kube_nodes.change_all(kube, raws, partial(_edit, run=run, patch=patch)))


def _edit(raw: kube_nodes.Raw, *, run: str, patch: kube_nodes.Patch) -> kube_nodes.Raw | None:
    return patch(raw, run)


def find_closed(kube: Kube, run: str) -> tuple[str, ...]:
    """Names of the nodes, of those that this run was to empty, which it keeps cordoned or fenced off from new pods."""
    return tuple(
        sorted(
            raw["metadata"]["name"]
            for raw in kube_nodes.list_raw(kube, label=f"{RUN}={run}")
            if not (raw["metadata"].get("annotations") or {}).keys() & {HELD}
            if raw["spec"].get("unschedulable") or any(t["key"] == FENCE_TAINT for t in raw["spec"].get("taints") or ())
        )
    )


def unfence(kube: Kube, run: str, nodes: Iterable[str] | None = None, *, keep_cordon: bool = False) -> tuple[str, ...]:
    """Put back exactly what this run changed on its nodes (all that carry its mark, or those named).

    Idempotent; nodes that are gone are fine; what others changed since is left to them. Returns the names restored.
    Raises Refused where what a node was like before cannot be read, Conflict as `fence`; all others are put back then.
    """
    marked = kube_nodes.list_raw(kube, label=f"{RUN}={run}")
    wanted = None if nodes is None else set(nodes)
    ours = [
        raw
        for raw in marked
        if PRIOR in (raw["metadata"].get("annotations") or {}) and (wanted is None or raw["metadata"]["name"] in wanted)
    ]

    def edit(raw: kube_nodes.Raw) -> kube_nodes.Raw | None:
        try:
            return restore_patch(raw, run, keep_cordon=keep_cordon)
        except Refused:
            if (raw["metadata"].get("labels") or {}).get(RUN) == run:
                raise  # ours, with a memory that cannot be read: said, once the others are put back
            return None  # another run has taken the node since: its memory is not ours to touch

    restored = kube_nodes.change_all(kube, ours, edit)
    return tuple(sorted(raw["metadata"]["name"] for raw in restored))
