"""One run: what every step needs, opened from the spec alone.

Prefect tasks take the spec and a step's name, never a live client; each opens the run anew, so a step can run in
any process that can reach the cluster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from infra import connect as clouds
from infra.clock import Clock, rfc3339
from infra.errors import PoolshiftError, Refused
from infra.kube import api, leases, records
from infra.kube.api import Kube
from infra.model.contract import Pools
from infra.model.pools import Pool
from infra.model.record import Step, StepRecord, StepState
from infra.model.spec import MigrationSpec

Say = Callable[[str], None]
Show = Callable[[str, Sequence[Mapping[str, Any]]], None]
FAILPOINT = "POOLSHIFT_FAILPOINT"


def reach(point: str) -> None:
    """Die here, as by `kill -9`, when the environment asks for it. How the resume tests hit exact boundaries."""
    if os.environ.get(FAILPOINT) == point:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(kw_only=True)
class Run:
    """A migration on one cluster."""

    spec: MigrationSpec
    kube: Kube
    say: Say = field(default=lambda text: None)
    passing: Say = field(default=lambda text: None)  # where something stands; the next one overwrites it
    show: Show = field(default=lambda title, rows: None)  # a table that grows

    @classmethod
    def open(
        cls, spec: MigrationSpec, say: Say | None = None, passing: Say | None = None, show: Show | None = None
    ) -> Run:
        """Connect to the spec's cluster. Nothing is written, and nothing is once a lease of this process is lost."""
        nobody: Say = lambda text: None  # noqa: E731
        return cls(
            spec=spec,
            kube=api.connect(spec.cluster).guarded(leases.lost),
            say=say or nobody,
            passing=passing or nobody,
            show=show or (lambda title, rows: None),
        )

    @property
    def name(self) -> str:
        """The run's name, which is the spec's."""
        return self.spec.name

    @property
    def clock(self) -> Clock:
        """The cluster's clock."""
        return self.kube.clock

    @property
    def simulated(self) -> bool:
        """True when the cluster is the sandbox: everything measured is then shown as simulated."""
        return self.kube.sandbox is not None

    @cached_property
    def source(self) -> Pools:
        """The cloud of the source pool."""
        return clouds.connect(self.spec.cluster, self.spec.source)

    @cached_property
    def target(self) -> Pools:
        """The cloud of the target pool."""
        return clouds.connect(self.spec.cluster, self.spec.target)

    @cached_property
    def hash(self) -> str:
        """Binds evidence and record to this spec.

        The record's own, where an older version of poolshift, which knew fewer fields, wrote the same spec.
        """
        own = _hash_of(self.spec)
        record = records.read(self.kube, self.name)
        return record.spec_hash if record is not None and _reads_as(record, own) else own

    def source_pool(self) -> Pool | None:
        """The source pool as the cloud shows it now."""
        return self.source.find(self.spec.source)

    def target_pool(self) -> Pool | None:
        """The target pool as the cloud shows it now."""
        return self.target.find(self.spec.target)

    def record(self) -> records.RunRecord:
        """The run's record, made if absent.

        Raises Refused when the name belongs to another spec, Unmeasured when a note of it cannot be read.
        """
        records.ensure_namespace(self.kube)
        record = records.create(self.kube, self.name, "migration", self.spec.model_dump_json())
        records.require_notes(self.kube, record)
        records.require_plan(self.kube, record)
        if record.spec_hash != self.hash and _only_planned(record):
            # Nothing was touched under the old spec: what the plan asked to be mended may be mended.
            records.remove(self.kube, self.name)
            record = records.create(self.kube, self.name, "migration", self.spec.model_dump_json())
        if record.spec_hash != self.hash:
            changed = ", ".join(_differences(record.spec, self.spec.model_dump(mode="json")))
            raise Refused(
                f"run {self.name}",
                f"exists with another spec (changed: {changed})",
                expected="the spec it was started with",
                remedy=f"restore that spec, or use a new name, or end the old run: poolshift rollback {self.name}",
            )
        return record

    def step(self, step: Step) -> StepRecord | None:
        """What the record says of one step."""
        found = records.read(self.kube, self.name)
        return found.steps.get(step) if found else None

    def data(self, step: Step) -> Mapping[str, Any]:
        """The facts that a finished step left for later ones; empty when there are none."""
        record = self.step(step)
        return record.data if record else {}


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a step hands back: where it stands, one line for a person, and facts for later steps."""

    summary: str
    state: StepState = StepState.DONE
    data: Mapping[str, Any] = field(default_factory=dict)


def perform(run: Run, step: Step, work: Callable[[Run], Done]) -> StepRecord:
    """Do one step, or say that it is done; its record is in the cluster before this returns.

    An error leaves the step `failed` in the record and goes on to the caller. Raises Refused, and writes nothing, where
    a lease was lost meanwhile.
    """
    before = run.step(step)
    if before is not None and before.state is StepState.DONE:
        run.say(f"{step}: done before ({before.summary})")
        return before
    known = before.data if before else {}
    begun = StepRecord(
        step=step,
        state=StepState.STARTED,
        started=rfc3339(run.clock.now()),
        data=known,
        first=(before.first or before.started) if before else "",
    )
    _write(run, begun)
    reach(f"{step}:started")
    try:
        done = work(run)
    except PoolshiftError as error:
        if not leases.lost():  # else another process says how the step stands
            _finish(run, begun, Done(summary=error.wording(), state=StepState.FAILED, data=known))
        raise
    reach(f"{step}:acted")
    record = _finish(run, begun, done)
    reach(f"{step}:recorded")
    return record


def reopen(run: Run, *steps: Step) -> None:
    """Have finished steps looked at again on the next run; what they know stays."""
    found = records.read(run.kube, run.name)
    for step in steps:
        entry = found.steps.get(step) if found else None
        if entry is not None and entry.state is StepState.DONE:
            _write(run, replace(entry, state=StepState.HELD))


def _hash_of(spec: MigrationSpec) -> str:
    return records.spec_hash(spec.model_dump_json())


def _reads_as(record: records.RunRecord, own: str) -> bool:
    """Is the recorded spec, with today's defaults for what it does not name, the one whose hash is `own`?"""
    if record.spec_hash == own:
        return True
    try:
        stored = MigrationSpec.model_validate(record.spec)
    except ValueError:
        return False
    return _hash_of(stored) == own


def _only_planned(record: records.RunRecord) -> bool:
    """Has the run got no further than a plan that it did not pass?"""
    plan = record.steps.get(Step.PLAN)
    return (
        not record.unreadable
        and set(record.steps) <= {Step.PLAN}
        and (plan is None or plan.state is not StepState.DONE)
    )


def _finish(run: Run, begun: StepRecord, done: Done) -> StepRecord:
    record = replace(begun, state=done.state, finished=rfc3339(run.clock.now()), summary=done.summary, data=done.data)
    _write(run, record)
    return record


def _write(run: Run, record: StepRecord) -> None:
    records.write_step(run.kube, run.name, record)


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths that differ between two plain specs, sorted, at most ten."""
    found: list[str] = []
    for key in sorted(set(old) | set(new)):
        one, other = old.get(key), new.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append(f"{prefix}{key}")
    return found[:10]
