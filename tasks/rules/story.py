"""From a run's record to what a director reads: headline, figures, tables, next steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import facts_of
from infra.model.record import Step, StepRecord, StepState
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.folding import first_causes
from tasks.rules.story_ended import Ending
from tasks.rules.story_figures import Figure, compared, figures, step_medians
from tasks.rules.story_refused import remedies, sentence
from tasks.rules.story_tables import Records, Table, tables
from tasks.rules.wording import plural, size

_SIMULATED = " Every figure comes from the sandbox's model and is simulated."


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
    ended: Ending | None = None,
) -> Story:
    """The story as far as it went. `stopped` is the error that ended it, in words; `slices` are the rows of a swap.

    `ended`: how a person has ended it, which says more than where its steps stand.
    """
    findings = tuple(_findings(records))
    blocks = [f for f in first_causes(findings) if f.level is Level.BLOCK]
    held = _held(records)
    retired = _done(records, Step.RETIRE)
    if retired:
        ends = "is empty, fenced and kept" if retired.data.get("kept") else "is retired"
        outcome, headline = "pass", f"{_source(records)} {ends}; its work runs on {_target(records)}"
    elif ended:
        outcome, headline = "unmeasured", ended.headline
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
        lead=_lead(records, findings, held, stopped, ended) + (_SIMULATED if simulated else ""),
        simulated=simulated,
        figures=tuple(figures(records)),
        next=ended.next if ended else tuple(_next(run, blocks, held, stopped)),
        verdicts=_verdicts(records),
        findings=findings,
        tables=tuple(tables(records, slices)),
    )


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
    medians = step_medians(records)
    if medians:
        one, other = medians
        found["steps"] = f"Median training step: {one:.2f} -> {other:.2f} s ({one / other:.2f} times faster)."
    both = compared(records)
    if both.at is not None:
        found["bandwidth"] = f"All-reduce busbw at {size(both.at)}: {both.words('->')}."
    retired = _done(records, Step.RETIRE)
    if retired:
        found["retired"] = retired.summary
    reported = records.get(Step.REPORT)
    if reported is not None and reported.data.get("html"):
        found["report"] = str(reported.data["html"])
    return found


def _done(records: Records, step: Step) -> StepRecord | None:
    record = records.get(step)
    return record if record is not None and record.state is StepState.DONE else None


def _held(records: Records) -> StepRecord | None:
    """The gate-like step that stopped the run."""
    for step in (Step.RETIRE, Step.SOAK, Step.MIGRATE, Step.GATE, Step.PLAN):
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
        why = f"{plugin.object} is not up on the new pool" if plugin else held.summary.removeprefix("held. ")
        return f"Refused: {why}"
    if held is not None and held.step is Step.PLAN:
        return f"Refused by the plan: {stands_in_the_way(len(blocks))}"
    if held is not None:
        return f"Stopped at {held.step.value}: {held.summary}"
    failed = [r for r in records.values() if r.state is StepState.FAILED]
    if failed:
        return f"Stopped at {failed[-1].step.value}: {facts_of(failed[-1].summary)[0]}"
    return f"Stopped: {_last(records)}"


def stands_in_the_way(count: int) -> str:
    """ "1 thing stands in the way"."""
    return f"{plural(count, 'thing')} stand{'s' if count == 1 else ''} in the way"


def _lead(
    records: Records, findings: Sequence[Finding], held: StepRecord | None, stopped: str, ended: Ending | None
) -> str:
    if ended is not None:
        return ended.lead
    if held is not None and held.step is Step.PLAN:
        return (
            f"From {_source(records)} to {_target(records)}. What stands in the way is below, each with its remedy; "
            "nothing was touched."
        )
    if held is not None and held.step is Step.GATE:
        text = sentence(records, findings)
    else:
        sentences = list(facts(records).values())
        text = " ".join(s if s.endswith(".") else f"{s}." for s in sentences if not s.startswith("/"))
    if not text:
        observed, expected, _ = facts_of(stopped)
        wanted = f"; expected {expected}" if expected else ""
        text = f"{observed}{wanted}." if stopped else f"From {_source(records)} to {_target(records)}."
    return text


def _next(run: str, blocks: Sequence[Finding], held: StepRecord | None, stopped: str) -> Iterable[str]:
    of_step = remedies(held.data) if held is not None else []
    found = of_step or list(dict.fromkeys(f.remedy for f in blocks if f.remedy))[:5]
    yield from found
    if held is not None and held.step is Step.GATE:
        yield "poolshift migrate SPEC again: the pool is measured anew and the run goes on"
        yield f"or give it up: poolshift rollback {run} --remove-target"
    elif held is not None and held.step is Step.MIGRATE:
        yield "poolshift migrate SPEC again: it goes on where it stood"
        yield f"or give it up: poolshift rollback {run}"
    elif held is not None and held.step is Step.PLAN:
        yield "then look again: poolshift plan SPEC; and go on: poolshift migrate SPEC"
    elif stopped and not found:
        yield facts_of(stopped)[2] or "poolshift migrate SPEC again: it goes on where it stood"


def _verdicts(records: Records) -> tuple[Verdict, ...]:
    for step in (Step.RETIRE, Step.MIGRATE, Step.GATE, Step.VALIDATE, Step.READINESS):
        record = records.get(step)
        if record is not None and record.data.get("verdicts"):
            return tuple(Verdict.from_dict(v) for v in record.data["verdicts"])
    return ()


def _findings(records: Records) -> Iterable[Finding]:
    seen = set()
    for step in (Step.READINESS, Step.VALIDATE, Step.GATE, Step.PLAN, Step.MIGRATE, Step.SOAK, Step.RETIRE):
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
