"""The form of an approval, and the command that fills it in without a browser."""

from __future__ import annotations

import getpass

from prefect.input import RunInput

from flows import orchestrator
from infra.errors import NotFound, Unreachable
from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.spec import Cluster
from tasks import approvals

_FLOW_RUN = "flow-run"


class Approval(RunInput):
    """What the Prefect UI asks for."""

    approve: bool = False
    by: str = ""
    reason: str = ""


def note_flow_run(kube: Kube, run: str, flow_run_id: str) -> None:
    """Remember which Prefect run waits, so that `approve` can wake it."""
    records.write_note(kube, run, _FLOW_RUN, flow_run_id)


def approve(cluster: Cluster, run: str, *, by: str | None, reason: str) -> str:
    """Write the approval into the cluster and wake the waiting flow run, if one is reachable."""
    kube = api.connect(cluster)
    record = records.read(kube, run)
    if record is None:
        raise NotFound(f"run {run}", "no record in this cluster", remedy="poolshift status")
    who = by or getpass.getuser()
    approvals.grant(kube, run, by=who, reason=reason)
    flow_run, url = record.notes.get(_FLOW_RUN), orchestrator.known_server()
    if not flow_run or not url:
        return f"approved by {who}; it takes effect when the migration runs next"
    answer = {"run_input": {"approve": True, "by": who, "reason": reason}}
    try:
        got = orchestrator.post(url, f"/flow_runs/{flow_run}/resume", answer)
    except Unreachable as error:
        return f"approved by {who}; the waiting run was not woken ({error.observed}), it takes effect when it runs next"
    # A resume with bad input is HTTP 200 with a REJECT body: only ACCEPT is a yes.
    if not isinstance(got, dict) or got.get("status") != "ACCEPT":
        return f"approved by {who}; Prefect did not resume the run ({got}), it takes effect when it runs next"
    return f"approved by {who}; the migration goes on"
