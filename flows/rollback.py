"""Rollback: put back exactly what a migration changed. At any point before the old pool is deleted."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.ending import in_full
from infra.deploy import Account
from infra.kube import access
from infra.kube.leases import hold
from infra.model.spec import MigrationSpec
from tasks import undo
from tasks.identity import pool_identity
from tasks.progress import say
from tasks.run import Run


@flow(name="rollback-migration", flow_run_name="roll back {spec.name}", persist_result=False)
def rollback(spec: MigrationSpec, remove_target: bool = False) -> dict[str, Any]:
    """Cordons, taints, cloud bounds and suspended jobs go back to what they were; the target only if asked."""
    with in_full():
        return _take_back(spec, remove_target)


def _take_back(spec: MigrationSpec, remove_target: bool) -> dict[str, Any]:
    run = undo.recorded(Run.open(spec, say=say))
    access.require(run.kube, Account.MIGRATE, only=undo.PUT_BACK)
    with hold(run.kube, [pool_identity(run.spec.source), pool_identity(run.spec.target)], run.name):
        return put_back(run.spec, remove_target)


@task(cache_policy=NO_CACHE, task_run_name="Put back what was changed", persist_result=False)
def put_back(spec: MigrationSpec, remove_target: bool) -> dict[str, Any]:
    """One idempotent pass: what is back already is left alone."""
    return undo.roll_back(Run.open(spec, say=say), remove_target=remove_target)
