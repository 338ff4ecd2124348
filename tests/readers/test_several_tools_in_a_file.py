"""Outputs of several tools in one file: it passes when each of them does, and what one shows to be broken is told."""

from __future__ import annotations

import json

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table
from test_many_tests_in_a_file import as_json, document
from tool_outputs import FI_INFO, FIO_JSON, PERFTEST, PINGPONG, fi_info, ibstat

from infra.model.verdict import Level, Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

PERFTEST_EFA = PERFTEST.replace("mlx5_0", "rdmap85s0").replace("392.11", "197.1").replace("391.72", "196.5")
TABLE = write_table(Table()).decode()
LOG = write(Job(gpus=8, channels=2, rounds=1, nics=16)).decode()
GOOD = {"table": TABLE, "perftest": PERFTEST_EFA, "fi_info": FI_INFO, "ibstat": ibstat(*["Active"] * 16)}
BROKEN = {
    "perftest": PERFTEST_EFA.replace("196.5", "90.5"),
    "perftest that failed": "Couldn't connect to node-2:18515\n" + PERFTEST_EFA.partition(" 65536")[0],
    "fi_info of four": fi_info(range(4)),
    "fi_info of none": "fi_getinfo: -61 (No data available)\n",
    "ibstat": ibstat(*["Active"] * 15, "Down"),
    "no device": "No IB devices found\n",
    "fi_pingpong over tcp": "$ fi_pingpong -p tcp\n" + PINGPONG,
    "fio": json.dumps({**FIO_JSON, "jobs": [{"jobname": "seq", "error": 5, "read": {}, "write": {}}]}, indent=1) + "\n",
    "device plugin": "I0101 12:00:00.000000 1 main.go:1] nvidia-device-plugin\n"
    "E0101 12:00:00.100000 1 main.go:2] could not load NVML library\n",
}
UNPROVEN = {
    "missing tool": "bash: fi_info: command not found\n",
    "counters": "link rdmap85s0/1 tx_bytes 12 rx_bytes 12 rx_drops 7\n",
    "libfabric's log": "libfabric:12:17::efa:core:efa_getinfo():1<warn> provider efa output empty list\n",
    "half a list": "Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t\t 4: ACTIVE\n",
}


def read(text: str) -> JudgeResult:
    return judge(from_text(text), machine_type="p5en.48xlarge", nodes=2)


def test_each_of_these_passes_alone_and_they_pass_together() -> None:
    assert {name: read(text).outcome for name, text in GOOD.items()} == dict.fromkeys(GOOD, Outcome.PASS)
    assert read(FI_INFO + TABLE).outcome is Outcome.PASS
    assert read(PERFTEST_EFA + FI_INFO + TABLE).outcome is Outcome.PASS
    for run in (TABLE, LOG):
        assert read(GOOD["ibstat"] + run).outcome is read(run + GOOD["ibstat"]).outcome is Outcome.PASS


@pytest.mark.parametrize("bad", BROKEN)
def test_what_is_broken_fails_beside_what_is_good_in_either_order(bad: str) -> None:
    alone = read(BROKEN[bad])
    assert alone.outcome is Outcome.FAIL
    for good in (text for name, text in GOOD.items() if name != bad.partition(" ")[0]):
        for text in (good + BROKEN[bad], f"{BROKEN[bad]}\n== next ==\n{good}"):
            found = read(text)
            assert found.outcome is Outcome.FAIL
            assert {f.code for f in alone.findings if f.level is Level.BLOCK} <= {f.code for f in found.findings}


@pytest.mark.parametrize("other", UNPROVEN)
def test_what_is_not_shown_to_be_good_keeps_what_is_from_passing(other: str) -> None:
    for good in GOOD.values():
        for text in (good + UNPROVEN[other], UNPROVEN[other] + good):
            found = read(text)
            assert found.outcome is Outcome.UNMEASURED
            assert found.verdict != "healthy"


@pytest.mark.parametrize("bad", ["ibstat", "fi_info of none", "perftest"])
def test_a_log_that_proves_the_transport_excuses_no_broken_device(bad: str) -> None:
    assert read(LOG).outcome is Outcome.PASS
    assert read(BROKEN[bad] + LOG).outcome is Outcome.FAIL


def test_a_log_that_proves_the_transport_excuses_no_slow_table_in_json() -> None:
    assert read(LOG + as_json(document(busbw=3.0)).decode() + "\n").outcome is Outcome.FAIL


def test_lines_of_libfabric_in_a_log_of_nccl_are_no_output_of_their_own() -> None:
    assert read(UNPROVEN["libfabric's log"].replace("provider efa output empty list", "hello") + LOG).outcome is (
        Outcome.PASS
    )


def test_a_program_s_own_words_do_not_hide_what_stands_before_them() -> None:
    many = "a step of a program that says nothing of the network\n" * 100_000
    assert read(BROKEN["ibstat"] + many + TABLE).outcome is Outcome.FAIL
