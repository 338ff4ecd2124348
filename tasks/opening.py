"""Open the target pool to work: our unproven taint comes off its nodes once the gate has passed."""

from __future__ import annotations

from collections.abc import Iterable

from infra.kube import nodes
from infra.kube.api import Kube
from infra.model.record import UNPROVEN_TAINT


def open_nodes(kube: Kube, names: Iterable[str]) -> None:
    """Take the taint off and read back. A node that does not carry it costs no write. Raises Conflict."""
    nodes.change_all(kube, nodes.list_raw(kube, names), _without_taint)


def _without_taint(raw: nodes.Raw) -> nodes.Raw | None:
    taints = (raw.get("spec") or {}).get("taints") or []
    kept = [taint for taint in taints if taint.get("key") != UNPROVEN_TAINT]
    return {"spec": {"taints": kept or None}} if len(kept) < len(taints) else None
