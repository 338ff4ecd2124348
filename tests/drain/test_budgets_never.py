"""Budgets that waiting does not open: found as such, each with a remedy that would really open it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from infra.model.cluster import Condition, Node, Owner
from infra.model.record import HELD, PRIOR
from infra.model.spec import Drain
from infra.model.workload import Budget, Pod, Selector, Snapshot, Workload
from tasks.blockers import blockers
from tasks.rules.budgets import room
from tasks.rules.decision import Allowed, Context
from tasks.rules.drain import decide
from tasks.rules.idle import idle_nodes
from tasks.rules.waves import plan_move

NODE = Node(name="n1", uid="n1", conditions=(Condition(type="Ready", status="True"),))


def pods(count=2, kind="ReplicaSet", **more):
    owner = Owner(kind=kind, name="o", uid="o", api_version="apps/v1") if kind else None
    fields = {"node": "n1", "labels": {"app": "a"}, "phase": "Running", "ready": True, "owner": owner, **more}
    return tuple(Pod(namespace="d", name=f"p{i}", uid=f"p{i}", **fields) for i in range(count))


def budget(allowed=0, healthy=2, desired=2, expected=2, **spec):
    return Budget(
        namespace="d", name="b", generation=1, observed=1, selector=Selector(labels={"app": "a"}),
        allowed=allowed, healthy=healthy, desired=desired, expected=expected, **spec,
    )  # fmt: skip


def answer(found, covered, **more):
    snapshot = Snapshot(nodes=(NODE,), pods=covered, budgets=(found,), **more)
    context = Context(snapshot=snapshot, allowed=Allowed(bare_pods=True, surge=True))
    return next((d for d in decide(covered[0], context) if d.code.startswith(("pdb", "surge"))), None)


@pytest.mark.parametrize("allowed", [-1, -20])
def test_a_negative_count_is_nobodys_and_not_an_open_budget(allowed):
    found = answer(budget(allowed, healthy=3, expected=3, min_available="2"), pods(3))
    assert found is not None
    assert found.code == "pdb-unknown"


@pytest.mark.parametrize("kind", ["Cluster", "Job", "DaemonSetLike"])
@pytest.mark.parametrize("spec", [{"max_unavailable": "1"}, {"min_available": "50%"}])
def test_pods_that_the_server_cannot_count_are_not_waited_for(kind, spec):
    found = answer(budget(healthy=0, desired=0, expected=0, **spec), pods(kind=kind))
    assert found.code == "pdb-never"
    assert "minAvailable as a number" in found.remedy


def test_pods_that_were_only_not_counted_yet_are_waited_for():
    assert answer(budget(healthy=0, desired=0, expected=0, max_unavailable="1"), pods()).code == "pdb"


@pytest.mark.parametrize(
    ("spec", "kind", "count"),
    [
        ({"max_unavailable": "0"}, "ReplicaSet", 2),
        ({"max_unavailable": "0%"}, "ReplicaSet", 1),
        ({"min_available": "100%"}, "ReplicaSet", 2),
        ({"min_available": "99%"}, "ReplicaSet", 2),
        ({"min_available": "2"}, "ReplicaSet", 2),
        ({"min_available": "51%"}, "ReplicaSet", 2),
        ({"max_unavailable": "1"}, None, 2),
    ],
)
def test_a_replica_is_asked_for_only_where_it_opens_the_budget(spec, kind, count):
    def at(replicas):
        unwritten = Budget(namespace="d", name="b", selector=Selector(labels={"app": "a"}), **spec)
        return room(unwritten, pods(replicas, kind))

    assert at(count).never
    assert at(count).remedy.startswith("add a replica") == (not at(count + 1).never)


def _patched(found, remedy):
    """The budget after the remedy's command."""
    command = shlex.split(remedy[remedy.index("kubectl") :])
    assert command[:6] == ["kubectl", "-n", "d", "patch", "pdb", "b"]
    spec = json.loads(command[-1])["spec"]
    names = {"maxUnavailable": "max_unavailable", "minAvailable": "min_available"}
    changes = {names[key]: "" if value is None else str(value) for key, value in spec.items()}
    return replace(found, **changes)


@pytest.mark.parametrize(
    "spec", [{"max_unavailable": "0"}, {"max_unavailable": "1"}, {"min_available": "100%"}, {"min_available": "3"}]
)
@pytest.mark.parametrize("kind", ["ReplicaSet", "Cluster", None])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_closed_budgets_remedy_is_a_command_that_opens_it(spec, kind, count):
    found = Budget(namespace="d", name="b", selector=Selector(labels={"app": "a"}), **spec)
    closed = room(found, pods(count, kind))
    if closed.never:
        opened = room(_patched(found, closed.remedy), pods(count, kind))
        assert (opened.never, opened.allowed) == ("", 1)


