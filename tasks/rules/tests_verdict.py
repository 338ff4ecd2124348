"""What an output of nccl-tests shows: its figures, its defects, and whether it measured the network at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isclose, isfinite
from typing import Any

from infra.model.measurement import Sweep
from infra.model.reading import BandwidthTest, NcclTests, Row
from infra.model.verdict import Finding, Level
from tasks.rules.bandwidth import SMALLEST_JUDGED, UNNAMED
from tasks.rules.reading_verdict import Answer
from tasks.rules.table_doubts import doubt_of
from tasks.rules.wording import size

# nccl-tests' names -> the names of the fabric table
COLLECTIVES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "alltoall",
}
_ON_ERROR = (
    "a run without an error",
    "Run it again with NCCL_DEBUG=WARN and read the first warning of the rank that ended first",
)
_ON_AVERAGE = (
    "the average is below the limit that the run was given",
    "at least NCCL_TESTS_MIN_BW",
    "See at which sizes busbw is low, and try the nodes pair by pair",
)
_ROUNDED = 0.01  # figures are printed with two decimals; reduce and all-reduce of three ranks are 0.33 apart
_WORST_FIRST = ("failed", "invalid", "suspicious", "undetermined", "not-applicable")
SMALLEST_COLLAPSE = 1 << 20  # bytes; before, one slow launch looks like a collapse
COLLAPSE = 0.5  # a larger size at half the peak or less: something gave up, which no latency explains


def answer_tests(tests: NcclTests) -> Answer:
    """What an output of nccl-tests shows: the figures of its first table, the verdict of its worst, all findings."""
    answers = [_answer_test(test) for test in tests.tests]
    verdicts = {a.verdict for a in answers}
    findings = tuple(dict.fromkeys(f for a in answers for f in a.findings))
    fields = dict(answers[tests.tests.index(tests.main)].fields)
    fields["avg_busbw_values"] = [average for t in tests.tests for average in t.averages_gb_s]
    fields["tests"] = len(tests.tests)
    return Answer(fields=fields, verdict=next(v for v in _WORST_FIRST if v in verdicts), findings=findings)


def _answer_test(test: BandwidthTest) -> Answer:
    peak = _peak(test.rows, "busbw_gb_s")
    peak_in = _peak(test.rows, "busbw_in_place_gb_s")
    largest = max(test.rows, key=lambda r: r.size_bytes, default=None)
    hosts = len({d.host for d in test.devices}) or None
    independent = independent_runs(test)
    corruption = _corruption(test)
    wrong, wrong_in_place = _total(test.rows, "wrong"), _total(test.rows, "wrong_in_place")
    findings = _test_findings(test, independent=independent, corruption=corruption)
    multinode = _multinode(test, hosts, independent=independent)
    redops = {r.redop for r in test.rows}
    fields: dict[str, Any] = {
        "format": test.format,
        "op": test.op,
        "redop": next(iter(redops)) if len(redops) == 1 else None,
        "ranks": test.ranks,
        "hosts": hosts,
        "rows": len(test.rows),
        "torn_rows": test.torn_rows,
        "peak_busbw": peak.busbw_gb_s if peak else None,
        "peak_size_bytes": peak.size_bytes if peak else None,
        "peak_busbw_in_place": peak_in.busbw_in_place_gb_s if peak_in else None,
        "largest_size_bytes": largest.size_bytes if largest else None,
        "largest_size_busbw": largest.busbw_gb_s if largest else None,
        "collapse_after_peak": _collapse(test.rows) if test.rows else None,
        "avg_busbw": test.averages_gb_s[0] if len(test.averages_gb_s) == 1 else None,
        "wrong": wrong,
        "wrong_in_place": wrong_in_place,
        "validation": wrong is not None or bool(test.out_of_bounds),
        "out_of_bounds": sum(test.out_of_bounds) if test.out_of_bounds else None,
        "oob_status": _status(test),
        "complete": test.complete,
        "corruption": corruption,
        "valid_multinode": multinode,
        "independent_runs": independent,
        "footers": len(test.averages_gb_s),
        "nccl_version": test.nccl_version,
        "errors": list(test.errors),
    }
    return Answer(fields=fields, verdict=_test_verdict(test, findings, multinode=multinode), findings=findings)


def sweep_of_test(test: BandwidthTest) -> Sweep:
    """The table as the bandwidth rules read it; repeated sizes (option -N) are rounds."""
    seen: Counter[int] = Counter()
    rows: list[dict[str, Any]] = []
    for row in test.rows:
        rows.append(
            {
                "round": seen[row.size_bytes],
                "size_bytes": row.size_bytes,
                "time_us": row.time_us,
                "algbw_gb_s": row.algbw_gb_s,
                "busbw_gb_s": row.busbw_gb_s,
                "wrong": int(row.wrong) if row.wrong is not None and isfinite(row.wrong) else None,
            }
        )
        seen[row.size_bytes] += 1
    return Sweep.from_dict(
        {
            "collective": COLLECTIVES.get(test.op or "", test.op or _by_arithmetic(test)),
            "ranks": test.ranks,
            "hosts": len({d.host for d in test.devices}) or None,
            "rounds": max(seen.values(), default=1),
            "complete": test.complete and not test.torn_rows and not independent_runs(test),
            "rows": rows,
        }
    )


def _by_arithmetic(test: BandwidthTest) -> str:
    """The collective of a table without its name (before nccl-tests 2.16.3), by busbw over algbw.

    Only an all-reduce of n ranks has an operator and 2(n-1)/n. At two ranks that is 1, as a reduce has, too.
    """
    ranks = test.ranks or 0
    ratios = [r.busbw_gb_s / r.algbw_gb_s for r in test.rows if r.busbw_gb_s and r.algbw_gb_s]
    named = all(r.redop not in {None, "none"} for r in test.rows)
    if ranks < 3 or not named or not ratios or len(ratios) < len(test.rows):
        return UNNAMED
    wanted = 2 * (ranks - 1) / ranks
    return "all-reduce" if all(isclose(ratio, wanted, rel_tol=_ROUNDED) for ratio in ratios) else UNNAMED


def announced_sizes(test: BandwidthTest) -> tuple[int, ...]:
    """The sizes that the parameter line promises, or () when it does not say."""
    try:
        low, high = int(test.parameters["minBytes"]), int(test.parameters["maxBytes"])
        step, _, kind = test.parameters["step"].partition("(")
    except (KeyError, ValueError):
        return ()
    if not step.isdigit() or int(step) < 1 or high < low or low < 1:
        return ()
    if kind.startswith("factor") and int(step) < 2:
        return (low,) if low == high else ()
    sizes = [low]
    while len(sizes) < 10_000:
        following = sizes[-1] * int(step) if kind.startswith("factor") else sizes[-1] + int(step)
        if following > high:
            break
        sizes.append(following)
    return tuple(sizes)


def independent_runs(test: BandwidthTest) -> bool | None:
    """Did every process run for itself (a binary built without MPI)? None where the output does not say."""
    zeros = [d for d in test.devices if d.rank == 0]
    if len(zeros) > 1 or (test.headers > 1 and test.ranks in {None, 1}):
        return True
    if len(test.averages_gb_s) > 1 and not test.headers:
        low, high = min(test.averages_gb_s), max(test.averages_gb_s)
        return True if high - low <= 0.05 * high else None
    sizes = Counter(r.size_bytes for r in test.rows)
    if sizes and min(sizes.values()) > 1 and len(test.averages_gb_s) > 1:
        return True
    if test.rows and test.headers == 1:
        return False
    return None if not test.rows else False


def _peak(rows: Sequence[Row], name: str) -> Row | None:
    return max((r for r in rows if getattr(r, name) is not None), key=lambda r: float(getattr(r, name)), default=None)


def _total(rows: Sequence[Row], name: str) -> float | int | None:
    counts = [getattr(r, name) for r in rows if getattr(r, name) is not None]
    if not counts:
        return None
    total = float(sum(counts))
    return int(total) if total.is_integer() else total


def _status(test: BandwidthTest) -> str | None:
    if not test.out_of_bounds_status:
        return None
    return "FAILED" if "FAILED" in test.out_of_bounds_status else test.out_of_bounds_status[0]


def _corruption(test: BandwidthTest) -> bool | None:
    """Wrong values in a row, or counted in the footer. None when nothing was checked or shown."""
    counted = [r.wrong for r in test.rows if r.wrong is not None] + [
        r.wrong_in_place for r in test.rows if r.wrong_in_place is not None
    ]
    if any(counted) or any(test.out_of_bounds) or _status(test) == "FAILED":
        return True
    return False if counted or test.out_of_bounds else None


def _collapse(rows: Sequence[Row]) -> bool:
    """A size after the peak that reaches less than half of it."""
    peak = _peak(rows, "busbw_gb_s")
    if peak is None or not peak.busbw_gb_s:
        return False
    limit = COLLAPSE * peak.busbw_gb_s
    return any(r.size_bytes > peak.size_bytes and (r.busbw_gb_s or 0.0) < limit for r in rows)


def _fallen(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """(A size, the first one behind it that reaches less than half of it), though a later one may be the peak."""
    peak, best = _peak(rows, "busbw_gb_s"), None
    for row in sorted(rows, key=lambda r: r.size_bytes):
        reached, figure = best.busbw_gb_s or 0.0 if best else 0.0, row.busbw_gb_s or 0.0
        tells = row.size_bytes >= SMALLEST_COLLAPSE or best is peak
        if best and tells and row.size_bytes > best.size_bytes and figure < COLLAPSE * reached:
            return best, row
        if best is None or figure > reached:
            best = row
    return None


def _in_place_behind(rows: Sequence[Row]) -> Row | None:
    """The first large size at which the half in place reaches less than half of the other."""
    return next(
        (
            r
            for r in rows
            if r.size_bytes >= SMALLEST_JUDGED
            and r.busbw_gb_s is not None
            and r.busbw_in_place_gb_s is not None
            and r.busbw_in_place_gb_s < COLLAPSE * r.busbw_gb_s
        ),
        None,
    )


def _multinode(test: BandwidthTest, hosts: int | None, *, independent: bool | None) -> bool | None:
    if independent or test.ranks == 1:
        return False
    if hosts is None:
        return None
    if hosts == 1:
        return False if test.ranks else None
    moved = any(r.busbw_gb_s for r in test.rows)
    if len(set(Counter(d.host for d in test.devices).values())) > 1:
        return None  # a host name that was damaged, or a placement that no launcher makes
    return True if test.ranks and test.ranks >= hosts and moved else None


def _test_findings(test: BandwidthTest, *, independent: bool | None, corruption: bool | None) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if test.errors or "FAILED" in test.average_status:
        observed, expected, remedy = (test.errors[0][:200], *_ON_ERROR) if test.errors else _ON_AVERAGE
        found.append(
            Finding(
                level=Level.BLOCK,
                code="test-failed",
                object="nccl-tests",
                observed=observed,
                expected=expected,
                remedy=remedy,
            )
        )
    if corruption:
        found.append(
            Finding(
                level=Level.BLOCK,
                code="wrong-results",
                object="nccl-tests",
                observed=f"{sum(test.out_of_bounds) or 'some'} results are wrong",
                expected="0",
                remedy="Do not run anything on these nodes; test them one by one to find the faulty part",
            )
        )
    if independent or test.ranks == 1:
        found.append(
            Finding(
                level=Level.WARN,
                code="single-rank-runs",
                object="nccl-tests",
                observed="every process measured itself alone",
                expected="one run over all ranks",
                remedy="Build nccl-tests with MPI=1 and start it through mpirun, with one rank per GPU",
            )
        )
    if fallen := _fallen(test.rows):
        before, after = fallen
        found.append(
            Finding(
                level=Level.WARN,
                code="bandwidth-collapse",
                object="nccl-tests",
                observed=f"{after.busbw_gb_s or 0:g} GB/s at {size(after.size_bytes)}, less than half of what "
                f"{size(before.size_bytes)} reached ({before.busbw_gb_s or 0:g} GB/s)",
                remedy="Look for drops and retransmits on the fabric; try the pair of nodes alone",
            )
        )
    if behind := _in_place_behind(test.rows):
        found.append(
            Finding(
                level=Level.WARN,
                code="in-place-behind",
                object="nccl-tests",
                observed=f"{behind.busbw_in_place_gb_s:g} GB/s in place and {behind.busbw_gb_s:g} GB/s out of place at "
                f"{behind.size_bytes} bytes",
                expected="about the same: the same bytes cross the same wire",
                remedy="Run it again; if they differ again, look for what else used the network meanwhile",
            )
        )
    if test.format == "nccl-tests" and (doubt := doubt_of(test)):
        found.append(
            Finding(
                level=Level.WARN,
                code="not-one-run",
                object="nccl-tests",
                observed=doubt,
                remedy="Give the output of one run as it was printed, of 20 iterations or more",
            )
        )
    if test.reduced_max_bytes:
        found.append(
            Finding(
                level=Level.INFO,
                code="sweep-shortened",
                object="nccl-tests",
                observed=f"the sweep ends at {test.reduced_max_bytes} bytes for want of memory",
            )
        )
    return tuple(found)


def _test_verdict(test: BandwidthTest, findings: tuple[Finding, ...], *, multinode: bool | None) -> str:
    codes = {f.code for f in findings}
    if codes & {"test-failed", "wrong-results"}:
        return "failed"
    if "single-rank-runs" in codes:
        return "invalid"
    if codes & {"bandwidth-collapse", "in-place-behind", "not-one-run"}:
        return "suspicious"
    if multinode is False and test.complete:
        return "not-applicable"
    return "undetermined"
