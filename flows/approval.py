"""The question to a person: asked in Prefect, answered there or with `poolshift approve`.

The approval lives in the run's record in the cluster. Prefect only carries the waiting: it pauses the flow run, shows
the form and wakes the run.
"""

from __future__ import annotations

import getpass
import os

from prefect import pause_flow_run
from prefect.context import get_run_context
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput

from flows import orchestrator
from infra.clock import Clock
from infra.errors import NotFound, Refused, Unmeasured, Unreachable
from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.record import Step, StepState
from infra.model.spec import Cluster, MigrationSpec
from tasks import approvals
from tasks.progress import say

_FLOW_RUN = "flow-run"


class Approval(RunInput):
    """What the Prefect UI asks for."""

    approve: bool = False
    by: str = ""
    reason: str = ""


def ask(spec: MigrationSpec, kube: Kube, clock: Clock) -> None:
    """Pause in Prefect with the findings shown, until somebody answers there or with `poolshift approve`.

    Returns when the approval is in the run's record. The record is looked at before the pause and after one that
    ran out: `poolshift approve` writes there even when it cannot wake this run (Prefect's server out of its reach),
    and such an approval counts at the end of the wait, or as soon as the same command is run again.

    Raises:
        Refused: somebody said no.
        Unmeasured: nobody answered in time.

    """
    if approvals.granted(kube, spec.name):
        return
    note_flow_run(kube, spec.name, str(get_run_context().flow_run.id))  # type: ignore[union-attr]
    say(f"waiting for approval: in the Prefect UI, or: poolshift approve {spec.name} --reason WHY")
    try:
        answer = pause_flow_run(
            wait_for_input=Approval.with_initial_data(description=approvals.question(kube, spec.name)),
            timeout=int(clock.real_seconds(spec.approval.timeout.total_seconds())) or 1,
            poll_interval=2,
        )
    except FlowPauseTimeout as cause:
        if approvals.granted(kube, spec.name):
            return
        raise Unmeasured(
            f"run {spec.name}",
            f"nobody answered within {spec.approval.timeout}",
            expected="an approval before any work moves",
            remedy=f"poolshift approve {spec.name} --reason WHY, then run the same command again",
        ) from cause
    if not answer.approve:
        raise Refused(f"run {spec.name}", f"declined by {answer.by or 'somebody'}: {answer.reason}")
    if not approvals.granted(kube, spec.name):  # `poolshift approve` has written it before it woke us
        approvals.grant(kube, spec.name, by=answer.by or "Prefect UI", reason=answer.reason)


def note_flow_run(kube: Kube, run: str, flow_run_id: str) -> None:
    """Remember which Prefect run waits, and at which API, so that `approve` can wake it."""
    records.write_note(kube, run, _FLOW_RUN, {"id": flow_run_id, "api": os.environ.get("PREFECT_API_URL", "")})


def approve(cluster: Cluster, run: str, *, by: str | None, reason: str) -> str:
    """Write the approval into the cluster and wake the waiting flow run, if one is reachable.

    Raises:
        NotFound: no such run.
        Refused: its gate has not passed, so there is nothing to say yes to.

    """
    kube = api.connect(cluster)
    record = records.read(kube, run)
    if record is None:
        raise NotFound(f"run {run}", "no record in this cluster", remedy="poolshift status")
    gate = record.steps.get(Step.GATE)
    if gate is None or gate.state is not StepState.DONE:
        raise Refused(
            f"run {run}",
            f"its gate is {gate.standing}" if gate else "its gate has not been judged yet",
            expected="a gate that has passed, before somebody decides on it",
            remedy=f"poolshift status {run}; approve when the migration waits for it",
        )
    who = by or getpass.getuser()
    approvals.grant(kube, run, by=who, reason=reason)
    return f"approved by {who}{_wake(record, who, reason)}"


def _wake(record: records.RunRecord, who: str, reason: str) -> str:
    """Resume the flow run that waits; says what came of it."""
    flow_run, apis = _waiting(record)
    later = "it takes effect when the migration runs next, or when its wait ends"
    url = next((found for found in apis if found and orchestrator.healthy(found)), None)
    if not flow_run or not url:
        return f"; {later}"
    answer = {"run_input": {"approve": True, "by": who, "reason": reason}}
    try:
        got = orchestrator.post(url, f"/flow_runs/{flow_run}/resume", answer)
    except Unreachable as error:
        return f"; the waiting run was not woken ({error.observed}), {later}"
    # A resume with bad input is HTTP 200 with a REJECT body: only ACCEPT is a yes.
    if not isinstance(got, dict) or got.get("status") != "ACCEPT":
        return f"; Prefect did not resume the run ({got}), {later}"
    return "; the migration goes on"


def _waiting(record: records.RunRecord) -> tuple[str, list[str | None]]:
    """The flow run's id, and the APIs that may know it: the run's own, this shell's, the one that is served here."""
    note = record.notes.get(_FLOW_RUN) or ""
    fallbacks = [os.environ.get("PREFECT_API_URL"), orchestrator.known_server()]
    if isinstance(note, dict):
        return str(note.get("id", "")), [str(note.get("api", "")), *fallbacks]
    return str(note), fallbacks  # written before the API was noted with it
