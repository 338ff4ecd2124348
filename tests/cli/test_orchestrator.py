"""The Prefect server of our own, the question to a person, and what revalidation says when something is in its way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import approving, orchestrator
from infra.errors import PoolshiftError, Refused, Unmeasured
from infra.kube import api, leases, records
from infra.kube.api import Kube
from infra.ledger import Ledger
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import Cluster, MigrationSpec, RevalidationSpec, Validation
from infra.probes import catalogue
from infra.sandbox import run as sandbox
from tasks.rules import cost

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "infra" / "examples"
KEEPER = """
import sys, time
from flows.orchestrator import start_server
child, url = start_server()
print(url, child.pid, flush=True)
time.sleep(600)
"""
ASKER = """
import sys
from flows import orchestrator
from infra.errors import PoolshiftError
from infra.model.spec import MigrationSpec
from tasks.run import Run
with orchestrator.prefect_api():
    from prefect import flow
    from flows.approval import ask
    @flow
    def waits(spec):
        run = Run.open(spec)
        ask(spec, run.kube, run.clock)
    for path in sys.argv[1:]:
        try:
            waits(MigrationSpec.model_validate_json(open(path).read()))
            print("approved")
        except PoolshiftError as error:
            print(type(error).__name__, error)
"""


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """A process that keeps a private Prefect server."""

    process: subprocess.Popen[str]
    url: str
    server: int
    home: Path


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory, prefect_database: Path) -> Iterator[Keeper]:
    """One private server for the module."""
    home = tmp_path_factory.mktemp("home")
    (home / "prefect").mkdir()
    shutil.copy(prefect_database, home / "prefect" / "prefect.db")
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPER],
        env={**os.environ, "POOLSHIFT_HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    url, pid = process.stdout.readline().split()
    yield Keeper(process=process, url=url, server=int(pid), home=home)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A healthy sandbox on EKS, in this process."""
    path = tmp_path_factory.mktemp("sandbox") / "kubeconfig"
    with sandbox.start("healthy", "eks", kubeconfig=path):
        yield path


