"""Steps that were made out of the other run's, and those that only resemble them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from infra.model.measurement import Steps
from infra.model.verdict import Outcome
from tasks.rules.compare import judge, neighbours_alike
from tasks.rules.copied import copied

Series = list[float]


def run(seconds: Series) -> Steps:
    return Steps(
        seconds=tuple(seconds), warmup=5, announced=len(seconds), ranks=16, hosts=2, complete=True,
        workload={"preset": "qwen2.5-14b"},
    )  # fmt: skip


def measured(count: int, seed: int, level: float = 12.36, jitter: float = 0.01, digits: int = 6) -> Series:
    dealer = random.Random(seed)
    return [round(level * (1 + jitter * dealer.gauss(0, 1)), digits) for _ in range(count)]


COPIES: dict[str, Callable[[Series], Series]] = {
    "times a constant": lambda s: [0.49 * x for x in s],
    "rounded as it is printed": lambda s: [round(0.49 * x, 6) for x in s],
    "rounded to milliseconds": lambda s: [round(0.49 * x, 3) for x in s],
    "times a constant, plus one": lambda s: [round(0.3 * x + 2.5, 6) for x in s],
    "less a constant": lambda s: [round(x - 6.3, 6) for x in s],
    "backwards": lambda s: [round(0.49 * x, 6) for x in reversed(s)],
    "shuffled": lambda s: random.Random(3).sample([round(0.49 * x, 6) for x in s], len(s)),
    "begun anew in the middle": lambda s: [round(0.49 * x, 6) for x in s[7:] + s[:7]],
}


@pytest.mark.parametrize("count", [10, 30, 100])
@pytest.mark.parametrize("name", COPIES)
def test_steps_that_were_computed_from_the_sources_are_no_measurement(name: str, count: int) -> None:
    source = measured(count, seed=3, digits=3 if name == "rounded to milliseconds" else 6)
    if (count, name) == (10, "rounded to milliseconds"):
        return  # of ten coarse steps nobody can say
    found = judge(run(source), run(COPIES[name](source)), limit=0.6, confidence=0.95)
    assert found.outcome is Outcome.UNMEASURED
    assert [f.code for f in found.findings] == ["steps-copied"]
    assert "computed and not measured" in found.reason


def test_a_part_of_the_source_or_more_than_it_is_a_copy_too() -> None:
    source = measured(60, seed=1)
    for off in (0, 13, 30):
        part = [round(0.5 * x, 6) for x in source[off : off + 30]]
        assert copied(source, part, 0.0)
        assert copied(part, source, 0.0)
    stretch = [round(0.5 * x, 6) for x in source]
    stretch[:20] = measured(20, seed=2, level=6.18)
    assert "a stretch of steps" in copied(source, stretch, 0.0)


def noise(dealer: random.Random, count: int, follow: float) -> Series:
    """Jitter of which each value follows the one before."""
    values, state = [], dealer.gauss(0, 1)
    for _ in range(count):
        state = follow * state + (1 - follow**2) ** 0.5 * dealer.gauss(0, 1)
        values.append(state)
    return values


def independent(dealer: random.Random, shape: str, count: int, digits: int) -> tuple[Series, Series]:
    """Two runs as machines give them: `shape` is what they have in common."""
    common = {
        "nothing": [0.0] * count,
        "the data": noise(dealer, count, 0.0),
        "a slow swing": noise(dealer, count, 0.9),
        "a drift": [n / count for n in range(count)],
        "a checkpoint every tenth step": [3.0 * (n % 10 == 9) for n in range(count)],
        "two kinds of steps": [float(n % 3 == 0) for n in range(count)],
    }[shape]
    runs = []
    for level in (12.36, 6.07):
        own = noise(dealer, count, dealer.choice([0.0, 0.5, 0.9]))
        jitter = dealer.choice([0.002, 0.005, 0.02])
        steps = [level * (1 + 0.03 * c + jitter * e) for c, e in zip(common, own, strict=True)]
        if dealer.random() < 0.3:
            steps[dealer.randrange(count)] *= 3  # one stands still
        runs.append([round(s, digits) for s in steps])
    return runs[0], runs[1]


@pytest.mark.parametrize("digits", [1, 2, 3, 6])
@pytest.mark.parametrize(
    "shape",
    ["nothing", "the data", "a slow swing", "a drift", "a checkpoint every tenth step", "two kinds of steps"],
)
def test_two_measurements_are_never_taken_for_one_however_alike_they_are(shape: str, digits: int) -> None:
    dealer = random.Random(f"{shape}{digits}")
    for _ in range(150):
        source, target = independent(dealer, shape, dealer.choice([10, 12, 20, 40, 100]), digits)
        assert copied(source, target, neighbours_alike(target)) == ""


@pytest.mark.parametrize("shape", ["uniform", "skewed", "two levels"])
def test_runs_of_one_distribution_are_no_copies_of_each_other(shape: str) -> None:
    dealer = random.Random(shape)
    deal = {
        "uniform": lambda: dealer.uniform(0.9, 1.1),
        "skewed": lambda: dealer.lognormvariate(0, 0.05),
        "two levels": lambda: dealer.choice([1.0, 1.1]) + dealer.gauss(0, 1e-4),
    }[shape]
    for _ in range(300):
        count = dealer.choice([10, 30, 100])
        source, target = ([round(level * deal(), 6) for _ in range(count)] for level in (12.36, 6.07))
        assert copied(source, target, 0.0) == ""


@pytest.mark.parametrize(
    ("source", "target"), [([6.0] * 20, [3.0] * 20), ([6.0, 6.1] * 10, [3.0, 3.1] * 10), ([1e-9] * 12, [5e-10] * 12)]
)
def test_steps_without_a_spread_show_no_copy(source: Series, target: Series) -> None:
    assert copied(source, target, 0.0) == ""
