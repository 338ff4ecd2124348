"""How workloads that end say so: a condition, a phase or a status, each kind in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPLETE, FAILED, ENDED, ABORTED = "complete", "failed", "ended", "aborted"
# A condition (Job, JobSet, TrainJob, Kubeflow's), a phase (Volcano), a status (RayJob).
_SAID = {
    FAILED: frozenset({"Failed", "FAILED", "STOPPED", "Terminated"}),
    COMPLETE: frozenset({"Complete", "Completed", "Succeeded", "SUCCEEDED"}),
    ENDED: frozenset({"Finished"}),  # Kueue's Workload: that it is over, and not how
    ABORTED: frozenset({"Aborted"}),  # Volcano: stopped by a command, until another one resumes it
}


def end_of(obj: Mapping[str, Any]) -> str:
    """How a workload has ended as a whole, "" before that. One that says that it failed has failed."""
    status = obj.get("status") or {}
    state = status.get("state")
    words = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    deployed = status.get("jobDeploymentStatus")
    words |= {deployed, status.get("jobStatus") if deployed != "Retrying" else None}  # RayJob: one try of several
    words |= {state.get("phase")} if isinstance(state, Mapping) else set()
    return next((end for end, said in _SAID.items() if words & said), "")


def is_over(obj: Mapping[str, Any]) -> bool:
    """Has it ended for good, whichever way?"""
    return end_of(obj) not in ("", ABORTED)
