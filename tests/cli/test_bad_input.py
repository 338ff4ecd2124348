"""Bad input and faults, answered for a person at 3 a.m.: what, observed, expected, what to type next."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import cli, orchestrator, present
from infra.errors import Forbidden, PoolshiftError
from infra.kube import api, leases, records
from infra.kube.refusals import translate
from infra.model.spec import Cluster, MigrationSpec
from infra.ports import free_port
from infra.sandbox import run as sandbox
from tasks.identity import pool_identity

EXAMPLES = Path(__file__).parents[2] / "infra" / "examples"


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A healthy sandbox on EKS, in this process."""
    path = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with sandbox.start("healthy", "eks", kubeconfig=path):
        yield path


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    """Writes the EKS example with fields of source and target replaced; returns its path."""

    def write(cloud: str = "eks", **changes: dict[str, Any]) -> str:
        raw = yaml.safe_load((EXAMPLES / f"sandbox-{cloud}.yaml").read_text())
        for part, fields in changes.items():
            raw[part] = {**raw[part], **fields}
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(raw))
        return str(path)

    return write


def poolshift(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and everything printed."""
    code = cli.run(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_help_answers_without_loading_prefect_or_an_sdk() -> None:
    code = "import sys, flows.cli as c; c.run(['--help']); print([m for m in ('prefect','kubernetes','boto3','google.cloud') if m in sys.modules])"  # noqa: E501
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip().endswith("[]")
    assert "migrate" in done.stdout


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert poolshift(capsys, "fly")[0] == 2


def test_help_fits_a_terminal_of_80_columns_and_says_what_exit_codes_mean(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, text = poolshift(capsys, "--help")

    assert code == 0
    assert "..." not in text.replace("[ARGS]...", "")
    assert "5 refused" in text
    assert poolshift(capsys, "-h") == (0, text)


def test_its_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = poolshift(capsys, "--version")

    assert code == 0
    assert text.startswith("poolshift ")
    assert "--version" in poolshift(capsys, "--help")[1]


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_cannot_be_is_a_usage_error(capsys: pytest.CaptureFixture[str], port: str) -> None:
    code, text = poolshift(capsys, "sandbox", "--port", port)

    assert code == 2
    assert "--port" in text


def test_a_spec_that_is_not_there_is_named_by_rollback_too(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path
) -> None:
    code, text = poolshift(capsys, "rollback", "nothing.yaml", "--kubeconfig", str(kubeconfig))

    assert code == 2
    assert "spec nothing.yaml" in text


@pytest.mark.parametrize("command", ["pause", "resume", "cancel", "approve --reason x"])
def test_what_steers_a_run_answers_as_json_too(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, command: str
) -> None:
    code, text = poolshift(capsys, *command.split(), "nothing", "--json", "--kubeconfig", str(kubeconfig))

    assert code == 1
    assert json.loads(text)["object"] == "run nothing"


@pytest.mark.parametrize("command", ["status", "report"])
def test_an_unknown_run_where_there_is_none_is_told_so(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, command: str
) -> None:
    code, text = poolshift(capsys, command, "nothing", "--kubeconfig", str(kubeconfig))

    assert code == 1
    assert "this namespace has none" in text


def test_what_a_rollback_did_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Each thing is said as it is done, by the steps."""
    present.rollback({"done": ["opened node a"], "summary": "1 thing put back"}, as_json=False)

    text = capsys.readouterr().err
    assert "1 thing put back" in text
    assert "opened node a" not in text


def test_without_a_kubeconfig_it_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))

    code, text = poolshift(capsys, "status")
    assert code == 2
    assert "KUBECONFIG" in text
    assert "poolshift sandbox" in text


def test_a_context_that_is_not_there_is_named_with_those_that_are(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path
) -> None:
    code, text = poolshift(capsys, "status", "--kubeconfig", str(kubeconfig), "--context", "prod")

    assert code == 2
    assert "no context 'prod'" in text
    assert "poolshift-sandbox" in text


