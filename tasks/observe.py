"""Where the runs of a cluster stand, read from their records and leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from infra.clock import SystemClock, parse_time
from infra.errors import NotFound
from infra.kube import api, leases, records
from infra.kube.api import Kube
from infra.model.record import RUN, Step, StepState
from infra.model.spec import Cluster
from infra.model.verdict import Finding, Level
from tasks import board, wishes
from tasks import report as reporting
from tasks.rules.nearest import nearest
from tasks.rules.slice_rows import rows_of
from tasks.rules.story_refused import remedies
from tasks.rules.story_tables import took


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One run: its steps as rows, the step it is at, and who holds its pools."""

    run: str
    kind: str
    created: str
    at: str
    holders: tuple[str, ...]
    """Who holds its pools, each once."""
    steps: tuple[Mapping[str, str], ...]
    source: str = ""
    target: str = ""
    wish: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)
    slices: tuple[Mapping[str, str], ...] = ()
    unreadable: tuple[Finding, ...] = ()
    unrenewed: Mapping[str, int] = field(default_factory=dict)
    """Of holders that are overdue: wall-clock seconds since they renewed a lease. Such a one is dead, or cut off."""
    next: tuple[str, ...] = ()
    """What to type, where no process runs it and it has not ended; the first says so."""
    report: str = ""
    """The path of its report on this machine, "" where there is none."""
    simulated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "run": self.run,
            "kind": self.kind,
            "created": self.created,
            "source": self.source,
            "target": self.target,
            "at": self.at,
            "held_by": list(self.holders),
            "not_renewed_for_seconds": dict(self.unrenewed),
            "wish": self.wish,
            "progress": dict(self.progress),
            "steps": [dict(step) for step in self.steps],
            "slices": [dict(each) for each in self.slices],
            "unreadable": [f.to_dict() for f in self.unreadable],
            "next": list(self.next),
            "report": self.report,
            "simulated": self.simulated,
        }


def runs(cluster: Cluster, name: str | None = None) -> list[Standing]:
    """Every run of the namespace, or one. Raises NotFound for an unknown name."""
    kube = api.connect(cluster)
    found = [_standing(kube, record) for record in records.list_runs(kube)]
    if name is None:
        return found
    chosen = [s for s in found if s.run == name]
    if not chosen:
        known = f"one of: {', '.join(s.run for s in found)}" if found else "a run; this namespace has none"
        near = nearest(name, [s.run for s in found])
        remedy = f"poolshift status {near[0]}" if near else "poolshift status, which shows all there are"
        raise NotFound(f"run {name}", "no record in this cluster", expected=known, remedy=remedy)
    return chosen


def standing(record: records.RunRecord, holders: tuple[str, ...], namespace: str = "poolshift") -> Standing:
    """The rows of one record, in the order of the steps. A step that cannot be read has a row that says so."""
    rows = []
    for step in Step:
        entry = record.steps.get(step)
        if entry is None and f"step.{step.value}" in record.unreadable:
            rows.append({"step": step.value, "state": "unreadable", "took": "", "summary": "see below"})
        if entry is None:
            continue
        rows.append({"step": step.value, "state": entry.state.value, "took": took(entry), "summary": entry.summary})
    return Standing(
        run=record.name,
        kind=record.kind,
        created=record.created,
        at=_at(record),
        holders=holders,
        steps=tuple(rows),
        source=str((record.spec.get("source") or {}).get("name", "")),
        target=str((record.spec.get("target") or {}).get("name", "")),
        wish=wishes.standing(record),
        progress=_progress(record),
        slices=tuple(rows_of(record.notes)),
        unreadable=tuple(_unreadable(record, namespace)),
    )


