"""What a report shows of many findings: one line for each kind, with how many, a few of them, and since when."""

from __future__ import annotations

from pathlib import Path

from infra.kube.records import RunRecord
from infra.model.record import Step, StepRecord, StepState
from infra.model.verdict import Finding, Level
from tasks import report
from tasks.rules.story import facts, kinds


def finding(number: int, code: str = "pdb-blocks", since: str = "") -> Finding:
    return Finding(
        level=Level.WARN, code=code, object=f"pod train/p-{number}", observed="one budget", expected="room", since=since
    )


def test_findings_of_one_kind_are_one_line_with_their_number_and_the_earliest_time() -> None:
    many = [finding(n, since=f"2026-01-{40 - n:02d}") for n in range(20, 39)]
    (first, other) = kinds([*many, finding(99, "bare-pod")])

    assert (first.count, len(first.examples), first.since) == (19, 3, "2026-01-02")
    assert (other.count, other.since) == (1, "")
    assert kinds([]) == []


def test_a_report_of_forty_findings_is_short_and_its_data_has_them_all(tmp_path: Path) -> None:
    found = [finding(n).to_dict() for n in range(40)]
    step = StepRecord(step=Step.PLAN, state=StepState.DONE, started="2026-01-01T00:00:00Z", data={"findings": found})
    record = RunRecord(name="moved", kind="migration", created="", spec_hash="", spec={}, steps={Step.PLAN: step})
    html = report.render(record, tmp_path, simulated=True, when="2026-01-02T00:00:00Z").read_text()
    markdown = (tmp_path / "report.md").read_text()

    for text in (html, markdown):
        assert "pod train/p-2" in text
        assert "pod train/p-3" not in text
        assert "37 more" in text
        assert "simulated" in text
    assert (tmp_path / "report.json").read_text().count("pod train/p-") == 40 * 2


def test_every_table_of_the_markdown_has_its_rows_right_below_its_head(tmp_path: Path) -> None:
    """A blank line between them ends the table: its rows are then shown as a paragraph of bars."""
    step = StepRecord(step=Step.PLAN, state=StepState.DONE, started="2026-01-01T00:00:00Z", summary="2 pods")
    record = RunRecord(name="moved", kind="migration", created="", spec_hash="", spec={}, steps={Step.PLAN: step})
    report.render(record, tmp_path, simulated=True, when="2026-01-02T00:00:00Z")
    lines = (tmp_path / "report.md").read_text().splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("|---")]

    assert heads
    assert all(lines[at + 1].startswith("| ") for at in heads)


def test_what_is_being_written_is_no_step_of_its_own_report(tmp_path: Path) -> None:
    steps = {
        s: StepRecord(step=s, state=StepState.STARTED, started="2026-01-01T00:00:00Z") for s in (Step.SOAK, Step.REPORT)
    }
    record = RunRecord(name="moved", kind="migration", created="", spec_hash="", spec={}, steps=steps)
    report.render(record, tmp_path, simulated=True, when="2026-01-02T00:00:00Z")
    markdown = (tmp_path / "report.md").read_text()

    assert "| soak | started |" in markdown
    assert "| report |" not in markdown


def test_the_lead_says_the_transport_in_one_clause_and_the_gate_has_the_rest() -> None:
    words = "workload-path: fail: NCCL is on TCP sockets on 2 of 2 ranks; rank-0: no provider; network: none"
    held = StepRecord(step=Step.VALIDATE, state=StepState.HELD, started="2026-01-01T00:00:00Z", summary=words)

    told = facts({Step.VALIDATE: held})["transport"]
    assert told == "workload-path: fail: NCCL is on TCP sockets on 2 of 2 ranks"
