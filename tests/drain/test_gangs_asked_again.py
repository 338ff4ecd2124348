"""What stops a gang right before its stop, and which target nodes count as room for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.model.cluster import Condition, Node, Owner, Taint, Toleration
from infra.model.record import HELD, UNPROVEN_TAINT
from infra.model.spec import Drain
from infra.model.workload import Pod, Snapshot, Workload
from tasks.rules.decision import Context
from tasks.rules.gangs import find_gangs
from tasks.rules.placement import shape_of, without_room
from tasks.rules.sentences import allowed_by
from tasks.rules.waves import gang_block, plan_move

JOB = Workload(kind="Job", namespace="d", name="llm", uid="llm", api_version="batch/v1", replicas=2, indexed=True)
OWNER = Owner(kind="Job", name="llm", uid="llm", api_version="batch/v1")
RANK = Pod(
    namespace="d", name="r", uid="r", phase="Running", ready=True, owner=OWNER, requests={"nvidia.com/gpu": 8}
)  # fmt: skip


def node(name, **more):
    fields = {"conditions": (Condition(type="Ready", status="True"),), "allocatable": {"nvidia.com/gpu": 8}}
    return Node(name=name, uid=name, **{**fields, **more})


def seen(**more):
    ranks = tuple(replace(RANK, name=f"r{i}", uid=f"r{i}", node=f"s{i}", **more) for i in (1, 2))
    return Snapshot(nodes=tuple(node(n) for n in ("s1", "s2", "t1", "t2")), pods=ranks, workloads=(JOB,))


def block(snapshot, drain=None):
    drain = drain or Drain()
    target = shape_of([n for n in snapshot.nodes if n.name in ("t1", "t2")])
    (gang,) = find_gangs(snapshot, drain, ["s1", "s2"])
    context = Context(snapshot=snapshot, allowed=allowed_by(drain), target=target)
    found = gang_block(gang, context, drain, ["t1", "t2"], (), {})
    planned = plan_move(snapshot, drain, ["s1", "s2"], target, ["t1", "t2"])
    assert planned.blocked == (found is not None), "the plan and the move must judge alike"
    return found.code if found else ""


def ruled(**more):
    return Drain.model_validate({"workloads": [{"namespace": "d", "name": "llm", "mode": "restart"}], **more})


def test_a_gang_that_nothing_holds_may_be_stopped():
    assert block(seen()) == ""


SET = Owner(kind="JobSet", name="llm", uid="set", api_version="jobset.x-k8s.io/v1alpha2")


@pytest.mark.parametrize(
    ("unread", "known", "held"),
    [
        ({"Job": "403 Forbidden: no"}, (), True),
        ({"JobSet": "403 Forbidden: no"}, (replace(JOB, owner=SET),), True),
        ({"JobSet": "404 : 404 page not found"}, (replace(JOB, owner=SET),), False),  # its kind is not served any more
        ({"PersistentVolume": "403 Forbidden: no"}, (JOB,), False),
    ],
)
def test_ranks_whose_owners_may_not_be_read_are_not_evicted_one_by_one(unread, known, held):
    snapshot = replace(seen(), workloads=known, unread=unread)

    plan = plan_move(snapshot, Drain(), ["s1", "s2"], shape_of(snapshot.nodes[2:]), ["t1", "t2"])

    assert {f.code for f in plan.findings if f.code == "owner-unread"} == ({"owner-unread"} if held else set())
    assert plan.blocked is held


@pytest.mark.parametrize(
    ("more", "drain", "code"),
    [
        ({"annotations": {"karpenter.sh/do-not-disrupt": "true"}}, Drain(), "do-not-disrupt-annotation"),
        ({"empty_dirs": ("ckpt",)}, Drain(), "local-storage"),
        ({"empty_dirs": ("ckpt",)}, ruled(), ""),
        ({"empty_dirs": ("ckpt",)}, Drain.model_validate({"force": {"empty_dir": True}}), ""),
        ({"node_selector": {"pool": "old"}}, Drain(), "gang-pinned"),
    ],
)
def test_what_the_rules_say_of_a_member_holds_its_gang(more, drain, code):
    assert block(seen(**more), drain) == code


@pytest.mark.parametrize(
    ("more", "homeless"),
    [
        ({}, 0),
        ({"unschedulable": True}, 1),
        ({"unschedulable": True, "annotations": {HELD: "r"}}, 0),
        ({"taints": (Taint(key="gpu-unhealthy", value="", effect="NoSchedule"),)}, 1),
        ({"taints": (Taint(key="soft", value="", effect="PreferNoSchedule"),)}, 0),
        ({"taints": (Taint(key="tolerated", value="", effect="NoSchedule"),)}, 0),
        ({"taints": (Taint(key=UNPROVEN_TAINT, value="r", effect="NoSchedule"),)}, 0),
        ({"conditions": ()}, 1),
    ],
)
def test_only_nodes_that_will_take_a_member_are_room_for_it(more, homeless):
    found = seen(tolerations=(Toleration(key="tolerated", operator="Exists"),))
    nodes = (*found.nodes[:3], node("t2", **more))
    assert len(without_room(found.pods, replace(found, nodes=nodes), ["t1", "t2"])) == homeless
