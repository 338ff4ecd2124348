"""Revalidation: prove live pools again, on a schedule, so that nothing stays broken for 271 days."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from flows.ending import in_full
from infra.deploy import Account
from infra.errors import GateHeld, Unmeasured
from infra.kube import access, api
from infra.model.spec import RevalidationSpec
from infra.model.verdict import Outcome, worst
from tasks import revalidation
from tasks.progress import say


@flow(name="revalidate-pools", flow_run_name="revalidate {spec.name}", persist_result=False)
def revalidate(spec: RevalidationSpec, fail_run: bool = False) -> dict[str, Any]:
    """Devices on every node of every pool, and the transport on idle nodes within the budget, which is one for all.

    With `fail_run` (what a schedule wants) the flow run itself ends as failed when a pool does not pass.
    """
    if spec.probe_idle_nodes:
        access.require(api.connect(spec.cluster), Account.PROVE)
    pools: list[dict[str, Any]] = []
    for index, pool in enumerate(spec.pools):
        spent = sum(before["gpu_minutes"] for before in pools)
        pools.append(look(spec, index, f"Look at pool {pool.name}", spent))
    outcome = worst(Outcome(pool["outcome"]) for pool in pools)
    summary = "; ".join(pool["summary"] for pool in pools)
    create_table_artifact(
        key=f"{spec.name}-pools",
        table=[
            {"pool": p["pool"], "outcome": p["outcome"], "since": p["since"], "reason": p["summary"]} for p in pools
        ],
        description=f"Revalidation {spec.name}",
    )
    if fail_run and outcome.exit_code:
        kind = GateHeld if outcome is Outcome.FAIL else Unmeasured
        mend = "; ".join(dict.fromkeys(str(each) for pool in pools for each in pool["next"])) or "mend what it names"
        with in_full():
            raise kind(f"revalidation {spec.name}", summary, remedy=f"{mend}; the next run looks again")
    return {
        "run": spec.name,
        "outcome": outcome.value,
        "exit_code": outcome.exit_code,
        "summary": summary,
        "pools": pools,
    }


@task(cache_policy=NO_CACHE, task_run_name="{title}", persist_result=False)
def look(spec: RevalidationSpec, index: int, title: str, spent: float = 0.0) -> dict[str, Any]:
    """One pool: its verdicts, and since when it fails."""
    found = revalidation.look(spec, spec.pools[index], say, spent)
    create_markdown_artifact(markdown=found["markdown"], key=f"{spec.name}-{index}", description=title)
    return found
