"""Dumps as clusters of the field give them: what is beside the plugins, what DRA drivers say, how dumps are made."""

from __future__ import annotations

import bz2
import contextlib
import copy
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import cli
from infra.errors import BadFile
from infra.model.verdict import Level, Outcome
from tasks.audit import of_objects

Raw = dict[str, Any]
EFA, GPU = "vpc.amazonaws.com/efa", "nvidia.com/gpu"
LONG_AGO, TAKEN, JUST = "2026-01-01T00:00:00Z", "2026-10-31T00:00:00Z", "2026-10-30T23:57:00Z"
NVIDIA, PLUGIN = "nvidia-device-plugin-daemonset", "aws-efa-k8s-device-plugin"


class Dump:
    """A sound pool of two nodes, to be harmed."""

    def __init__(self) -> None:
        self.nodes = [self.node("a"), self.node("b")]
        self.sets = [self.daemonset(NVIDIA), self.daemonset(PLUGIN)]
        self.pods = [self.pod(name, on) for name in (NVIDIA, PLUGIN) for on in "ab"]
        self.more: list[Raw] = []

    def objects(self) -> list[Raw]:
        return [*self.nodes, *self.sets, *self.pods, *self.more]

    def efa_pod(self) -> Raw:
        return self.pods[2]

    def status(self) -> Raw:
        found: Raw = self.efa_pod()["status"]["containerStatuses"][0]
        return found

    @staticmethod
    def node(name: str, machine: str = "p5en.48xlarge") -> Raw:
        labels = {"eks.amazonaws.com/nodegroup": "gpu", "node.kubernetes.io/instance-type": machine}
        have = {GPU: "8", EFA: "16"}
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": TAKEN, "lastTransitionTime": LONG_AGO}
        status = {"capacity": dict(have), "allocatable": dict(have), "conditions": [ready]}
        return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}

    @staticmethod
    def daemonset(name: str, image: str = "", **template: Any) -> Raw:
        metadata = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"}
        containers = [{"name": "c", "image": image or f"example.com/{name}:v1"}]
        spec = {"template": {"spec": {"containers": containers, "tolerations": [{"operator": "Exists"}], **template}}}
        status = {"desiredNumberScheduled": 2, "numberReady": 2}
        return {"kind": "DaemonSet", "metadata": metadata, "spec": spec, "status": status}

    @staticmethod
    def pod(owner: str, on: str) -> Raw:
        reference = {"kind": "DaemonSet", "name": owner, "uid": f"uid-{owner}", "controller": True}
        metadata = {"name": f"{owner}-{on * 5}", "namespace": "kube-system", "ownerReferences": [reference]}
        running = {"name": "c", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": LONG_AGO}}}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": LONG_AGO}
        status = {"phase": "Running", "conditions": [ready], "containerStatuses": [running]}
        spec = {"nodeName": on, "containers": [{"name": "c", "image": f"example.com/{owner}:v1"}]}
        return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}

    @staticmethod
    def renamed(obj: Raw) -> Raw:
        obj["metadata"]["name"] = obj["metadata"]["name"][:-5] + "zzzzz"
        return obj

    def beside(self, name: str, *, runs: bool = True, **kinds: Any) -> None:
        """One more DaemonSet, as a chart brings it."""
        self.sets.append(self.daemonset(name, **kinds))
        self.pods += [self.pod(name, on) for on in "ab"] if runs else []
        if not runs:
            self.sets[-1]["status"] = {"desiredNumberScheduled": 0, "numberReady": 0}

    def by_dra(self, driver: str, said: Callable[[int], Raw], *, count: int = 16, slices: int = 1) -> None:
        """EFA from a DRA driver in place of the plugin; `slices`: how many each pool says that it has."""
        for node in self.nodes:
            for part in ("allocatable", "capacity"):
                node["status"][part].pop(EFA, None)
        self.sets, self.pods = self.sets[:1], self.pods[:2]
        for on in "ab":
            devices = [{"name": f"pci-{i}", **said(i)} for i in range(count)]
            pool = {"name": on, "generation": 1, "resourceSliceCount": slices}
            spec = {"nodeName": on, "driver": driver, "pool": pool, "devices": devices}
            self.more.append({"kind": "ResourceSlice", "metadata": {"name": f"{on}-1"}, "spec": spec})


def rdma(value: bool) -> Raw:
    return {"attributes": {"dra.net/rdma": {"bool": value}, "dra.net/ifName": {"string": "eth1"}}}


def condition(dump: Dump, kind: str, status: str) -> None:
    dump.nodes[0]["status"]["conditions"].append({"type": kind, "status": status, "lastTransitionTime": LONG_AGO})


def restarted(dump: Dump, times: int, *, started: str, ended: str) -> None:
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": ended}}
    dump.status().update(restartCount=times, state={"running": {"startedAt": started}}, lastState=last)


