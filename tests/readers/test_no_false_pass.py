"""However an output is damaged, the answer may become unmeasured or fail; it never becomes a pass out of nothing."""

from __future__ import annotations

import re

import pytest
from campaign import run
from hypothesis import given, settings
from hypothesis import strategies as st
from mutate import MUTATIONS, mutate
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

MACHINE = "p5en.48xlarge"
BASE = Job(gpus=8, rounds=2, channels=2)
DEFECTS = {
    "later-communicator-on-sockets": Job(
        gpus=8, rounds=2, channels=2, socket_ranks=frozenset(range(16)), bad_rounds=frozenset({1})
    ),
    "one-rank-on-sockets": Job(gpus=8, rounds=2, channels=2, socket_ranks=frozenset({15})),
    "one-rank-without-gdr": Job(gpus=8, rounds=2, channels=2, plain_ranks=frozenset({7})),
    "one-host-with-half-its-nics": Job(gpus=8, rounds=2, channels=2, few_nics=frozenset(range(8, 16))),
    "both-pods-on-one-host": Job(gpus=8, rounds=2, channels=2, same_host=True),
    "bytes-on-ethernet": Job(gpus=8, rounds=2, channels=2, ethernet=frozenset({1})),
    "too-slow": Job(gpus=8, rounds=2, channels=2, busbw=40.0),
    "too-fast": Job(gpus=8, rounds=2, channels=2, busbw=900.0),
    "all-sockets": Job(gpus=8, rounds=2, channels=2, fabric="socket", busbw=9.0),
}
BAD = {name: write(job) for name, job in DEFECTS.items()}
GOOD = write(BASE)
GOOD_LINES = set(GOOD.split(b"\n"))


def read(data: bytes) -> JudgeResult:
    return judge(from_text(data), machine_type=MACHINE, nodes=2)


def test_the_whole_run_passes_and_every_defect_does_not() -> None:
    """The ground on which the properties below stand."""
    assert read(GOOD).exit_code == 0
    assert {name for name, data in BAD.items() if read(data).outcome is Outcome.PASS} == set()


@given(st.integers(0, len(GOOD) - 2))
@settings(max_examples=60)
def test_a_cut_run_is_never_a_pass(at: int) -> None:
    """Every prefix of a good run lacks its end."""
    assert read(GOOD[:at]).outcome is not Outcome.PASS


@given(st.sampled_from(sorted(BAD)), st.sampled_from(MUTATIONS), st.integers(0, 2**32))
@settings(max_examples=150)
def test_damage_never_turns_a_defect_into_a_pass(name: str, mutation: str, seed: int) -> None:
    """Cut, dropped and doubled lines, shuffled ranks, changed numbers, torn text."""
    data = mutate(BAD[name], mutation, seed, other=GOOD)
    if mutation == "splice" and len(set(data.split(b"\n")) - GOOD_LINES) <= 1:
        return  # all lines but the seam are the good run's: nothing of the defect is left in it
    assert read(data).outcome is not Outcome.PASS, (name, mutation, seed)


