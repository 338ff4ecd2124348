"""Reports outlive what they tell of: none is overwritten by another run, and each is found without a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.kube.records import RunRecord
from infra.model.record import Step, StepRecord, StepState
from infra.model.verdict import Outcome, Verdict
from tasks import ledgers, report


def record(summary: str, uid: str = "", created: str = "") -> RunRecord:
    gate = StepRecord(step=Step.GATE, state=StepState.HELD, started="2026-01-01T00:00:00Z", summary=summary)
    return RunRecord(
        name="r", kind="migration", created=created, spec_hash="", spec={}, steps={Step.GATE: gate}, uid=uid
    )


def test_a_report_stays_when_another_run_of_its_name_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLSHIFT_REPORTS", str(tmp_path))
    kept = []
    for uid, summary in (("aaaaaaaa-1", "held. fail: one"), ("bbbbbbbb-2", "held. fail: other")):
        made = record(summary, uid, "2026-01-01T00:00:00Z")
        kept.append(report.keep(made, simulated=False, when="2026-01-02T00:00:00Z"))
    one, other = (path.with_name("report.md").read_text() for path in kept)

    assert "fail: one" in one
    assert "fail: other" in other
    newest = tmp_path / "r"
    assert all((newest / name).read_bytes() == (kept[1].parent / name).read_bytes() for name in report.FILES)
    assert kept[0].parent.parent == newest


def test_a_run_without_a_record_is_read_about_where_its_report_or_its_saved_output_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLSHIFT_REPORTS", str(tmp_path))
    monkeypatch.setenv("POOLSHIFT_LEDGER", str(tmp_path / "ledger.db"))
    assert report.what_is_left("r") == "poolshift status"
    ledgers.keep("r", "eks/p", "2026-01-01T00:00:00Z", verdicts=[Verdict(check="c", outcome=Outcome.PASS, reason="")])
    written = report.keep(record("x"), simulated=False, when="2026-01-02T00:00:00Z")

    left = report.what_is_left("r")
    assert str(written.parent) in left
    assert left.endswith("poolshift report r --rejudge SPEC")
    (tmp_path / "ledger.db").write_text("no ledger")
    assert str(written) in report.what_is_left("r")