def stripped(dump: Dump, *, without: int = 0) -> None:
    """As tools leave it that make dumps fit to be shown."""
    for daemonset in dump.sets:
        del daemonset["metadata"]["uid"]
    for pod in dump.pods:
        del pod["metadata"]["ownerReferences"]
    dump.pods = dump.pods[: len(dump.pods) - without]


def another_node(dump: Dump, machine: str, **labels: str) -> None:
    node = dump.node("c", machine)
    node["metadata"]["labels"] |= {"eks.amazonaws.com/nodegroup": "other", **labels}
    node["status"] |= {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
    dump.nodes.append(node)


def of_no_type(dump: Dump) -> None:
    dump.nodes[0]["status"] |= {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
    del dump.nodes[0]["metadata"]["labels"]["node.kubernetes.io/instance-type"]


def auto_mode(dump: Dump, *, left: str = "16") -> None:
    """EKS' plugins are in its nodes, and charts that were installed for others keep away from them."""
    away = {"matchExpressions": [{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["auto"]}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [away]}}
    for daemonset in dump.sets:
        daemonset["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": terms}
        daemonset["status"] = {"desiredNumberScheduled": 0, "numberReady": 0}
    for node in dump.nodes:
        node["metadata"]["labels"]["eks.amazonaws.com/compute-type"] = "auto"
    dump.pods = [dump.pod("kube-proxy", "a")]
    dump.nodes[0]["status"]["allocatable"][EFA] = left


SOUND: dict[str, Callable[[Dump], Any]] = {
    "feature discovery of the plugin's image": lambda d: d.beside(
        "gpu-feature-discovery", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
    ),
    "an MPS daemon that no node asks for": lambda d: d.beside(
        "nvidia-device-plugin-mps-control-daemon", runs=False, nodeSelector={"nvidia.com/mps.capable": "true"}
    ),
    "a DaemonSet for Windows": lambda d: d.beside("proxy", runs=False, nodeSelector={"kubernetes.io/os": "windows"}),
    "the plugin for another node size": lambda d: d.beside(
        "nvidia-gpu-device-plugin-small-cos", runs=False, nodeSelector={"size": "small"}
    ),
    "an evicted pod that another replaced": lambda d: d.pods.append(
        d.renamed(d.pod(PLUGIN, "a")) | {"status": {"phase": "Failed", "reason": "Evicted"}}
    ),
    "restarts of long ago": lambda d: restarted(d, 900, started=LONG_AGO, ended=LONG_AGO),
    "a plugin that waited for a young node's driver": lambda d: restarted(d, 5, started=JUST, ended=JUST),
    "no UIDs": stripped,
    "DRANET's RDMA devices": lambda d: d.by_dra("dra.net", lambda i: rdma(i < 16), count=17),
    "DRANET's by v1beta1": lambda d: d.by_dra("dra.net", lambda _: {"basic": rdma(True)}),
    "EKS Auto Mode": auto_mode,
    "a node without accelerators": lambda d: another_node(d, "m5.large"),
    "a monitor that finds all well": lambda d: condition(d, "AcceleratedHardwareReady", "True"),
    "no route problem": lambda d: condition(d, "NetworkUnavailable", "False"),
    "each object twice": lambda d: d.more.extend(copy.deepcopy([*d.nodes, *d.sets, *d.pods])),
}
HARM: dict[str, tuple[Callable[[Dump], Any], Outcome, str]] = {
    "hardware": (lambda d: condition(d, "AcceleratedHardwareReady", "False"), Outcome.FAIL, "node-unhealthy"),
    "a silent monitor": (lambda d: condition(d, "NetworkingReady", "Unknown"), Outcome.FAIL, "node-unhealthy"),
    "no route": (lambda d: condition(d, "NetworkUnavailable", "True"), Outcome.FAIL, "node-unhealthy"),
    "to be replaced": (
        lambda d: d.nodes[0]["metadata"]["labels"].update(
            {"sagemaker.amazonaws.com/node-health-status": "UnschedulablePendingReplacement"}
        ),
        Outcome.FAIL,
        "node-unhealthy",
    ),
    "between two crashes": (lambda d: restarted(d, 900, started=JUST, ended=JUST), Outcome.FAIL, "plugin-restarting"),
    "the only pod is leaving": (
        lambda d: d.efa_pod()["metadata"].update(deletionTimestamp=JUST),
        Outcome.FAIL,
        "plugin-pod-leaving",
    ),
    "Ready, and its container is not": (
        lambda d: d.status().update(ready=False, state={"waiting": {"reason": "CrashLoopBackOff"}}),
        Outcome.FAIL,
        "plugin-crash-loop",
    ),
    "Auto Mode without its devices": (lambda d: auto_mode(d, left="0"), Outcome.FAIL, "devices-missing"),
    "no UIDs and a pod missing": (lambda d: stripped(d, without=1), Outcome.FAIL, "plugin-pod-missing"),
    "only empty terms": (
        lambda d: d.sets[1]["spec"]["template"]["spec"].update(
            affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
        ),
        Outcome.FAIL,
        "plugin-excludes-nodes",
    ),
    "slices that are not all there": (
        lambda d: d.by_dra("efa.networking.k8s.aws", lambda _: {}, slices=2), Outcome.FAIL, "devices-missing"),
    "devices that are listed twice": (
        lambda d: d.by_dra("efa.networking.k8s.aws", lambda i: {"name": f"pci-{i % 8}"}),
        Outcome.FAIL, "devices-missing"),
    "slices that do not say how many": (
        lambda d: d.by_dra("efa.networking.k8s.aws", lambda _: {}, slices=0), Outcome.FAIL, "devices-missing"),
    "tainted devices": (
        lambda d: d.by_dra("efa.networking.k8s.aws", lambda _: {"taints": [{"key": "sick", "effect": "NoExecute"}]}),
        Outcome.FAIL, "devices-missing"),
    "interfaces without RDMA": (lambda d: d.by_dra("dra.net", lambda _: rdma(False)), Outcome.FAIL, "devices-missing"),
    "interfaces that do not say": (lambda d: d.by_dra("dra.net", lambda _: {}), Outcome.FAIL, "devices-missing"),
    "a plugin and a driver": (
        lambda d: d.more.extend(_slices_beside(d)), Outcome.FAIL, "two-owners"),
    "an unknown machine without devices": (lambda d: another_node(d, "p9.48xlarge"), Outcome.UNMEASURED, ""),
    "GPUs by a label": (
        lambda d: another_node(d, "new", **{"cloud.google.com/gke-accelerator": "x"}), Outcome.UNMEASURED, ""),
    "a node of the pool that has no type": (of_no_type, Outcome.UNMEASURED, ""),
    "an error in place of objects": (
        lambda d: d.more.append({"kind": "Status", "status": "Failure", "code": 403, "message": "forbidden"}),
        Outcome.UNMEASURED, ""),
    "an object in two states": (
        lambda d: d.more.append(d.pod(PLUGIN, "a") | {"status": {}}), Outcome.FAIL, "plugin-not-ready"),
}  # fmt: skip


def _slices_beside(dump: Dump) -> list[Raw]:
    other = Dump()
    other.by_dra("efa.networking.k8s.aws", lambda _: {})
    return other.more


@pytest.mark.parametrize("name", SOUND)
def test_what_is_beside_sound_plugins_is_no_fault_of_theirs(name: str) -> None:
    dump = Dump()
    SOUND[name](dump)
    found = of_objects(dump.objects())
    assert (found.outcome, found.findings, found.notes) == (Outcome.PASS, (), ())


@pytest.mark.parametrize("name", HARM)
def test_what_only_looks_sound_is_no_pass_and_says_why(name: str) -> None:
    harm, outcome, code = HARM[name]
    dump = Dump()
    harm(dump)
    found = of_objects(dump.objects())
    assert found.outcome is outcome
    assert code in {f.code for f in found.findings} if code else found.notes


@pytest.mark.parametrize(
    ("operator", "values", "change"),
    [
        ("NotIn", ["gpu"], "take that requirement out"),
        ("DoesNotExist", [], "take that requirement out"),
        ("In", ["other"], "add what the nodes have"),
        ("Gt", ["5"], "add what the nodes have"),
    ],
)
def test_how_an_affinity_is_mended_depends_on_what_it_asks(operator: str, values: list[str], change: str) -> None:
    dump = Dump()
    away = {"matchExpressions": [{"key": "eks.amazonaws.com/nodegroup", "operator": operator, "values": values}]}
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [away]}}
    dump.sets[1]["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": terms}
    dump.sets[1]["status"] = {"desiredNumberScheduled": 0, "numberReady": 0}
    dump.pods = dump.pods[:2]
    remedies = [f.remedy for f in of_objects(dump.objects()).findings if f.code == "plugin-excludes-nodes"]
    assert len(remedies) == 1
    assert change in remedies[0]


