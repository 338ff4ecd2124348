"""What stops a drain, judged on plain objects as a kubectl dump holds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.errors import BadSpec, NotFound
from infra.kube.read import of_objects
from tasks.blockers import blockers
from tasks.rules.decision import Context
from tasks.rules.drain import decide

CASES = sorted((Path(__file__).parent / "cases").iterdir())


def meta(name, **more):
    return {"name": name, "namespace": "default", "uid": f"uid-{name}", **more}


def owned(kind="ReplicaSet", name="rs", uid=None):
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid or f"uid-{name}", "controller": True}]


def node(name="n1", **more):
    condition = {"type": "Ready", "status": more.pop("ready", "True"), "lastHeartbeatTime": "2026-01-01T12:00:00Z"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": name},
        "spec": more,
        "status": {"conditions": [condition]},
    }


def pod(name="p1", *, owners=..., ready=True, phase="Running", labels=None, annotations=None, spec=None, **more):
    return {
        "kind": "Pod",
        "metadata": meta(
            name,
            labels={"app": "a"} if labels is None else labels,
            annotations=annotations or {},
            ownerReferences=owned() if owners is ... else owners,
            **more,
        ),
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}], **(spec or {})},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def pdb(name="b1", *, status=..., app="a", **spec):
    counts = {
        "observedGeneration": 1,
        "disruptionsAllowed": 0,
        "currentHealthy": 2,
        "desiredHealthy": 2,
        "expectedPods": 3,
    }
    found = {
        "kind": "PodDisruptionBudget",
        "metadata": meta(name, generation=1),
        "spec": {"selector": {"matchLabels": {"app": app}}, **(spec or {"minAvailable": 2})},
    }
    if status is not None:
        found["status"] = counts if status is ... else {**counts, **status}
    return found


def why(*objects, **more):
    return [(b.pod, b.why) for b in blockers(objects, **more).blockers]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_real_dump_is_read_as_its_case_says(case):
    expect = json.loads((case / "case.json").read_text())["expect"]
    found = blockers(case / "input.json").to_json()

    assert found["drainable"] is expect["drainable"]
    assert found["node"] == expect["node"]
    assert set(expect["not_blockers"]) <= set(found["not_blockers"])
    for wanted in expect["blockers"]:
        assert any(wanted.items() <= blocker.items() for blocker in found["blockers"])
    assert len(found["blockers"]) == len(expect["blockers"])


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param([pod()], [], id="an ordinary pod"),
        pytest.param([pod(owners=[])], ["unmanaged"], id="a pod without controller"),
        pytest.param([pod(owners=[], phase="Succeeded")], [], id="a finished pod without controller"),
        pytest.param([pod(annotations={"kubernetes.io/config.mirror": "x"}, owners=[])], [], id="a static pod"),
        pytest.param([pod(owners=owned("Node", "n1"))], [], id="a static pod by its owner"),
        pytest.param([pod(spec={"volumes": [{"name": "v", "emptyDir": {}}]})], ["local-storage"], id="emptyDir"),
        pytest.param(
            [pod(spec={"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]})],
            ["local-storage"],
            id="emptyDir in memory",
        ),
        pytest.param(
            [pod(spec={"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]})], [], id="hostPath is the node's"
        ),
        pytest.param(
            [pod(phase="Succeeded", spec={"volumes": [{"name": "v", "emptyDir": {}}]})],
            [],
            id="emptyDir of a finished pod",
        ),
        pytest.param([pod(owners=owned("DaemonSet", "ds"))], ["daemonset"], id="a DaemonSet nobody has seen"),
        pytest.param(
            [pod(owners=owned("DaemonSet", "ds")), {"kind": "DaemonSet", "metadata": meta("ds")}],
            [],
            id="a DaemonSet that is there",
        ),
        pytest.param(
            [pod(owners=owned("DaemonSet", "gone")), {"kind": "DaemonSet", "metadata": meta("ds")}],
            ["daemonset"],
            id="an orphan of a DaemonSet",
        ),
        pytest.param(
            [pod(annotations={"karpenter.sh/do-not-disrupt": "true"})],
            ["do-not-disrupt-annotation"],
            id="Karpenter's word",
        ),
        pytest.param([pod(annotations={"karpenter.sh/do-not-disrupt": "false"})], [], id="Karpenter's word taken back"),
        pytest.param(
            [pod(annotations={"karpenter.sh/do-not-disrupt": "4h"})],
            ["do-not-disrupt-annotation"],
            id="Karpenter's word for a while",
        ),
        pytest.param(
            [pod(annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"})],
            ["do-not-disrupt-annotation"],
            id="the autoscaler's word",
        ),
        pytest.param([pod(), pdb()], ["pdb"], id="a closed budget"),
        pytest.param([pod(), pdb(status={"disruptionsAllowed": 1, "currentHealthy": 3})], [], id="an open budget"),
        pytest.param([pod(), pdb(app="b")], [], id="a budget of others"),
        pytest.param([pod(), pdb("b1"), pdb("b2")], ["multiple-pdb"], id="two budgets"),
        pytest.param(
            [pod(), pdb("b1", status={"disruptionsAllowed": 1}), pdb("b2", status={"disruptionsAllowed": 1})],
            ["multiple-pdb"],
            id="two open budgets",
        ),
        pytest.param([pod(), pdb(status=None, maxUnavailable=0)], ["pdb"], id="maxUnavailable 0 without status"),
        pytest.param([pod(), pdb(status=None, minAvailable="100%")], ["pdb"], id="minAvailable 100 % without status"),
        pytest.param([pod(), pdb(status=None, minAvailable=1)], ["pdb"], id="one of one pods without status"),
        pytest.param([pod(), pod("p2"), pdb(status=None, minAvailable=1)], [], id="one of two pods without status"),
        pytest.param(
            [pod(), pod("p2", ready=False), pdb(status={"currentHealthy": 1})],
            ["pdb-unhealthy-pods", "pdb-unhealthy-pods"],
            id="unready pods hold the budget",
        ),
        pytest.param(
            [
                pod(ready=False),
                pdb(status={"currentHealthy": 1}, minAvailable=2, unhealthyPodEvictionPolicy="AlwaysAllow"),
            ],
            [],
            id="an unready pod that may always go",
        ),
        pytest.param(
            [pod(ready=False), pdb(status={"currentHealthy": 2, "desiredHealthy": 2})],
            [],
            id="an unready pod, the others suffice",
        ),
        pytest.param(
            [
                pod(ready=False),
                pdb(status={"currentHealthy": 0, "desiredHealthy": 1, "expectedPods": 1}, minAvailable=1),
            ],
            ["pdb-unhealthy-pods"],
            id="the only replica crashes under its own budget",
        ),
        pytest.param([pod(phase="Pending", ready=False), pdb()], [], id="a pending pod asks no budget"),
        pytest.param(
            [
                pod(owners=[]),
                pdb(status={"expectedPods": 0, "currentHealthy": 0, "desiredHealthy": 0}, maxUnavailable=1),
            ],
            ["pdb", "unmanaged"],
            id="a bare pod under maxUnavailable",
        ),
        pytest.param(
            [pod(), pdb(minAvailable=2, unhealthyPodEvictionPolicy="Perhaps")], ["pdb"], id="an unknown policy means no"
        ),
        pytest.param(
            [pod(deletionTimestamp="2026-01-01T11:00:00Z", finalizers=["example.com/x"])],
            ["finalizer"],
            id="held by a finalizer",
        ),
        pytest.param([node(), pod(deletionTimestamp="2026-01-01T11:59:50Z")], [], id="leaving within its grace"),
        pytest.param(
            [node(), pod(deletionTimestamp="2026-01-01T11:00:00Z")],
            ["stuck-terminating"],
            id="a process that does not end",
        ),
        pytest.param(
            [pod(deletionTimestamp="2026-01-01T11:00:00Z"), pod("p2", creationTimestamp="2026-01-01T12:00:00Z")],
            ["stuck-terminating"],
            id="what a dump without nodes says of the time",
        ),
        pytest.param(
            [
                node(),
                pod(
                    phase="Succeeded",
                    deletionTimestamp="2026-01-01T11:00:00Z",
                    finalizers=["batch.kubernetes.io/job-tracking"],
                ),
            ],
            ["finalizer"],
            id="a finished pod that its Job has forgotten",
        ),
        pytest.param(
            [node(), pod(phase="Failed", owners=owned("DaemonSet", "ds"))],
            [],
            id="a finished pod of a DaemonSet nobody has seen",
        ),
        pytest.param(
            [node(ready="Unknown"), pod(deletionTimestamp="2026-01-01T11:00:00Z")],
            ["node-dead"],
            id="leaving a dead node",
        ),
        pytest.param([node(ready="Unknown"), pod()], ["node-dead"], id="on a dead node"),
        pytest.param(
            [
                node(),
                pod(
                    deletionTimestamp="2026-01-01T11:00:00Z",
                    spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
                ),
                {"kind": "PersistentVolumeClaim", "metadata": meta("c"), "spec": {"volumeName": "pv"}},
                {
                    "kind": "PersistentVolume",
                    "metadata": {"name": "pv"},
                    "spec": {"csi": {"driver": "fsx.csi.aws.com"}},
                },
            ],
            ["stuck-unmount"],
            id="a Lustre mount that does not end",
        ),
        pytest.param(
            [
                pod(spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
                {"kind": "PersistentVolumeClaim", "metadata": meta("c"), "spec": {"volumeName": "pv"}},
                {"kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {"local": {"path": "/x"}}},
            ],
            ["local-storage"],
            id="a local volume",
        ),
        pytest.param(
            [
                pod(spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
                {"kind": "PersistentVolumeClaim", "metadata": meta("c"), "spec": {"volumeName": "pv"}},
                {
                    "kind": "PersistentVolume",
                    "metadata": {"name": "pv"},
                    "spec": {
                        "csi": {"driver": "topolvm.io"},
                        "nodeAffinity": {
                            "required": {
                                "nodeSelectorTerms": [
                                    {
                                        "matchExpressions": [
                                            {"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]}
                                        ]
                                    }
                                ]
                            }
                        },
                    },
                },
            ],
            ["local-storage"],
            id="a volume that its driver keeps on one node",
        ),
        pytest.param(
            [
                pod(),
                {
                    "apiVersion": "policy/v1beta1",
                    "kind": "PodDisruptionBudget",
                    "metadata": meta("b"),
                    "spec": {"minAvailable": 1, "selector": {}},
                },
            ],
            [],
            id="an empty selector of old",
        ),
    ],
)
def test_each_reason_is_told_by_its_name(objects, expected):
    assert [w for _, w in why(*objects)] == expected


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"nodeSelector": {"kubernetes.io/hostname": "n1"}}, "pinned-to-node"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/mnt/models"}}]}, "host-path"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/dev/infiniband"}}]}, None),
    ],
)
def test_what_a_pod_leaves_behind_is_told_and_does_not_block(spec, code):
    snapshot = of_objects([pod(spec=spec)])
    found = {d.code for d in decide(snapshot.pods[0], Context(snapshot=snapshot))}
    assert found == ({code} if code else set())


def test_a_budget_that_is_not_counted_yet_leaves_the_answer_open():
    result = blockers([pod(), pdb(status={"observedGeneration": 0})])

    assert result.drainable is None
    assert "not counted yet" in result.unknown[0]


def test_a_dump_without_pods_leaves_the_answer_open():
    assert blockers([node()]).drainable is None


def test_a_bare_pod_with_scratch_space_needs_both_permissions():
    objects = [pod(owners=[], spec={"volumes": [{"name": "v", "emptyDir": {}}]})]
    assert [w for _, w in why(*objects)] == ["local-storage", "unmanaged"]


def test_only_pods_of_the_node_asked_for_are_judged():
    elsewhere = pod("p2", owners=[])
    elsewhere["spec"]["nodeName"] = "n2"
    assert why(pod(), elsewhere, node="n1") == []


def test_the_one_cordoned_node_is_the_one_in_question():
    elsewhere = pod("p2", owners=[])
    elsewhere["spec"]["nodeName"] = "n2"
    assert blockers([node(unschedulable=True), node("n2"), pod(), elsewhere]).node == "n1"


def test_a_node_that_is_nowhere_is_an_error_that_names_those_there_are():
    with pytest.raises(NotFound, match="one of n1"):
        blockers([pod()], node="n9")


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense: [", '{"kind": "List", "items": ['])
def test_a_file_that_is_no_dump_is_refused_by_name(tmp_path, text):
    file = tmp_path / "dump"
    file.write_text(text)
    with pytest.raises(BadSpec, match="dump"):
        blockers(file)


def test_several_lists_in_one_file_and_yaml_are_read_alike(tmp_path):
    objects = [pod(owners=[]), node()]
    two, listed, yaml = tmp_path / "two.json", tmp_path / "listed.json", tmp_path / "dump.yaml"
    two.write_text("\n".join(json.dumps(o, indent=4) for o in objects))
    listed.write_text(json.dumps({"kind": "PodList", "items": [{k: v for k, v in objects[0].items() if k != "kind"}]}))
    yaml.write_text(
        "---\n".join(f"{json.dumps(o)}\n" for o in objects).replace("{", "{ ", 1).join(["# a comment\n", ""])
    )

    answers = [blockers(f).to_json()["blockers"] for f in (two, listed, yaml)]

    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0]["why"] == "unmanaged"


def test_a_large_dump_is_read_item_by_item(tmp_path, monkeypatch):
    monkeypatch.setattr("infra.kube.dump._LARGE", 100)
    file = tmp_path / "dump.json"
    items = [pod(f"p{i}", owners=[], annotations={"note": "a }\n        },\n line"}) for i in range(50)]
    file.write_text(json.dumps({"apiVersion": "v1", "items": items, "kind": "List"}, indent=4))

    assert len(blockers(file).blockers) == 50


@pytest.mark.parametrize("form", ["yaml", "large json", "kindless"])
def test_a_dump_that_was_cut_is_refused_and_never_read_as_drainable(form: str, tmp_path: Path) -> None:
    """Cut before the pod that blocks: what is left looks fine."""
    import json

    import yaml

    good = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "d", "uid": "1"}}
    good["spec"] = {"nodeName": "n"}  # type: ignore[assignment]
    file = tmp_path / "dump"
    if form == "yaml":
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "items": [good]}))
    elif form == "large json":
        pad = {**good, "metadata": {**good["metadata"], "annotations": {"x": "y" * 1_000_000}}}  # type: ignore[dict-item]
        text = json.dumps({"apiVersion": "v1", "items": [pad] * 40, "kind": "List"}, indent=4)
        file.write_text(text[: text.rindex("\n        },")] + "\n        },")
    else:
        file.write_text(json.dumps({"kind": "List", "items": [good, {"metadata": {"name": "b"}}]}))

    with pytest.raises(BadSpec):
        blockers(file)


def test_of_several_nodes_those_that_are_blocked_are_counted():
    on = [pod(f"p{n}", owners=[] if n in (1, 2) else ..., spec={"nodeName": f"n{n}"}) for n in (1, 2, 3, 4)]
    found = blockers([*on, pod("p5", owners=[])])

    assert found.lines()[0] == "2 of 4 nodes cannot be drained: 3 blockers, 2 pods can leave or may stay"
    assert blockers(on[:2]).lines()[0].startswith("2 nodes cannot be drained: 2 blockers")
    assert blockers([node(), *on], "n3").lines()[0].startswith("node n3 can be drained: 0 blockers")
    assert found.lines()[1].startswith("3 pods (default/p1, default/p5, default/p2; on n1, n2): ")
    assert sum(line.startswith("    next: ") for line in found.lines()) == 1


@pytest.mark.parametrize(
    ("objects", "missing"),
    [
        ([node(), node("n2")], "the dump holds no pods"),
        ([pod(spec={"nodeName": ""})], "no pod of the dump is on a node"),
    ],
)
def test_where_no_node_can_be_judged_what_is_missing_is_said_with_the_command_that_dumps_it(objects, missing):
    first, then = blockers(objects).lines()

    assert first.startswith(f"no node can be judged: {missing}")
    assert then.startswith("    next: kubectl get nodes,pods,pdb")
    assert "where Kueue runs, also workloads.kueue.x-k8s.io,localqueues" in then


WITH_CLAIM = {"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]}
CLAIM = {"kind": "PersistentVolumeClaim", "metadata": meta("c"), "spec": {"volumeName": "v"}}
EMPTY_CLAIM = {"kind": "PersistentVolumeClaim", "metadata": meta("c"), "spec": {}}


@pytest.mark.parametrize(
    ("more", "drainable"),
    [
        ([], None),
        ([CLAIM], None),
        ([CLAIM, {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {"local": {"path": "/a"}}}], False),
        ([CLAIM, {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {"csi": {"driver": "x"}}}], True),
        ([EMPTY_CLAIM], True),
    ],
)
def test_a_claim_that_may_be_stored_on_the_node_alone_is_no_leave_to_go(more, drainable):
    assert blockers([node(), pod(spec=WITH_CLAIM), *more]).drainable is drainable


@pytest.mark.parametrize(
    ("garbled", "named"),
    [
        (pod(spec={"priority": "high"}), "Pod default/p1"),
        (pod(spec={"volumes": [None]}), "Pod default/p1"),
        ({**pdb(), "status": ["x"]}, "PodDisruptionBudget default/b1"),
        ({**node(), "status": {"conditions": "x"}}, "Node n1"),
        ({"kind": "Pod", "metadata": None, "spec": {"tolerations": "x"}}, "Pod without a name"),
        ({"kind": "PersistentVolumeClaim", "metadata": "x"}, "PersistentVolumeClaim without a name"),
    ],
)
def test_an_object_that_no_api_server_has_written_is_named(garbled, named):
    with pytest.raises(BadSpec, match=named):
        blockers([node(), pod("p2"), garbled])


def test_a_kind_that_a_dump_lacks_is_one_line_and_so_is_one_reason_of_many_pods():
    owner = {"kind": "DaemonSet", "uid": "u", "controller": True, "apiVersion": "apps/v1"}
    managed = [pod(f"p{n}") for n in range(5)]
    for number, each in enumerate(managed):
        each["metadata"]["ownerReferences"] = [{**owner, "name": f"set-{number}"}]
    found = blockers([node(), *managed])

    assert len(found.blockers) == 5
    first, reason, remedy, *_ = found.lines()
    assert "5 blockers" in first
    assert reason.startswith("5 pods (default/p0, default/p1, default/p2 and 2 more; on n1): daemonset: managed by a ")
    assert remedy.startswith("    next: dump the DaemonSets too: ")
    assert sum("DaemonSet" in line for line in found.lines()) == 2