@given(st.integers(1, len(GOOD)), st.integers(1, 400), st.integers(0, 2**32))
@settings(max_examples=40)
def test_a_window_of_a_bad_run_is_no_pass(start: int, length: int, seed: int) -> None:
    """Any piece of a bad run, glued behind the head of a good one, is no proof of a good run."""
    bad = BAD[sorted(BAD)[seed % len(BAD)]]
    joined = GOOD[: len(GOOD) // 2] + bad[start : start + length * 100]
    assert read(joined).outcome is not Outcome.PASS


@given(
    st.sampled_from(["wrong", "slow", "short", "single", "one-host"]), st.sampled_from(MUTATIONS), st.integers(0, 2**32)
)
@settings(max_examples=100)
def test_damage_never_turns_a_bad_table_into_a_pass(defect: str, mutation: str, seed: int) -> None:
    """The same for nccl-tests' table."""
    data = mutate(write_table(Table.with_defect(defect)), mutation, seed, other=b"")
    assert read(data).outcome is not Outcome.PASS, (defect, mutation, seed)


def test_a_campaign_of_mutations_neither_crashes_nor_passes() -> None:
    """A small run of the campaign that `python -m` runs a million times (see campaign.py)."""
    assert run(300, seed=1).failures == []


def changed(old: str, new: str) -> bytes:
    found = GOOD.replace(old.encode(), new.encode())
    assert found != GOOD
    return found


END = b'{"poolshift":"all-reduce","event":"end","ok":true}\n'
ROW = next(line for line in GOOD.splitlines(keepends=True) if b'"event":"row"' in line)
SLOWEST = re.compile(rb'"slowest_us":([\d.]+)')
WITHOUT_END = GOOD.replace(END, b"")
CONTRADICTORY = {
    "the end before all else": END + WITHOUT_END,
    "the end before the last row": WITHOUT_END.replace(ROW, END + ROW),
    "a row of which there are two": GOOD.replace(ROW, ROW + ROW),
    "a start behind the rows": GOOD.replace(b'"event":"start"', b'"event":"noted"').replace(
        END, b'{"poolshift":"all-reduce","event":"start","v":1,"ranks":16,"hosts":2}\n' + END
    ),
    "an event that nobody knows": GOOD.replace(END, b'{"poolshift":"all-reduce","event":"abandoned"}\n' + END),
    "lines of another version": changed('"event":"start","v":1', '"event":"start","v":2'),
    "measured over gloo": changed('"backend":"nccl"', '"backend":"gloo"'),
    "ran on other nodes": changed('"nodes":["node-1","node-2"]', '"nodes":["old-1","old-2"]'),
    "no counters": b"".join(line for line in GOOD.splitlines(keepends=True) if b'"counters"' not in line),
    "no sizes announced": changed('"sizes":[67108864,268435456]', '"sizes":[]'),
    "one round announced, two shown": changed('"rounds":2', '"rounds":1'),
    "iterations that are none": changed('"iters":20', '"iters":0'),
    "told to use sockets": GOOD.replace(
        b"{", b"node-1:1000:2000 [0] NCCL INFO NCCL_NET set by environment to Socket.\n{", 1
    ),
    "rows of other sizes": changed('"sizes":[67108864,268435456]', '"sizes":[268435456]'),
    "rows of other iterations": changed('"iters":20,"rounds"', '"iters":200,"rounds"'),
    "a slowest rank faster than the mean": SLOWEST.sub(b'"slowest_us":1.0', GOOD, count=1),
    "a slowest rank of which nothing is told": SLOWEST.sub(b'"slowest_us":null', GOOD, count=1),
    "ranks whose clocks do not agree": SLOWEST.sub(lambda m: b'"slowest_us":9%s' % m[1], GOOD),
    "an end that is well and has an error": changed('"ok":true', '"ok":true,"error":"CUDA error"'),
    "a failed end in the line of the good one": changed(
        '"ok":true}', '"ok":true}{"poolshift":"all-reduce","event":"end","ok":false}'
    ),
    "a row of another program": changed('"all-reduce","event":"row"', '"train-step","event":"row"'),
    "a rate of 400 digits": changed('"busbw_gb_s":343.0', f'"busbw_gb_s":{"9" * 400}'),
    "wrong sums that cancel": GOOD.replace(b'"wrong":0', b'"wrong":5', 1).replace(b'"wrong":0', b'"wrong":-5', 1),
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_sweep_whose_lines_contradict_each_other_is_no_pass_and_says_why(name: str) -> None:
    found = read(CONTRADICTORY[name])
    assert found.outcome is not Outcome.PASS
    assert found.missing or found.findings or any(v.reason for v in found.verdicts if v.outcome is not Outcome.PASS)


@pytest.mark.parametrize("figure", ["NaN", "Infinity", '"343"', "null", "-1", "true", "[1]"])
def test_a_figure_that_is_none_makes_a_sweep_neither_pass_nor_healthy(figure: str) -> None:
    for key, value in (("busbw_gb_s", "343.0"), ("wrong", "0")):
        found = read(GOOD.replace(f'"{key}":{value}'.encode(), f'"{key}":{figure}'.encode(), 1))
        assert (found.outcome, found.verdict) != (Outcome.PASS, "healthy")
        assert found.verdict != "healthy"
