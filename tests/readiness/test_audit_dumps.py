"""`poolshift audit -f`: one dump for each way in which a pool looks green and has no device. No cluster, no GPU."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from infra.model.verdict import Outcome
from tasks.audit import of_objects

CASES = Path(__file__).parent / "cases"
EFA, GPU, MACHINE = "vpc.amazonaws.com/efa", "nvidia.com/gpu", "p5en.48xlarge"
CREATED, BROKE, TAKEN = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z", "2026-10-31T00:00:00Z"
PLUGINS = {"nvidia-device-plugin-daemonset": GPU, "aws-efa-k8s-device-plugin": EFA}
Raw = dict[str, Any]
Dump = dict[str, list[Raw]]


def node(name: str, **changes: Any) -> Raw:
    have = {"cpu": "192", "memory": "2Ti", GPU: "8", EFA: "16"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "eks.amazonaws.com/nodegroup": "gpu", "node.kubernetes.io/instance-type": MACHINE,
            "kubernetes.io/arch": "amd64"}},
        "spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
        "status": {"capacity": dict(have), "allocatable": dict(have), "conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": TAKEN, "lastTransitionTime": CREATED}]},
        **changes,
    }  # fmt: skip


def daemonset(name: str) -> Raw:
    return {
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "creationTimestamp": CREATED},
        "spec": {"selector": {"matchLabels": {"name": name}}, "template": {"spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "plugin", "image": f"example.com/{name}:v1"}]}}},
        "status": {"desiredNumberScheduled": 2, "numberReady": 2},
    }  # fmt: skip


def pod(owner: str, on: str) -> Raw:
    return {
        "kind": "Pod",
        "metadata": {"name": f"{owner}-{on}xxxx"[-60:], "namespace": "kube-system", "creationTimestamp": CREATED,
                     "ownerReferences": [{"kind": "DaemonSet", "name": owner, "uid": f"uid-{owner}",
                                          "apiVersion": "apps/v1", "controller": True}]},
        "spec": {"nodeName": on, "containers": [{"name": "plugin", "image": f"example.com/{owner}:v1"}]},
        "status": {"phase": "Running",
                   "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": CREATED}],
                   "containerStatuses": [{"name": "plugin", "ready": True, "restartCount": 0,
                                          "state": {"running": {"startedAt": CREATED}}}]},
    }  # fmt: skip


def healthy() -> Dump:
    return {
        "nodes": [node("a"), node("b")],
        "daemonsets": [daemonset(name) for name in PLUGINS],
        "pods": [pod(name, on) for name in PLUGINS for on in ("a", "b")],
        "more": [],
    }


def break_pod(dump: Dump, state: Raw, *, part: str = "containerStatuses", last: Raw | None = None) -> Raw:
    """The EFA plugin's pod on node a, not Ready since BROKE, with one container's state."""
    broken = next(
        p for p in dump["pods"] if p["metadata"]["name"].startswith("aws-efa") and p["spec"]["nodeName"] == "a"
    )
    broken["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": BROKE}]
    broken["status"][part] = [
        {"name": "plugin", "ready": False, "restartCount": 7, "state": state, "lastState": last or {}}
    ]
    lose(dump, EFA, "0")
    return broken


def lose(dump: Dump, resource: str, left: str, *, capacity: bool = True) -> None:
    for key in ("allocatable", "capacity") if capacity else ("allocatable",):
        dump["nodes"][0]["status"][key][resource] = left


def waiting(reason: str, message: str = "") -> Raw:
    return {"waiting": {"reason": reason, "message": message}}


def wrong_affinity(dump: Dump) -> None:
    dump["daemonsets"][1]["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5.48xlarge"]}]}]}}}  # fmt: skip
    dump["daemonsets"][1]["status"] = {"desiredNumberScheduled": 0, "numberReady": 0}
    dump["pods"] = dump["pods"][:2]
    for raw in dump["nodes"]:
        raw["status"]["allocatable"].pop(EFA)


def missing_toleration(dump: Dump) -> None:
    dump["daemonsets"][1]["spec"]["template"]["spec"]["tolerations"] = [
        {"key": "CriticalAddonsOnly", "operator": "Exists"}
    ]
    dump["pods"] = dump["pods"][:2]


def init_stuck(dump: Dump) -> None:
    broken = break_pod(dump, waiting("PodInitializing"))
    broken["spec"]["initContainers"] = [{"name": "install", "image": "example.com/driver:v1"}]
    broken["status"]["initContainerStatuses"] = [{"name": "install", "ready": False, "state": {"running": {}}}]


def sidecar_exited(dump: Dump) -> None:
    ended = {"reason": "Completed", "exitCode": 0, "finishedAt": BROKE}
    broken = break_pod(dump, {"running": {}})
    broken["spec"]["containers"].append({"name": "side", "image": "example.com/side:v1"})
    broken["status"]["containerStatuses"] = [
        {"name": "plugin", "ready": True, "restartCount": 0, "state": {"running": {}}},
        {"name": "side", "ready": False, "restartCount": 0, "state": {"terminated": ended}},
    ]


def second_plugin(dump: Dump) -> None:
    other = copy.deepcopy(dump["daemonsets"][0])
    other["metadata"] |= {"name": "nvidia-device-plugin-by-hand", "uid": "uid-hand"}
    dump["daemonsets"].append(other)
    extra = pod("nvidia-device-plugin-by-hand", "a")
    extra["metadata"]["ownerReferences"][0]["uid"] = "uid-hand"
    dump["pods"] += [extra, {**copy.deepcopy(extra), "spec": {**extra["spec"], "nodeName": "b"}}]


def stale_slices(dump: Dump) -> None:
    """EFA by DRA: gone from allocatable, and the driver's slices of node a hold half of the devices."""
    for raw in dump["nodes"]:
        raw["status"]["allocatable"].pop(EFA)
        raw["status"]["capacity"].pop(EFA)
    dump["daemonsets"], dump["pods"] = dump["daemonsets"][:1], dump["pods"][:2]
    dump["more"] = [slices("a", 8), slices("b", 16)]


