"""`poolshift approve`: the yes is written into the run's record, and the flow run that waits for it is woken.

Prefect is asked over HTTP and not imported: that would take seconds of a command that takes none.
"""

from __future__ import annotations

import getpass
import os

from flows import orchestrator
from infra.errors import NotFound, Unreachable
from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.spec import Cluster
from tasks import approvals

_FLOW_RUN = "flow-run"


def note_flow_run(kube: Kube, run: str, flow_run_id: str) -> None:
    """Remember which Prefect run waits, and at which API, so that `approve` can wake it."""
    records.write_note(kube, run, _FLOW_RUN, {"id": flow_run_id, "api": os.environ.get("PREFECT_API_URL", "")})


def approve(cluster: Cluster, run: str, *, by: str | None, reason: str) -> str:
    """Write the approval into the cluster and wake the waiting flow run, if one is reachable.

    Raises:
        NotFound: no such run.
        Refused: it asks for no approval, or its gate has not passed: there is nothing to say yes to.

    """
    kube = api.connect(cluster)
    record = records.read(kube, run)
    if record is None:
        raise NotFound(f"run {run}", "no record in this cluster", remedy="poolshift status")
    approvals.check(record)
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
