"""What our own payloads' lines say, in the words of `poolshift judge --json`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from infra.model.measurement import steps_of, sweep_of
from infra.model.reading import PayloadEvents
from infra.model.verdict import Finding, Level
from infra.probes.readers.figures import number, whole
from tasks.rules.bandwidth import ROUNDING, SMALLEST_JUDGED
from tasks.rules.reading_verdict import Answer

MOST_APART = 2.0  # times that the slowest rank may take of the mean


def ended(payload: PayloadEvents) -> bool:
    """One program ran from its start line to an end line that says ok, and no line is damaged."""
    names = set(payload.starts) | set(payload.ends)
    if len(names) != 1 or payload.broken or payload.errors:
        return False
    starts, ends = (next(iter(found.values()), ()) for found in (payload.starts, payload.ends))
    return len(starts) == 1 and len(ends) == 1 and ends[0].get("ok") is True and not ends[0].get("error")


def contradicted(payload: PayloadEvents) -> str:
    """Why the rows of the all-reduce payload are not of the run that its start line announces, or ""."""
    start: Mapping[str, Any] = next(iter(payload.starts.get("all-reduce", ())), {})
    return next((reason for row in payload.rows if (reason := _contradicts(row, start))), "")


def _contradicts(row: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    where, sizes = f"the row of {row.get('size_bytes')} bytes", start.get("sizes")
    if isinstance(sizes, list) and row.get("size_bytes") not in sizes:
        return f"{where} is of no size that was announced"
    if row.get("iters") != start.get("iters") or not whole(row.get("iters")):
        return f"{where} is of {row.get('iters')} iterations, {start.get('iters')} were announced"
    mean, slowest = number(row.get("time_us")), number(row.get("slowest_us"))
    if mean is None or slowest is None or not mean * (1 - ROUNDING) <= slowest:
        return f"{where} has a mean time of {row.get('time_us')} µs, and {row.get('slowest_us')} of the slowest rank"
    # A collective ends on all ranks within one iteration; what each waits at its start is little of a long one.
    if slowest > MOST_APART * mean and (whole(row.get("size_bytes")) or 0) >= SMALLEST_JUDGED:
        return f"{where} took {slowest:g} µs on one rank and {mean:g} on average: the ranks' clocks do not agree"
    return ""


def answer_sweep(payload: PayloadEvents) -> Answer:
    """The all-reduce payload."""
    start: Mapping[str, Any] = next(iter(payload.starts.get("all-reduce", ())), {})
    sweep = sweep_of(start, payload.rows, complete=ended(payload))
    peak = max(sweep.rows, key=lambda r: r.busbw_gb_s, default=None)
    wrong = [r.get("wrong") for r in payload.rows]
    entire = sweep.complete and len(sweep.rows) == len(payload.rows) and all(r.wrong is not None for r in sweep.rows)
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
    verdict = "failed" if findings else ("healthy" if entire and sweep.rows else "undetermined")
    if not findings and sweep.complete and (doubt := _doubt(payload, start, whole=entire)):
        findings, verdict = (doubt,), "suspicious"
    return Answer(fields=fields, verdict=verdict, findings=findings)


def _doubt(payload: PayloadEvents, start: Mapping[str, Any], *, whole: bool) -> Finding | None:
    """Why a run that ended well shows nothing of the network all the same."""
    if (backend := start.get("backend", "nccl")) != "nccl":
        code, observed, expected = "not-nccl", f"the sums went over {backend}", "NCCL, between GPUs"
    elif not whole:
        code, observed = "row-not-whole", "a row lacks a figure, or its sums were not checked"
        expected = "time, bandwidths and a count of wrong elements in every row"
    elif observed := contradicted(payload):
        code, expected = "row-of-another-run", "rows that fit the start line, and times that fit each other"
    else:
        return None
    return Finding(
        level=Level.WARN,
        code=code,
        object="all-reduce",
        observed=observed,
        expected=expected,
        remedy="Run it again where torch.cuda.is_available() is true, and give its output as it was printed",
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
