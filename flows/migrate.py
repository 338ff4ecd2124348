"""The migration. Read this file first: it is the story, one line per step.

Killed at any moment and started again with the same spec, from any machine, it goes on where it was: what is done is
in the cluster, and every step looks before it acts.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.exceptions import TerminationSignal

from flows.approval import ask
from flows.ending import heed_prefect, in_full
from infra.deploy import Account
from infra.errors import GateHeld, PoolshiftError, Refused, Unmeasured
from infra.kube import access
from infra.kube.leases import Held, hold
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import MigrationSpec
from infra.model.verdict import Level, Outcome
from tasks import report as reporting
from tasks import wishes
from tasks.identity import pool_identity
from tasks.progress import say
from tasks.rules.story_refused import remedies
from tasks.run import Run
from tasks.steps import TITLES, take


@flow(name="migrate-node-pool", flow_run_name="migrate {spec.name}", persist_result=False, validate_parameters=True)
def migrate(spec: MigrationSpec) -> dict[str, Any]:
    """Move the work of one node pool to another, and retire the first when the second has proven itself.

    Returns the outcome as plain JSON: run, exit_code, summary, report. A held gate, a refusal and an error end the
    flow run as failed, with the reason as its message.
    """
    with in_full():
        run = Run.open(spec, say=say)
        access.require(run.kube, Account.MIGRATE)
        run.record()
        with hold(run.kube, [pool_identity(spec.source), pool_identity(spec.target)], spec.name) as leases:
            try:
                with heed_prefect():
                    _story(spec, run, leases)
            except PoolshiftError as error:
                _report_stop(run, error)
                raise
            except TerminationSignal:
                say(f"ended by a signal or in Prefect; the same command goes on with run {spec.name}")
                raise
    last = run.step(Step.REPORT)
    return {
        "run": spec.name,
        "exit_code": 0,
        "summary": last.summary if last else "",
        "report": str(last.data.get("html", "")) if last else "",
        "simulated": run.simulated,
    }


def _report_stop(run: Run, error: PoolshiftError) -> None:
    """A report of a run that stopped. That it cannot be written must not hide why the run stopped."""
    try:
        say(f"report: {reporting.write(run, stopped=error)}")
    except (PoolshiftError, OSError) as failure:
        say(f"the report could not be written: {failure}")


def _story(spec: MigrationSpec, run: Run, leases: list[Held]) -> None:
    run = Run.open(spec, say=say)

    def step(name: Step) -> StepRecord:
        for lease in leases:
            lease.check()
        wishes.heed(run)
        try:
            record = take(spec, name, TITLES[name])
        except (GateHeld, Unmeasured) as error:
            wishes.refuse_cancelled(run, error.observed)  # who ended it says more than what was not done by then
            raise
        if record.state is not StepState.DONE:
            wishes.refuse_cancelled(run, record.summary)
        return record

    _refuse_unless_planned(spec, step(Step.PLAN))
    step(Step.BASELINE)
    step(Step.PROVISION)
    step(Step.READINESS)
    step(Step.VALIDATE)
    _stop_unless_open(step(Step.GATE), "every verdict pass", f"the old pool is untouched; {_target_stays(run)}")
    if spec.approval.ask:
        ask(spec, run.kube, run.clock)
        step(Step.APPROVAL)
    _stop_unless_open(
        step(Step.MIGRATE),
        "every node empty, and all that moved as ready as before",
        "nodes that are not empty are as they were, the old pool is kept",
    )
    _stop_unless_open(step(Step.SOAK), "every verdict pass", "the old pool is empty, fenced and kept")
    _stop_unless_open(step(Step.RETIRE), "every verdict pass, and an empty pool", "the old pool is kept")
    step(Step.REPORT)


def _refuse_unless_planned(spec: MigrationSpec, record: StepRecord) -> None:
    """What stands in the way was said line by line, and is in the record with its remedies."""
    if record.state is StepState.DONE:
        return
    mend = [str(f["remedy"]) for f in record.data.get("findings") or () if f["level"] == Level.BLOCK and f["remedy"]]
    first = f"{mend[0]}; then look again" if mend else "mend what it names, and look again"
    raise Refused(
        f"plan {spec.name}",
        record.summary.removeprefix("refused: "),
        expected="no blocking finding",
        remedy=f"{first}: poolshift plan SPEC",
    )


def _target_stays(run: Run) -> str:
    """What a held gate leaves standing, which costs money, and how it is given up."""
    made = run.data(Step.PROVISION).get("pool") or {}
    what = f"{made.get('nodes')} × {made.get('machine_type')}" if made.get("nodes") else "its nodes"
    return (
        f"the new pool stays up, fenced off, and costs: {what}; "
        f"to give it up: poolshift rollback {run.name} --remove-target"
    )


def _stop_unless_open(record: StepRecord, expected: str, standing: str) -> None:
    """Only a step that is done lets the next irreversible one begin."""
    if record.state is StepState.DONE:
        return
    kind = GateHeld if record.data.get("outcome") == Outcome.FAIL else Unmeasured
    mend = "; ".join(remedies(record.data)) or "mend what it names"
    raise kind(
        f"{record.step.value} of the migration",
        record.summary,
        expected=expected,
        remedy=f"{mend}, and run the same command again ({standing})",
    )
