"""A/B of training steps: the interval decides, and only like is compared with like."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.model.measurement import Steps, steps_of
from infra.model.verdict import Outcome
from tasks.rules.compare import judge, quantile, ratio, summarise

WORKLOAD = {"preset": "qwen2.5-14b", "batch": 1}


def steps(seconds, **changes):
    given = {"announced": len(seconds), "ranks": 16, "hosts": 2, "complete": True, "workload": WORKLOAD}
    return Steps(seconds=tuple(seconds), warmup=5, **{**given, **changes})


def around(middle, count=40, spread=0.02, seed=1):
    rng = random.Random(seed)
    return [middle * rng.gauss(1, spread) for _ in range(count)]


SLOW, FAST = steps(around(12.36)), steps(around(6.07, seed=2))


def test_the_published_move_passes_a_gate_at_six_tenths_with_95_percent():
    """Qwen2.5-14B FSDP on 16 H200: median step 12.36 s on sockets, 6.07 s on RDMA."""
    verdict = judge(SLOW, FAST, limit=0.6, confidence=0.95)
    assert verdict.outcome is Outcome.PASS
    assert "12.3" in verdict.observed
    assert "6.0" in verdict.observed
    assert ratio(SLOW.seconds, FAST.seconds, 0.95).medians == pytest.approx(6.07 / 12.36, rel=0.02)


def test_the_same_move_fails_a_gate_at_four_tenths():
    assert judge(SLOW, FAST, limit=0.4, confidence=0.95).outcome is Outcome.FAIL


def test_an_interval_that_holds_the_limit_is_unmeasured_and_asks_for_more_steps():
    noisy = steps(around(6.07, count=12, spread=0.3))
    verdict = judge(steps(around(12.36, count=12, spread=0.3, seed=9)), noisy, limit=0.5, confidence=0.95)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "train_steps" in verdict.reason


def test_a_step_of_another_order_of_magnitude_is_no_gain_but_other_work():
    verdict = judge(SLOW, steps(around(0.01, seed=2)), limit=0.6, confidence=0.95)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "implausible" in verdict.reason


REPLAYED = {
    "one time for all": (steps([12.36] * 40), steps([6.07] * 40)),
    "a block shown three times": (SLOW, steps(around(6.07, 13, seed=2) * 3)),
    "two times": (SLOW, steps([6.0, 6.1] * 20)),
    "the same output twice": (SLOW, SLOW),
    "the same output in another order": (SLOW, replace(SLOW, seconds=SLOW.seconds[::-1])),
    "without warm-up": (replace(SLOW, warmup=0), replace(FAST, warmup=0)),
    "another warm-up": (replace(SLOW, warmup=1), FAST),
    "no number of steps announced": (SLOW, replace(FAST, announced=None)),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_times_that_no_clock_measured_once_on_each_side_are_not_compared(name):
    verdict = judge(*REPLAYED[name], limit=1.1, confidence=0.95)
    assert verdict.outcome is Outcome.UNMEASURED
    assert verdict.reason


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_limit_that_is_none_passes_nobody(limit):
    assert judge(SLOW, FAST, limit=limit, confidence=0.95).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("lost", ["ranks", "hosts", "workload"])
def test_two_runs_that_do_not_say_where_they_ran_are_not_compared(lost):
    slow, fast = (replace(side, **{lost: None}) for side in (SLOW, FAST))
    assert judge(slow, fast, limit=0.6, confidence=0.95).outcome is Outcome.UNMEASURED


def test_no_gain_is_no_pass():
    assert judge(SLOW, steps(around(12.36, seed=5)), limit=0.9, confidence=0.95).outcome is Outcome.FAIL


def test_stalls_behind_a_good_median_are_no_pass_and_are_counted():
    stalled = around(6.07, 36, seed=2) + around(120.0, 4)
    verdict = judge(SLOW, steps(stalled), limit=0.9, confidence=0.95)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "stand still" in verdict.reason
    assert [f.code for f in verdict.findings] == ["steps-stall"]


@pytest.mark.parametrize(
    "other",
    [
        None,
        replace(FAST, complete=False),
        replace(FAST, announced=41),
        replace(FAST, ranks=32),
        replace(FAST, hosts=4),
        replace(FAST, ranks=None),
        replace(FAST, workload={"preset": "tiny", "batch": 1}),
        replace(FAST, workload=None),
        steps(FAST.seconds[:9]),
    ],
    ids=["none", "cut", "fewer steps", "ranks", "hosts", "unknown ranks", "workload", "unknown workload", "too few"],
)
def test_what_is_missing_or_unlike_is_unmeasured_on_either_side(other):
    assert judge(SLOW, other, limit=0.9, confidence=0.95).outcome is Outcome.UNMEASURED
    assert judge(other, FAST, limit=0.9, confidence=0.95).outcome is Outcome.UNMEASURED


def test_the_interval_is_the_same_for_the_same_readings():
    assert ratio(SLOW.seconds, FAST.seconds, 0.95) == ratio(SLOW.seconds, FAST.seconds, 0.95)


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says():
    """12 pairs with a true ratio of 0.5: at 90 % it may miss a few times, not often."""
    missed = 0
    for seed in range(12):
        found = ratio(around(2.0, 30, 0.1, seed), around(1.0, 30, 0.1, seed + 1000), 0.9)
        missed += not found.low <= 0.5 <= found.high
    assert missed <= 4


def test_summary_shows_median_mean_p95_and_stalls():
    found = summarise([1.0] * 18 + [3.0, 5.0])
    assert (found.median, found.mean, found.p95, found.stalls) == (1.0, 1.3, 3.0, 2)
    assert quantile([3, 1, 2], 0.5) == 2


def start(**changes):
    return {"warmup": 2, "steps": 3, "ranks": 2, "hosts": 2, "preset": "tiny", **changes}


def test_warm_up_is_dropped_whether_the_reader_dropped_it_or_not():
    with_warmup = steps_of(start(), range(5), [9, 8, 1, 1, 1], complete=True)
    without = steps_of(start(), range(2, 5), [1, 1, 1], complete=True)
    assert with_warmup == without
    assert with_warmup.complete


@pytest.mark.parametrize("numbers", [[2, 3], [2, 4, 3], [2, 3, 3], [2, 3, 5], [3, 4, 5]])
def test_steps_that_are_lost_doubled_or_out_of_order_make_a_run_incomplete(numbers):
    assert not steps_of(start(), numbers, [1.0] * len(numbers), complete=True).complete


@pytest.mark.parametrize("announced", [10**12, 10**400])
def test_a_run_that_announces_any_number_of_steps_is_incomplete_at_once(announced):
    assert not steps_of(start(steps=announced), [2, 3, 4], [1.0] * 3, complete=True).complete
    assert not steps_of(start(), [2, 3, 4], [10**400] * 3, complete=True).seconds


@settings(max_examples=25)
@given(st.integers(0, 39), st.floats(0.2, 0.9))
def test_losing_a_step_never_gives_a_pass(lost, limit):
    fewer = replace(FAST, seconds=FAST.seconds[:lost] + FAST.seconds[lost + 1 :])
    assert judge(SLOW, fewer, limit=limit, confidence=0.95).outcome is not Outcome.PASS


@given(st.lists(st.one_of(st.none(), st.floats(), st.integers(), st.booleans(), st.text(max_size=3))))
def test_any_list_reads_as_finite_positive_steps(raw):
    assert all(s > 0 for s in Steps.from_dict({"seconds": raw}).seconds)
