"""Bandwidth: does the network carry what this machine type carries? Judged at named sizes, never on an average.

Three questions, each a verdict of its own: floors, shape, plausibility. What is missing, cut, unchecked or above
what the wire can carry is unmeasured. Without a figure for the machine type and without a limit in the spec the
run is measured, not judged: that is no pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from infra.fabrics import Fabric, ceiling
from infra.model.measurement import Sweep, SweepRow
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.wording import and_more, plural, size

FLOOR, SHAPE, PLAUSIBILITY = "bandwidth-floor", "bandwidth-shape", "plausibility"
UNNAMED = "unknown"  # the collective of a table that neither its text nor its figures name
SMALLEST_JUDGED = 256 << 20  # below, latency decides too: floors are judged there only where the size has a figure
SMALLEST_TIMED = 1 << 20  # below, one slow launch is longer than what it carries
LONGER = 2.0  # times that a smaller size may take of a larger one's time
MAX_DIP = 0.10  # from one size to the next; a larger one is a switch of algorithm or a rail that gives up
ROUNDING = 0.02  # printed figures are rounded; two that disagree by more were not computed from one time
SMALL_ROUNDING = 0.02  # GB/s: of small ones, printed with two decimals, busbw is up to twice algbw's


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What the sweep had to be: node count, GPUs a node, the sizes asked for (bytes), in how many rounds."""

    nodes: int
    gpus: int
    sizes: tuple[int, ...]
    rounds: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The floor at one size, GB/s, with where it is from; `warn_gb_s` is None when a person set the floor."""

    floor_gb_s: float
    source: str
    warn_gb_s: float | None = None
    derived: bool = False


def judge(sweep: Sweep, expected: Expected, fabric: Fabric | None, floors: Mapping[int, float]) -> tuple[Verdict, ...]:
    """All three verdicts. `floors` are the spec's own limits: size in bytes -> busbw in GB/s."""
    return (
        judge_floor(sweep, expected, fabric, floors),
        judge_shape(sweep, expected),
        judge_plausibility(sweep, expected, fabric),
    )


def judge_floor(sweep: Sweep, expected: Expected, fabric: Fabric | None, floors: Mapping[int, float]) -> Verdict:
    """Does the worst round reach the floor at every judged size?"""
    limits = limits_of(sweep.collective, expected, fabric, floors)
    statistic = "out-of-place busbw, the lowest of all rounds, at each named size"
    if failed := _wrong_sums(sweep, FLOOR):
        return failed
    if reason := unusable(sweep, expected, extra=tuple(limits)):
        return Verdict(check=FLOOR, outcome=Outcome.UNMEASURED, statistic=statistic, reason=reason)
    worst = lowest(sweep.rows)
    observed = _figures({s: worst[s] for s in sorted({*expected.sizes, *limits})})
    if not limits:
        name = fabric.machine_type if fabric else "this machine type"
        return Verdict(
            check=FLOOR,
            outcome=Outcome.UNMEASURED,
            observed=observed,
            statistic=statistic,
            reason=f"measured, not judged: no figure for {name} on {plural(expected.nodes, 'node')} at these sizes; "
            f"set gate.min_busbw_gb_s",
        )
    above = _above_ceiling(sweep, fabric, expected)
    if above:
        return Verdict(check=FLOOR, outcome=Outcome.UNMEASURED, observed=observed, statistic=statistic, reason=above)
    low = {s: limit for s, limit in limits.items() if worst[s] < limit.floor_gb_s}
    return Verdict(
        check=FLOOR,
        outcome=Outcome.FAIL if low else Outcome.PASS,
        observed=observed,
        limit=_figures({s: limit.floor_gb_s for s, limit in sorted(limits.items())}, at_least=True),
        statistic=statistic,
        reason=_floor_reason(worst, low, limits),
        findings=_floor_findings(sweep.collective, worst, limits),
    )


def judge_shape(sweep: Sweep, expected: Expected) -> Verdict:
    """Is each size at most 10 % below the one before it?"""
    statistic = "busbw against the next smaller size, the lowest of all rounds"
    reason = unusable(sweep, expected)
    worst = lowest(sweep.rows)
    sizes = sorted(s for s in worst if s >= min(expected.sizes, default=0))
    if not reason and len(sizes) < 2:
        reason = f"{len(sizes)} size has no shape; sweep at least two"
    if reason:
        return Verdict(check=SHAPE, outcome=Outcome.UNMEASURED, statistic=statistic, reason=reason)
    dips = {
        (small, large): 1 - worst[large] / worst[small]
        for small, large in pairwise(sizes)
        if worst[large] < worst[small]
    }
    deep = {pair: dip for pair, dip in dips.items() if dip > MAX_DIP}
    steepest = max(dips.values(), default=0.0)
    return Verdict(
        check=SHAPE,
        outcome=Outcome.FAIL if deep else Outcome.PASS,
        observed=f"largest dip {steepest:.0%}",
        limit=f"at most {MAX_DIP:.0%}",
        statistic=statistic,
        reason="; ".join(
            f"busbw falls by {dip:.0%} from {size(small)} ({worst[small]:.1f} GB/s) to {size(large)} "
            f"({worst[large]:.1f} GB/s)"
            for (small, large), dip in deep.items()
        )
        or f"no dip between sizes from {size(sizes[0])} on",
    )


