"""How often the interval of the A/B misses the true ratio, by simulation: the gate stands on it.

What must not happen is an upper end below the truth: that opens a gate that should stay shut.
"""

import math
import random
from statistics import median

import pytest

from infra.model.measurement import Steps
from infra.model.verdict import Outcome
from tasks.rules.compare import judge, neighbours_alike

TRIALS = 100
CONFIDENCE = 0.95
NOMINAL = (1 - CONFIDENCE) / 2
MOST = NOMINAL + 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / TRIALS)  # three standard deviations of the simulation itself


def independent(count, rng):
    return [math.exp(rng.gauss(0, 0.05)) for _ in range(count)]


def alike(share):
    """Each step like the one before it: heat, another job on the links."""

    def made(count, rng):
        level, out = rng.gauss(0, 0.05), []
        for _ in range(count):
            level = share * level + math.sqrt(1 - share * share) * rng.gauss(0, 0.05)
            out.append(math.exp(level))
        return out

    return made


def two_modes(count, rng):
    """A step either meets the checkpoint writer or does not."""
    return [(1.5 if rng.random() < 0.4 else 1.0) * math.exp(rng.gauss(0, 0.02)) for _ in range(count)]


def ties(count, rng):
    """A clock that ticks coarsely."""
    return [rng.choice([0.98, 1.0, 1.02]) for _ in range(count)]


def stalls(count, rng):
    return [math.exp(rng.gauss(0, 0.03)) * (10 if rng.random() < 0.05 else 1) for _ in range(count)]


KINDS = {
    "independent": independent,
    "alike 0.5": alike(0.5),
    "alike 0.7": alike(0.7),
    "alike 0.9": alike(0.9),
    "two modes": two_modes,
    "ties": ties,
    "stalls": stalls,
}


def steps(seconds):
    seconds = tuple(seconds)
    return Steps(
        seconds=seconds,
        warmup=5,
        announced=len(seconds),
        ranks=16,
        hosts=2,
        complete=True,
        workload={"preset": "qwen2.5-14b"},
    )


def false_passes(kind, count, trials=TRIALS):
    """Passes of a limit that lies a hair below the true ratio: each is one that the interval should have held."""
    rng = random.Random(count)
    passed = 0
    for _ in range(trials):
        source, target = steps(2 * s for s in kind(count, rng)), steps(kind(count, rng))
        passed += judge(source, target, limit=0.5 * (1 - 1e-9), confidence=CONFIDENCE).outcome is Outcome.PASS
    return passed / trials


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 20, 40])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_limit_at_the_true_ratio_is_passed_no_more_often_than_the_confidence_allows(kind, count):
    assert false_passes(kind, count) <= MOST


@pytest.mark.slow
def test_more_steps_still_decide():
    """An interval that never says anything would hold the line above: a clear gain must pass with 40 steps."""
    rng = random.Random(1)
    least = {"independent": 19, "ties": 19, "alike 0.5": 15, "alike 0.7": 8, "two modes": 4}
    for name, wanted in least.items():
        kind = KINDS[name]
        outcomes = [
            judge(
                steps(12.36 * s for s in kind(40, rng)),
                steps(6.07 * s for s in kind(40, rng)),
                limit=0.6,
                confidence=CONFIDENCE,
            ).outcome
            for _ in range(20)
        ]
        assert outcomes.count(Outcome.PASS) >= wanted, name
        assert Outcome.FAIL not in outcomes or name == "two modes"


def test_the_likeness_of_neighbours_is_seen_whatever_single_stalls_do():
    rng = random.Random(3)
    series = alike(0.9)(200, rng)
    assert neighbours_alike(series) > 0.75
    series[50] = series[120] = 60.0
    assert neighbours_alike(series) > 0.75
    assert neighbours_alike(independent(200, rng)) < 0.25
    assert neighbours_alike([1.0] * 20) == 0.0


def test_a_drift_is_no_pass_however_good_its_median():
    """A target that gets slower with every step: the median is one of the moment."""
    warming = [5.0 + 0.2 * n for n in range(20)]
    found = judge(
        steps(12.36 * s for s in independent(20, random.Random(5))), steps(warming), limit=0.9, confidence=CONFIDENCE
    )
    assert median(warming) < 0.9 * 12.36
    assert found.outcome is Outcome.UNMEASURED
    assert "drift" in found.reason
