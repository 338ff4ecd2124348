"""What leaves only because the spec lets it go at a loss is known before it does."""

from __future__ import annotations

from typing import Any

from infra.model.cluster import Condition, Node, Owner
from infra.model.workload import Pod, Snapshot
from tasks.rules.decision import Allowed
from tasks.rules.forcing import forced_pods


def pod(name: str, **more: Any) -> Pod:
    fields = {"phase": "Running", "ready": True, "owner": Owner(kind="ReplicaSet", name="web", uid="w"), **more}
    return Pod(namespace="d", name=name, uid=name, node="n1", **fields)


SEEN = Snapshot(
    nodes=(Node(name="n1", uid="n1", conditions=(Condition(type="Ready", status="True"),)),),
    pods=(
        pod("bare", owner=None),
        pod("scratch", empty_dirs=("cache",)),
        pod("keep", annotations={"karpenter.sh/do-not-disrupt": "true"}),
        pod("plain"),
        pod("ended", owner=None, phase="Succeeded"),
    ),
)


def test_each_opt_in_names_the_pods_that_nothing_else_lets_go() -> None:
    found = forced_pods(SEEN, ["n1"], Allowed(bare_pods=True, empty_dir=True, do_not_disrupt=True))

    assert set(found) == {"d/bare", "d/scratch", "d/keep"}
    assert found["d/bare"].startswith("unmanaged:")
    assert "cache" in found["d/scratch"]


def test_what_the_spec_does_not_allow_is_held_and_not_forced() -> None:
    assert set(forced_pods(SEEN, ["n1"], Allowed(empty_dir=True))) == {"d/scratch"}
    assert forced_pods(SEEN, ["n1"], Allowed()) == {}
