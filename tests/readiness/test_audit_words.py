"""What an audit says of a cause that it computed, and where the command to type stands."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli import run
from infra.errors import BadFile
from infra.kube import dump
from infra.model.verdict import Outcome
from tasks.audit import of_objects

Raw = dict[str, Any]
CREATED = "2026-01-05T10:00:00Z"
MACHINE = "p5en.48xlarge"


def node(name: str, machine: str = MACHINE) -> Raw:
    have = {"cpu": "192", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}
    labels = {"eks.amazonaws.com/nodegroup": "gpu", "node.kubernetes.io/instance-type": machine}
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    status = {"capacity": have, "allocatable": have, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": [taint]}, "status": status}


def plugin(**spec: Any) -> Raw:
    name = "aws-efa-k8s-device-plugin"
    container = {"name": "plugin", "image": f"example.com/{name}:v1"}
    template = {"spec": {"containers": [container], "tolerations": [{"operator": "Exists"}], **spec}}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "uid": "u1", "creationTimestamp": CREATED},
        "spec": {"selector": {"matchLabels": {"name": name}}, "template": template},
        "status": {"desiredNumberScheduled": 0, "numberReady": 0},
    }


def affinity(key: str) -> Raw:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": ["other"]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"nodeAffinity": wanted}


EXCLUDED = {
    "affinity": (plugin(affinity=affinity("node.kubernetes.io/instance-type")), "its node affinity excludes node a"),
    "selector": (plugin(nodeSelector={"fabric": "efa"}), "its nodeSelector excludes node a"),
    "tolerations": (plugin(tolerations=[]), "its tolerations exclude node a"),
}


@pytest.mark.parametrize("why", EXCLUDED)
def test_a_daemonset_that_wants_no_node_is_told_as_computed(why: str) -> None:
    """No event said it and no time is known: the node's label or taint may be younger than the DaemonSet."""
    daemonset, words = EXCLUDED[why]
    found = of_objects([node("a", "p9.96xlarge"), node("b", "p9.96xlarge"), daemonset])
    assert found.outcome is Outcome.FAIL
    (finding,) = [f for f in found.findings if f.object == daemonset["metadata"]["name"]]
    assert finding.observed.startswith(words)
    assert "1 other node" in finding.observed
    assert not finding.since
    assert "FailedScheduling" not in json.dumps(found.to_json())


@pytest.mark.parametrize("why", EXCLUDED)
def test_one_cause_is_told_once(why: str) -> None:
    """By the pool, which names its nodes; a DaemonSet of the same name in another namespace speaks for itself."""
    daemonset = EXCLUDED[why][0]
    other = copy.deepcopy(daemonset)
    other["metadata"] |= {"namespace": "lab", "uid": "u2"}
    alone = of_objects([node("a"), daemonset, {"kind": "Pod"}])
    both = of_objects([node("a"), daemonset, other, {"kind": "Pod"}])
    about = [f.code for f in alone.findings if daemonset["metadata"]["name"] in f.object]
    assert about == ["plugin-excludes-nodes"]
    assert len([f for f in both.findings if daemonset["metadata"]["name"] in f.object]) == 2


@pytest.mark.parametrize("why", EXCLUDED)
def test_who_is_told_to_edit_a_daemonset_is_told_what_to_change(why: str) -> None:
    found = of_objects([node("a"), EXCLUDED[why][0], {"kind": "Pod"}]).findings
    (remedy,) = {f.remedy for f in found if f.code == "plugin-excludes-nodes"}
    assert re.search(r" edit daemonset \S+ \((in tolerations|in nodeAffinity|change that line of nodeSelector)", remedy)


