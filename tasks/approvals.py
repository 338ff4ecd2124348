"""Who said yes, when and why: kept in the run record, so that a restart does not ask again."""

from __future__ import annotations

from infra.clock import rfc3339
from infra.errors import Refused
from infra.kube import records
from infra.kube.api import Kube
from infra.model.record import Step, StepState

_NOTE = "approval"


def granted(kube: Kube, run: str) -> dict[str, str] | None:
    """The approval of a run, or None. One that does not say who, why and when is none."""
    record = records.read(kube, run)
    found = record.notes.get(_NOTE) if record else None
    return found if isinstance(found, dict) and {"by", "reason", "at"} <= found.keys() else None


def check(record: records.RunRecord) -> None:
    """Raise Refused where there is nothing to say yes to: nobody asks, or the gate has not passed."""
    run = record.name
    if not (record.spec.get("approval") or {}).get("ask"):
        raise Refused(
            f"run {run}",
            "asks for no approval; nothing is changed",
            expected="approval.ask: true in its spec",
            remedy=f"poolshift status {run}",
        )
    gate = record.steps.get(Step.GATE)
    if gate is None or gate.state is not StepState.DONE:
        raise Refused(
            f"run {run}",
            f"its gate is {gate.standing}" if gate else "its gate has not been judged yet",
            expected="a gate that has passed, before somebody decides on it",
            remedy=f"poolshift status {run}; approve when the migration waits for it",
        )


def grant(kube: Kube, run: str, *, by: str, reason: str) -> None:
    """Write the approval."""
    records.write_note(kube, run, _NOTE, {"by": by, "reason": reason, "at": rfc3339(kube.clock.now())})


def question(kube: Kube, run: str) -> str:
    """What the person decides on, as Markdown: the gate's summary and what comes next."""
    record = records.read(kube, run)
    gate = record.steps.get(Step.GATE) if record else None
    plan = record.steps.get(Step.PLAN) if record else None
    lines = [f"# Move the work of run {run}?", ""]
    lines += [f"**Gate:** {gate.summary}", ""] if gate else []
    lines += [f"**Plan:** {plan.summary}", ""] if plan else []
    return "\n".join([*lines, "Yes fences the old pool and starts the first wave."])