def test_a_plugin_that_runs_again_after_a_crash_of_today_is_shown() -> None:
    dump = Dump()
    restarted(dump, 900, started="2026-10-30T20:00:00Z", ended="2026-10-30T19:59:00Z")
    found = of_objects(dump.objects())
    assert found.outcome is Outcome.PASS
    assert [(f.code, f.level) for f in found.findings] == [("plugin-restarting", Level.WARN)]


def test_a_dump_without_slices_blames_no_plugin_for_what_a_dra_driver_serves() -> None:
    """Told to install the device plugin, somebody would give each device two owners."""
    dump = Dump()
    dump.by_dra("dra.net", lambda _: rdma(True))
    dump.beside("dranet")
    assert of_objects(dump.objects()).outcome is Outcome.PASS
    slices, dump.more = dump.more, []
    found = of_objects(dump.objects())
    assert (found.outcome, found.findings) == (Outcome.UNMEASURED, ())
    assert "ResourceSlices" in found.wording()
    dump.nodes[0]["status"]["allocatable"][GPU] = "0"
    found = of_objects(dump.objects())
    assert (found.outcome, [f.code for f in found.findings][-1]) == (Outcome.FAIL, "devices-missing")
    dump.more = slices[:1]
    assert of_objects(dump.objects()).outcome is Outcome.FAIL
    sound = Dump()
    sound.beside("dranet")
    assert of_objects(sound.objects()).outcome is Outcome.PASS


