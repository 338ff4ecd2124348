"""Kick a deployment and follow its run to the end: `poolshift migrate SPEC --submit`."""

from __future__ import annotations

import time
import uuid
from typing import Any

from flows import orchestrator
from infra.errors import GateHeld, NotFound, PoolshiftError, Refused, Unmeasured, Unreachable, facts_of
from infra.kube import api, records
from infra.model.record import Step, StepState
from infra.model.spec import MigrationSpec
from tasks.progress import say

_POLL = 1.0
_FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
_KINDS: dict[str, type[PoolshiftError]] = {"GateHeld": GateHeld, "Unmeasured": Unmeasured, "Refused": Refused}


def follow(deployment: str, spec: MigrationSpec) -> dict[str, Any]:
    """Create a flow run of the deployment and report its steps until it ends.

    Raises:
        Unreachable: no Prefect API is named or known, or it does not answer.
        NotFound: no such deployment; says how to register it.
        GateHeld, Unmeasured, Refused: as the migration itself would.
        Unmeasured: also when the run completed, but the cluster of `spec` has no finished record of it.
        Unreachable: the run crashed, or was cancelled.

    """
    with orchestrator.served_api() as url:
        return _follow(url, deployment, spec)


def _follow(url: str, deployment: str, spec: MigrationSpec) -> dict[str, Any]:
    found = _deployment(url, deployment)
    # With the key, a POST that is sent again after a lost answer finds the run that the first one made.
    created = orchestrator.post(
        url,
        f"/deployments/{found}/create_flow_run",
        {"parameters": {"spec": spec.model_dump(mode="json")}, "idempotency_key": str(uuid.uuid4())},
    )
    run_id = str(created["id"])  # type: ignore[index]
    say(f"flow run {run_id} of {deployment}")
    kube = api.connect(spec.cluster)
    shown: dict[str, StepState] = {}
    while True:
        state = state_of(url, run_id)
        record = records.read(kube, spec.name)
        for step, entry in (record.steps if record else {}).items():
            if shown.get(step) is not entry.state:
                shown[step] = entry.state
                say(f"{step.value} {entry.standing}")
        if state["type"] in _FINAL:
            return {**_ended(state, spec, run_id, record), "simulated": kube.sandbox is not None}
        time.sleep(_POLL)


def _ended(state: dict[str, Any], spec: MigrationSpec, run_id: str, record: records.RunRecord | None) -> dict[str, Any]:
    if state["type"] == "COMPLETED":
        last = record.steps.get(Step.REPORT) if record else None
        if last is None or last.state is not StepState.DONE:
            raise Unmeasured(
                f"flow run {run_id}",
                f"is completed, and the record of run {spec.name} in this cluster has no finished report",
                expected="the deployment and this command work on the same cluster",
                remedy=f"poolshift status {spec.name}; the run's log is in the Prefect UI",
            )
        return {
            "run": spec.name,
            "exit_code": 0,
            "summary": last.summary,
            "report": str(last.data.get("html", "")),
            "flow_run": run_id,
        }
    raise failure(str(state.get("message") or state.get("name") or state["type"]), spec.name, run_id)


def failure(message: str, run: str, run_id: str) -> PoolshiftError:
    """The error that ended a flow run, back from its words: what to type next is not to be looked for in a sentence."""
    # Prefect words a failed run as "Flow run encountered an exception: Kind: text".
    kind = next((k for k in _KINDS if f"{k}:" in message), "")
    text = message.split(f"{kind}:", 1)[-1].strip() if kind else message
    observed, expected, remedy = facts_of(text)
    look = f"poolshift status {run}; the run's log is in the Prefect UI"
    return _KINDS.get(kind, Unreachable)(
        f"flow run {run_id}", observed, expected=expected, remedy=f"{remedy} (or see: {look})" if remedy else look
    )


def _deployment(url: str, name: str) -> str:
    flow, _, own = name.partition("/")
    found = orchestrator.post(
        url, "/deployments/filter", {"deployments": {"name": {"any_": [own]}}, "flows": {"name": {"any_": [flow]}}}
    )
    if not isinstance(found, list) or not found:
        raise NotFound(
            f"deployment {name}",
            f"not registered with {url}",
            remedy="register and serve it: poolshift serve (or: prefect deploy --all, and a worker)",
        )
    return str(found[0]["id"])


def state_of(url: str, run_id: str) -> dict[str, Any]:
    """A flow run's state as Prefect has it. Raises NotFound, Unreachable."""
    found = orchestrator.post(url, "/flow_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
    if not isinstance(found, list) or not found:
        raise NotFound(f"flow run {run_id}", "is gone", remedy="poolshift status shows where the migration stands")
    state = found[0].get("state") or {}
    return {"type": "SCHEDULED", **state}
