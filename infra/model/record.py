"""What poolshift writes into a cluster and a cloud: every key in one place, and the run record.

The cluster is the database. Killing anything at any moment and running again continues from what these say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

PREFIX = "poolshift.dev"
FENCE_TAINT = f"{PREFIX}/fenced"  # NoSchedule; value: run name. Keeps new pods off the source pool
UNPROVEN_TAINT = f"{PREFIX}/unproven"  # NoSchedule on the target until its gate has passed; value: run name
RUN = f"{PREFIX}/run"  # label, annotation and cloud tag: the run that owns or changed the object
PRIOR = f"{PREFIX}/prior"  # annotation: JSON of the state before us, to be restored
PROBE = f"{PREFIX}/probe"  # label on probe objects: name in the probe catalogue
SIMULATED = f"{PREFIX}/simulated"  # label on nodes that the sandbox made
MANAGED_BY = "app.kubernetes.io/managed-by"  # value: poolshift


class Step(StrEnum):
    """The steps of a migration, in order."""

    PLAN = "plan"
    BASELINE = "baseline"
    PROVISION = "provision"
    READINESS = "readiness"
    VALIDATE = "validate"
    GATE = "gate"
    APPROVAL = "approval"
    MIGRATE = "migrate"
    SOAK = "soak"
    RETIRE = "retire"
    REPORT = "report"


class StepState(StrEnum):
    """Where a step stands. Anything but `DONE` is looked at again on the next run."""

    STARTED = "started"
    DONE = "done"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One step's entry in the run record. Times are RFC 3339; `data` is plain JSON that later steps read."""

    step: Step
    state: StepState
    started: str
    finished: str = ""
    summary: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Compact JSON for one ConfigMap key."""
        return json.dumps(asdict(self), separators=(",", ":"), default=str)

    @classmethod
    def from_json(cls, text: str) -> StepRecord:
        """Tolerant: an unknown state is read as failed, so it is looked at again."""
        raw = json.loads(text)
        state = raw.get("state")
        return cls(
            step=Step(raw["step"]),
            state=StepState(state) if state in set(StepState) else StepState.FAILED,
            started=str(raw.get("started", "")),
            finished=str(raw.get("finished", "")),
            summary=str(raw.get("summary", "")),
            data=raw.get("data") or {},
        )
