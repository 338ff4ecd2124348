"""Are the steps of one run those of another, scaled? Then one of them was computed, and nothing was measured. Pure.

A clock never gives two runs whose steps lie on one line: the time of a step of the one, times a constant, plus one.
Found are whole runs, runs in another order, a part of the longer one, and stretches; within what the printed digits
leave open and no further. Independent runs are no copies of each other, alike though their workloads make them: the
digits must be finer than any machine's jitter, and chance must be ruled out (tests/evidence/test_copied_steps.py).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from decimal import Decimal
from statistics import fmean, median

CHANCE = -12.0  # log10 of the chance that independent runs lie on a line, for these or any of their stretches
STRETCH = 20  # steps; of fewer a part of a run is no evidence
SHORT = 20  # steps; of a shorter run the digits must be finer
FINEST_JITTER = 1e-3  # of a step: no two runs of a machine agree as closely in every step
FINEST_OF_SHORT = 3e-4
SHIFTS = 500  # places of the shorter run in the longer one that are tried
SORTED = 1000.0  # quartiles apart, in tolerances: sorted runs of one machine are alike, but not to this


def copied(source: Sequence[float], target: Sequence[float], alike: float) -> str:
    """What shows that one run was made out of the other, or "".

    `alike` is the correlation of neighbouring steps of the target, of which n are worth n (1 - r) / (1 + r).
    """
    worth = (1 - alike) / (1 + alike)
    for what, xs, ys in _pairs(source, target):
        line = _line(xs, ys)
        if line is not None and _too_close(xs, ys, line, worth, ordered=what != _ANY_ORDER):
            slope, constant = line
            plus = f" {'+' if constant > 0 else '-'} {abs(constant):.3g} s" if abs(constant) > 1e-3 * max(ys) else ""
            return (
                f"{what} of the target {'are' if what == _ALL else 'is'} {slope:.4g} times the source's{plus}, to the "
                "last digit: one of the two was computed and not measured"
            )
    return ""


_ALL, _PART, _ANY_ORDER = "the steps", "a stretch of steps", "every step, sorted,"


def _pairs(source: Sequence[float], target: Sequence[float]) -> Iterator[tuple[str, Sequence[float], Sequence[float]]]:
    """What to compare with what."""
    short, rest = min(len(source), len(target)), abs(len(source) - len(target))
    for off in range(min(rest, SHIFTS) + 1):  # the whole of the shorter one, in any place of the longer one
        left, right = (off, 0) if len(source) > len(target) else (0, off)
        yield _ALL, source[left : left + short], target[right : right + short]
    if not rest:
        yield _ANY_ORDER, sorted(source), sorted(target)
    for start in range(0, short - STRETCH + 1, STRETCH // 2):
        yield _PART, source[start : start + STRETCH], target[start : start + STRETCH]


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Slope and constant of the least squares, None where one side does not vary or falls where the other rises."""
    left, right = fmean(xs), fmean(ys)
    spread = math.fsum((x - left) ** 2 for x in xs)
    slope = math.fsum((x - left) * (y - right) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return (slope, right - slope * left) if slope > 0 else None


def _too_close(
    xs: Sequence[float], ys: Sequence[float], line: tuple[float, float], worth: float, *, ordered: bool
) -> bool:
    slope, constant = line
    told = [slope * x + constant for x in xs]
    finest = (FINEST_JITTER if len(ys) >= SHORT else FINEST_OF_SHORT) * median(ys)
    if any(abs(y - t) > finest for y, t in zip(ys, told, strict=True)):
        return False  # as of nearly all that is no copy
    # Both sides are rounded as printed, and the line through them is as far off once more.
    tolerance = _digit(ys) + slope * _digit(xs) + 1e-9 * max(ys)
    if tolerance > finest or any(abs(y - t) > tolerance for y, t in zip(ys, told, strict=True)):
        return False
    values = sorted(ys)
    quartiles = values[3 * len(values) // 4] - values[len(values) // 4]
    if not ordered:
        return quartiles >= SORTED * tolerance
    near = max(quartiles / 4, tolerance)
    chance = 0.0
    for t in told:  # how many steps are near this one, and how much of that is as near as it was hit
        share = (bisect_right(values, t + near) - bisect_left(values, t - near)) / len(values)
        chance += math.log10(min(1.0, max(share, 1 / len(values)) * tolerance / near))
    return chance * worth * (len(ys) - 2) / len(ys) <= CHANCE


def _digit(values: Sequence[float]) -> float:
    """The last digit that was printed, seconds; nothing where they are not rounded."""
    exponents = (Decimal(repr(value)).normalize().as_tuple().exponent for value in values)
    places = max((-e for e in exponents if isinstance(e, int)), default=0)
    return 0.0 if places > 9 else 10.0**-places
