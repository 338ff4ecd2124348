"""Who said yes, when and why: kept in the run record, so that a restart does not ask again."""

from __future__ import annotations

from infra.clock import rfc3339
from infra.kube import records
from infra.kube.api import Kube
from infra.model.record import Step

_NOTE = "approval"


def granted(kube: Kube, run: str) -> dict[str, str] | None:
    """The approval of a run, or None. One that does not say who, why and when is none."""
    record = records.read(kube, run)
    found = record.notes.get(_NOTE) if record else None
    return found if isinstance(found, dict) and {"by", "reason", "at"} <= found.keys() else None


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