def _at(record: records.RunRecord) -> str:
    """Where it stands: at what was begun last, which need not be the furthest step that it ever came to."""
    order = list(Step)
    unreadable = [s for s in order if s not in record.steps and f"step.{s.value}" in record.unreadable]
    if not record.steps and not unreadable:
        return "not started"
    begun = [e for e in record.steps.values() if e.state is StepState.STARTED]
    last = max(begun or record.steps.values(), key=lambda e: (e.finished, order.index(e.step)), default=None)
    if last is None or (unreadable and order.index(unreadable[-1]) > order.index(last.step)):
        return f"{unreadable[-1].value}: unreadable"
    return f"after {last.step.value}" if last.state is StepState.DONE else f"{last.step.value}: {last.state.value}"


def to_go_on(record: records.RunRecord) -> tuple[str, ...]:
    """What to type about a run that no process runs: what mends the step that holds it, then how it goes on."""
    over = record.steps.get(Step.REPORT)
    if record.kind != "migration" or (over is not None and over.state is StepState.DONE):
        return ()
    if wishes.standing(record):  # what is asked of it has its own line
        return ("no process runs it now, or one is just starting",)
    held = next((e for s in reversed(Step) if (e := record.steps.get(s)) and e.state is StepState.HELD), None)
    stands = held is not None and _at(record) == f"{held.step.value}: held"
    return (
        "no process runs it now, or one is just starting; what was begun stays as it is until it goes on",
        *(remedies(held.data) if held is not None and stands else ()),
        "to go on: poolshift migrate SPEC",
    )


def _unreadable(record: records.RunRecord, namespace: str) -> Iterator[Finding]:
    """Each entry of the record that cannot be read, with how to see it and what goes on without it."""
    for key, why in sorted(record.unreadable.items()):
        path = key.replace(".", "\\.")
        step = key.startswith("step.")
        yield Finding(
            level=Level.WARN,
            code="record-unreadable",
            object=f"run {record.name}, {key.replace('.', ' ', 1)}",
            observed=f"its entry cannot be read ({why})",
            expected="JSON as poolshift writes it",
            remedy=f"kubectl get configmap poolshift-run-{record.name} -n {namespace} -o jsonpath='{{.data.{path}}}'; "
            + ("poolshift migrate with the same spec does the step again" if step else "mend it before going on"),
        )


def _progress(record: records.RunRecord) -> Mapping[str, Any]:
    """Where the waves stand, while they are under way."""
    entry, found = record.steps.get(Step.MIGRATE), record.notes.get(board.NOTE)
    return found if entry is not None and entry.state is not StepState.DONE and isinstance(found, dict) else {}


def _standing(kube: Kube, record: records.RunRecord) -> Standing:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
    held = [lease.get("spec") or {} for lease in kube.list(path, {"labelSelector": f"{RUN}={record.name}"})]
    holders, unrenewed = held_by(held, SystemClock().now())  # leases live on the wall clock
    found = standing(record, holders, kube.namespace)
    html = reporting.own_folder(record) / "report.html"
    return replace(
        found,
        unrenewed=unrenewed,
        next=() if any(not is_gone(who) and who not in unrenewed for who in holders) else to_go_on(record),
        report=str(html) if html.is_file() else "",
        simulated=kube.sandbox is not None,
    )


def is_gone(holder: str) -> bool:
    """Was it provably a process of this machine that is no more?"""
    found = leases.Holder.parse(holder)
    return found is not None and found.is_gone


def held_by(held: Iterable[Mapping[str, Any]], now: datetime) -> tuple[tuple[str, ...], dict[str, int]]:
    """Who holds leases of these specs, each once, and for how many seconds those that are overdue have not renewed."""
    ages: dict[str, list[tuple[float, float]]] = {}
    for spec in held:
        renewed = str(spec.get("renewTime") or "")
        age = (now - parse_time(renewed)).total_seconds() if renewed else 0.0
        duration = float(spec.get("leaseDurationSeconds") or leases.DURATION)
        ages.setdefault(str(spec.get("holderIdentity") or ""), []).append((age, duration))
    overdue = {who: [age for age, duration in each if age > duration] for who, each in ages.items()}
    return tuple(sorted(filter(None, ages))), {who: int(max(late)) for who, late in overdue.items() if late and who}
