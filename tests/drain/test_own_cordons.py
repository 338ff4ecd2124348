"""A plan that is made again while its run has nodes cordoned: it never asks to undo its own cordons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.model.cluster import Condition, Node, Owner
from infra.model.spec import Drain
from infra.model.workload import Budget, Pod, Selector, Snapshot
from tasks.rules.waves import plan_move

READY = (Condition(type="Ready", status="True"),)
POD = Pod(
    namespace="d",
    name="a",
    uid="a",
    node="old-0",
    labels={"app": "a"},
    phase="Running",
    ready=True,
    owner=Owner(kind="ReplicaSet", name="o", uid="o", api_version="apps/v1"),
)
HOMELESS = replace(
    POD,
    name="b",
    uid="b",
    node="",
    phase="Pending",
    ready=False,
    unschedulable="0/2 nodes are available: 2 node(s) were unschedulable.",
)
BUDGET = Budget(
    namespace="d",
    name="b",
    generation=1,
    observed=1,
    selector=Selector(labels={"app": "a"}),
    allowed=0,
    healthy=1,
    desired=1,
    expected=2,
    max_unavailable="1",
)


@pytest.mark.parametrize(("run", "asked"), [("r1", False), ("r2", True)], ids=["our own", "another's"])
def test_only_cordons_of_others_are_to_be_given_up(run, asked):
    old = [
        Node(name=name, uid=name, conditions=READY, unschedulable=True, labels={"poolshift.dev/run": "r1"})
        for name in ("old-0", "old-1")
    ]
    snapshot = Snapshot(nodes=tuple(old), pods=(POD, HOMELESS), budgets=(BUDGET,))
    found = plan_move(snapshot, Drain(), ["old-0", "old-1"], run=run).findings
    (told,) = [f for f in found if f.code == "pdb-unhealthy-pods"]
    assert ("kubectl uncordon old-0 old-1" in told.remedy) is asked
    assert ("its cordons keep the others closed" in told.remedy) is not asked
