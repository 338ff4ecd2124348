"""The question to a person: asked in Prefect, answered there or with `poolshift approve`.

The approval lives in the run's record in the cluster. Prefect only carries the waiting: it pauses the flow run, shows
the form and wakes the run.
"""

from __future__ import annotations

from prefect import pause_flow_run
from prefect.context import get_run_context
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput

from flows.approving import note_flow_run
from infra.clock import Clock
from infra.errors import Refused, Unmeasured
from infra.kube.api import Kube
from infra.model.spec import MigrationSpec
from tasks import approvals
from tasks.progress import say


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
