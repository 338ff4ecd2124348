"""From a run's record to what a director reads: headline, figures, tables, next steps. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from infra.model.evidence import Evidence
from infra.model.measurement import Steps, Sweep
from infra.model.record import Step, StepRecord, StepState
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.gangs import ended_words
from tasks.rules.wording import and_more, size, span

Records = Mapping[Step, StepRecord]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number with its name."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Story:
    """Everything that the report shows, except its pictures."""

    run: str
    when: str
    outcome: str
    headline: str
    lead: str
    simulated: bool
    figures: tuple[Figure, ...]
    next: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]


def tell(
    run: str,
    records: Records,
    *,
    when: str,
    simulated: bool,
    stopped: str = "",
    slices: Sequence[Mapping[str, str]] = (),
) -> Story:
    """The story as far as it went. `stopped` is the error that ended it, in words; `slices` are the rows of a swap."""
    findings = tuple(_findings(records))
    blocks = [f for f in findings if f.level is Level.BLOCK]
    held = _held(records)
    retired = _done(records, Step.RETIRE)
    if retired:
        ends = "is empty, fenced and kept" if retired.data.get("kept") else "is retired"
        outcome, headline = "pass", f"{_source(records)} {ends}; its work runs on {_target(records)}"
    elif stopped or held:
        outcome = "unmeasured" if held and held.data.get("outcome") == Outcome.UNMEASURED else "fail"
        headline = _stopped_headline(held, blocks, records)
    else:
        outcome, headline = "unmeasured", f"under way: {_last(records)}"
    return Story(
        run=run,
        when=when,
        outcome=outcome,
        headline=headline,
        lead=_lead(records, stopped, simulated),
        simulated=simulated,
        figures=tuple(_figures(records)),
        next=tuple(_next(run, blocks, held, stopped)),
        verdicts=_verdicts(records),
        findings=findings,
        tables=tuple(_tables(records, slices)),
    )


def evidence(records: Records, step: Step) -> list[Evidence]:
    """The evidence that a step left."""
    record = records.get(step)
    return [Evidence.from_dict(item) for item in (record.data.get("evidence") or ())] if record else []


def sweep_rows(found: Sequence[Evidence]) -> list[tuple[int, float]]:
    """(bytes, GB/s) of the bandwidth sweep, else of the transport proof: the median over rounds at each size."""
    by_size: dict[int, list[float]] = {}
    for probe in ("bandwidth", "transport-proof"):
        for item in found:
            if item.probe == probe:
                for row in Sweep.from_dict(item.reading).rows:
                    by_size.setdefault(row.size_bytes, []).append(row.busbw_gb_s)
    return sorted((s, statistics.median(values)) for s, values in by_size.items())


def step_seconds(found: Sequence[Evidence]) -> list[float]:
    """Measured training steps in seconds."""
    return [s for item in found if item.probe == "train-step" for s in Steps.from_dict(item.reading).seconds]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Findings of one code: how many, the first few, and the earliest time since when any of them stands."""

    first: Finding
    count: int
    examples: tuple[Finding, ...]
    since: str


def kinds(findings: Sequence[Finding], examples: int = 3) -> list[Kind]:
    """Findings by level and code, in the order of their first: forty pods behind one budget are one kind."""
    groups: dict[tuple[Level, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.code), []).append(finding)
    return [
        Kind(
            first=group[0],
            count=len(group),
            examples=tuple(group[:examples]),
            since=min((f.since for f in group if f.since), default=""),
        )
        for group in groups.values()
    ]


def facts(records: Records) -> dict[str, str]:
    """Single sentences for the terminal: what stopped it, what moved, before and after. Absent ones are left out."""
    found: dict[str, str] = {}
    findings = list(_findings(records))
    blocks = [f for f in findings if f.level is Level.BLOCK]
    named = next((f for f in blocks if f.code.startswith("plugin-")), next(iter(blocks), None))
    if named is not None:
        found["plugin"] = named.fact() + "."
        there = next((f for f in findings if f.code == f"source-{named.code}" and f.object == named.object), None)
        if there is not None:
            found["history"] = f"On the old pool the same has been so since {there.since}, and nothing was red."
        if named.remedy:
            found["remedy"] = f"To mend it: {named.remedy}."
    validate = records.get(Step.VALIDATE)
    if validate is not None and validate.state is StepState.HELD:
        found["transport"] = validate.summary.partition("; ")[0]  # every line that says so is in the gate's table
    migrated = _done(records, Step.MIGRATE)
    if migrated:
        found["moved"] = migrated.summary
    before, after = (dict(sweep_rows(evidence(records, s))) for s in (Step.BASELINE, Step.VALIDATE))
    shared = sorted(set(before) & set(after))
    if shared:
        at = shared[-1]
        found["bandwidth"] = (
            f"All-reduce busbw at {size(at)}{_nodes_of(records)}: {before[at]:.1f} -> {after[at]:.1f} GB/s."
        )
    old, new = (step_seconds(evidence(records, s)) for s in (Step.BASELINE, Step.VALIDATE))
    if old and new:
        one, other = statistics.median(old), statistics.median(new)
        found["steps"] = f"Median training step: {one:.2f} -> {other:.2f} s ({one / other:.2f} times faster)."
    retired = _done(records, Step.RETIRE)
    if retired:
        found["retired"] = retired.summary
    reported = records.get(Step.REPORT)
    if reported is not None and reported.data.get("html"):
        found["report"] = str(reported.data["html"])
    return found


