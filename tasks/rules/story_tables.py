"""The tables of the report: steps, slices, waves, evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from infra.model.evidence import Evidence
from infra.model.record import Step, StepRecord, StepState
from tasks.rules.gangs import ended_words
from tasks.rules.wording import and_more, plural, span

Records = Mapping[Step, StepRecord]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under a title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def evidence(records: Records, step: Step) -> list[Evidence]:
    """The evidence that a step left."""
    record = records.get(step)
    return [Evidence.from_dict(item) for item in (record.data.get("evidence") or ())] if record else []


def tables(records: Records, slices: Sequence[Mapping[str, str]]) -> Iterable[Table]:
    """Steps, slices, waves, what was forced, evidence: each where there is something to show."""
    told = [r for s in Step if s is not Step.REPORT and (r := records.get(s)) is not None]  # it is being written
    rows = tuple((r.step.value, r.state.value, took(r), _first(r)) for r in told)
    yield Table(title="Steps", columns=("step", "state", "took", "what"), rows=rows)
    if slices:
        yield Table(
            title="Slices",
            columns=tuple(slices[0]),
            rows=tuple(tuple(each.values()) for each in slices),
            note="Each is proven by the whole gate before the next source node is given up.",
        )
    migrated = records.get(Step.MIGRATE)
    if migrated is not None and migrated.data.get("waves"):
        yield _waves(migrated.data)
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


def _waves(moved: Mapping[str, Any]) -> Table:
    """Every pod that moved in one row: with its wave, by itself or in a gang; before the waves; or otherwise."""
    waves = moved["waves"]
    rows = [
        (
            str(w.get("number", "")),
            and_more(sorted(w.get("nodes") or {}), 4),
            str(pods_of(w)),
            "; ".join(f"{g.get('workload')}: {ended_words(g)}" for g in w.get("gangs") or ()),
            ", ".join(sorted(set((w.get("nodes") or {}).values()))),
        )
        for w in waves
    ]
    first = first_replicas(moved)
    if first:
        rows.insert(0, ("before", "", str(first), "first replicas, so that their operators fail over in time", "moved"))
    total = first + sum(pods_of(w) for w in waves)
    leaving = int(moved.get("pods") or 0)
    if moved.get("end") == "drained" and leaving > total:
        rows.append(
            ("else", "", str(leaving - total), "in an earlier start of this run, or ended by themselves", "gone")
        )
        total = leaving
    note = f"{plural(leaving, 'pod')} had to leave."
    if total > leaving:
        note += " The others came meanwhile, or are ranks of a gang that had them elsewhere too."
    elif total < leaving:
        note += " The others stay, or have left in an earlier start of this run."
    return Table(
        title="Waves",
        columns=("wave", "nodes", "pods", "moved as one, or how", "outcome"),
        rows=(*rows, ("total", "", str(total), "", "")),
        note=note,
    )


def first_replicas(moved: Mapping[str, Any]) -> int:
    """Pods that were evicted before the first wave: one of each set that was on the source alone."""
    gone = int((moved.get("evictions") or {}).get("gone") or 0)
    return max(0, gone - sum(int(w.get("moved") or 0) for w in moved.get("waves") or ()))


def pods_of(wave: Mapping[str, Any]) -> int:
    """Pods that left with a wave: one by one, and with the gangs that run again."""
    gangs = sum(int(g.get("ranks") or 0) for g in wave.get("gangs") or () if g.get("running"))
    return int(wave.get("moved") or 0) + gangs


def _first(record: StepRecord) -> str:
    """What a step says of itself; of a held one the first clause: its verdicts and findings say the rest."""
    held = record.state is StepState.HELD and record.step in (Step.READINESS, Step.VALIDATE)
    return record.summary.partition("; ")[0] if held else record.summary


def took(record: StepRecord) -> str:
    """How long the step took; of one that was begun again, how long since then, which is said."""
    try:
        words = span(datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started))
    except ValueError:
        return ""
    return f"{words}, begun again" if record.first else words


def _short(version: str) -> str:
    """A digest as a person compares it: its first twelve digits; the whole one is in the data."""
    name, found, digest = version.rpartition("sha256:")
    return f"{name}{found}{digest[:12]}" if found else version