def test_a_cluster_that_does_not_answer_is_named_with_the_command_to_check_it(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, tmp_path: Path
) -> None:
    raw = yaml.safe_load(kubeconfig.read_text())
    raw["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free_port()}"
    away = tmp_path / "away"
    away.write_text(yaml.safe_dump(raw))

    code, text = poolshift(capsys, "status", "--kubeconfig", str(away))
    assert code == 1
    assert "no answer to GET" in text
    assert "get --raw /readyz" in text


def test_an_entry_of_a_record_that_cannot_be_read_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any, prefect: None
) -> None:
    kube, path = api.connect(Cluster(kubeconfig=str(kubeconfig))), ["--kubeconfig", str(kubeconfig)]
    wanted = MigrationSpec.model_validate(yaml.safe_load(Path(spec()).read_text()))
    name = wanted.name
    good = {"step": "plan", "state": "done", "started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:01:00Z"}
    broken = {"plan": json.dumps(good), "baseline": '{"step":"base', "gate": "[]", "soak": json.dumps(good)}
    records.ensure_namespace(kube)
    records.create(kube, name, "migration", wanted.model_dump_json())
    where = f"/api/v1/namespaces/poolshift/configmaps/poolshift-run-{name}"
    data = {f"step.{step}": text for step, text in broken.items()} | {"note.swap": '{"nodes'}
    kube.request("PATCH", where, body={"data": data}, content_type=api.MERGE_PATCH)
    try:
        code, text = poolshift(capsys, "status", name, *path)
        shown = json.loads(poolshift(capsys, "status", name, "--json", *path)[1])[0]
        stopped, words = poolshift(capsys, "migrate", spec(), *path)
    finally:
        records.remove(kube, name)

    assert code == 0
    assert {s["step"]: s["state"] for s in shown["steps"]} == {
        "plan": "done",
        "baseline": "unreadable",
        "gate": "unreadable",
        "soak": "unreadable",
    }
    assert shown["at"] == "soak: unreadable"
    for entry in ("step baseline", "step gate", "step soak", "note swap"):
        assert entry in text
    assert "get configmap" in text
    assert (stopped, "note.swap" in words, "edit configmap" in words) == (4, True, True)


def test_a_second_migration_of_the_same_pool_is_refused_and_told_who_holds_it(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any, prefect: None
) -> None:
    path = spec()
    source = MigrationSpec.model_validate(yaml.safe_load(Path(path).read_text())).source
    kube = api.connect(Cluster(kubeconfig=str(kubeconfig)))
    records.ensure_namespace(kube)
    with leases.hold(kube, [pool_identity(source)], "somebody-elses-run"):
        code, text = poolshift(capsys, "migrate", path, "--kubeconfig", str(kubeconfig))

    assert code == 5, text
    assert "held by run 'somebody-elses-run', process" in text


def test_a_refused_request_names_verb_resource_and_the_rule_to_add() -> None:
    body = {
        "kind": "Status",
        "code": 403,
        "reason": "Forbidden",
        "message": 'nodes is forbidden: User "ci" cannot list resource "nodes" in API group "" at the cluster scope',
    }
    error = translate("GET", "/api/v1/nodes", 403, json.dumps(body).encode(), None)

    assert isinstance(error, Forbidden)
    assert 'verb "list" on resource "nodes"' in error.remedy
    assert "infra/deploy" in error.remedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": {"machine_type": "p9.huge"}}, ["p9.huge"]),
        ({"source": {"name": "no-such-pool"}}, ["no-such-pool"]),
        ({"source": {"cluster": "no-such-cluster"}, "target": {"cluster": "no-such-cluster"}}, ["no-such-cluster"]),
    ],
)
def test_what_the_cloud_does_not_have_is_named(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any, changes: dict[str, Any], words: list[str]
) -> None:
    code, text = poolshift(capsys, "plan", spec(**changes), "--kubeconfig", str(kubeconfig))

    assert code in (1, 5)
    for word in words:
        assert word in text


