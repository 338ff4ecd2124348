"""Open the target pool to work once its gate has passed, and close it again when the run is rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

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


def close_nodes(kube: Kube, names: Iterable[str], run: str) -> None:
    """Put our unproven taint back: pods that run there stay, new ones go elsewhere. Idempotent. Raises Conflict."""
    nodes.change_all(kube, nodes.list_raw(kube, names), partial(_with_taint, run=run))


def _with_taint(raw: nodes.Raw, run: str) -> nodes.Raw | None:
    taints = (raw.get("spec") or {}).get("taints") or []
    if any(taint.get("key") == UNPROVEN_TAINT for taint in taints):
        return None
    return {"spec": {"taints": [*taints, {"key": UNPROVEN_TAINT, "value": run, "effect": "NoSchedule"}]}}
