"""Every complaint about what was given says what to type next."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from flows import cli, present
from flows.commands import servers
from flows.reaching import Reach
from infra.model.verdict import Finding, Level
from tasks import blockers as blocking
from tasks.drain_report import DrainReport, NodePlan
from tasks.rules.outcome import End, Tally

ROOT = Path(__file__).parents[2]


def test_no_bad_input_is_refused_without_what_to_do_next() -> None:
    files = [path for part in ("flows", "tasks", "infra") for path in (ROOT / part).rglob("*.py")]
    files.remove(ROOT / "infra" / "kube" / "refusals.py")  # the server's own words: who asked knows what is next
    silent = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("BadSpec", "BadFile", "NotFound")
        if not any(k.arg in ("remedy", None) for k in node.keywords)
    ]
    assert silent == []


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("audit -f MISSING", "kubectl get nodes,"),
        ("blockers -f MISSING", "kubectl get nodes,"),
        ("judge MISSING", "poolshift judge FILE"),
        ("drain", "poolshift drain NODE"),
        ("drain a -l b=c", "poolshift drain NODE"),
        ("sandbox --scenario MISSING", "poolshift sandbox --list"),
        ("plan MISSING", "infra/examples"),
    ],
)
def test_what_cannot_be_read_is_answered_with_the_command_to_type(
    line: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(line.split()) == 2
    (said,) = (words for words in capsys.readouterr().err.splitlines() if words.startswith("  next: "))
    assert command in said


def test_a_dry_run_that_is_refused_does_not_say_that_pods_would_leave(capsys: pytest.CaptureFixture[str]) -> None:
    block = Finding(level=Level.BLOCK, code="unmanaged", object="pod a/b", observed="no controller owns it")
    found = DrainReport(
        end=End.FAILED, nodes={"n1": End.FAILED}, plan={"n1": NodePlan(pods=4, blocked=(block,))}, warnings=(),
        left=(), unproven=(), restored=(), tally=Tally(), requests=1, seconds=0.1, dry_run=True,
    )  # fmt: skip
    present.drain(found, as_json=False)
    said = capsys.readouterr().err

    assert found.exit_code == 5
    assert "nothing would leave n1 until what blocks is gone" in said
    assert "would leave;" not in said


@pytest.mark.parametrize(
    ("given", "said", "completed"),
    [
        (
            ("k c", None),
            "kubectl --context x get --raw /readyz",
            "kubectl --kubeconfig 'k c' --context x get --raw /readyz",
        ),
        (("k", "x"), "kubectl --context x get pods", "kubectl --kubeconfig k --context x get pods"),
        (("k", "x"), "kubectl -n a logs b", "kubectl --kubeconfig k --context x -n a logs b"),
        (("k", None), "kubectl --kubeconfig k config view", "kubectl --kubeconfig k config view"),
        (("k", None), "kubectl drain's flags; poolshift judge FILE", "kubectl drain's flags; poolshift judge FILE"),
        (("k", None), "see: poolshift status", "see: poolshift status --kubeconfig k"),
        (
            ("k", "x", "ours"),
            "poolshift resume r and run it again, or: poolshift rollback r",
            "poolshift resume --kubeconfig k --context x --namespace ours r and run it again, or: "
            "poolshift rollback --kubeconfig k --context x --namespace ours r",
        ),
        (("k", None), "go on: poolshift drain a b --kubeconfig k", "go on: poolshift drain a b --kubeconfig k"),
        (("k", None, "ours"), "poolshift drain n", "poolshift drain --kubeconfig k n"),
        ((None, None, "ours"), "poolshift rollback r1", "poolshift rollback --namespace ours r1"),
        ((None, None), "poolshift status; kubectl get nodes", "poolshift status; kubectl get nodes"),
    ],
)
def test_the_next_command_goes_to_the_cluster_that_this_one_was_given(
    given: tuple[str | None, ...], said: str, completed: str
) -> None:
    reach = Reach(**dict(zip(("kubeconfig", "context", "namespace"), given, strict=False)))  # type: ignore[arg-type]
    assert reach.complete(said) == completed
    assert reach.complete(completed) == completed


def test_a_cluster_that_does_not_answer_is_asked_for_with_the_kubeconfig_that_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubeconfig"
    entry = {"name": "away"}
    config = {
        "clusters": [{**entry, "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{**entry, "user": {}}],
        "contexts": [{**entry, "context": {"cluster": "away", "user": "away"}}], "current-context": "away",
    }  # fmt: skip
    path.write_text(json.dumps(config))
    assert cli.run(["status", "--kubeconfig", str(path)]) == 1
    assert f"kubectl --kubeconfig {path} --context away get --raw /readyz" in capsys.readouterr().err
    assert "130 interrupted" in (cli.run(["--help"]), capsys.readouterr().out)[1]


def test_a_sandbox_makes_no_folders_for_its_kubeconfig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sandbox", "--kubeconfig", str(tmp_path / "no" / "file")]) == 2
    assert f"mkdir -p {tmp_path / 'no'}" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("line", ["judge MISSING", "blockers -f MISSING", "audit -f MISSING"])
def test_a_file_that_cannot_be_read_is_not_called_a_bad_spec(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(line.split()) == 2
    assert "BadFile: file MISSING" in capsys.readouterr().err


def test_a_served_run_goes_by_the_kubeconfig_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", "another")
    servers.take_as_default(str(path), None, in_forms=False)
    assert os.environ["KUBECONFIG"] == str(path)
    assert cli.run(["serve", "--kubeconfig", str(tmp_path / "no")]) == 2
    assert cli.run(["serve", "--context", "x"]) == 2
    assert "--spec or --revalidate" in capsys.readouterr().err


def test_an_offline_look_advises_no_flag_of_a_drain() -> None:
    owner = {"kind": "DaemonSet", "name": "ds", "uid": "u", "controller": True}
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "a", "uid": "p", "ownerReferences": [owner]},
           "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}}  # fmt: skip
    said = " ".join(blocking.blockers([pod]).lines())
    assert "dump the DaemonSets too: kubectl get nodes" in said
    assert "--ignore-daemonsets" not in said