def judge_plausibility(sweep: Sweep, expected: Expected, fabric: Fabric | None) -> Verdict:
    """Can these figures have crossed the wire, and do they agree with one another?

    Too good is unmeasured, not failed: such a run measured something else (both pods on one node, NVLink across
    nodes, a slip in reading).
    """
    statistic = (
        "busbw against the physical ceiling; algbw and busbw against the row's time, times against larger sizes'"
    )
    reason = (
        unusable(sweep, expected)
        or _contradiction(sweep)
        or _above_ceiling(sweep, fabric, expected)
        or _longer_than_larger(sweep)
    )
    top = ceiling(fabric, sweep.collective, expected.nodes) if fabric else None
    peak = max((row.busbw_gb_s for row in sweep.rows), default=0.0)
    if not reason and fabric and top is None:
        reason = "one node has no network between nodes to measure"
    return Verdict(
        check=PLAUSIBILITY,
        outcome=Outcome.UNMEASURED if reason else Outcome.PASS,
        observed=f"peak {peak:.1f} GB/s" if sweep.rows else "",
        limit=f"at most {top:.1f} GB/s" if top else "no ceiling is known for this machine type",
        statistic=statistic,
        reason=reason
        or ("below the ceiling and consistent" if top else "consistent; only the arithmetic could be checked"),
    )


def limits_of(
    collective: str, expected: Expected, fabric: Fabric | None, floors: Mapping[int, float]
) -> dict[int, Limit]:
    """The floor of each judged size: the spec's where it names one, else the machine type's figure."""
    limits: dict[int, Limit] = {}
    for count in expected.sizes:
        figure = fabric.expectation(collective, expected.nodes, count) if fabric else None
        if figure:
            limits[count] = Limit(
                floor_gb_s=figure.floor_gb_s,
                warn_gb_s=figure.warn_gb_s,
                source=figure.source,
                derived=figure.derived,
            )
    limits |= {count: Limit(floor_gb_s=floor, source="gate.min_busbw_gb_s") for count, floor in floors.items()}
    return dict(sorted(limits.items()))


def lowest(rows: Sequence[SweepRow]) -> dict[int, float]:
    """Size -> the lowest busbw of all rounds: every communicator must reach the floor, not the best one."""
    worst: dict[int, float] = {}
    for row in rows:
        worst[row.size_bytes] = min(row.busbw_gb_s, worst.get(row.size_bytes, row.busbw_gb_s))
    return worst


def unusable(sweep: Sweep, expected: Expected, extra: tuple[int, ...] = ()) -> str:
    """Why nothing of this sweep can be judged, or "". In the order in which a person would look."""
    checks: tuple[Callable[[], str], ...] = (
        lambda: sweep.doubt,
        lambda: "" if sweep.complete else "the output has no end: it was cut, or the run did not finish",
        lambda: "which collective it measured is not shown" if sweep.collective == UNNAMED else "",
        lambda: _world(sweep, expected),
        lambda: _beyond(sweep),
        lambda: "" if expected.sizes or extra else "no size was asked for",
        lambda: missing(sweep, expected.rounds, {*expected.sizes, *extra}),
        lambda: _unchecked(sweep),
    )
    return next((reason for check in checks if (reason := check())), "")


def _world(sweep: Sweep, expected: Expected) -> str:
    ranks = expected.nodes * expected.gpus
    if sweep.ranks != ranks:
        return (
            f"the run says {sweep.ranks or 'no'} ranks, {plural(expected.nodes, 'node')} "
            f"x {plural(expected.gpus, 'GPU')} make {ranks}"
        )
    if sweep.hosts != expected.nodes:
        return f"the run says {sweep.hosts or 'no'} hosts, expected {expected.nodes}"
    return ""


def _beyond(sweep: Sweep) -> str:
    """Rows of a round that was not announced are another run's."""
    last = max((row.round for row in sweep.rows), default=0)
    if last >= sweep.rounds:
        return f"rows of round {last}, where {plural(sweep.rounds, 'round')} were announced"
    return repeated(sweep)


def repeated(sweep: Sweep) -> str:
    """A size has one row in a round; of two nobody knows which is this run's."""
    twice = [key for key, times in Counter((row.round, row.size_bytes) for row in sweep.rows).items() if times > 1]
    return and_more([f"two rows of {size(s)} in round {r}" for r, s in twice], 3)


def missing(sweep: Sweep, rounds: int, sizes: Collection[int]) -> str:
    """What lacks of every size in every round, or ""."""
    have = {(row.round, row.size_bytes) for row in sweep.rows}
    # Not all of them: how many rounds there should be is a figure of the run's own, and may be any number.
    lost = list(islice(((r, s) for r in range(rounds) for s in sorted(sizes) if (r, s) not in have), 5))
    if not lost:
        return ""
    shown = ", ".join(size(s) + (f" in round {r}" if rounds > 1 else "") for r, s in lost[:4])
    return f"no row for {shown}{' and more' if len(lost) > 4 else ''}"


