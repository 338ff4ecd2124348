"""A pool against its own past: what slid is found, whatever its floors say; without a past nothing is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from infra.model.evidence import Evidence
from infra.model.verdict import Outcome, Verdict
from tasks.rules import drift


def swept(day: int, gb_s: float, **changes: Any) -> Evidence:
    row = {"round": 0, "size_bytes": 1 << 30, "time_us": 1.0, "algbw_gb_s": 1.0, "busbw_gb_s": gb_s, "wrong": 0}
    values: dict[str, Any] = {
        "probe": "bandwidth", "mode": "pinned", "pool": "arn", "machine_type": "p5en.48xlarge", "nodes": ("a", "b"),
        "node_uids": ("1", "2"), "spec_hash": "s", "measured": f"2026-01-{day:02d}T00:00:00Z", "complete": True,
        "reading": {"ranks": 16, "hosts": 2, "complete": True, "rows": [row]}, "versions": {"nccl": "2.27.3"},
    }  # fmt: skip
    return Evidence(**{**values, **changes}).seal()


def stepped(day: int, seconds: float, **changes: Any) -> Evidence:
    reading = {"seconds": [seconds] * 10, "warmup": 5, "announced": 10, "complete": True}
    return swept(day, 0, probe="train-step", mode="workload", reading=reading, **changes)


def judge(past: list[Evidence], *now: Evidence) -> Verdict:
    return drift.judge("pool x", past, list(now), share=0.1, points=3)


HELD = [swept(day, 350.0) for day in (1, 2, 3)]


@pytest.mark.parametrize(("gb_s", "outcome"), [(350, "pass"), (320, "pass"), (500, "pass"), (310, "fail"), (1, "fail")])
def test_a_bandwidth_that_slid_by_more_than_the_share_fails(gb_s: float, outcome: str) -> None:
    assert judge(HELD, swept(9, gb_s)).outcome == outcome


@pytest.mark.parametrize(("seconds", "outcome"), [(6.0, "pass"), (6.5, "pass"), (3.0, "pass"), (6.7, "fail")])
def test_a_step_time_that_rose_by_more_than_the_share_fails(seconds: float, outcome: str) -> None:
    assert judge([stepped(day, 6.0) for day in (1, 2, 3)], stepped(9, seconds)).outcome == outcome


def test_the_finding_says_how_much_since_when_and_what_changed() -> None:
    slid = [swept(day, 300.0) for day in (4, 5)]
    verdict = judge([*HELD, *slid], swept(6, 290.0, versions={"nccl": "2.30.1"}, image="new"))

    (finding,) = verdict.findings
    assert "290 GB/s, 17% worse than 350 GB/s" in finding.observed
    assert finding.since == "2026-01-04T00:00:00Z"
    assert "nccl 2.27.3 -> 2.30.1" in finding.remedy
    assert "image  -> new" in finding.remedy


def test_a_slow_slide_is_found_although_no_single_step_of_it_is_large() -> None:
    rates = [350 * 0.98**n for n in range(12)]
    past = [swept(day, rate) for day, rate in enumerate(rates[:-1], start=1)]

    assert judge(past, swept(12, rates[-1])).outcome is Outcome.FAIL


def test_one_lucky_or_one_bad_measurement_is_no_level() -> None:
    past = [swept(day, gb_s) for day, gb_s in enumerate([350, 450, 350, 90, 350], start=1)]

    assert judge(past, swept(9, 345.0)).outcome is Outcome.PASS


def test_a_size_that_was_measured_before_and_is_lost_now_is_no_pass_and_one_given_up_long_ago_is() -> None:
    def at(day: int, *sizes: int) -> Evidence:
        rows = [
            {"round": 0, "size_bytes": 1 << s, "time_us": 1.0, "algbw_gb_s": 1.0, "busbw_gb_s": 350.0, "wrong": 0}
            for s in sizes
        ]
        return swept(day, 0, reading={"ranks": 16, "hosts": 2, "complete": True, "rows": rows})

    both = [at(day, 28, 30) for day in (1, 2, 3)]
    lost = judge(both, at(9, 28))
    assert (lost.outcome, "1 GiB" in lost.reason) == (Outcome.UNMEASURED, True)
    assert judge([*both, at(4, 28)], at(9, 28)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "past",
    [
        [],
        [swept(day, 350.0, machine_type="p5.48xlarge") for day in (1, 2, 3)],
        HELD[:2],
        [swept(day, 350.0, nodes=("a", "b", "c", "d")) for day in (1, 2, 3)],
        [swept(day, 350.0, mode="workload") for day in (1, 2, 3)],
        [swept(day, 350.0, complete=False) for day in (1, 2, 3)],
        [*HELD[:2], swept(3, 350.0).from_dict({**swept(3, 350.0).to_dict(), "machine_type": "altered"})],
        [swept(day, 350.0) for day in (21, 22, 23)],
    ],
    ids=["none", "another machine type", "two", "of more nodes", "of another mode", "broken off", "altered", "later"],
)
def test_with_too_few_comparable_measurements_it_is_unmeasured(past: list[Evidence]) -> None:
    verdict = judge(past, swept(9, 350.0))

    assert verdict.outcome is Outcome.UNMEASURED
    assert "of 3" in verdict.reason


def test_a_new_measurement_that_broke_off_says_nothing() -> None:
    assert judge(HELD, swept(9, 350.0, complete=False)).outcome is Outcome.UNMEASURED
    assert judge(HELD).outcome is Outcome.UNMEASURED


def test_a_probe_that_broke_off_beside_a_figure_that_holds_is_no_pass() -> None:
    assert judge(HELD, swept(9, 350.0), stepped(9, 6.0, complete=False)).outcome is Outcome.UNMEASURED
    assert judge(HELD, swept(9, 100.0), stepped(9, 6.0, complete=False)).outcome is Outcome.FAIL


def test_a_figure_without_a_past_beside_one_that_holds_is_unmeasured_and_beside_one_that_slid_a_fail() -> None:
    assert judge(HELD, swept(9, 350.0), stepped(9, 6.0)).outcome is Outcome.UNMEASURED
    assert judge(HELD, swept(9, 100.0), stepped(9, 6.0)).outcome is Outcome.FAIL