def _nodes_of(records: Records) -> str:
    """On how many nodes the two sweeps ran, where that differs: " (2 and 4 nodes)"."""
    counts = [
        len(e.nodes) for s in (Step.BASELINE, Step.VALIDATE) for e in evidence(records, s) if e.probe == "bandwidth"
    ]
    return f" ({counts[0]} and {counts[-1]} nodes)" if len(set(counts)) > 1 else ""


def _done(records: Records, step: Step) -> StepRecord | None:
    record = records.get(step)
    return record if record is not None and record.state is StepState.DONE else None


def _held(records: Records) -> StepRecord | None:
    """The gate-like step that stopped the run."""
    for step in (Step.RETIRE, Step.SOAK, Step.MIGRATE, Step.GATE):
        record = records.get(step)
        if record is not None and record.state is StepState.HELD:
            return record
    return None


def _plan(records: Records) -> Mapping[str, Any]:
    record = records.get(Step.PLAN)
    return record.data if record else {}


def _source(records: Records) -> str:
    return str(_plan(records).get("source") or "the old pool")


def _target(records: Records) -> str:
    return str(_plan(records).get("target") or "the new pool")


def _last(records: Records) -> str:
    reached = [s for s in Step if s in records]
    return f"{reached[-1].value} {records[reached[-1]].state.value}" if reached else "not started"


def _stopped_headline(held: StepRecord | None, blocks: Sequence[Finding], records: Records) -> str:
    if held is not None and held.step is Step.GATE:
        plugin = next((f for f in blocks if f.code.startswith("plugin-")), None)
        why = f"{plugin.object} never came up on the new pool" if plugin else held.summary.removeprefix("held. ")
        return f"Refused: {why}"
    if held is not None:
        return f"C{held.summary[1:]}" if _cancelled(held) else f"Stopped at {held.step.value}: {held.summary}"
    failed = [r for r in records.values() if r.state is StepState.FAILED]
    return f"Stopped at {failed[-1].step.value}: {failed[-1].summary}" if failed else f"Stopped: {_last(records)}"


def _cancelled(held: StepRecord) -> bool:
    """Did a person end it?"""
    return held.summary.startswith("cancelled by")


def _lead(records: Records, stopped: str, simulated: bool) -> str:
    sentences = list(facts(records).values())
    text = " ".join(s if s.endswith(".") else f"{s}." for s in sentences if not s.startswith("/"))
    if not text:
        text = stopped or f"From {_source(records)} to {_target(records)}."
    return text + (" Every figure comes from the sandbox's model and is simulated." if simulated else "")


def _figures(records: Records) -> Iterable[Figure]:
    before, after = (dict(sweep_rows(evidence(records, s))) for s in (Step.BASELINE, Step.VALIDATE))
    shared = sorted(set(before) & set(after)) or sorted(after)
    if shared:
        at = shared[-1]
        value = f"{before[at]:.1f} → {after[at]:.1f} GB/s" if at in before else f"{after[at]:.1f} GB/s"
        yield Figure(name=f"all-reduce busbw at {size(at)}{_nodes_of(records)}", value=value)
    old, new = (step_seconds(evidence(records, s)) for s in (Step.BASELINE, Step.VALIDATE))
    if old and new:
        yield Figure(
            name="median training step", value=f"{statistics.median(old):.2f} → {statistics.median(new):.2f} s"
        )
    spent = sum(e.gpu_minutes for s in (Step.BASELINE, Step.VALIDATE, Step.SOAK) for e in evidence(records, s))
    if spent:
        yield Figure(name="GPU-minutes of validation", value=f"{spent:.0f}")
    migrated = records.get(Step.MIGRATE)
    if migrated is not None and migrated.data.get("pods") is not None:
        yield Figure(name="pods moved", value=_pods_moved(migrated))


def _pods_moved(migrated: StepRecord) -> str:
    """All that had to leave, once the step is done; else how many have, a gang's with its last rank."""
    every, waves = int(migrated.data["pods"]), migrated.data.get("waves") or ()
    if migrated.state is StepState.DONE:
        return str(every)
    gangs = sum(int(g.get("ranks") or 0) for w in waves for g in w.get("gangs") or () if g.get("running"))
    # What an earlier process has moved is not in this list.
    return f"at least {sum(int(w.get('moved') or 0) for w in waves) + gangs} of {every}"