@pytest.fixture
def kube(kubeconfig: Path) -> Kube:
    """The sandbox's API."""
    return api.connect(Cluster(kubeconfig=str(kubeconfig)))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a server, and no API named."""
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("POOLSHIFT_LEDGER", raising=False)
    return tmp_path


def asking(kubeconfig: Path, name: str, timeout: str) -> MigrationSpec:
    raw = yaml.safe_load((EXAMPLES / "sandbox-eks.yaml").read_text())
    raw |= {"name": name, "approval": {"ask": True, "timeout": timeout}, "cluster": {"kubeconfig": str(kubeconfig)}}
    return MigrationSpec.model_validate(raw)


def recorded(kube: Kube, spec: MigrationSpec, gate: StepState | None) -> None:
    records.ensure_namespace(kube)
    records.create(kube, spec.name, "migration", spec.model_dump_json())
    if gate:
        step = StepRecord(step=Step.GATE, state=gate, started="2026-01-01T00:00:00Z", summary="what it found")
        records.write_step(kube, spec.name, step)


def ask(keeper: Keeper, folder: Path, *specs: MigrationSpec) -> subprocess.Popen[str]:
    """One process that asks one question after the other."""
    (folder / "asker.py").write_text(ASKER)
    for spec in specs:
        (folder / f"{spec.name}.json").write_text(spec.model_dump_json())
    return subprocess.Popen(
        [sys.executable, str(folder / "asker.py"), *(str(folder / f"{spec.name}.json") for spec in specs)],
        env={
            **os.environ,
            "POOLSHIFT_HOME": str(keeper.home),
            "PREFECT_API_URL": keeper.url,
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_a_question_that_nobody_answers_is_unmeasured_and_approve_wakes_a_run_at_the_server_that_its_record_names(
    keeper: Keeper, kubeconfig: Path, kube: Kube, alone: Path
) -> None:
    unanswered, spec = asking(kubeconfig, "unanswered", "1s"), asking(kubeconfig, "asks", "30d")
    for each in (unanswered, spec):
        recorded(kube, each, StepState.DONE)
    waiting = ask(keeper, alone, unanswered, spec)
    try:
        answer, deadline = "", time.monotonic() + 300
        while "goes on" not in answer and time.monotonic() < deadline:
            record = records.read(kube, "asks")
            if record and "flow-run" in record.notes:
                answer = approving.approve(spec.cluster, "asks", by="ada", reason="proven")
            time.sleep(0.2)
        first, second = waiting.communicate(timeout=120)[0].splitlines()
    finally:
        waiting.kill()
    assert first.startswith("Unmeasured run unanswered: nobody answered within")
    assert "poolshift approve unanswered" in first
    assert answer == "approved by ada; the migration goes on"
    assert second == "approved"


def test_approve_needs_a_gate_that_has_passed(kubeconfig: Path, kube: Kube, alone: Path) -> None:
    for gate, name, words in ((None, "early", "not been judged"), (StepState.HELD, "held", "held: what it found")):
        spec = asking(kubeconfig, name, "1h")
        recorded(kube, spec, gate)
        with pytest.raises(Refused, match=words) as caught:
            approving.approve(spec.cluster, name, by="ada", reason="hurry")
        assert f"poolshift status {name}" in caught.value.remedy
        record = records.read(kube, name)
        assert record is not None
        assert "approval" not in record.notes


def test_approve_reads_the_older_note_and_says_when_nobody_could_be_woken(
    kubeconfig: Path, kube: Kube, alone: Path
) -> None:
    spec = asking(kubeconfig, "older", "1h")
    recorded(kube, spec, StepState.DONE)
    records.write_note(kube, "older", "flow-run", "0b5c7e0e-0000-0000-0000-000000000000")

    answer = approving.approve(spec.cluster, "older", by="ada", reason="proven")
    assert answer.startswith("approved by ada; it takes effect when the migration runs next")


def test_serving_is_said_once_prefect_has_the_deployments(keeper: Keeper) -> None:
    environment = {**os.environ, "POOLSHIFT_HOME": str(keeper.home), "PREFECT_API_URL": keeper.url}
    command = [sys.executable, "-m", "flows.cli", "serve"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next((line for line in process.stderr if "serving" in line), "")
        asked = urllib.request.Request(
            f"{keeper.url}/deployments/filter", data=b"{}", headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            known = {each["name"] for each in json.load(answer)}
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()

    assert {"migrate-node-pool", "plan-migration", "revalidate-pools", "rollback-migration"} <= known
    assert all(name in said for name in known)
    assert (process.returncode, "Traceback" in rest) == (0, False)


def test_a_private_server_is_not_announced_keeps_no_schedules_and_ends_with_a_parent_that_is_killed(
    keeper: Keeper,
) -> None:
    assert orchestrator.healthy(keeper.url)
    settings = Path(f"/proc/{keeper.server}/environ").read_bytes().split(b"\0")
    assert b"PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED=false" in settings
    assert not (keeper.home / "server.json").exists()

    keeper.process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{keeper.server}").exists() and orchestrator.healthy(keeper.url):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.1)


def test_stopping_one_server_leaves_the_entry_of_another(alone: Path) -> None:
    entry = alone / "server.json"
    entry.write_text(json.dumps({"url": "http://127.0.0.1:1/api", "pid": 1}))
    for pid_is_ours in (False, True):
        child = subprocess.Popen(["sleep", "60"])
        if pid_is_ours:
            entry.write_text(json.dumps({"url": "http://127.0.0.1:1/api", "pid": child.pid}))
        orchestrator.stop_server(child)
        assert child.poll() is not None
        assert entry.exists() is not pid_is_ours


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"pid": 1}'])
def test_an_unreadable_entry_is_no_server(alone: Path, text: str) -> None:
    (alone / "server.json").write_text(text)

    assert orchestrator.known_server() is None


def test_without_prefect_yaml_the_same_four_names_are_served(monkeypatch: pytest.MonkeyPatch, alone: Path) -> None:
    from flows import serve

    pools = RevalidationSpec.model_validate(yaml.safe_load((EXAMPLES / "sandbox-eks-revalidate.yaml").read_text()))
    declared = [d.name for d in serve.deployments(None, pools, None)]
    monkeypatch.setattr(serve, "__file__", str(alone / "flows" / "serve.py"))

    made = {d.name: d for d in serve.deployments(None, pools, "0 4 * * *")}
    assert list(made) == declared
    (schedule,) = made["revalidate-pools"].schedules
    assert schedule.active
    assert not made["migrate-node-pool"].schedules


def test_a_submitted_run_ends_with_its_own_report_or_is_unmeasured(kubeconfig: Path, kube: Kube) -> None:
    from flows import submit

    spec = asking(kubeconfig, "submitted", "1h")
    recorded(kube, spec, StepState.DONE)
    for record in (None, records.read(kube, spec.name)):
        with pytest.raises(Unmeasured, match="no finished report"):
            submit._ended({"type": "COMPLETED"}, spec, "id", record)

    step = StepRecord(step=Step.REPORT, state=StepState.DONE, started="", summary="moved", data={"html": "/r.html"})
    records.write_step(kube, spec.name, step)
    ended = submit._ended({"type": "COMPLETED"}, spec, "id", records.read(kube, spec.name))
    assert (ended["summary"], ended["report"], ended["exit_code"]) == ("moved", "/r.html", 0)


def looked_at(kubeconfig: Path, spent: float = 0.0, **changes: Any) -> dict[str, Any]:
    from tasks import revalidation

    raw = yaml.safe_load((EXAMPLES / "sandbox-eks-revalidate.yaml").read_text())
    spec = RevalidationSpec.model_validate({**raw, "cluster": {"kubeconfig": str(kubeconfig)}, **changes})
    return revalidation.look(spec, spec.pools[0], lambda text: None, spent)


def test_what_one_pool_took_of_the_budget_the_next_one_does_not_have(kubeconfig: Path, alone: Path) -> None:
    """One number for all pools of a call: the second is refused what the first was given."""
    proof = catalogue.transport_proof(Validation())
    budget = {"budget_gpu_minutes": 1.2 * cost.of(proof, 2, 8)}

    first = looked_at(kubeconfig, validation=budget)
    second = looked_at(kubeconfig, spent=budget["budget_gpu_minutes"] - 0.1, validation=budget)

    assert 0 < first["gpu_minutes"] <= budget["budget_gpu_minutes"], first
    assert second["gpu_minutes"] == 0
    assert [v["outcome"] for v in second["verdicts"] if v["check"] == "transport-proof"] == ["unmeasured"]
    assert "GPU-minutes" in second["summary"]


def test_a_ledger_that_cannot_be_written_is_said_and_hides_no_verdict(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, alone: Path
) -> None:
    monkeypatch.setenv("POOLSHIFT_LEDGER", "/proc/nowhere/ledger.db")

    found = looked_at(kubeconfig, probe_idle_nodes=False)
    assert [v["check"] for v in found["verdicts"]] == ["readiness", "ledger"]
    assert found["verdicts"][1]["outcome"] == "unmeasured"
    assert "/proc/nowhere" in found["summary"]


def test_an_error_of_one_pool_is_its_own_unmeasured_verdict(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, alone: Path
) -> None:
    def refuse(*_: object) -> None:
        raise PoolshiftError("pool", "the cloud said something else")

    monkeypatch.setattr("infra.connect.connect", refuse)
    found = looked_at(kubeconfig)

    assert found["outcome"] == "unmeasured"
    assert "the cloud said something else" in found["summary"]
    assert "transport not measured" in found["summary"]


def test_a_pool_without_two_idle_nodes_says_that_the_transport_was_not_measured(
    kubeconfig: Path, kube: Kube, alone: Path
) -> None:
    node = next(n for n in kube.list("/api/v1/nodes") if "gpu-old" in n["metadata"]["labels"].values())
    name = node["metadata"]["labels"]["kubernetes.io/hostname"]
    one = {"kind": "external", "name": "one", "selector": {"kubernetes.io/hostname": name}}

    found = looked_at(kubeconfig, pools=[one])
    assert [v["check"] for v in found["verdicts"]] == ["readiness"]
    assert re.search(r"transport not measured: (0 idle nodes|1 idle node); never proven", found["summary"])
    assert found["note"] in found["markdown"]


def test_the_evidence_of_a_probe_is_in_the_ledger_with_its_output(kubeconfig: Path, kube: Kube, alone: Path) -> None:
    found = looked_at(kubeconfig)
    assert "transport-proof" in {v["check"] for v in found["verdicts"]}

    with Ledger.open(alone / "ledger.db") as ledger:
        kept = ledger.entries(pool="eks-us-east-2-train-gpu-old")
        (evidence,) = [k for k in kept if k.entry.kind == "evidence"]
        assert ledger.raw(evidence.raw_digest)
        assert [k.entry.subject for k in kept if k.entry.kind == "verdict"] == [v["check"] for v in found["verdicts"]]
        assert all(k.entry.simulated for k in kept)
    assert [n for n in kube.list(f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases")] == []


def test_a_pool_that_a_run_holds_is_not_probed(kubeconfig: Path, kube: Kube, alone: Path) -> None:
    from tasks.identity import pool_identity

    raw = yaml.safe_load((EXAMPLES / "sandbox-eks-revalidate.yaml").read_text())
    part = RevalidationSpec.model_validate(raw).pools[0]
    with leases.hold(kube, [pool_identity(part)], "a-migration"):
        found = looked_at(kubeconfig)

    verdicts = {v["check"]: v for v in found["verdicts"]}
    assert verdicts["transport-proof"]["outcome"] == "unmeasured"
    assert "held by run 'a-migration'" in verdicts["transport-proof"]["reason"]


def test_a_prefect_that_was_imported_before_is_pointed_at_the_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start a server of its own, which ends before its events are written."""
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL

    try:
        with monkeypatch.context() as patch:
            patch.setenv("PREFECT_API_URL", "")
            orchestrator.settle_environment("http://127.0.0.1:9/api")
            assert PREFECT_API_URL.value() == "http://127.0.0.1:9/api"
    finally:
        refresh_global_settings_context()


def test_a_server_that_takes_long_to_start_is_told_of_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(orchestrator, "LIFE_SIGN", 0.0)
    with subprocess.Popen(["sleep", "0.2"], stdin=subprocess.PIPE) as child:
        assert not orchestrator._answers(child, "http://127.0.0.1:1/api")
    assert "the Prefect server still starts" in capsys.readouterr().err
