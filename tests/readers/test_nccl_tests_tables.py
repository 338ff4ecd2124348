"""nccl-tests' tables in every column layout, its JSON, and runs that look good and are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

MACHINE = "p5en.48xlarge"


def read(data: bytes | str, *, machine: str | None = MACHINE) -> JudgeResult:
    return judge(from_text(data), machine_type=machine, nodes=2 if machine else None)


@pytest.mark.parametrize("layout", ["modern", "error", "no-redop", "stamped", "jitter"])
def test_reads_every_column_layout(layout: str) -> None:
    """Captions decide what a column is; the rows say the same in each layout."""
    answer = read(write_table(Table(layout=layout)))
    assert (answer.fields["rows"], answer.fields["peak_busbw"], answer.fields["wrong"]) == (6, 479.0, 0)
    assert answer.outcome is Outcome.PASS


@pytest.mark.parametrize("layout", ["modern", "no-redop"])
def test_reads_rows_without_captions(layout: str) -> None:
    """An excerpt of rows alone is read, and is no measurement of a known run."""
    rows = [line for line in write_table(Table(layout=layout)).decode().split("\n") if "float" in line]
    answer = read("\n".join(rows) + "\n")
    assert (answer.fields["rows"], answer.fields["peak_busbw"]) == (6, 479.0)
    assert answer.outcome is Outcome.UNMEASURED


def test_a_replay_without_out_of_place_figures_claims_none() -> None:
    """The blank half stays empty."""
    answer = read(write_table(Table(layout="replay")))
    assert answer.fields["peak_busbw"] is None
    assert answer.fields["peak_busbw_in_place"] == 479.0
    assert answer.outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(
    ("defect", "verdict", "exit_code"),
    [("wrong", "failed", 3), ("slow", "degraded", 3), ("short", "undetermined", 4), ("single", "invalid", 4)],
)
def test_a_bad_run_does_not_pass(defect: str, verdict: str, exit_code: int) -> None:
    """Wrong sums and low figures fail; missing sizes and runs of one rank measure nothing."""
    answer = read(write_table(Table.with_defect(defect)))
    assert (answer.verdict, answer.exit_code) == (verdict, exit_code)


def test_both_ranks_on_one_host_are_no_network() -> None:
    """The device list names one host, so the figure is NVLink's."""
    answer = read(write_table(Table.with_defect("one-host")))
    assert answer.fields["valid_multinode"] is False
    assert answer.outcome is Outcome.UNMEASURED


def test_above_the_wire_is_implausible() -> None:
    """A figure that the NICs cannot carry is no pass, however good."""
    assert read(write_table(Table(factor=2.5))).outcome is Outcome.UNMEASURED


def test_without_a_machine_type_a_table_is_measured_not_judged() -> None:
    """Good figures alone do not pass."""
    answer = read(write_table(Table()), machine=None)
    assert (answer.verdict, answer.exit_code) == ("undetermined", 4)


def test_nccl_text_inside_a_row_loses_that_row() -> None:
    """Shared stdout: the row is counted as torn, and the run as incomplete."""
    text = write_table(Table()).decode().split("\n")
    at = next(i for i, line in enumerate(text) if "1073741824 " in line)
    text[at] = text[at][:40] + "node-1:7:8 [0] NCCL INFO Connected all trees" + text[at][40:]
    answer = read("\n".join(text))
    assert (answer.fields["rows"], answer.fields["torn_rows"]) == (5, 1)
    assert answer.outcome is Outcome.UNMEASURED


@pytest.mark.parametrize(
    "line",
    [
        "node-1: Test NCCL failure common.cu:958 'remote process exited or there was a network error / '",
        " .. node-1 pid 77: Test failure common.cu:842",
        "node-1: Test CUDA failure common.cu:295 'out of memory'",
        "Test timeout (600s)",
    ],
)
def test_a_failure_text_beats_good_rows(line: str) -> None:
    """Any of them is an error, even when some rows are good."""
    answer = read(write_table(Table()).decode().replace("# Out of bounds", f"{line}\n# Out of bounds", 1))
    assert (answer.verdict, answer.exit_code) == ("failed", 3)


def test_a_shortened_sweep_is_seen() -> None:
    """`Reducing maxBytes` leaves the largest sizes out: they are missing, not passed."""
    text = write_table(Table(rows=4)).decode()
    answer = read("#\n# Reducing maxBytes to 2147483648 due to memory limitation\n" + text)
    assert answer.outcome is Outcome.UNMEASURED


def document() -> dict[str, Any]:
    """As `-J` writes it, with an environment that nobody may keep."""

    def side(time: float, busbw: float) -> dict[str, Any]:
        return {"time": time, "alg_bw": busbw / 1.875, "bus_bw": busbw, "nwrong": 0}

    sizes = {268435456: 343.0, 536870912: 393.0, 1073741824: 437.0}
    return {
        "version": 3,
        "start_time": "2026-03-13 22:26:02",
        "args": ["./build/all_reduce_perf", "-b", "256M", "-e", "1G", "-f", "2"],
        "env": ["HF_TOKEN=hf_secret", "AWS_SECRET_ACCESS_KEY=abc"],
        "nccl_version": 22809,
        "config": {"min_bytes": 268435456, "max_bytes": 1073741824, "step_factor": 2},
        "devices": [{"rank": r, "hostname": f"node-{r // 8}", "pid": r, "device": r % 8, "name": "NVIDIA H200"}
                    for r in range(16)],
        "results": [
            {"size": s, "count": s // 4, "type": "float", "redop": "sum", "root": -1,
             "out_of_place": side(s / (b / 1.875) / 1e3, b), "in_place": side(s / (b / 1.875) / 1e3, b)}
            for s, b in sizes.items()
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 391.0, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-03-13 22:27:02",
    }  # fmt: skip


def test_reads_the_json_and_drops_its_environment() -> None:
    """The document passes like the table; no secret of it appears anywhere."""
    answer = read(json.dumps(document(), indent=2))
    assert (answer.kind.value, answer.fields["rows"], answer.fields["ranks"]) == ("nccl-tests", 3, 16)
    assert answer.fields["nccl_version"] == "2.28.9"
    assert answer.outcome is Outcome.PASS
    assert "secret" not in json.dumps(answer.to_json()).lower()


def test_a_cut_json_keeps_whole_rows_and_never_passes() -> None:
    """A truncated document is read as far as it goes."""
    text = json.dumps(document(), indent=2)
    answer = read(text[: text.index('"out_of_bounds"')])
    assert (answer.fields["rows"], answer.fields["complete"], answer.exit_code) == (3, False, 4)


def test_nan_and_unchecked_values_are_none() -> None:
    """NaN is the string "nan", nwrong is null when unchecked."""
    raw = document()
    raw["results"][0]["out_of_place"] |= {"bus_bw": "nan", "nwrong": None}
    answer = read(json.dumps(raw))
    assert answer.outcome is Outcome.UNMEASURED
    assert answer.fields["peak_busbw"] == 437.0