def _next(run: str, blocks: Sequence[Finding], held: StepRecord | None, stopped: str) -> Iterable[str]:
    if held is not None and _cancelled(held):
        yield f"poolshift resume {run}, then the same poolshift migrate again: it goes on where it stood"
        yield f"or give it up: poolshift rollback {run}"
        return
    of_step = (held.data.get("remedies") or ()) if held is not None else ()
    remedies = dict.fromkeys((*of_step, *(f.remedy for f in blocks if f.remedy)))
    yield from list(remedies)[:5]
    if held is not None and held.step is Step.GATE:
        yield "run the same poolshift migrate again: the pool is measured anew and the run goes on"
        yield "or give it up: poolshift rollback SPEC --remove-target"
    elif held is not None and held.step is Step.MIGRATE:
        yield "run the same poolshift migrate again: it goes on where it stood"
        yield f"or give it up: poolshift rollback {run}"
    elif stopped and not remedies:
        yield stopped


def _verdicts(records: Records) -> tuple[Verdict, ...]:
    for step in (Step.RETIRE, Step.GATE, Step.VALIDATE, Step.READINESS):
        record = records.get(step)
        if record is not None and record.data.get("verdicts"):
            return tuple(Verdict.from_dict(v) for v in record.data["verdicts"])
    return ()


def _findings(records: Records) -> Iterable[Finding]:
    seen = set()
    for step in (Step.READINESS, Step.VALIDATE, Step.PLAN, Step.MIGRATE, Step.SOAK, Step.RETIRE):
        record = records.get(step)
        if record is None:
            continue
        raw = list(record.data.get("findings") or ())
        raw += [f for v in record.data.get("verdicts") or () for f in v.get("findings") or ()]
        for item in raw:
            finding = Finding.from_dict(item)
            key = (finding.code, finding.object, finding.observed)
            if key not in seen and finding.level is not Level.INFO:
                seen.add(key)
                yield finding


def _tables(records: Records, slices: Sequence[Mapping[str, str]]) -> Iterable[Table]:
    told = [r for s in Step if s is not Step.REPORT and (r := records.get(s)) is not None]  # it is being written
    rows = tuple((r.step.value, r.state.value, _took(r), r.summary) for r in told)
    yield Table(title="Steps", columns=("step", "state", "took", "what"), rows=rows)
    if slices:
        yield Table(
            title="Slices",
            columns=tuple(slices[0]),
            rows=tuple(tuple(each.values()) for each in slices),
            note="Each is proven by the whole gate before the next source node is given up.",
        )
    migrated = records.get(Step.MIGRATE)
    waves = migrated.data.get("waves") if migrated else None
    if waves:
        yield Table(
            title="Waves",
            columns=("wave", "nodes", "pods", "gangs", "outcome"),
            rows=tuple(
                (
                    str(w.get("number", "")),
                    and_more(sorted(w.get("nodes") or {}), 4),
                    str(w.get("moved", "")),
                    "; ".join(f"{g.get('workload')}: {ended_words(g)}" for g in w.get("gangs") or ()),
                    ", ".join(sorted(set((w.get("nodes") or {}).values()))),
                )
                for w in waves
            ),
        )
    forced = (migrated.data.get("evictions") or {}).get("forced") if migrated else None
    if forced:
        yield Table(
            title="Forced, as the spec allows",
            columns=("pod",),
            rows=tuple((str(pod),) for pod in forced),
        )
    sides = ((Step.BASELINE, "old"), (Step.VALIDATE, "new"), (Step.SOAK, "new"))
    kept = [(e, side) for s, side in sides for e in evidence(records, s)]
    if kept:
        yield Table(
            title="Evidence",
            columns=("probe", "network", "pool", "nodes", "measured", "versions", "GPU-minutes", "id"),
            rows=tuple(
                (
                    e.probe,
                    "pinned" if e.mode == "pinned" else "as a job gets it",
                    side,
                    str(len(e.nodes)),
                    e.measured,
                    ", ".join(f"{k} {_short(v)}" for k, v in sorted(e.versions.items())),
                    f"{e.gpu_minutes:.1f}",
                    e.id[:12],
                )
                for e, side in kept
            ),
            note="Each is bound to the pool, the UIDs of its nodes, the spec and the time, and sealed by its id.",
        )


def _took(record: StepRecord) -> str:
    try:
        return span(datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started))
    except ValueError:
        return ""


def _short(version: str) -> str:
    """A digest as a person compares it: its first twelve digits; the whole one is in the data."""
    name, found, digest = version.rpartition("sha256:")
    return f"{name}{found}{digest[:12]}" if found else version
