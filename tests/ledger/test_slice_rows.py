"""A swap's slices as people see them: in the report, in `poolshift status` and in the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.kube.records import RunRecord
from infra.model.record import SliceRecord, SliceStage
from infra.model.spec import Strategy
from infra.model.verdict import Finding, Outcome
from tasks import observe, report
from tasks.rules.cost import Estimate
from tasks.rules.outcome import Progress
from tasks.rules.plan import Plan
from tasks.rules.slice_rows import rows_of
from tasks.rules.swap import Slice, SwapPlan
from tasks.rules.waves import MovePlan, PlannedWave

FIRST = SliceRecord(
    number=1,
    stage=SliceStage.PROVEN,
    nodes={"old-a": ("u1", "i-1")},
    add=1,
    total=1,
    gate={"outcome": Outcome.PASS},
    moved={"waves": [{"moved": 2}, {"moved": 3, "gangs": [{"ranks": 4, "running": "2026"}, {"ranks": 8}]}]},
)
NOTES = {
    "swap": {"nodes": {}, "sizes": [[1, 1, 1], [1, 1, 2], [2, 2, 4]]},
    "slice-1": FIRST.to_dict(),
    "slice-2": {"number": 2, "stage": "no such stage"},
}


def record(notes: dict[str, object]) -> RunRecord:
    return RunRecord(name="swapped", kind="migration", created="", spec_hash="", spec={}, notes=notes)


def test_each_slice_has_a_row_and_one_that_cannot_be_read_shows_no_progress() -> None:
    rows = rows_of(NOTES)

    assert [r["slice"] for r in rows] == ["1 of 3", "2 of 3", "3 of 3"]
    assert rows[0] | {"given up": "old-a", "moved": "9 pods", "stage": "proven", "gate": "pass"} == rows[0]
    assert rows[1]["stage"].startswith("unreadable: note.slice-2")
    assert rows[2]["stage"] == "not begun"
    assert [r["stage"] for r in rows_of({"swap": [], "slice-1": None, "slice-7": 3})] == [
        "not begun",
        "unreadable: note.slice-7 of the run's ConfigMap",
    ]
    assert rows_of({}) == []


def test_status_and_report_have_the_slices_where_there_are_any(tmp_path: Path) -> None:
    html = report.render(record(NOTES), tmp_path, simulated=True, when="2026-01-02T00:00:00Z").read_text()

    assert observe.standing(record(NOTES), ()).to_dict()["slices"] == rows_of(NOTES)
    for text in (html, (tmp_path / "report.md").read_text()):
        assert "Slices" in text
        assert "old-a" in text
    bare = report.render(record({}), tmp_path, simulated=True, when="2026-01-02T00:00:00Z").read_text()
    assert "Slices" not in bare


def test_nothing_to_move_is_said_as_such() -> None:
    assert Progress(total=0, gone=0, terminating=0, waiting=(), per_second=0.0).wording() == "no pod has to leave"


@pytest.mark.parametrize(
    ("gone", "waiting", "left"),
    [(60, 0, "about 20 seconds left"), (60, 39, "about 20 seconds left"), (60, 40, None), (99, 0, None)],
    ids=["none waits", "some wait", "all that is left waits for a budget", "under a second"],
)
def test_a_time_left_is_told_where_the_pace_says_something_of_it(gone: int, waiting: int, left: str | None) -> None:
    held = (("d/web", "pod d/web-0 waits for it", waiting),) if waiting else ()
    words = Progress(total=100, gone=gone, terminating=0, waiting=held, per_second=2.0).wording()
    assert (left or "") in words
    assert ("left" in words) is (left is not None)


def test_the_time_left_goes_by_the_rate_that_holds_pods_back() -> None:
    """The first went at once: their pace says nothing of the others."""
    held = (("", "held by --evictions-per-second 0.1: pod d/a", 3),)
    words = Progress(total=5, gone=1, terminating=1, waiting=held, per_second=1.0, at_most=0.1).wording()
    assert "about 30 seconds left" in words


def planned(
    slices: SwapPlan,
    waves: tuple[PlannedWave, ...] = (PlannedWave(number=1, nodes=("old-z",), pods=()),),
    findings: tuple[Finding, ...] = (),
) -> str:
    return Plan(
        run="swapped",
        source="a",
        target="b",
        strategy=Strategy.SWAP if slices.slices else Strategy.SIDE_BY_SIDE,
        findings=findings,
        requests=(),
        moves=MovePlan(waves=waves, findings=(), never=(), stays=0),
        estimate=Estimate(items=()),
        simulated=True,
        slices=slices,
    ).markdown()


def test_a_plan_shows_slices_in_a_swap_and_waves_elsewhere() -> None:
    slices = SwapPlan(slices=(Slice(number=1, nodes=("old-a",), add=1, total=1, pods=2),), rest=("old-b",))
    swap, waves = planned(slices), planned(SwapPlan())

    assert "old-a given up" in swap
    assert "old-b" in swap
    assert "wave" not in swap.replace("in waves: 1 source node", "").lower()
    assert "old-z: no pod to move" in waves
    assert "Slices" not in waves


def test_a_plan_without_waves_has_no_heading_for_them_and_one_line_for_one_budget() -> None:
    pods = tuple(Finding.block("pdb-never", f"pod a/p-{n}", "budget a/b: never", "", "patch it") for n in range(3))
    text = planned(SwapPlan(), (), pods)

    assert "Waves" not in text
    assert text.count("patch it") == 2  # in the headline and below the one finding
    assert "more blocking" not in text
