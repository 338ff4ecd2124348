"""Loose pods do not take the room that a gang needs: its target nodes stay closed until it has moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from infra.kube import records
from infra.model.cluster import Condition, Node
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import Drain, MigrationSpec
from infra.model.workload import Owner, Pod, Snapshot, Workload
from tasks import undo
from tasks.drain import move
from tasks.keeping import KeptRoom
from tasks.opening import is_closed
from tasks.rules.placement import TargetShape, room_to_keep
from tasks.rules.waves import plan_move
from tasks.run import Run

RULE = {"namespace": "default", "name": "llm", "mode": "restart"}
OLD, NEW = ("old-0", "old-1", "old-2"), ("new-0", "new-1", "new-2")


def spread(build, name, replicas):
    """Pods so large that a scheduler puts each on a node of its own."""
    resources = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"cpu": "20", "memory": "100Gi"}}
    build.deployment(
        name, replicas, containers=[{"name": "c", "image": "registry.example/i:1", "resources": resources}]
    )


def test_a_gang_finds_its_room_although_loose_pods_go_first(kube, build, kubelet, fast_clock):
    for name in OLD:
        build.node(name)
    for name in NEW:
        build.node(name, "new", unschedulable=True)
    for name in OLD[1:]:
        build.cordon(name)
    spread(build, "web", 3)
    build.until_ready(3)
    for name in OLD[1:]:
        build.uncordon(name)
    build.job("llm", 2, gpus=8)
    build.until_ready(5)
    for name in NEW:
        build.uncordon(name)
    said = []

    drain = Drain.model_validate({"workloads": [RULE], "waves": {"canary": 1, "size": 2}})
    report = move(kube, drain, OLD, NEW, "r1", fast_clock, said.append)

    assert report.ok, (report.to_dict(), said)
    assert {p["spec"]["nodeName"] for p in build.pods()} == set(NEW)
    assert any("kept closed until the gangs have moved" in line for line in said)
    for name in NEW:
        node = kube.request("GET", f"/api/v1/nodes/{name}")
        assert not node["spec"].get("unschedulable")
        assert "poolshift.dev/held" not in (node["metadata"].get("annotations") or {})
        assert not [t for t in node["spec"].get("taints") or () if t["key"].startswith("poolshift.dev/")]


def test_what_a_killed_move_had_closed_is_opened_by_the_next(kube, build, fast_clock):
    for name in NEW:
        build.node(name, "new")
    records.ensure_namespace(kube)
    records.create(kube, "r1", "migration", "{}")
    room = KeptRoom(kube=kube, run="r1", target=NEW, say=lambda _: None)
    room._change(NEW[:2])
    assert set(closed(kube)) == set(NEW[:2])

    KeptRoom(kube=kube, run="r1", target=NEW, say=lambda _: None).open_left()

    assert closed(kube) == []


def test_a_rollback_opens_what_a_killed_move_kept_closed_on_a_target_that_we_have_not_made(
    kubeconfig, kube, build, tmp_path, monkeypatch
):
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    for name in NEW:
        build.node(name, "new")
    build.node("old-0")
    pools = {key: {"kind": "external", "name": key, "selector": {"pool": word}} for key, word in
             (("source", "old"), ("target", "new"))}  # fmt: skip
    spec = MigrationSpec.model_validate({"name": "r1", "cluster": {"kubeconfig": kubeconfig}, **pools})
    run = Run.open(spec)
    run.record()
    records.write_step(kube, "r1", StepRecord(step=Step.MIGRATE, state=StepState.STARTED, started=""))
    KeptRoom(kube=kube, run="r1", target=NEW, say=lambda _: None)._change(NEW[:2])

    done = undo.roll_back(run, remove_target=False)

    assert closed(kube) == []
    assert any("opened new-0, new-1" in line for line in done["done"])
    told = (tmp_path / "reports" / "r1" / "report.md").read_text()
    assert told.startswith("# Rolled back by ")
    assert "opened new-0, new-1" in told


def test_kept_nodes_open_for_work_that_finds_no_other_place(kube, build):
    for name in NEW:
        build.node(name, "new")
    room = KeptRoom(kube=kube, run="r1", target=NEW, say=lambda _: None, waiting=frozenset({"old"}))
    room._change(NEW[:2])
    before = Pod(namespace="d", name="old", uid="old", phase="Pending", unschedulable="no GPU")
    started = replace(before, uid="new", unschedulable="")

    assert not room.give_way([before, started])
    assert room.give_way([replace(before, uid="new")])
    assert closed(kube) == []


def test_as_many_nodes_are_kept_as_the_gang_needs_if_the_rest_takes_all_other_work():
    ready = (Condition(type="Ready", status="True"),)
    nodes = tuple(Node(name=n, uid=n, conditions=ready, allocatable={"nvidia.com/gpu": 8}) for n in NEW)
    seen = Snapshot(nodes=nodes)

    def pods(count, gpus):
        return [Pod(namespace="d", name=f"p{i}", uid=f"p{i}", requests={"nvidia.com/gpu": gpus}) for i in range(count)]

    assert room_to_keep(pods(2, 8), pods(3, 1), seen, NEW) == NEW[:2]
    assert room_to_keep(pods(2, 8), pods(9, 1), seen, NEW) == ()
    assert room_to_keep(pods(4, 8), pods(1, 1), seen, NEW) == ()


def job_pods(count, gpus, cpu=0):
    """A gang of one Job, each rank on a node of its own."""
    owner = Owner(kind="Job", name="llm", uid="job", api_version="batch/v1")
    requests = {"nvidia.com/gpu": gpus, "cpu": cpu}
    return [
        Pod(
            namespace="d", name=f"llm-{i}", uid=f"llm-{i}", owner=owner, node=OLD[i], phase="Running", requests=requests
        )
        for i in range(count)
    ]


def loose_pods(count, gpus, cpu=0):
    """Of one Deployment, on the first old node."""
    owner = Owner(kind="ReplicaSet", name="web", uid="rs", api_version="apps/v1")
    requests = {"nvidia.com/gpu": gpus, "cpu": cpu}
    return [
        Pod(namespace="d", name=f"w{i}", uid=f"w{i}", owner=owner, node=OLD[0], phase="Running", requests=requests)
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("gang", "loose", "told"),
    [
        (job_pods(2, 8), loose_pods(8, 1), False),  # two nodes are kept, the third takes the rest
        (job_pods(2, 8), loose_pods(9, 1), True),  # nine do not fit on the third: whoever comes first has the room
        (job_pods(3, 8), loose_pods(1, 1), True),
        (job_pods(3, 8, 4), loose_pods(4, 0, 8), False),  # without GPUs they may land anywhere, all of them on one node
        (job_pods(3, 8, 4), loose_pods(12, 0, 8), True),
        (job_pods(3, 8), (), False),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_a_plan_says_when_loose_pods_may_take_a_gangs_room_and_the_move_keeps_it_otherwise(gang, loose, told, there):
    ready = (Condition(type="Ready", status="True"),)
    offers = {"nvidia.com/gpu": 8, "cpu": 96, "pods": 110}
    old = tuple(Node(name=n, uid=n, conditions=ready, allocatable={**offers, "nvidia.com/gpu": 32}) for n in OLD)
    new = tuple(Node(name=n, uid=n, conditions=ready, allocatable=offers) for n in NEW)
    job = Workload(
        kind="Job", namespace="d", name="llm", uid="job", api_version="batch/v1", replicas=len(gang), indexed=True
    )
    sets = Workload(kind="ReplicaSet", namespace="d", name="web", uid="rs", api_version="apps/v1", replicas=len(loose))
    seen = Snapshot(nodes=(*old, *new) if there else old, pods=(*gang, *loose), workloads=(job, sets))
    shape = TargetShape(allocatable=offers, nodes=3, open_labels=False)

    drain = Drain.model_validate({"workloads": [{**RULE, "namespace": "d"}]})
    found = plan_move(seen, drain, OLD, shape, NEW if there else ())

    assert ("gang-room-not-kept" in {f.code for f in found.findings}) is told, found.findings
    assert not [f for f in found.findings if f.code == "gang-without-room"]


def closed(kube):
    return [raw["metadata"]["name"] for raw in kube.list("/api/v1/nodes") if is_closed(raw)]
