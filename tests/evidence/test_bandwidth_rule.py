"""Floors at named sizes, shape, plausibility: what passes, what fails, and what says nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.fabrics import fabric_of
from infra.model.measurement import Sweep, SweepRow
from infra.model.verdict import Outcome
from tasks.rules.bandwidth import Expected, judge, judge_floor, judge_plausibility, judge_shape

GIB = 1 << 30
SIZES = (256 << 20, GIB, 4 * GIB, 8 * GIB)
GOOD = {256 << 20: 343.0, GIB: 437.0, 4 * GIB: 466.0, 8 * GIB: 479.0}
P5 = fabric_of("p5.48xlarge")
ASKED = Expected(nodes=2, gpus=8, sizes=SIZES)


def sweep(busbw=GOOD, *, ranks=16, hosts=2, complete=True, wrong=0, rounds=1):
    factor = 2 * (ranks - 1) / ranks or 1.0
    rows = [
        SweepRow(
            round=number,
            size_bytes=size,
            time_us=size / (value / factor) / 1e3,
            algbw_gb_s=value / factor,
            busbw_gb_s=value,
            wrong=wrong,
        )
        for number in range(rounds)
        for size, value in busbw.items()
    ]
    return Sweep(ranks=ranks, hosts=hosts, rounds=rounds, complete=complete, rows=tuple(rows))


def outcomes(*args):
    return [v.outcome.value for v in judge(*args)]


def test_the_published_curve_passes_all_three():
    assert outcomes(sweep(), ASKED, P5, {}) == ["pass", "pass", "pass"]


def test_a_figure_below_the_floor_fails_and_names_size_value_limit_and_source():
    verdict = judge_floor(sweep({**GOOD, 8 * GIB: 200.0}), ASKED, P5, {})
    assert verdict.outcome is Outcome.FAIL
    for word in ("8 GiB", "200.0", "335.3", "awsome-distributed-ai"):
        assert word in verdict.reason


def test_a_floor_of_the_spec_goes_before_the_table():
    assert judge_floor(sweep(), ASKED, P5, {8 * GIB: 480.0}).outcome is Outcome.FAIL
    assert judge_floor(sweep({**GOOD, 8 * GIB: 200.0}), ASKED, P5, {8 * GIB: 190.0}).outcome is Outcome.PASS


def test_a_floor_at_a_size_that_was_not_swept_is_unmeasured():
    assert judge_floor(sweep(), ASKED, P5, {16 * GIB: 1.0}).outcome is Outcome.UNMEASURED


def test_without_any_figure_it_is_measured_not_judged():
    verdict = judge_floor(sweep(), ASKED, None, {})
    assert verdict.outcome is Outcome.UNMEASURED
    assert "measured, not judged" in verdict.reason
    assert "8 GiB: 479.0 GB/s" in verdict.observed


def test_too_good_is_unmeasured_for_floor_and_plausibility():
    """Both pods on one node: NVLink's bandwidth, which no NIC carried."""
    fast = sweep({size: 840.0 for size in SIZES})
    assert judge_floor(fast, ASKED, P5, {}).outcome is Outcome.UNMEASURED
    verdict = judge_plausibility(fast, ASKED, P5)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "did not cross the NICs" in verdict.reason


def test_a_dip_over_ten_percent_between_sizes_fails_the_shape():
    assert judge_shape(sweep({**GOOD, 4 * GIB: 392.0}), ASKED).outcome is Outcome.FAIL
    assert judge_shape(sweep({**GOOD, 4 * GIB: 394.0}), ASKED).outcome is Outcome.PASS


def test_one_size_has_no_shape():
    asked = replace(ASKED, sizes=(GIB,))
    assert judge_shape(sweep({GIB: 437.0}), asked).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(
    "broken",
    [
        sweep(complete=False),
        sweep(ranks=1, hosts=1),
        sweep(hosts=1),
        sweep({k: v for k, v in GOOD.items() if k != 8 * GIB}),
        sweep(wrong=None),
        Sweep(),
    ],
    ids=["cut", "single ranks", "one host", "largest size missing", "sums unchecked", "empty"],
)
def test_what_lacks_a_part_is_unmeasured_in_all_three(broken):
    assert set(outcomes(broken, ASKED, P5, {})) == {"unmeasured"}


def test_wrong_sums_fail_even_in_a_run_that_was_cut():
    verdict = judge_floor(sweep(wrong=3, complete=False), ASKED, P5, {})
    assert verdict.outcome is Outcome.FAIL
    assert "localise" in verdict.reason


def test_the_worst_round_counts_so_a_second_communicator_on_tcp_is_seen():
    good = sweep(rounds=2)
    slow = tuple(replace(r, busbw_gb_s=3.0, algbw_gb_s=1.6) if r.round == 1 else r for r in good.rows)
    asked = replace(ASKED, rounds=2)
    assert judge_floor(replace(good, rows=slow), asked, P5, {}).outcome is Outcome.FAIL


def test_a_missing_second_round_is_unmeasured_whatever_the_run_says_of_itself():
    assert judge_floor(sweep(rounds=1), replace(ASKED, rounds=2), P5, {}).outcome is Outcome.UNMEASURED


def test_time_and_bandwidth_that_contradict_are_unmeasured():
    odd = sweep()
    rows = (replace(odd.rows[0], time_us=odd.rows[0].time_us * 2), *odd.rows[1:])
    verdict = judge_plausibility(replace(odd, rows=rows), ASKED, P5)
    assert verdict.outcome is Outcome.UNMEASURED
    assert "the time says" in verdict.reason


def test_between_floor_and_usual_it_passes_with_a_warning():
    verdict = judge_floor(sweep({k: 0.8 * v for k, v in GOOD.items()}), ASKED, P5, {})
    assert verdict.outcome is Outcome.PASS
    assert {f.code for f in verdict.findings} == {"bandwidth-below-usual"}


@settings(max_examples=50)
@given(st.data())
def test_losing_rows_or_the_end_never_turns_anything_into_a_pass(data):
    """From any sweep: taking rows away, or the end line, gives no pass that was not there before."""
    values = data.draw(st.fixed_dictionaries({s: st.floats(1.0, 900.0) for s in SIZES}))
    whole = sweep(values, wrong=data.draw(st.sampled_from([0, 0, 0, 2, None])))
    kept = data.draw(st.lists(st.sampled_from(whole.rows), unique=True))
    less = replace(whole, rows=tuple(kept), complete=whole.complete and data.draw(st.booleans()))
    for before, after in zip(judge(whole, ASKED, P5, {}), judge(less, ASKED, P5, {}), strict=True):
        assert after.outcome is not Outcome.PASS or before.outcome is Outcome.PASS


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from(["ranks", "hosts", "complete", "size_bytes", "busbw_gb_s", "time_us", "wrong"]),
        st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=5)),
    )
)
def test_any_json_reads_as_a_sweep_that_proves_nothing(raw):
    assert set(outcomes(Sweep.from_dict({**raw, "rows": [raw, 3, None]}), ASKED, P5, {})) == {"unmeasured"}


def test_plain_json_there_and_back():
    assert Sweep.from_dict(sweep().to_dict()) == sweep()
