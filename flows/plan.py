"""The plan: everything that a migration would do and everything that stands in its way. Writes nothing."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from infra.errors import Refused
from infra.model.spec import MigrationSpec
from tasks import planning
from tasks.progress import say
from tasks.run import Run


@flow(name="plan-migration", flow_run_name="plan {spec.name}", persist_result=False)
def plan(spec: MigrationSpec) -> dict[str, Any]:
    """Read cluster and cloud, and show what `migrate` would do. Fails when it would refuse."""
    found = look(spec)
    if found["exit_code"]:
        raise Refused(f"plan {spec.name}", found["summary"], remedy="mend what the findings name")
    return found


@task(cache_policy=NO_CACHE, task_run_name="Read cluster and cloud, judge", persist_result=False)
def look(spec: MigrationSpec) -> dict[str, Any]:
    """The plan as plain JSON, shown as an artifact."""
    found = planning.survey(Run.open(spec, say=say))
    create_markdown_artifact(markdown=found.markdown(), key=f"{spec.name}-plan", description=f"Plan {spec.name}")
    return found.to_dict()
