"""The target pool is closed until it is proven: by a taint at birth, by a cordon once a node has joined."""

from __future__ import annotations

from typing import Any

from infra.model.record import HELD, UNPROVEN_TAINT
from tasks import opening

OURS = {"key": UNPROVEN_TAINT, "value": "run-1", "effect": "NoSchedule"}
THEIRS = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(*taints: dict[str, str], cordoned: bool = False, held: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"taints": list(taints)}
    if cordoned:
        spec["unschedulable"] = True
    return {"metadata": {"name": "new-0", "annotations": {HELD: held} if held else {}}, "spec": spec}


def merged(raw: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """What a merge patch makes of the node."""
    if patch is None:
        return raw
    spec = {**raw["spec"], **patch.get("spec", {})}
    annotations = {**raw["metadata"]["annotations"], **patch.get("metadata", {}).get("annotations", {})}
    return {
        "metadata": {"name": raw["metadata"]["name"], "annotations": {k: v for k, v in annotations.items() if v}},
        "spec": {k: v for k, v in spec.items() if v is not None},
    }


def test_a_node_that_joined_changes_its_taint_for_a_cordon_in_one_write() -> None:
    held = merged(born := node(OURS, THEIRS), opening.held(born))

    assert held == node(THEIRS, cordoned=True, held="run-1")
    assert opening.is_closed(born)
    assert opening.is_closed(held)
    assert opening.held(held) is None


def test_a_node_that_somebody_else_cordoned_keeps_our_taint() -> None:
    assert opening.held(node(OURS, cordoned=True)) is None


def test_a_cordon_that_somebody_took_off_before_the_proof_comes_back() -> None:
    loose = node(THEIRS, held="run-1")

    assert not opening.is_closed(loose)
    assert opening.is_closed(merged(loose, opening.held(loose)))


def test_opening_takes_off_what_we_put_on_and_nothing_else() -> None:
    for closed in (node(OURS, THEIRS), node(THEIRS, cordoned=True, held="run-1")):
        assert merged(closed, opening.opened(closed))["spec"] == {"taints": [THEIRS]}
    theirs = node(OURS, THEIRS, cordoned=True)
    assert merged(theirs, opening.opened(theirs)) == node(THEIRS, cordoned=True)
    assert opening.opened(node(THEIRS, cordoned=True)) is None


def test_a_pool_that_is_still_closed_needs_no_second_lock_on_a_rollback() -> None:
    assert opening.closed(node(cordoned=True, held="run-1"), "run-1") is None
    assert opening.closed(node(cordoned=True), "run-1") is None
    assert opening.closed(node(OURS), "run-1") is None


def test_a_pool_that_was_open_is_closed_without_keeping_its_plugins_away() -> None:
    was_open = node(THEIRS)

    assert merged(was_open, opening.closed(was_open, "run-1")) == node(THEIRS, cordoned=True, held="run-1")
