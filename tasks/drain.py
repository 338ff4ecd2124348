"""Draining, as flows and the command line call it: `plan`, `move`, `verify_empty`, and `drain_nodes` on its own."""

from __future__ import annotations

from collections.abc import Sequence

from infra.model.spec import Drain
from infra.model.workload import Snapshot
from tasks.drain_report import DrainOptions, DrainReport
from tasks.emptiness import verify_empty
from tasks.move_report import MoveReport, WaveReport
from tasks.moving import move
from tasks.rules.placement import TargetShape
from tasks.rules.waves import MovePlan, plan_move
from tasks.standalone import drain_nodes

__all__ = [
    "DrainOptions",
    "DrainReport",
    "MovePlan",
    "MoveReport",
    "TargetShape",
    "WaveReport",
    "drain_nodes",
    "move",
    "plan",
    "verify_empty",
]


def plan(
    snapshot: Snapshot,
    drain: Drain,
    source_nodes: Sequence[str],
    target_shape: TargetShape | None = None,
    *,
    target_nodes: Sequence[str] = (),
) -> MovePlan:
    """What would move, in which wave, what waits for what, and what can never go. Reads nothing, changes nothing.

    Args:
        snapshot: from `infra.kube.read.snapshot` or a dump.
        drain: the spec's drain part.
        source_nodes: names of the nodes to empty.
        target_shape: a node of the target pool, from the spec when the pool does not exist yet.
        target_nodes: names of the target's nodes when it does: room for gangs is then judged on what is free there.

    """
    return plan_move(snapshot, drain, source_nodes, target_shape, target_nodes)
