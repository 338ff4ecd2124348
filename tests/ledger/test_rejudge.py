"""Saved output judged again: other limits give other verdicts, beside the old ones, which stay."""

from __future__ import annotations

import hashlib
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import cli
from infra.fabrics import fabric_of
from infra.ledger import Entry, Kept, Ledger
from infra.ledger.store import ENTRIES, RAW
from infra.model.evidence import Evidence
from infra.model.spec import MigrationSpec
from infra.model.verdict import Outcome, Verdict
from infra.probes import catalogue
from infra.probes.catalogue import Probe
from infra.probes.readers.detect import read
from infra.sandbox.fabric import collective
from infra.sandbox.fabric.generation import generation_of
from infra.sandbox.fabric.machine import Host, machine_of
from infra.sandbox.fabric.nccl_log import Job, Member
from tasks import ledgers, one_run
from tasks.identity import pool_identity
from tasks.rejudge import Pair, Rejudged
from tasks.rules import hardware, lustre_path
from tasks.rules.gate import required
from tasks.rules.probe_verdict import ProbeAnswer, Setting, answer_proof, answer_sweep, rounds_of, sizes_of

EXAMPLE = Path(__file__).parents[2] / "infra" / "examples" / "sandbox-eks.yaml"
MACHINE, NODES = "p5en.48xlarge", ("node-0", "node-1")
AT = Setting(nodes=NODES, gpus=8, fabric=fabric_of(MACHINE))


def spec(**gate: Any) -> dict[str, Any]:
    return {**yaml.safe_load(EXAMPLE.read_text()), "gate": {"max_step_ratio": None, **gate}}


def printed(probe: Probe) -> bytes:
    """What the two nodes of a healthy pool print."""
    machine = machine_of(MACHINE)
    members = [
        Member(
            host=Host(node=node, machine=machine, transport="efa", nics=(1.0,) * machine.fabric.nics),
            hostname=f"probe-{i}", address=f"10.1.0.{i + 1}", ranks=8, first_rank=8 * i,
        )
        for i, node in enumerate(NODES)
    ]  # fmt: skip
    job = Job(members=members, generation=generation_of(probe.image), seed="test")
    made = collective.sweep(
        collective.Setting(job=job, start=datetime(2026, 11, 1, tzinfo=UTC)),
        collective.SweepArgs(sizes=list(sizes_of(probe)), rounds=rounds_of(probe)),
    )
    return b"\n".join(("\n".join(line.text for line in t.lines) + "\n").encode() for t in made)


def keep(probe: Probe, raw: bytes, answer: ProbeAnswer, origin: str = "", **changes: Any) -> None:
    seen = Evidence(
        **{
            "probe": probe.name, "mode": probe.mode.value, "pool": "arn", "machine_type": MACHINE, "nodes": NODES,
            "node_uids": ("a", "b"), "spec_hash": "s", "measured": "2026-11-01T00:00:00Z", "image": probe.image,
            "arguments": probe.args, "complete": True, "reading": answer.record, "verdicts": answer.verdicts,
            "raw_digest": hashlib.sha256(raw).hexdigest(), "simulated": True, **changes,
        }
    ).seal()  # fmt: skip
    loaded = MigrationSpec.model_validate(spec())
    ledgers.keep(
        loaded.name, pool_identity(loaded.target), seen.measured,
        verdicts=seen.verdicts, evidence=[seen], raw={seen.raw_digest: raw}, simulated=True,
        origin=origin,
    )  # fmt: skip


@pytest.fixture(scope="module")
def outputs() -> dict[str, tuple[Probe, bytes, ProbeAnswer]]:
    validation = MigrationSpec.model_validate(spec()).validation
    proof, sweep = catalogue.transport_proof(validation), catalogue.bandwidth(validation)
    shown, swept = printed(proof), printed(sweep)
    return {
        "proof": (proof, shown, answer_proof(read(io.BytesIO(shown)), proof, AT, "transport-proof")),
        "sweep": (sweep, swept, answer_sweep(read(io.BytesIO(swept)), sweep, AT, {})),
    }