def _unchecked(sweep: Sweep) -> str:
    unchecked = sorted({row.size_bytes for row in sweep.rows if row.wrong is None})
    return f"sums were not checked at {and_more([size(s) for s in unchecked], 4)}" if unchecked else ""


def _wrong_sums(sweep: Sweep, check: str) -> Verdict | None:
    bad = [row for row in sweep.rows if row.wrong]
    if not bad:
        return None
    name = "the run" if sweep.collective == UNNAMED else sweep.collective
    text = and_more([f"{row.wrong} elements at {size(row.size_bytes)}" for row in bad], 4)
    return Verdict(
        check=check,
        outcome=Outcome.FAIL,
        observed=text,
        limit="0 wrong elements",
        statistic="elements that differ from the exact sum",
        reason=f"{name} gave wrong sums: {text}. Do not run anything on these nodes; localise the node first",
    )


def _contradiction(sweep: Sweep) -> str:
    """Time, algbw and busbw of a row come from one measurement; where they disagree, a line was misread."""
    factor = _bus_factor(sweep)
    for row in sweep.rows:
        algbw = row.size_bytes / row.time_us / 1e3
        if not _close(algbw, row.algbw_gb_s):
            return f"at {size(row.size_bytes)} the time says {algbw:.2f} GB/s and algbw {row.algbw_gb_s:.2f} GB/s"
        if factor is not None and not _close(row.algbw_gb_s * factor, row.busbw_gb_s):
            return (
                f"at {size(row.size_bytes)} busbw {row.busbw_gb_s:.2f} GB/s is not {factor:.3f} x algbw "
                f"{row.algbw_gb_s:.2f} GB/s"
            )
    return ""


def _longer_than_larger(sweep: Sweep) -> str:
    """What carries less is not slower by far within a round; where it is, something else ran meanwhile."""
    quickest: dict[int, SweepRow] = {}
    for row in sorted(sweep.rows, key=lambda r: -r.size_bytes):
        larger = quickest.get(row.round, row)
        if row.size_bytes >= SMALLEST_TIMED and row.time_us > LONGER * larger.time_us:
            return (
                f"{size(row.size_bytes)} took {row.time_us:.0f} µs and {size(larger.size_bytes)} "
                f"{larger.time_us:.0f} µs: measure again with nothing else on the nodes"
            )
        quickest[row.round] = min(row, larger, key=lambda r: r.time_us)
    return ""


def _bus_factor(sweep: Sweep) -> float | None:
    """The factor from algbw to busbw by nccl-tests' definition, or None for a collective that we do not know."""
    if not sweep.ranks:
        return None
    share = (sweep.ranks - 1) / sweep.ranks
    return {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share, "alltoall": share}.get(
        sweep.collective
    )


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(abs(a), abs(b)) + SMALL_ROUNDING


def _above_ceiling(sweep: Sweep, fabric: Fabric | None, expected: Expected) -> str:
    top = ceiling(fabric, sweep.collective, expected.nodes) if fabric else None
    over = [row for row in sweep.rows if top is not None and row.busbw_gb_s > top]
    if not over or fabric is None:
        return ""
    row = max(over, key=lambda r: r.busbw_gb_s)
    return (
        f"implausible: {row.busbw_gb_s:.1f} GB/s at {size(row.size_bytes)} is above {top:.1f} GB/s, the most that "
        f"{expected.nodes} x {fabric.machine_type} ({fabric.line_rate_gb_s:g} GB/s a node) can carry; the traffic did "
        f"not cross the NICs"
    )


def _figures(by_size: Mapping[int, float], *, at_least: bool = False) -> str:
    sign = ">= " if at_least else ""
    return ", ".join(f"{size(count)}: {sign}{value:.1f} GB/s" for count, value in by_size.items())


def _floor_reason(worst: Mapping[int, float], low: Mapping[int, Limit], limits: Mapping[int, Limit]) -> str:
    sources = "; ".join(sorted({limit.source for limit in (low or limits).values()}))
    if low:
        shown = [f"{worst[s]:.1f} < {limit.floor_gb_s:.1f} GB/s at {size(s)}" for s, limit in low.items()]
        return f"below the floor: {', '.join(shown)} (limits: {sources})"
    return f"every judged size reaches its floor (limits: {sources})"


def _floor_findings(collective: str, worst: Mapping[int, float], limits: Mapping[int, Limit]) -> tuple[Finding, ...]:
    """Sizes between the floor and the warning line: they pass and deserve a look."""
    return tuple(
        Finding(
            level=Level.WARN,
            code="bandwidth-below-usual",
            object=f"{collective} at {size(s)}",
            observed=f"{worst[s]:.1f} GB/s",
            expected=f"about {limit.warn_gb_s:.1f} GB/s or more{' (derived)' if limit.derived else ''}",
            remedy="compare NCCL and plugin versions with the source of the figure: " + limit.source,
        )
        for s, limit in limits.items()
        if limit.warn_gb_s is not None and limit.floor_gb_s <= worst[s] < limit.warn_gb_s
    )
