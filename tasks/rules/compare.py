"""A against B: is a training step on the target as much faster as the spec demands?

Warm-up is dropped before. Judged is the ratio of medians with a bootstrap interval; mean, 95th percentile and stalls
are shown beside it, because a median hides a run that stands still every tenth step. All times are seconds.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from infra.model.measurement import Steps
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.copied import copied
from tasks.rules.wording import plural

CHECK = "step-time"
MIN_STEPS = 10
STALL = 2.0  # a step that takes this many medians stood still
RESAMPLES = 2000
LEAST_WORTH = 3.0  # independent steps that a side's steps must be worth
MOST_ALIKE = 0.95  # above, neighbouring steps say next to nothing that the one before did not
LEAST_RATIO = 0.02  # the fabric is worth 2 to 20 times; a step that takes a fiftieth computed something else
SEED = 20240  # the same readings give the same interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One side's steps."""

    steps: int
    median: float
    mean: float
    p95: float
    stalls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Target over source: the ratio of medians with its two-sided interval, and the ratio of means."""

    medians: float
    low: float
    high: float
    means: float
    confidence: float


def summarise(seconds: Sequence[float]) -> Summary:
    """Of at least one step."""
    middle = median(seconds)
    return Summary(
        steps=len(seconds),
        median=middle,
        mean=fmean(seconds),
        p95=quantile(seconds, 0.95),
        stalls=sum(1 for s in seconds if s > STALL * middle),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was really measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(source: Sequence[float], target: Sequence[float], confidence: float) -> Ratio:
    """The ratio of medians with its percentile bootstrap interval, widened for what it would not see. Deterministic."""
    rng = random.Random(SEED)  # noqa: S311 - resampling, no secret
    left, right = _deviations(source, rng), _deviations(target, rng)
    shifts = sorted(t - s for s, t in zip(left, right, strict=True))
    tail = (1 - confidence) / 2
    middle = median(target) / median(source)
    return Ratio(
        medians=middle,
        low=middle * math.exp(shifts[math.floor(tail * (RESAMPLES - 1))]),
        high=middle * math.exp(shifts[math.ceil((1 - tail) * (RESAMPLES - 1))]),
        means=fmean(target) / fmean(source),
        confidence=confidence,
    )


def judge(source: Steps | None, target: Steps | None, *, limit: float, confidence: float) -> Verdict:
    """Pass only when the whole interval lies at or under the limit.

    Fail when it lies above it. When it straddles the limit, or the means contradict the medians, more steps are
    needed: unmeasured.
    """
    statistic = f"ratio of median steps, target over source, {confidence:.0%} bootstrap interval"
    bound = f"at most {limit:g}"
    reason = "" if math.isfinite(limit) and limit > 0 else f"the limit {limit:g} is none"
    reason = reason or ("" if 0 < confidence < 1 else f"the confidence {confidence:g} is none")
    reason = reason or _unusable("source", source) or _unusable("target", target)
    findings: tuple[Finding, ...] = ()
    if not reason and source is not None and target is not None:
        reason = _unlike(source, target) or _drifting("source", source) or _drifting("target", target)
        if not reason and (found := copied(source.seconds, target.seconds, neighbours_alike(target.seconds))):
            reason, findings = f"not comparable: {found}", (_copy(found),)
    if reason or source is None or target is None:
        return Verdict(
            check=CHECK,
            outcome=Outcome.UNMEASURED,
            limit=bound,
            statistic=statistic,
            reason=reason,
            findings=findings,
        )
    result = ratio(source.seconds, target.seconds, confidence)
    left, right = summarise(source.seconds), summarise(target.seconds)
    outcome, why = _decide(result, limit)
    return Verdict(
        check=CHECK,
        outcome=outcome,
        observed=f"{result.medians:.3f} [{result.low:.3f}, {result.high:.3f}]: median {left.median:.2f} s -> "
        f"{right.median:.2f} s, mean {left.mean:.2f} -> {right.mean:.2f}, p95 {left.p95:.2f} -> {right.p95:.2f}, "
        f"stalls {left.stalls} -> {right.stalls}",
        limit=bound,
        statistic=statistic,
        reason=why,
        findings=_stall_findings(left, right),
    )


def _decide(found: Ratio, limit: float) -> tuple[Outcome, str]:
    if found.medians < LEAST_RATIO:
        return Outcome.UNMEASURED, f"implausible: {1 / found.medians:.0f} times as fast; the two ran different work"
    if found.low > limit:
        return Outcome.FAIL, f"the whole interval [{found.low:.3f}, {found.high:.3f}] is above {limit:g}"
    if found.high > limit:
        return Outcome.UNMEASURED, (
            f"the interval [{found.low:.3f}, {found.high:.3f}] holds the limit {limit:g}: raise validation.train_steps"
        )
    if found.means > limit:
        return Outcome.UNMEASURED, (
            f"the medians pass and the means ({found.means:.3f}) do not: steps stand still now and then; "
            f"see p95 and stalls"
        )
    return Outcome.PASS, f"the whole interval [{found.low:.3f}, {found.high:.3f}] is at or below {limit:g}"


def _unusable(side: str, steps: Steps | None) -> str:
    if steps is None:
        return f"no training steps of the {side} pool"
    if not steps.complete:
        return f"the {side}'s run has no end, or lost lines: it was cut"
    if steps.announced != len(steps.seconds):
        return f"the {side}'s run announced {steps.announced or 'no'} steps and shows {len(steps.seconds)}"
    if steps.warmup < 1:
        return f"the {side}'s run had no warm-up: its first steps, which are slow for other reasons, would count"
    if len(steps.seconds) < MIN_STEPS:
        return f"the {side}'s run has {len(steps.seconds)} steps after warm-up, expected at least {MIN_STEPS}"
    if period := _period(steps.seconds):
        return f"the {side}'s run shows the times of {plural(period, 'step')} again and again: no clock measures so"
    if not steps.ranks or not steps.hosts or not steps.workload:
        return f"the {side}'s run does not say what it ran on how many ranks and nodes"
    return ""


def _period(seconds: Sequence[float]) -> int:
    """After how many steps the same times come again, to the end; 0 where they do not."""
    count = len(seconds)
    return next((p for p in range(1, count // 2 + 1) if seconds[p:] == seconds[: count - p]), 0)


def _drifting(side: str, steps: Steps) -> str:
    """Steps that only follow the one before are a drift, and their median is one of the moment."""
    alike = neighbours_alike(steps.seconds)
    worth = len(steps.seconds) * (1 - alike) / (1 + alike)
    if worth >= LEAST_WORTH:
        return ""
    return (
        f"the {side}'s {len(steps.seconds)} steps follow each other too closely to be judged (correlation of "
        f"neighbours {alike:.2f}): a drift, or too few; raise validation.train_steps"
    )


def _unlike(source: Steps, target: Steps) -> str:
    """Like with like: another model, batch or world size would make the ratio mean nothing."""
    if source.ranks != target.ranks:
        return f"not comparable: {source.ranks} ranks on the source, {target.ranks} on the target"
    if source.hosts != target.hosts:
        return f"not comparable: {source.hosts} nodes on the source, {target.hosts} on the target"
    if source.warmup != target.warmup:
        return f"not comparable: {source.warmup} steps of warm-up on the source, {target.warmup} on the target"
    if sorted(source.seconds) == sorted(target.seconds):
        return "not comparable: both sides show the very same times, which is one measurement shown twice"
    left, right = source.workload or {}, target.workload or {}
    differ = sorted(k for k in {*left, *right} if left.get(k) != right.get(k))
    return f"not comparable: the two runs differ in {', '.join(differ)}" if differ else ""


def _copy(found: str) -> Finding:
    return Finding(
        level=Level.WARN,
        code="steps-copied",
        object="training steps of both pools",
        observed=found,
        expected="two runs, each with a jitter of its own",
        remedy="measure both pools, each with the program itself, and keep its output as it printed it",
    )


def _stall_findings(source: Summary, target: Summary) -> tuple[Finding, ...]:
    if target.stalls <= source.stalls:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="steps-stall",
            object="training steps of the target pool",
            observed=f"{target.stalls} of {target.steps} steps took over {STALL:g} medians, p95 {target.p95:.2f} s",
            expected=f"no more than on the source ({source.stalls})",
            remedy="look for a flapping link, page cache pressure or throttled GPUs at these steps",
        ),
    )


def _deviations(values: Sequence[float], rng: random.Random) -> list[float]:
    """Resampled medians as logarithms about the median, each as far off as the steps are worth.

    Two widenings. Few values show too little of their spread: Student's quantile over the normal one, about
    1 + 1.5 / (n - 1). And steps that follow each other are alike (heat, other traffic), so that n of them are worth
    n (1 - r) / (1 + r), with r the correlation of neighbours. Without either the interval misses the true ratio three
    to ten times as often as it says (tests/evidence/test_compare_coverage.py).
    """
    alike = neighbours_alike(values)
    widened = (1 + 1.5 / (len(values) - 1)) * math.sqrt((1 + alike) / (1 - alike))
    middle = math.log(median(values))
    return [widened * (math.log(median(rng.choices(values, k=len(values)))) - middle) for _ in range(RESAMPLES)]


def neighbours_alike(values: Sequence[float]) -> float:
    """Correlation of each step with the next one, 0 to `MOST_ALIKE`, by rank, so that a single stall does not hide it.

    Corrected for the bias of short series, (1 + 4r) / n (Marriott and Pope 1954).
    """
    count = len(values)
    ordered = sorted(values)
    ranks = [(bisect_left(ordered, v) + bisect_right(ordered, v)) / 2 for v in values]
    centre = fmean(ranks)
    off = [rank - centre for rank in ranks]
    spread = math.fsum(o * o for o in off)
    if not spread:
        return 0.0
    found = math.fsum(a * b for a, b in pairwise(off)) / spread
    return min(MOST_ALIKE, max(0.0, found + (1 + 4 * found) / count))
