"""`poolshift status` of a run that nobody runs: where it stands, since when, and what to type."""

from __future__ import annotations

import pytest

from infra.kube.records import RunRecord
from infra.model.record import Step, StepRecord, StepState
from tasks import observe
from tasks.rules.story_tables import took


def at(minute: int) -> str:
    return f"2026-01-01T00:{minute:02d}:00Z"


def step(name: Step, state: StepState, begun: int, ended: int | None = None, first: int | None = None) -> StepRecord:
    return StepRecord(
        step=name,
        state=state,
        started=at(begun),
        finished=at(ended) if ended is not None else "",
        data={"remedies": ["kubectl mend it"]} if state is StepState.HELD else {},
        first=at(first) if first is not None else "",
    )


def record(*steps: StepRecord, wish: str = "") -> RunRecord:
    notes = {"wish": {"wish": wish, "by": "ann", "at": at(9)}} if wish else {}
    return RunRecord(
        name="r", kind="migration", created=at(0), spec_hash="", spec={}, steps={s.step: s for s in steps}, notes=notes
    )


PLANNED = step(Step.PLAN, StepState.DONE, 0, 1)
HELD = step(Step.GATE, StepState.HELD, 4, 5)


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ((), "not started"),
        ((PLANNED,), "after plan"),
        ((PLANNED, step(Step.VALIDATE, StepState.HELD, 2, 3), HELD), "gate: held"),
        ((PLANNED, step(Step.VALIDATE, StepState.STARTED, 7), HELD), "validate: started"),
        ((PLANNED, step(Step.READINESS, StepState.FAILED, 7, 8), HELD), "readiness: failed"),
    ],
)
def test_a_run_stands_at_what_was_begun_last(steps: tuple[StepRecord, ...], where: str) -> None:
    assert observe.standing(record(*steps), ()).at == where


def test_a_run_that_nobody_runs_says_so_with_what_mends_it_and_how_it_goes_on() -> None:
    first, mend, last = observe.to_go_on(record(PLANNED, HELD))
    assert "no process runs it" in first
    assert (mend, last) == ("kubectl mend it", "to go on: poolshift migrate SPEC")
    # The gate of an earlier attempt is no longer what holds it.
    assert "kubectl mend it" not in observe.to_go_on(record(PLANNED, step(Step.VALIDATE, StepState.STARTED, 7), HELD))
    assert not any("migrate" in line for line in observe.to_go_on(record(PLANNED, wish="cancel")))
    assert observe.to_go_on(record(PLANNED, step(Step.REPORT, StepState.DONE, 8, 9))) == ()


def test_time_in_which_nobody_ran_a_step_is_not_what_it_took() -> None:
    assert took(step(Step.READINESS, StepState.DONE, 2, 5)) == "3 minutes"
    assert took(step(Step.READINESS, StepState.DONE, 50, 53, first=2)) == "3 minutes, begun again"
    again = step(Step.READINESS, StepState.DONE, 50, 53, first=2)
    assert StepRecord.from_json(again.to_json()) == again