def test_a_second_replica_is_not_started_where_it_opens_nothing():
    more = {"workloads": (Workload(kind="Deployment", namespace="d", name="o", uid="o", replicas=1, surge=True),)}
    one = {"healthy": 1, "desired": 1, "expected": 1}
    covered = pods(1, "Deployment")
    assert answer(budget(**one, max_unavailable="0"), covered, **more).code == "pdb-never"
    assert answer(budget(**one, min_available="1"), covered, **more).code == "surge-first"


def test_a_dump_of_pods_alone_cannot_be_judged_and_one_without_budgets_says_what_it_takes_as_given():
    def raw(kind, name, **more):
        return {"kind": kind, "metadata": {"name": name, "uid": name, "namespace": "d"}, **more}

    pod = raw("Pod", "p", spec={"nodeName": "n", "containers": []}, status={"phase": "Running"})
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True, "apiVersion": "apps/v1"}
    pod["metadata"]["ownerReferences"] = [owner]
    node = raw("Node", "n", status={"conditions": [{"type": "Ready", "status": "True"}]})
    assert blockers([pod]).exit_code == 4
    assert blockers([pod, node]).exit_code == 0
    assert any("no budgets" in line for line in blockers([pod, node]).lines())
    assert blockers([pod, node, raw("PodDisruptionBudget", "b", spec={"minAvailable": 1})]).assumed == ()


@pytest.mark.parametrize(
    ("annotations", "idle"),
    [
        ({}, False),
        ({HELD: "r"}, True),
        ({PRIOR: '{"run":"r","cordoned":true}'}, True),
        ({PRIOR: '{"run":"r"}'}, False),
        ({PRIOR: "cut"}, False),
    ],
)
def test_a_node_that_somebody_else_has_cordoned_is_not_measured(annotations, idle):
    node = replace(NODE, unschedulable=True, annotations=annotations)
    assert bool(idle_nodes(Snapshot(nodes=(node,)), [node], {"nvidia.com/gpu"})) is idle


def test_a_grace_past_the_deadline_is_told_once_for_each_workload():
    more = {"workloads": (Workload(kind="ReplicaSet", namespace="d", name="o", uid="o", replicas=2),)}

    def told(**grace):
        snapshot = Snapshot(nodes=(NODE,), pods=pods(**grace), **more)
        return [f for f in plan_move(snapshot, Drain(), ["n1"]).findings if f.code == "grace-past-deadline"]

    assert told() == []
    (found,) = told(grace=7200)
    assert "2:00:00" in found.observed


RUN = {"poolshift.dev/run": "drain-1"}
CLOSED = "0/2 nodes are available: 2 node(s) were unschedulable. preemption: 0/2 nodes are available."


@pytest.mark.parametrize(
    ("said", "marks", "run", "command"),
    [
        (CLOSED, {}, "", "open what no run of poolshift has cordoned: kubectl uncordon n2"),
        (CLOSED, RUN, "", "if drain-1 has ended, open what it left closed: kubectl uncordon n2"),
        (CLOSED, RUN, "drain-1", "drain fewer at a time; its cordons keep the others closed"),
        ("0/2 nodes are available: 2 Insufficient cpu.", {}, "", "kubectl describe pod -n d p0"),
        ("", RUN, "", "kubectl describe pod -n d p0"),
    ],
)
def test_a_budget_whose_pods_find_no_node_is_opened_by_room_and_not_by_mending(said, marks, run, command):
    closed = replace(NODE, name="n2", uid="n2", unschedulable=True, labels=marks)
    homeless, other = pods(2)
    homeless = replace(homeless, node="", phase="Pending", ready=False, unschedulable=said)
    found = budget(0, healthy=1, desired=1, expected=2, max_unavailable="1")
    snapshot = Snapshot(nodes=(NODE, closed), pods=(homeless, other), budgets=(found,))

    (told,) = (d for d in decide(other, Context(snapshot=snapshot, run=run)) if d.code == "pdb-unhealthy-pods")

    why = said.split(". ")[0].rstrip(".") or "the scheduler has not said why"
    assert told.reason.endswith(f"d/p0 is on no node: {why}")
    assert told.remedy.endswith(command)
    assert "mend" not in told.remedy


def test_pods_that_run_unready_are_to_be_mended_and_the_homeless_given_room():
    broken, homeless, other = pods(3)
    broken = replace(broken, ready=False)
    homeless = replace(homeless, node="", phase="Pending", ready=False)
    found = budget(0, healthy=1, desired=2, expected=3, max_unavailable="1")
    snapshot = Snapshot(nodes=(NODE,), pods=(broken, homeless, other), budgets=(found,))

    (told,) = (d for d in decide(other, Context(snapshot=snapshot)) if d.code == "pdb-unhealthy-pods")

    assert told.remedy.startswith("mend those pods, or: kubectl -n d patch pdb b ")
    assert "; free room" in told.remedy