def slices(on: str, count: int) -> Raw:
    devices = [{"name": f"efa-{i}"} for i in range(count)]
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    spec = {"nodeName": on, "driver": "efa.networking.k8s.aws", "pool": pool, "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{on}-efa"}, "spec": spec}


FAULTS: dict[str, tuple[Callable[[Dump], Any], str, str]] = {
    "affinity without the machine type": (wrong_affinity, "plugin-excludes-nodes", ""),
    "taint not tolerated": (missing_toleration, "plugin-excludes-nodes", ""),
    "image that does not exist": (
        lambda d: break_pod(d, waiting("ImagePullBackOff", "manifest unknown")), "plugin-image-missing", BROKE),
    "image of another architecture, not pulled": (
        lambda d: break_pod(d, waiting("ErrImagePull", "no match for platform in manifest")),
        "plugin-exec-format", BROKE),
    "image of another architecture, run": (
        lambda d: break_pod(d, waiting("CrashLoopBackOff"), last={"terminated": {
            "reason": "StartError", "exitCode": 128, "message": "exec /plugin: exec format error"}}),
        "plugin-exec-format", BROKE),
    "crash loop": (lambda d: break_pod(d, waiting("CrashLoopBackOff")), "plugin-crash-loop", BROKE),
    "sidecar that ended with 0": (sidecar_exited, "plugin-exited", BROKE),
    "init container that never ends": (init_stuck, "plugin-init-stuck", BROKE),
    "pod that is not there": (lambda d: d["pods"].pop(), "plugin-pod-missing", CREATED),
    "no DaemonSet and no device": (
        lambda d: (d["daemonsets"].pop(), d.update(pods=d["pods"][:2]), lose(d, EFA, "0")), "plugin-absent", ""),
    "7 of 8 GPUs with every plugin Ready": (lambda d: lose(d, GPU, "7"), "devices-missing", ""),
    "Ready and no device at all": (lambda d: lose(d, GPU, "0"), "devices-missing", ""),
    "allocatable below capacity": (lambda d: lose(d, EFA, "15", capacity=False), "devices-missing", ""),
    "half of the devices in a DRA slice": (stale_slices, "devices-missing", ""),
    "two plugins for one resource": (second_plugin, "two-plugins", ""),
    "node not Ready": (
        lambda d: d["nodes"][0]["status"]["conditions"].__setitem__(
            0, {"type": "Ready", "status": "Unknown", "lastHeartbeatTime": TAKEN, "lastTransitionTime": BROKE}),
        "node-not-ready", BROKE),
}  # fmt: skip


def audit(path: Path, capsys: pytest.CaptureFixture[str], dump: Dump | list[Raw]) -> tuple[int, Raw]:
    items = dump if isinstance(dump, list) else [obj for part in dump.values() for obj in part]
    path = path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    code = cli.run(["audit", "--json", "-f", str(path)])
    return code, json.loads(capsys.readouterr().out)