def test_a_mistyped_machine_type_is_one_block_with_the_nearest_name_and_the_spec_in_the_next_command(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any
) -> None:
    path = spec(target={"machine_type": "p5en.48xlagre"})
    code, text = poolshift(capsys, "plan", path, "--kubeconfig", str(kubeconfig))

    assert code == 5
    assert text.count("BLOCK ") == 1
    assert "did you mean p5en.48xlarge?" in text
    assert re.search(r"\d+ other findings follow from it", text)
    assert f"poolshift plan --kubeconfig {kubeconfig} {path}" in text
    assert [mark for mark in ("**", "`", "# Plan") if mark in text] == []


def test_a_target_name_that_belongs_to_somebody_else_is_refused(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any
) -> None:
    import boto3

    raw = yaml.safe_load(kubeconfig.read_text())
    (extension,) = raw["clusters"][0]["cluster"]["extensions"]
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    eks = boto3.client("eks", region_name="us-east-2", endpoint_url=extension["extension"]["aws"]["endpoint"], **keys)
    role = "arn:aws:iam::123456789012:role/train-nodes"
    subnet = yaml.safe_load((EXAMPLES / "sandbox-eks.yaml").read_text())["target"]["subnet"]
    size = {"minSize": 0, "maxSize": 1, "desiredSize": 0}
    eks.create_nodegroup(
        clusterName="train", nodegroupName="theirs", subnets=[subnet], nodeRole=role, scalingConfig=size
    )
    eks.close()

    code, text = poolshift(capsys, "plan", spec(target={"name": "theirs"}), "--kubeconfig", str(kubeconfig))
    assert code == 5
    assert "theirs" in text


def test_an_old_node_that_lost_its_pool_label_refuses_the_migration(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any
) -> None:
    """It would neither be drained nor proven empty, and go with its pool all the same."""
    kube = api.connect(Cluster(kubeconfig=str(kubeconfig)))
    label = "eks.amazonaws.com/nodegroup"
    node = next(n for n in kube.list("/api/v1/nodes") if n["metadata"]["labels"].get(label) == "gpu-old")
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    kube.request("PATCH", path, body={"metadata": {"labels": {label: None}}}, content_type=api.MERGE_PATCH)
    try:
        code, text = poolshift(capsys, "plan", spec(), "--kubeconfig", str(kubeconfig))
    finally:
        kube.request("PATCH", path, body={"metadata": {"labels": {label: "gpu-old"}}}, content_type=api.MERGE_PATCH)
    assert code == 5
    assert "source-nodes-unseen" in text


def test_a_spec_for_the_wrong_cloud_is_refused(capsys: pytest.CaptureFixture[str], kubeconfig: Path, spec: Any) -> None:
    code, text = poolshift(capsys, "plan", spec("gke"), "--kubeconfig", str(kubeconfig))

    assert code in (2, 5)
    assert "gke" in text.lower()


def test_a_port_in_use_is_named_with_a_way_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        code, text = poolshift(capsys, "sandbox", "--port", port, "--kubeconfig", str(tmp_path / "k"))
    assert code == 1
    assert f"port {port}" in text
    assert "--port" in text


def test_an_unknown_scenario_is_named_with_those_that_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = poolshift(capsys, "sandbox", "--scenario", "doomsday", "--kubeconfig", str(tmp_path / "k"))

    assert code == 2
    assert "plugin-image-missing" in text


def test_a_prefect_server_that_cannot_start_is_an_error_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_TIMEOUT", "soon")  # said at once, unlike a database that is away
    started = time.monotonic()

    with pytest.raises(PoolshiftError) as caught:
        orchestrator.start_server()
    assert "did not start" in str(caught.value)
    assert "PREFECT_API_URL" in caught.value.remedy
    assert time.monotonic() - started < orchestrator.START_LIMIT


def test_a_prefect_api_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spec: Any, kubeconfig: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")

    code, text = poolshift(capsys, "migrate", spec(), "--kubeconfig", str(kubeconfig))
    assert code == 1
    assert "unset PREFECT_API_URL" in text


def test_errors_are_json_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = poolshift(capsys, "plan", "/nothing.yaml", "--json")

    assert code == 2
    assert json.loads(text)["error"] == "BadSpec"
