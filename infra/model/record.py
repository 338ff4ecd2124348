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
UNPROVEN_TAINT = f"{PREFIX}/unproven"  # NoSchedule; value: run name. New target nodes are born with it
HELD = f"{PREFIX}/held"  # annotation on target nodes that our cordon keeps closed until the gate has passed: run name
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
    """One step's entry in the run record. Times are RFC 3339; `data` is plain JSON that later steps read.

    `started` is when it was begun last, `first` when it was begun first, "" where that is the same: between the two
    may be hours in which nobody ran it.
    """

    step: Step
    state: StepState
    started: str
    finished: str = ""
    summary: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    first: str = ""

    @property
    def standing(self) -> str:
        """State and summary, which may begin with the same word: "held: fail: readiness"."""
        said = self.summary.removeprefix(self.state.value).lstrip(". ")
        return f"{self.state.value}: {said}" if said else self.state.value

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
            first=str(raw.get("first") or ""),
        )


class SliceStage(StrEnum):
    """How far a slice of a swap has come, in order. Each is written when its work is done and read back."""

    CHOSEN = "chosen"  # which source nodes it takes
    DRAINED = "drained"  # they are proven empty
    GIVING = "giving"  # the cloud may have been asked to end their machines
    GIVEN = "given"  # the machines are gone, and no other
    FREE = "free"  # the reservation has had room for the new ones
    GROWN = "grown"  # the target has its new nodes
    PROVEN = "proven"  # they have passed the gate
    OPEN = "open"  # and take work

    def reached(self, other: SliceStage) -> bool:
        """Is this stage `other` or a later one?"""
        order = list(SliceStage)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, kw_only=True)
class SliceRecord:
    """One slice's note in the run record.

    `nodes` maps a source node to its UID and the cloud's id of its machine; `add` target nodes are made in its place,
    `total` there are then; `new` are their UIDs once they are proven, by the verdicts in `gate`; `moved` is how the
    drain went.
    """

    number: int
    stage: SliceStage
    nodes: Mapping[str, tuple[str, str]]
    add: int
    total: int
    new: tuple[str, ...] = ()
    gate: Mapping[str, Any] = field(default_factory=dict)
    moved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """Its key among the run's notes."""
        return f"slice-{self.number}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SliceRecord:
        """Raises KeyError or ValueError where the note is not ours: a slice must never be guessed."""
        return cls(
            number=int(data["number"]),
            stage=SliceStage(data["stage"]),
            nodes={str(name): (str(uid), str(machine)) for name, (uid, machine) in data["nodes"].items()},
            add=int(data["add"]),
            total=int(data["total"]),
            new=tuple(str(uid) for uid in data.get("new") or ()),
            gate=data.get("gate") or {},
            moved=data.get("moved") or {},
        )
