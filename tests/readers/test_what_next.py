"""What to do next leads somewhere: every answer that is no pass names a step, and one that fits its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from case_files import Case, cases
from tool_outputs import FIO_JSON, PINGPONG

from flows.cli import run
from infra.fabrics import load
from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

MACHINES = (None, "p5en.48xlarge", "a3-ultragpu-8g", "a3-highgpu-8g")
COUNTERS = "link rdmap85s0/1 tx_bytes 1000 rx_bytes 2000 tx_pkts 10 rx_pkts 20\n"
LNET = "net:\n    - net type: efa\n      local NI(s):\n        - nid: 10.0.0.1@efa\n          send_count: 10\n"
ELBENCHO = """OPERATION   RESULT TYPE         FIRST DONE   LAST DONE
=========== ================    ==========   =========
WRITE       Elapsed time     :       1.001s      1.002s
            Throughput MiB/s :        1000         1000
            Total MiB        :        1001         1002
---
"""
OTHERS = {"counters": COUNTERS, "lnetctl": LNET, "fi_pingpong": PINGPONG, "elbencho": ELBENCHO}


def steps(result: JudgeResult) -> list[str]:
    return [line.removeprefix("  next: ") for line in result.lines() if line.startswith("  next: ")]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", list(cases("nccl-log", "nccl-tests", "storage", "fabric")), ids=lambda c: c.name)
def test_what_is_no_pass_says_what_to_do_next(case: Case, machine: str | None) -> None:
    """Of every real output, whatever the machine type."""
    result = judge(case.input, machine_type=machine)
    assert result.outcome is not Outcome.PASS
    assert steps(result)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("tool", OTHERS)
def test_a_machine_type_is_asked_for_only_where_it_helps(tool: str, machine: str | None) -> None:
    """What no machine type has a figure for names another output to judge, with and without one."""
    result = judge(from_text(OTHERS[tool]), machine_type=machine)
    assert result.exit_code != 0
    assert result.fields["tool"] == tool
    assert steps(result)
    assert not any(step.startswith("Name the machine type") for step in steps(result))


def test_figures_of_storage_that_cannot_be_are_to_be_measured_past_its_caches() -> None:
    """A second node does not help there."""
    job = {**FIO_JSON["jobs"][0], "read": {**FIO_JSON["jobs"][0]["read"], "iops": 1e12}}  # type: ignore[index]
    result = judge(from_text(json.dumps({**FIO_JSON, "jobs": [job]})))
    assert [f.code for f in result.findings] == ["implausible"]
    assert "direct" in steps(result)[0]
    assert "two nodes" not in steps(result)[0]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("p5en", "p5en.48xlarge"), ("P5EN.48xlarge", "p5en.48xlarge"), ("p5en.48xlrge", "p5en.48xlarge"),
     ("a3-ultra", "a3-ultragpu-8g"), ("a3_ultragpu_8g", "a3-ultragpu-8g")],
)  # fmt: skip
def test_a_machine_type_that_is_almost_one_is_asked_back(
    asked: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And taken for none of them."""
    assert meant in load()
    (tmp_path / "log").write_text("hello\n")
    assert run(["judge", str(tmp_path / "log"), "--machine", asked]) == 2
    assert f"did you mean --machine {meant}?" in capsys.readouterr().err


def test_a_machine_type_that_is_like_none_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list is there."""
    (tmp_path / "log").write_text("hello\n")
    assert run(["judge", str(tmp_path / "log"), "--machine", "zz"]) == 2
    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert "p5en.48xlarge" in said


@pytest.mark.parametrize("case", list(cases("nccl-log", "fabric")), ids=lambda c: c.name)
def test_the_first_line_has_one_outcome_and_no_count_of_nothing(case: Case) -> None:
    """What looks healthy and proves nothing is not called healthy beside it."""
    result = judge(case.input)
    text = result.lines()
    assert text[0].startswith(f"{result.outcome.value}: {result.kind.value}")
    assert not text[0].endswith(", healthy")
    assert ("(what is there looks healthy)" in text[0]) is (result.to_json()["verdict"] == "healthy")
    assert not any("0 ranks" in line or "are 0)" in line for line in text if "communicator" in line)
