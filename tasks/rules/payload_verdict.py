"""What our own payloads' lines say, in the words of `poolshift judge --json`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from infra.model.measurement import steps_of, sweep_of
from infra.model.reading import PayloadEvents
from infra.model.verdict import Finding, Level
from tasks.rules.reading_verdict import Answer


def ended(payload: PayloadEvents) -> bool:
    """One program ran from its start line to an end line that says ok, and no line is damaged."""
    names = set(payload.starts) | set(payload.ends)
    if len(names) != 1 or payload.broken or payload.errors:
        return False
    starts, ends = (next(iter(found.values()), ()) for found in (payload.starts, payload.ends))
    return len(starts) == 1 and len(ends) == 1 and ends[0].get("ok") is True


def answer_sweep(payload: PayloadEvents) -> Answer:
    """The all-reduce payload."""
    start: Mapping[str, Any] = next(iter(payload.starts.get("all-reduce", ())), {})
    sweep = sweep_of(start, payload.rows, complete=ended(payload))
    peak = max(sweep.rows, key=lambda r: r.busbw_gb_s, default=None)
    wrong = [r.get("wrong") for r in payload.rows]
    whole = sweep.complete and len(sweep.rows) == len(payload.rows) and all(r.wrong is not None for r in sweep.rows)
    fields: dict[str, Any] = {
        "op": "all_reduce",
        "ranks": start.get("ranks"),
        "hosts": start.get("hosts"),
        "nccl_version": start.get("nccl"),
        "rounds": start.get("rounds"),
        "rows": len(payload.rows),
        "peak_busbw": peak.busbw_gb_s if peak else None,
        "peak_size_bytes": peak.size_bytes if peak else None,
        "wrong": sum(w for w in wrong if isinstance(w, int)) if any(isinstance(w, int) for w in wrong) else None,
        "complete": sweep.complete,
        "counter_nodes": sorted({str(c.get("node")) for c in payload.counters}),
    }
    findings = _ends(payload)
    if fields["wrong"]:
        findings = (
            *findings,
            Finding(
                level=Level.BLOCK,
                code="wrong-results",
                object="all-reduce",
                observed=f"{fields['wrong']} elements are wrong",
                expected="0",
                remedy="Do not run anything on these nodes; localise the node first",
            ),
        )
    verdict = "failed" if findings else ("healthy" if whole and sweep.rows else "undetermined")
    if not findings and sweep.complete and not whole:
        findings, verdict = (_damaged(),), "suspicious"
    return Answer(fields=fields, verdict=verdict, findings=findings)


def _damaged() -> Finding:
    return Finding(
        level=Level.WARN,
        code="row-not-whole",
        object="all-reduce",
        observed="a row lacks a figure, or its sums were not checked",
        expected="time, bandwidths and a count of wrong elements in every row",
        remedy="Run it again, and give its output as it was printed",
    )


def answer_steps(payload: PayloadEvents) -> Answer:
    """The training payload: figures only, since a step time is judged against the other pool's."""
    start: Mapping[str, Any] = next(iter(payload.starts.get("train-step", ())), {})
    steps = steps_of(start, payload.steps_seen, payload.steps_seconds, complete=ended(payload))
    seconds = steps.seconds  # by number: a log whose first lines are gone has fewer warm-up steps to drop
    fields: dict[str, Any] = {
        "preset": start.get("preset"),
        "ranks": start.get("ranks"),
        "hosts": start.get("hosts"),
        "steps": len(seconds),
        "median_step_s": statistics.median(seconds) if seconds else None,
        "mean_step_s": statistics.fmean(seconds) if seconds else None,
        "max_step_s": max(seconds) if seconds else None,
        "complete": steps.complete,
    }
    failed = _ends(payload)
    findings = failed or (_not_judged(whole=steps.complete and bool(seconds)),)
    return Answer(fields=fields, verdict="failed" if failed else "undetermined", findings=findings)


def _not_judged(*, whole: bool) -> Finding:
    """Why a run of training steps has no verdict of its own."""
    return Finding(
        level=Level.INFO,
        code="not-judged",
        object="train-step",
        observed="a step time is judged against the other pool's, not alone" if whole else "the run is not whole",
        expected="" if whole else "one start line, every step that it announces, one end line",
        remedy="poolshift migrate compares both pools" if whole else "Give all that rank 0 printed",
    )


def answer_devices(payload: PayloadEvents) -> Answer:
    """The per-node device payload: how many nodes answered."""
    nodes = [str(d.get("node")) for d in payload.devices]
    return Answer(fields={"tool": "device", "nodes": nodes, "reports": [dict(d) for d in payload.devices]})


def _ends(payload: PayloadEvents) -> tuple[Finding, ...]:
    """A program that says itself that it failed."""
    bad = [(name, e) for name, events in payload.ends.items() for e in events if e.get("ok") is not True]
    return tuple(
        Finding(
            level=Level.BLOCK,
            code="program-failed",
            object=name,
            observed=str(event.get("error") or "the program ended with ok false")[:300],
            expected="an end line that says ok",
            remedy="Read the lines of the rank that ended first; run it again with NCCL_DEBUG=WARN",
        )
        for name, event in bad
    )
