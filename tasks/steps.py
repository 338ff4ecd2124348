"""The steps as Prefect tasks: one per step, named for a person, never served from a cache.

A task takes the spec and the step's name, so it can run in any process; what it did is in the cluster before it
returns. Task runs and artifacts are for people to look at: no step ever reads them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from infra.model.record import Step, StepRecord
from infra.model.spec import MigrationSpec
from tasks.migration import WORK
from tasks.progress import complete, passing, say
from tasks.run import Run, perform

TITLES: Mapping[Step, str] = {
    Step.PLAN: "Plan: what stands in the way",
    Step.BASELINE: "Baseline: measure the old pool",
    Step.PROVISION: "Provision the new pool",
    Step.READINESS: "Readiness: devices on every node",
    Step.VALIDATE: "Validate: transport, bandwidth, step time",
    Step.GATE: "Gate: is the new pool proven",
    Step.APPROVAL: "Approval",
    Step.MIGRATE: "Migrate the work",
    Step.SOAK: "Soak",
    Step.RETIRE: "Retire the old pool",
    Step.REPORT: "Report",
}


@task(cache_policy=NO_CACHE, task_run_name="{title}", persist_result=False)
def take(spec: MigrationSpec, step: Step, title: str) -> StepRecord:
    """Do one step of a migration, or find it done; returns its record."""
    logger = get_run_logger()

    def tell(text: str) -> None:
        logger.info(complete(text))
        say(text)

    def pass_by(text: str) -> None:
        if passing(text):
            logger.info(text)

    def show(description: str, rows: Sequence[Mapping[str, Any]]) -> None:
        store(f"{spec.name}-{step.value}-table", description, rows)

    record = perform(Run.open(spec, say=tell, passing=pass_by, show=show), step, WORK[step])
    publish(spec.name, record)
    return record


def publish(run: str, record: StepRecord) -> None:
    """Show a step's result as an artifact of the run. Best effort: the record in the cluster is what counts."""
    from tasks.rules.artifact import describe

    shown = describe(run, record)
    key = f"{run}-{record.step.value}"
    if shown.rows:
        store(f"{key}-table", shown.title, shown.rows)
    if shown.markdown:
        _quietly(lambda: create_markdown_artifact(markdown=shown.markdown, key=key, description=shown.title), key)


def store(key: str, description: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table as an artifact; stored again under its key, the new version is what the UI shows."""
    table = [dict(row) for row in rows]
    _quietly(lambda: create_table_artifact(table=table, key=key, description=description), key)


def _quietly(create: Callable[[], object], key: str) -> None:
    try:
        create()
    except Exception as error:  # noqa: BLE001 - whatever Prefect's API answers, the migration goes on
        get_run_logger().warning("artifact %s was not stored: %s", key, error)
