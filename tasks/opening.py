"""The target pool stays closed to work until its gate has passed, opens then, and closes again on a rollback.

Its nodes are born with our taint, so that nothing lands on them in their first second. But the taint would keep every
plugin away that does not tolerate it, and the charts of the clouds and of NVIDIA do not: readiness would never come.
So a node that has joined is cordoned in the same write that takes its taint off. DaemonSets tolerate a cordon by
themselves (kubernetes.io, DaemonSet: taints and tolerations), our probes do by their manifest, and work does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from infra.kube import nodes
from infra.kube.api import Kube
from infra.model.record import HELD, UNPROVEN_TAINT


def hold_nodes(kube: Kube, selector: Mapping[str, str]) -> None:
    """Cordon the pool's nodes in place of their taint. Idempotent; costs a listing. Raises Conflict."""
    label = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    raws = nodes.list_raw(kube, label=label)
    nodes.change_all(kube, [raw for raw in raws if held(raw) is not None], held)


def open_nodes(kube: Kube, names: Iterable[str]) -> None:
    """Take taint and cordon off and read back. A node that carries neither costs no write. Raises Conflict."""
    nodes.change_all(kube, nodes.list_raw(kube, names), opened)


def close_nodes(kube: Kube, names: Iterable[str], run: str) -> None:
    """Cordon them again: pods that run there stay, plugins come back, new work goes elsewhere. Raises Conflict."""
    nodes.change_all(kube, nodes.list_raw(kube, names), partial(closed, run=run))


def find_open(kube: Kube, selector: Mapping[str, str]) -> list[str]:
    """The pool's nodes that take work: neither our taint nor any cordon is on them."""
    label = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    raws = nodes.list_raw(kube, label=label)
    return sorted(raw["metadata"]["name"] for raw in raws if not is_closed(raw) and not _cordoned(raw))


def is_closed(raw: nodes.Raw) -> bool:
    """Does our taint, or our cordon in its place, keep work off this node?"""
    spec = raw.get("spec") or {}
    tainted = any(taint.get("key") == UNPROVEN_TAINT for taint in spec.get("taints") or ())
    return tainted or (_holder(raw) != "" and _cordoned(raw))


def _cordoned(raw: nodes.Raw) -> bool:
    return bool((raw.get("spec") or {}).get("unschedulable"))


def _holder(raw: nodes.Raw) -> str:
    return str((raw["metadata"].get("annotations") or {}).get(HELD) or "")


def held(raw: nodes.Raw) -> nodes.Raw | None:
    """The merge patch that cordons a node in place of its taint; None where nothing is to do.

    A node that somebody else has cordoned keeps its taint: it must not open when they take their cordon off.
    """
    spec = raw.get("spec") or {}
    taints = spec.get("taints") or []
    ours = [taint for taint in taints if taint.get("key") == UNPROVEN_TAINT]
    if _holder(raw) and not spec.get("unschedulable"):
        return {"spec": {"unschedulable": True}}  # somebody took it off before the node was proven
    if not ours or spec.get("unschedulable"):
        return None
    kept = [taint for taint in taints if taint not in ours]
    note = {"annotations": {HELD: str(ours[0].get("value") or "")}}
    return {"metadata": note, "spec": {"unschedulable": True, "taints": kept or None}}


def opened(raw: nodes.Raw) -> nodes.Raw | None:
    """The merge patch that takes off what we put on."""
    spec = raw.get("spec") or {}
    taints = spec.get("taints") or []
    kept = [taint for taint in taints if taint.get("key") != UNPROVEN_TAINT]
    patch: nodes.Raw = {}
    if len(kept) < len(taints):
        patch["spec"] = {"taints": kept or None}
    if _holder(raw):
        patch["metadata"] = {"annotations": {HELD: None}}
        patch.setdefault("spec", {})["unschedulable"] = None
    return patch or None


def closed(raw: nodes.Raw, run: str) -> nodes.Raw | None:
    """The merge patch that keeps new work off a node that was open. A cordon of somebody else's does that already."""
    if is_closed(raw) or _cordoned(raw):
        return None
    return {"metadata": {"annotations": {HELD: run}}, "spec": {"unschedulable": True}}