def test_a_dump_of_the_sandbox_is_told_as_simulated() -> None:
    dump = Dump()
    assert not of_objects(dump.objects()).to_json()["simulated"]
    for node in dump.nodes:
        node["metadata"]["labels"]["poolshift.dev/simulated"] = "true"
    found = of_objects(dump.objects())
    assert found.to_json()["simulated"]
    assert "simulated" in found.wording()


def test_the_newer_of_two_states_counts_wherever_it_stands() -> None:
    for newest in (0, 1):
        dump = Dump()
        states = [copy.deepcopy(dump.nodes[0]) for _ in range(2)]
        for number, state in enumerate(states):
            state["metadata"]["resourceVersion"] = str(100 - number)
        states[1 - newest]["status"]["allocatable"][EFA] = "0"
        states[newest]["metadata"]["resourceVersion"] = "999"
        assert of_objects([*states, dump.nodes[1], *dump.sets, *dump.pods]).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("part", "where", "field"),
    [
        ("nodes", "metadata", "labels"),
        ("nodes", "status", "conditions"),
        ("sets", "spec", "template"),
        ("pods", "status", "containerStatuses"),
        ("pods", "spec", "containers"),
    ],
)
def test_an_object_that_is_built_otherwise_is_named_and_not_left_out(part: str, where: str, field: str) -> None:
    dump = Dump()
    odd = getattr(dump, part)[0]
    odd[where][field] = "text"
    with pytest.raises(BadFile, match=odd["metadata"]["name"]):
        of_objects(dump.objects())


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from _places(below, (*path, key))


@pytest.mark.parametrize("odd", [None, "x", 10**30, [[]], {"x": "y"}], ids=str)
def test_whatever_stands_anywhere_in_a_dump_is_judged_or_named(odd: Any) -> None:
    dump = Dump()
    dump.by_dra("dra.net", lambda _: rdma(True), count=1)
    whole = dump.objects()
    for path in _places(whole):
        objects = copy.deepcopy(whole)
        place = objects
        for key in path[:-1]:
            place = place[key]
        if len(path) > 1:  # an object itself is one: no dump yields anything else
            place[path[-1]] = odd
            with contextlib.suppress(BadFile):
                of_objects(objects).to_json()


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "a mark at its start": lambda data: b"\xef\xbb\xbf" + data,
    "PowerShell": lambda data: data.decode().encode("utf-16"),
    "YAML behind a long comment": lambda data: b"# x\n" * 2000 + yaml.safe_dump(json.loads(data)).encode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_dump_is_read_as_it_was_kept(way: str, tmp_path: Path) -> None:
    data = json.dumps({"kind": "List", "apiVersion": "v1", "items": Dump().objects()}).encode()
    (tmp_path / "dump").write_bytes(WAYS[way](data))
    assert cli.run(["audit", "-f", str(tmp_path / "dump")]) == 0


def test_a_packed_dump_that_is_cut_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for way in (gzip.compress, bz2.compress, lzma.compress):
        (tmp_path / "dump").write_bytes(way(json.dumps(Dump().objects()).encode())[:-9])
        assert cli.run(["audit", "-f", str(tmp_path / "dump")]) == 2
        assert str(tmp_path / "dump") in capsys.readouterr().err


def test_several_dumps_are_judged_as_one(tmp_path: Path) -> None:
    dump = Dump()
    given = []
    for name in ("nodes", "sets", "pods"):
        (tmp_path / name).write_text(json.dumps({"kind": "List", "items": getattr(dump, name)}))
        given += ["-f", str(tmp_path / name)]
    assert cli.run(["audit", *given]) == 0
    assert cli.run(["audit", *given[2:]]) == 4
    assert cli.run(["audit", *given[:4]]) == 4
    (tmp_path / "pods").write_text("a log, no dump\n")
    assert cli.run(["audit", *given]) == 4
