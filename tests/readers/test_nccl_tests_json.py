"""nccl-tests' JSON as src/util.cu of its versions writes it, and what it says below a table besides figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

BUSES = ("59", "5a", "72", "73", "8b", "8c", "a4", "a5")
CURVE = {28: 343.0, 29: 393.0, 30: 437.0, 31: 444.0, 32: 466.0, 33: 479.0}
TABLE = write_table(Table()).decode()
HARMLESS = 'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!'


def document(*, time: str = "time", gpus: int = 1, **changes: Any) -> dict[str, Any]:
    """Two nodes of p5en; `gpus` of each process, of which only the first is listed."""

    def side(size: int, busbw: float) -> dict[str, Any]:
        algbw = busbw / 1.875
        return {time: size / algbw / 1e3, "alg_bw": algbw, "bus_bw": busbw, "nwrong": 0.0}

    devices = [
        {"rank": rank, "group": 0, "pid": 4000 + rank, "hostname": f"node-{rank // 8}", "device": rank % 8,
         "device_hex": f"0000:{BUSES[rank % 8]}:00", "device_info": "NVIDIA H200"}
        for rank in range(0, 16, gpus)
    ]  # fmt: skip
    return {
        "version": 3,
        "start_time": "2026-03-13 22:26:02",
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-b", "256M", "-e", "8G", "-f", "2", "-J", "/tmp/x.json"],
        "env": ["HF_TOKEN=hf_secret"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": gpus, "minimum_bytes": 1 << 28, "maximum_bytes": 1 << 33, "step_factor": 2,
                   "warmup_iters": 5, "iterations": 20, "aggregated_iterations": 1, "validation": 1, "graph": 0,
                   "blocking_collectives": "false", "parallel_init": "false", "devices": devices},
        "results": [
            {"size": 1 << k, "count": 1 << (k - 2), "type": "float", "redop": "sum", "root": "    -1",
             "out_of_place": side(1 << k, busbw), "in_place": side(1 << k, busbw), "actual_iterations": 20,
             "experiment_name": "all_reduce_perf"}
            for k, busbw in CURVE.items()
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": sum(CURVE.values()) / len(CURVE), "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-03-13 22:27:02",
        **changes,
    }  # fmt: skip


def read(text: str) -> JudgeResult:
    return judge(from_text(text), machine_type="p5en.48xlarge", nodes=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"errors": []}, {"errors": [HARMLESS]}, {"time": "cpu_time"}, {"gpus": 8}, {"gpus": 4},
     {"bitwise_mismatches": {"count": 0, "okay": "true"}}, {"bitwise_mismatches": {"count": 0, "okay": "unchecked"}}],
    ids=["plain", "no error", "a harmless warning", "-C", "-g 8", "-g 4", "bitwise", "bitwise unchecked"],
)  # fmt: skip
def test_the_document_of_a_sound_run_passes(changes: dict[str, Any]) -> None:
    """Its devices stand in `config`, and its `errors` hold NCCL's last warning, which is empty in a sound run."""
    found = read(json.dumps(document(**changes)))
    assert found.outcome is Outcome.PASS
    assert (found.fields["ranks"], found.fields["hosts"]) == (16, 2)
    assert "secret" not in json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"bitwise_mismatches": {"count": 7, "okay": "false"}}, Outcome.FAIL),
        ({"bitwise_mismatches": {"count": 7, "okay": "unchecked"}}, Outcome.FAIL),
        ({"errors": ["NET/OFI Request 0x7f completed with error. RC: 16"]}, Outcome.FAIL),
        ({"errors": ["Something failed"]}, Outcome.FAIL),
        ({"errors": ["The moon is full tonight"]}, Outcome.UNMEASURED),
    ],
)
def test_what_the_document_says_against_the_run_counts(changes: dict[str, Any], outcome: Outcome) -> None:
    assert read(json.dumps(document(**changes))).outcome is outcome


@pytest.mark.parametrize("gpus", [1, 2, 4, 8, 16])
def test_of_each_process_with_several_gpus_the_first_alone_is_listed(gpus: int) -> None:
    """Of a single one this leaves rank 0, as of a program that ran alone."""
    assert read(json.dumps(document(gpus=gpus))).fields["ranks"] == 16


def test_the_devices_of_the_document_tell_the_machine() -> None:
    text = json.dumps(document()).replace("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    found = read(text)
    assert found.outcome is Outcome.UNMEASURED
    assert "H100" in " ".join(found.lines())


def with_footer(line: str) -> str:
    return TABLE.replace("# Avg bus", f"{line}\n# Avg bus")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("# Bitwise mismatches   : 0 OK", Outcome.PASS),
        ("# Bitwise mismatches   : 5 FAILED", Outcome.FAIL),
        ("# error: NET/OFI Request 0x7f completed with error. RC: 16", Outcome.FAIL),
        ("# error: The moon is full tonight", Outcome.UNMEASURED),
        ("# error: misc/socket.cc:555 -> 3", Outcome.UNMEASURED),  # harmless in a log that shows an abort
        (f"# error: {HARMLESS}", Outcome.PASS),
    ],
)
def test_what_stands_below_a_table_besides_its_figures_counts(line: str, outcome: Outcome) -> None:
    assert read(with_footer(line)).outcome is outcome


@pytest.mark.parametrize(("differ", "outcome"), [(0, Outcome.PASS), (3, Outcome.FAIL)])
def test_a_table_with_a_column_of_bitwise_differences_is_read(differ: int, outcome: Outcome) -> None:
    lines = []
    for line in with_footer(f"# Bitwise mismatches   : {differ} {'FAILED' if differ else 'OK'}").splitlines():
        if " float " in line:
            words = line.split()
            line = "  ".join([*words[:9], str(differ), *words[9:], str(differ)])
        lines.append(line.replace("#wrong", "#wrong  #bitdiff"))
    found = read("\n".join(lines) + "\n")
    assert (found.outcome, found.fields["torn_rows"]) == (outcome, 0)
