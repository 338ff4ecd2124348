"""Several runs of nccl-tests in one file: each is judged, and the worst decides."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.fabrics import fabric_of
from infra.model.verdict import Outcome
from infra.probes.readers.detect import read as read_output
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge
from tasks.rules.probe_verdict import Setting, answer_nccl_tests

CLASSIC = Table(markers=False)  # before nccl-tests 2.16.3: no line names the collective
GOOD = write_table(Table())
PAYLOAD = write(Job(gpus=8, channels=2, rounds=2, nics=16))
ABORTED = b"".join(GOOD.partition(b"# Using devices\n")[:2]) + b"node-2: Test NCCL failure common.cu:1005 'unhandled'\n"


def read(data: bytes | str) -> JudgeResult:
    return judge(from_text(data), machine_type="p5en.48xlarge", nodes=2)


def document(busbw: float = 479.0, wrong: int = 0) -> dict[str, Any]:
    side = {"time": (8 << 30) / (busbw / 1.875) / 1e3, "alg_bw": busbw / 1.875, "bus_bw": busbw, "nwrong": wrong}
    return {
        "args": ["./all_reduce_perf"],
        "config": {"min_bytes": 8 << 30, "max_bytes": 8 << 30, "step_factor": 2},
        "devices": [{"rank": r, "hostname": f"node-{r // 8}", "pid": r, "device": r % 8} for r in range(16)],
        "results": [{"size": 8 << 30, "count": 2 << 30, "redop": "sum", "out_of_place": side, "in_place": side}],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": busbw, "okay": "unchecked"},
        "end_time": "2026-03-13 22:27:02",
    }


def as_json(*documents: dict[str, Any]) -> bytes:
    return b"\n".join(json.dumps(d).encode() for d in documents)


@pytest.mark.parametrize(
    "bad",
    [write_table(Table.with_defect("slow")), write_table(Table.with_defect("wrong")), ABORTED],
    ids=["slow", "wrong", "aborted"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_bad_table_fails_beside_a_good_one_in_either_order(bad: bytes, first: bool) -> None:
    assert read(bad + GOOD if first else GOOD + bad).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "bad", [write_table(Table(rows=3)), GOOD[: GOOD.index(b"# Out of bounds")]], ids=["short", "cut"]
)
def test_a_table_that_is_not_whole_beside_a_good_one_is_unmeasured(bad: bytes) -> None:
    found = read(GOOD + bad)
    assert found.outcome is Outcome.UNMEASURED
    assert any("table 2 of 2" in v.reason for v in found.verdicts)


def test_good_tables_pass_together() -> None:
    assert read(GOOD + GOOD).outcome is Outcome.PASS
    assert read(as_json(document(), document())).outcome is Outcome.PASS


@pytest.mark.parametrize("bad", [document(busbw=3.0), document(wrong=77)], ids=["slow", "wrong"])
def test_every_json_document_of_a_file_is_read(bad: dict[str, Any]) -> None:
    assert read(as_json(document(), bad)).outcome is Outcome.FAIL
    assert read(as_json(bad, document())).outcome is Outcome.FAIL


@pytest.mark.parametrize("rest", [b"oops", b"{", as_json(document())[:-40], b"[" * 100_000], ids=lambda r: str(r[:6]))
def test_what_follows_a_json_document_and_is_none_makes_it_incomplete(rest: bytes) -> None:
    assert read(as_json(document()) + b"\n" + rest).outcome is Outcome.UNMEASURED


@pytest.mark.parametrize("bad", [document(9.6), document(wrong=77), document() | {"errors": "unhandled system error"}])
@pytest.mark.parametrize("good", [GOOD, PAYLOAD], ids=["table", "payload"])
def test_a_bad_json_document_beside_another_good_run_fails(good: bytes, bad: dict[str, Any]) -> None:
    assert read(good).outcome is Outcome.PASS
    assert read(good + as_json(bad) + b"\n").outcome is Outcome.FAIL


@pytest.mark.parametrize("bad", [Table(wrong=7), Table(factor=0.02)], ids=["wrong", "slow"])
def test_a_bad_table_beside_our_own_good_sweep_fails(bad: Table) -> None:
    assert read(PAYLOAD + write_table(bad)).outcome is Outcome.FAIL


def test_a_device_report_beside_a_sweep_is_said_not_to_be_read() -> None:
    found = read(PAYLOAD + b'{"poolshift":"device","node":"node-1","ok":true,"gpus":{"count":1}}\n')
    assert found.outcome is Outcome.UNMEASURED
    assert any(f.code == "not-judged" and "device report" in f.object for f in found.findings)


@pytest.mark.parametrize("errors", ["unhandled system error", {"0": "unhandled"}, 3, ["Test NCCL failure"]])
def test_errors_of_a_json_document_count_in_whatever_form(errors: object) -> None:
    assert read(as_json(document() | {"errors": errors})).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "change",
    [
        {"end_time": None},
        {"end_time": ""},
        {"out_of_bounds": {"count": 0, "okay": "unchecked"}},
        {"out_of_bounds": None},
        {"results": [*document()["results"], "Test failure"]},
    ],
    ids=["no end", "empty end", "unchecked", "no bounds", "a row that is none"],
)
def test_a_json_document_that_lacks_its_end_or_its_check_is_unmeasured(change: dict[str, Any]) -> None:
    assert read(as_json(document() | change)).outcome is Outcome.UNMEASURED


def test_a_run_far_slower_in_place_than_out_of_place_is_doubted() -> None:
    slow = document()
    slow["results"][0] = slow["results"][0] | {"in_place": {"time": 8e6, "alg_bw": 1.07, "bus_bw": 2.0, "nwrong": 0}}
    found = read(as_json(slow))
    assert found.outcome is Outcome.UNMEASURED
    assert any(f.code == "in-place-behind" for f in found.findings)


def test_an_all_reduce_without_its_name_is_known_by_its_arithmetic() -> None:
    assert read(write_table(CLASSIC)).outcome is Outcome.PASS
    assert read(write_table(replace(CLASSIC, factor=0.1))).outcome is Outcome.FAIL


def test_a_table_whose_collective_nothing_names_says_so_and_is_held_to_no_ceiling() -> None:
    found = read(write_table(replace(CLASSIC, layout="no-redop")))
    assert found.outcome is Outcome.UNMEASURED
    assert all("collective" in v.reason for v in found.verdicts)


def test_a_table_beside_a_version_line_of_nccl_lacks_nothing_of_a_log() -> None:
    found = read(b"NCCL version 2.28.9+cuda13.0\n" + GOOD)
    assert found.outcome is Outcome.PASS
    assert found.missing == ()


@pytest.mark.parametrize("number", ["1e400", "4.2.7.1", "9" * 400, "9" * 4000], ids=lambda n: n[:7])
@pytest.mark.parametrize("place", ["8589934592", "33624.5", "255.47", "479.00", "   0\n", "427.0"])
def test_a_number_that_is_none_makes_the_run_incomplete(place: str, number: str) -> None:
    found = read(GOOD.decode().replace(place, number + "\n" if place.endswith("\n") else number))
    assert found.outcome is Outcome.UNMEASURED
    assert found.lines()


@pytest.mark.parametrize(
    "start",
    [
        '"rounds":1000000000000,"sizes":[268435456]',
        '"rounds":1,"sizes":5',
        f'"rounds":1,"sizes":[{"9" * 400}]',
        f'"rounds":{"9" * 400},"sizes":[268435456]',
    ],
)
def test_a_start_line_that_announces_anything_is_unmeasured_at_once(start: str) -> None:
    lines = (
        '{"poolshift":"all-reduce","event":"start","v":1,"ranks":16,"hosts":2,' + start + "}",
        '{"poolshift":"all-reduce","event":"row","round":0,"size_bytes":268435456,"iters":20,"time_us":1400.0,'
        '"algbw_gb_s":191.7,"busbw_gb_s":359.0,"wrong":0}',
        '{"poolshift":"all-reduce","event":"end","ok":true}',
    )
    found = read("\n".join(lines) + "\n")
    assert found.outcome is Outcome.UNMEASURED
    assert found.lines()


LOG = write(Job(fabric="efa", version="2.27.7", nodes=2, gpus=8, channels=32, nics=16, payload=False))
SETTING = Setting(nodes=("node-1", "node-2"), gpus=8, fabric=fabric_of("p5en.48xlarge"))
SIZES = [(256 << 20) << n for n in range(6)]


def at_the_gate(table: bytes, floors: dict[int, float] | None = None) -> Outcome:
    answer = answer_nccl_tests(read_output(from_text(LOG + table)), SIZES, SETTING, floors or {})
    return answer.verdicts[0].outcome


def test_the_gate_takes_a_good_table_with_the_lines_of_every_rank() -> None:
    assert at_the_gate(GOOD) is Outcome.PASS


@pytest.mark.parametrize("said", [b"unexpected EOF\n", b"Traceback (most recent call last)\n"])
def test_the_gate_takes_no_table_whose_output_says_that_it_is_cut_or_broke(said: bytes) -> None:
    assert at_the_gate(GOOD + said) is Outcome.UNMEASURED


@pytest.mark.parametrize(
    "bad",
    [
        GOOD.replace(b"      0\n", b"   4096\n"),
        GOOD.replace(b"values : 0 OK", b"values : 6 FAILED"),
        GOOD.replace(b": 427.0", b": 427.0 FAILED"),
        GOOD + b"node-2: Test NCCL failure common.cu:1005 'unhandled'\n",
        GOOD + b"mpirun noticed that process rank 3 with PID 0 on node node-2 exited on signal 11.\n",
        GOOD + ABORTED,
    ],
    ids=["wrong in place", "out of bounds", "below the program's own limit", "failure", "signal", "second run failed"],
)
def test_the_gate_fails_on_what_the_program_says_beside_good_figures(bad: bytes) -> None:
    assert bad != GOOD
    assert at_the_gate(bad) is Outcome.FAIL


@pytest.mark.parametrize(
    "bad", [GOOD + GOOD, write_table(Table(op="all_gather")), write_table(Table(independent=True))]
)
def test_the_gate_takes_one_run_of_the_collective_that_was_asked_for(bad: bytes) -> None:
    assert at_the_gate(bad, dict.fromkeys(SIZES, 1.0)) is Outcome.UNMEASURED