def test_a_pool_with_every_plugin_and_device_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(tmp_path, capsys, healthy())

    assert (code, found["healthy"]) == (0, True)
    assert [v["outcome"] for v in found["pools"]] == ["pass"]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_code_and_says_since_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    harm, code, since = FAULTS[name]
    dump = healthy()
    harm(dump)
    exit_code, found = audit(tmp_path, capsys, dump)
    findings = {f["code"]: f for v in found["pools"] for f in v["findings"]}

    assert exit_code == 3
    assert found["healthy"] is False
    assert code in findings
    if since:
        assert findings[code]["since"].startswith(since)
    assert cli.run(["audit", "-f", str(tmp_path / "dump.json")]) == 3
    assert code in capsys.readouterr().out


def test_devices_that_a_broken_plugin_took_along_are_missing_since_it_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = healthy()
    break_pod(dump, waiting("ImagePullBackOff"))
    _, found = audit(tmp_path, capsys, dump)
    (missing,) = [f for v in found["pools"] for f in v["findings"] if f["code"] == "devices-missing"]

    assert missing["since"] == f"{BROKE} (271 days)"


def test_devices_in_dra_slices_count_where_allocatable_shows_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = healthy()
    stale_slices(dump)
    dump["more"] = [slices("a", 16), slices("b", 16)]

    assert audit(tmp_path, capsys, dump)[0] == 0


def test_pods_of_applications_are_no_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = healthy()
    broken = break_pod(copy.deepcopy(dump), waiting("CrashLoopBackOff"))
    for number, owner in enumerate(({"kind": "ReplicaSet"}, {"kind": "Job"}, {"kind": "StatefulSet"}, None)):
        app = copy.deepcopy(broken)
        app["metadata"] |= {"name": f"trainer-{number}", "namespace": "train"}
        app["spec"]["containers"][0]["image"] = "example.com/trainer:v1"
        app["metadata"]["ownerReferences"] = [{**owner, "name": "x", "uid": "x", "controller": True}] if owner else []
        dump["pods"].append(app)
    code, found = audit(tmp_path, capsys, dump)

    assert code == 0
    assert not any("trainer" in c["component"] for c in found["components"])


def test_one_pod_alone_is_judged_whatever_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = break_pod(healthy(), waiting("CrashLoopBackOff"))
    alone["metadata"] = {"name": "somebody", "namespace": "train"}
    code, found = audit(tmp_path, capsys, [alone])

    assert (code, found["cause"], found["since"]) == (3, "crash-loop", BROKE)


@pytest.mark.parametrize("devices", ["16", "0"])
def test_without_daemonsets_in_the_dump_nothing_is_said_of_plugins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: str
) -> None:
    dump = {"nodes": healthy()["nodes"]}
    lose(dump, EFA, devices)
    code, found = audit(tmp_path, capsys, dump)

    assert code == (3 if devices == "0" else 4)
    assert "plugin-absent" not in {f["code"] for v in found["pools"] for f in v["findings"]}


def test_nodes_that_no_pool_label_marks_are_judged_by_their_machine_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = healthy()
    for raw in dump["nodes"]:
        del raw["metadata"]["labels"]["eks.amazonaws.com/nodegroup"]
    lose(dump, EFA, "0")

    assert audit(tmp_path, capsys, dump)[0] == 3