def test_the_remedy_of_a_finding_is_labelled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in an error: the fact, and next what to type."""
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [node("a"), EXCLUDED["selector"][0]]}))
    assert run(["audit", "-f", str(file)]) == 3
    shown = capsys.readouterr().out
    remedy = "kubectl -n kube-system edit daemonset aws-efa-k8s-device-plugin"
    assert shown.count(remedy) == 1
    assert f"next: {remedy}" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("name", "data"), [("bin.dat", b"\x7fELF\0\1"), ("t.txt", b"hello\n"), ("none", None)], ids=["binary", "text", "no"]
)
def test_the_command_that_makes_a_dump_is_the_next_step(
    name: str, data: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is nothing that was expected of the file."""
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert run(["audit", "-f", str(tmp_path / name)]) in {2, 4}
    said = {line.split(":")[0].strip(): line for line in capsys.readouterr().err.splitlines()}
    assert "kubectl get nodes,daemonsets,pods,events" in said["next"]
    assert "kubectl get nodes" not in said["expected"]


@pytest.mark.parametrize(
    ("there", "asked", "command"),
    [(True, "gpv", "dump.json --pool gpu"), (True, "nope", "--pool gpu"), (False, "nope", "without --pool")],
)
def test_a_pool_that_is_not_there_names_the_command_to_type(
    there: bool, asked: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that is spelled most alike."""
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [node("a")] if there else [plugin()]}))
    assert run(["audit", "-f", str(file), "--pool", asked]) == 1
    said = {line.split(":")[0].strip(): line for line in capsys.readouterr().err.splitlines()}
    assert command in said["next"]


def test_a_pool_that_cannot_be_judged_says_why_and_what_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dump of nodes alone has no finding to show."""
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [node("a"), node("b")]}))
    assert run(["audit", "-f", str(file)]) == 4
    shown = " ".join(capsys.readouterr().out.split())
    assert "holds no DaemonSets and no Pods" in shown
    assert "next: kubectl get nodes,daemonsets,pods,events" in shown


@pytest.mark.parametrize("more", [{"continue": "eyJ2IjoibWV0YS5rOHMuaW8vdjEi"}, {"remainingItemCount": 3}])
@pytest.mark.parametrize("command", ["audit", "blockers"])
def test_one_page_of_a_longer_list_is_no_dump(
    command: str, more: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a server answers that is asked with a limit: nobody knows what is on the next page."""
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "NodeList", "apiVersion": "v1", "metadata": more, "items": [node("a")]}))
    assert run([command, "-f", str(file)]) not in {0, 3}
    said = capsys.readouterr().err
    assert "one page of a longer list" in said
    assert "next: " in said


def test_one_page_of_a_large_list_is_no_dump_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump, "_LARGE", 0)
    file = tmp_path / "dump.json"
    listed = {"apiVersion": "v1", "items": [node("a"), node("b")], "kind": "List", "metadata": {"continue": ""}}
    file.write_text(json.dumps(listed, indent=4))
    assert len(list(dump.items(file))) == 2
    file.write_text(json.dumps({**listed, "metadata": {"continue": "eyJ2", "resourceVersion": "7"}}, indent=4))
    with pytest.raises(BadFile, match="one page"):
        list(dump.items(file))


@pytest.mark.parametrize("odd", [{"items": []}, {"kind": "PodList", "metadata": {"continue": "x"}, "items": []}])
def test_of_several_dumps_the_one_that_is_cut_or_a_page_is_named(
    odd: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("whole", {"kind": "List", "items": [node("a")]}), ("odd", odd)):
        (tmp_path / name).write_text(json.dumps(text))
    assert run(["audit", "-f", str(tmp_path / "whole"), "-f", str(tmp_path / "odd")]) == 2
    assert f"file {tmp_path / 'odd'}" in capsys.readouterr().err


def test_the_command_to_type_next_stands_as_a_shell_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "of today"
    file.write_text(json.dumps({"kind": "List", "items": [node("a")]}))
    assert run(["audit", "-f", str(file), "--pool", "gpo"]) != 0
    assert f"poolshift audit -f '{file}' --pool gpu" in capsys.readouterr().err