@pytest.fixture
def kept(outputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger that holds one run's proof and sweep, both passed."""
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    for probe, raw, answer in outputs.values():
        keep(probe, raw, answer)
    return tmp_path


ANSWERED = {"readiness", "transport-proof", "bandwidth-floor", "bandwidth-shape", "plausibility"}


def rejudge(where: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    path = where / "spec.yaml"
    path.write_text(yaml.safe_dump(given))
    code = cli.run(["report", str(given.get("name", "demo-eks")), "--rejudge", str(path), "--json"])
    return code, json.loads(capsys.readouterr().out)


def outcomes(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {v["check"]: (v["before"]["outcome"], v["now"]["outcome"]) for v in found["verdicts"]}


def test_the_same_limits_give_the_same_verdicts(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = rejudge(kept, capsys, spec())

    assert set(outcomes(found).values()) == {("pass", "pass")}
    assert not any(v["changed"] for v in found["verdicts"])


def test_a_check_that_the_spec_asks_for_and_the_run_never_answered_is_no_pass(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = rejudge(kept, capsys, spec())

    assert (code, found["outcome"]) == (4, "unmeasured")
    assert found["missing"] == [c for c in required(MigrationSpec.model_validate(spec())) if c not in ANSWERED]
    assert Rejudged(run="r", spec_hash="s", pairs=(), simulated=True, missing=("devices",)).exit_code == 4


def test_a_higher_floor_fails_what_passed_and_both_verdicts_are_in_the_ledger(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.open(ledgers.location()) as ledger:
        before = ledger.entries()
    code, found = rejudge(kept, capsys, spec(min_busbw_gb_s={1 << 30: 900}))

    assert code == 3
    assert outcomes(found)["bandwidth-floor"] == ("pass", "fail")
    assert outcomes(found)["transport-proof"] == ("pass", "pass")
    with Ledger.open(ledgers.location()) as ledger:
        after = ledger.entries()
        assert after[: len(before)] == before, "nothing is overwritten"
        new = [k.entry for k in after[len(before) :]]
        assert {e.kind for e in new} == {"rejudged"}
        assert {e.subject: e.outcome for e in new}["bandwidth-floor"] == "fail"
        assert all(e.simulated and e.spec_hash == found["spec_hash"] for e in new)
        assert ledger.verify() == []
    loaded = MigrationSpec.model_validate(spec())
    assert ledgers.since(pool_identity(loaded.target), "bandwidth-floor", simulated=True) == "", (
        "the pool itself does not fail"
    )


def test_sizes_that_were_not_measured_are_unmeasured(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wider = spec()
    wider["validation"]["sweep_sizes"] = [1 << 30, 16 << 30]
    code, found = rejudge(kept, capsys, wider)

    assert code == 4
    assert outcomes(found)["bandwidth-floor"] == ("pass", "unmeasured")


@pytest.mark.parametrize(
    "change",
    [
        RAW.delete(),
        RAW.update().values(data=b"nothing"),
        ENTRIES.update().where(ENTRIES.c.kind == "evidence").values(raw_digest="0" * 64),
    ],
    ids=["raw output gone", "raw output changed", "raw output of another"],
)
def test_evidence_that_is_not_what_was_written_is_never_judged_to_pass(
    kept: Path, capsys: pytest.CaptureFixture[str], change: Any
) -> None:
    with Ledger.open(ledgers.location()) as ledger, ledger._engine.begin() as connection:
        connection.execute(change)
    code, found = rejudge(kept, capsys, spec())

    assert code == 4
    assert {now for _, now in outcomes(found).values()} == {"unmeasured"}


def test_output_of_a_probe_that_broke_off_may_fail_and_never_passes(
    kept: Path, outputs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    probe, raw, answer = outputs["sweep"]
    keep(probe, raw, answer, complete=False)
    code, found = rejudge(kept, capsys, spec())

    assert code == 4
    assert [v["now"]["outcome"] for v in found["verdicts"]][-3:] == ["unmeasured"] * 3


@pytest.mark.parametrize(
    "newer",
    [{"origin": "2026-11-02T00:00:00Z/uid-2"}, {"pool": "arn-2"}, {"spec_hash": "s2"}],
    ids=lambda d: next(iter(d)),
)
def test_of_several_runs_of_one_name_the_newest_alone_is_judged_and_named(
    kept: Path, outputs: dict[str, Any], capsys: pytest.CaptureFixture[str], newer: dict[str, str]
) -> None:
    for probe, raw, answer in outputs.values():
        keep(probe, raw, answer, **{"measured": "2026-11-03T00:00:00Z", **newer})
    _, found = rejudge(kept, capsys, spec())

    assert {v["measured"] for v in found["verdicts"]} == {"2026-11-03T00:00:00Z"}
    assert found["of"]["left_out"] == 2
    assert found["of"]["origin"] == newer.get("origin", "")
    assert cli.run(["report", "demo-eks", "--rejudge", str(kept / "spec.yaml")]) == 4
    out = " ".join(capsys.readouterr().err.split())
    assert "2 measurements of other runs of this name left out" in out
    assert "under this spec: unmeasured" in out
    assert "0 of 4 verdicts differ from the run's own" in out


def test_a_run_is_compared_with_its_own_old_pool() -> None:
    def row(seq: int, pool: str, name: str, origin: str) -> Kept:
        entry = Entry(at=f"t{seq}", kind="evidence", run="r", pool=pool, subject="x",
                      payload={"pool": name, one_run.KEY: origin})  # fmt: skip
        return Kept(seq=seq, entry=entry, raw_digest="", previous="", hash="")

    rows = [
        row(1, "old", "old-1", "a"), row(2, "new", "new-1", "a"),
        row(3, "old", "old-2", "b"), row(4, "old", "old-1", "a"), row(5, "new", "new-2", "b"),
    ]  # fmt: skip
    found = one_run.newest(rows, {"new"}, "old")

    assert [k.seq for k in found.kept] == [5]
    assert [k.seq for k in found.baseline] == [3]


def test_an_older_measurement_that_decides_is_named_beside_what_came_later() -> None:
    def pair(entry: int, check: str, outcome: Outcome) -> Pair:
        now = Verdict(check=check, outcome=outcome, reason="")
        return Pair(entry=entry, measured=f"t{entry}", probe=check, before=None, now=now)

    pairs = (pair(1, "path", Outcome.FAIL), pair(2, "sweep", Outcome.FAIL), pair(3, "path", Outcome.PASS))
    found = Rejudged(run="r", spec_hash="s", pairs=pairs, simulated=False)

    assert found.exit_code == 3
    assert found.decided_by == ("path measured t1 (again t3: pass)", "sweep measured t2")
    assert Rejudged(run="r", spec_hash="s", pairs=pairs[2:], simulated=False).decided_by == ()


def test_a_spec_of_other_pools_and_a_run_without_evidence_are_told_apart(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = spec()
    other["target"]["name"] = "elsewhere"
    assert rejudge(kept, capsys, other)[0] == 2
    code, found = rejudge(kept, capsys, {**spec(), "name": "unknown"})
    assert (code, found["error"]) == (1, "NotFound")


def test_a_revalidation_spec_judges_its_own_pools(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = spec()["target"]
    pool = {key: target[key] for key in ("kind", "region", "cluster", "name")}
    given = {"name": "demo-eks", "pools": [pool], "validation": spec()["validation"]}

    assert set(outcomes(rejudge(kept, capsys, given)[1]).values()) == {("pass", "pass")}


def test_entries_of_other_kinds_are_left_alone(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(ledgers.location()) as ledger:
        ledger.append(Entry(at="", kind="approval", run="demo-eks", pool="p", subject="migrate"))

    assert set(outcomes(rejudge(kept, capsys, spec())[1]).values()) == {("pass", "pass")}


def fio_of(node: str) -> bytes:
    """What the storage payload prints on one node: LNet before, fio, LNet after."""
    side = {"io_bytes": 300_000_000_000, "bw_bytes": 10_000_000_000, "runtime": 30_000, "total_ios": 70_000}
    told = [{"name": "write", "rw": "write"}, {"name": "read", "rw": "read", "unlink": "1"}]
    shared = {"directory": "/mnt/poolshift", "direct": "1", "bs": "4M", "size": "8G", "numjobs": "8",
              "ioengine": "psync", "runtime": "30", "ramp_time": "5", "filename_format": "data.$jobnum"}  # fmt: skip
    fio = {"fio version": "fio-3.36", "global options": shared,
           "jobs": [{"error": 0, options["rw"]: side, "job options": options} for options in told]}  # fmt: skip
    lines = [
        json.dumps(
            {"poolshift": "lnet", "when": when, "node": node, "nets": {"tcp": {"send": sent}},
             "connections": ["10.0.0.1@tcp"]},
            separators=(",", ":"),
        )
        for when, sent in (("before", 0), ("after", 900_000))
    ]  # fmt: skip
    return f"\n{lines[0]}\n{json.dumps(fio)}\n\n{lines[1]}\n".encode()


def test_storage_is_judged_again_node_by_node_with_the_path_that_carried_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "home"))
    stored = {**spec(), "validation": {**spec().get("validation", {}), "storage": True, "storage_claim": "lustre"}}
    probe = catalogue.storage(MigrationSpec.model_validate(stored).validation)
    assert probe is not None
    before = tuple(
        Verdict(check=check, outcome=Outcome.PASS) for check in (hardware.STORAGE, lustre_path.CHECK, "of-old")
    )
    raw = b"\n".join(map(fio_of, NODES))
    keep(probe, raw, ProbeAnswer(record={}, verdicts=before, versions={}))
    code, found = rejudge(tmp_path, capsys, stored)
    now = {v["check"]: v["now"] for v in found["verdicts"]}

    assert code == 3
    assert now["storage"]["observed"].startswith("write 10.00, read 10.00 GB/s")
    assert now["storage-path"]["outcome"] == "fail"
    assert now["of-old"]["outcome"] == "unmeasured"  # a check that nothing answers is not dropped


def test_nccl_tests_is_judged_again_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.setenv("POOLSHIFT_HOME", str(tmp_path / "home"))
    given = {**spec(max_step_ratio=0.6), "validation": {**spec().get("validation", {}), "nccl_tests_image": "x"}}
    probe = catalogue.nccl_tests(MigrationSpec.model_validate(given).validation)
    assert probe is not None
    passed = (Verdict(check="nccl-tests", outcome=Outcome.PASS),)
    keep(probe, b"node-0: Test NCCL failure common.cu:1005 'x'\n", ProbeAnswer(record={}, verdicts=passed, versions={}))
    code, found = rejudge(tmp_path, capsys, given)

    assert code == 3
    assert [v["check"] for v in found["verdicts"]] == ["nccl-tests"]