def test_devices_of_a_machine_type_without_figures_are_named_and_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = healthy()
    for raw in dump["nodes"]:
        raw["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "p99.48xlarge"
    _, found = audit(tmp_path, capsys, dump)

    assert found["pools"] == []
    assert "2 nodes of machine type p99.48xlarge" in found["notes"][0]


@pytest.mark.parametrize("case", sorted(p.name for p in CASES.iterdir()))
def test_dumps_from_the_field_are_read_as_they_must_be(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    expect = json.loads((CASES / case / "case.json").read_text())["expect"]
    cli.run(["audit", "--json", "-f", str(CASES / case / "input.json")])
    shown = capsys.readouterr().out
    found = json.loads(shown)

    assert {k: found.get(k) for k in expect if k not in ("notes", "must_not_report")} == {
        k: v for k, v in expect.items() if k not in ("notes", "must_not_report")
    }
    assert not any(claim in shown for claim in expect.get("must_not_report", ()))


@pytest.mark.parametrize("command", [["judge"], ["audit", "-f"], ["blockers", "-f"]])
def test_a_file_that_is_not_there_is_a_usage_error_of_every_command(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, "/nowhere/dump.json"]) == 2
    assert "/nowhere/dump.json" in capsys.readouterr().err


def test_every_cause_is_told_by_the_words_of_the_runtime_and_not_by_a_look_alike() -> None:
    from tasks.rules.causes import cause_of

    told = {
        "exec /usr/bin/plugin: exec format error": "wrong-architecture",
        "no matching manifest for linux/arm64/v8 in the manifest list entries": "wrong-architecture",
        "failed to initialize NVML: Driver/library version mismatch": "driver-version-mismatch",
        "could not load NVML library: libnvidia-ml.so.1: not found": "nvml-library-not-found",
        'exec: "plugin": executable file not found in $PATH': "executable-not-found",
        "open /dev/infiniband/uverbs0: permission denied: unknown": "permission-denied",
        "failed to pull image: pull access denied, repository does not exist": "image-unauthorized",
        "manifest unknown": "image-not-found",
        "enriched according to the cdiff": "",
    }
    assert {text: cause_of(text) for text in told} == told


NODES = [node("n1"), node("n2")]
SETS = [daemonset(name) for name in PLUGINS]
PODS = [pod(name, on) for name in PLUGINS for on in ("n1", "n2")]


def of_type(machine: str) -> list[Raw]:
    nodes = copy.deepcopy(NODES)
    for each in nodes:
        each["metadata"]["labels"]["node.kubernetes.io/instance-type"] = machine
    return nodes


def test_a_whole_dump_of_a_sound_pool_passes() -> None:
    assert of_objects([*NODES, *SETS, *PODS]).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "objects",
    [SETS, PODS, [*SETS, *PODS], NODES, [*NODES, *SETS], [*NODES, *PODS], [*of_type("p9.96xlarge"), *SETS, *PODS]],
    ids=["sets", "pods", "sets and pods", "nodes", "no pods", "no sets", "an unknown machine"],
)
def test_a_part_of_a_dump_is_never_a_pass_and_blames_nobody_for_what_it_does_not_hold(objects: list[Raw]) -> None:
    found = of_objects(objects)
    assert found.outcome is Outcome.UNMEASURED
    assert not [f for f in found.findings if f.level == "block"]
    assert found.notes or any("cannot be told" in v.reason for v in found.verdicts)


def test_a_pool_that_is_well_does_not_answer_for_nodes_of_an_unknown_machine_type_beside_it() -> None:
    """They offer devices, and how many they should offer is not known."""
    beside = node("n3")
    beside["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "p9.96xlarge"
    found = of_objects([*NODES, beside, *SETS, *PODS, *(pod(name, "n3") for name in PLUGINS)])
    assert (found.outcome, [v.outcome for v in found.verdicts]) == (Outcome.UNMEASURED, [Outcome.PASS])
    assert "p9.96xlarge" in found.wording()


def test_a_pool_that_is_named_is_judged_without_what_lies_beside_it() -> None:
    """Neither an unknown machine type nor a broken plugin on another pool's node says anything of it."""
    beside = node("n3")
    beside["metadata"]["labels"] = {"node.kubernetes.io/instance-type": "p9.96xlarge", "karpenter.sh/nodepool": "lab"}
    sick = pod("aws-efa-k8s-device-plugin", "n3")
    sick["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    dump = [*NODES, beside, *SETS, *PODS, sick]
    mine = next(iter(NODES[0]["metadata"]["labels"].values()))
    assert of_objects(dump).outcome is Outcome.FAIL
    assert of_objects(dump, [mine]).outcome is Outcome.PASS
    assert of_objects(dump, [mine, "lab"]).outcome is Outcome.FAIL
    assert of_objects([*NODES, beside, *SETS, *PODS], ["lab"]).outcome is not Outcome.PASS


def test_a_pool_without_a_node_is_an_error_that_names_the_pools_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*NODES, *SETS, *PODS]}))
    assert cli.run(["audit", "-f", str(path), "--pool", "gone"]) == 1
    said = capsys.readouterr().err
    assert "pool gone" in said
    assert next(iter(NODES[0]["metadata"]["labels"].values())) in said


@pytest.mark.parametrize("kind", ["Node", "Pod", "DaemonSet", "Event", "ResourceSlice", "CSINode"])
@pytest.mark.parametrize("rest", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {}}, {"lastTimestamp": "x"}])
def test_the_rest_of_an_object_breaks_no_audit_and_is_not_passed_over_where_it_could_matter(
    kind: str, rest: Raw
) -> None:
    found = of_objects([*NODES, *SETS, *PODS, {"kind": kind, **rest}])
    assert found.outcome is (Outcome.PASS if kind in ("Event", "CSINode") else Outcome.UNMEASURED)
    assert not found.findings


def test_a_time_that_is_none_breaks_no_audit() -> None:
    nodes = copy.deepcopy(NODES)
    nodes[0]["status"]["conditions"][0]["lastHeartbeatTime"] = "yesterday"
    assert of_objects([*nodes, *SETS, *PODS]).outcome is Outcome.PASS
