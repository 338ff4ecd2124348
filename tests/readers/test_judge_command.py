"""`poolshift judge` as a person meets it: what is printed first, and what it says of files that hold nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nccl_writer import Job, write

from flows.cli import run


def test_verdict_first_then_why_then_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one rank on sockets is named, with the remedy, before any figure."""
    log = tmp_path / "log"
    log.write_bytes(write(Job(gpus=8, rounds=2, channels=2, socket_ranks=frozenset({11}))))
    assert run(["judge", str(log), "--machine", "p5en.48xlarge", "--nodes", "2"]) == 3
    text = capsys.readouterr().out
    assert text.startswith("fail: ")
    why, remedy, figures = (text.index(mark) for mark in ("block mixed-transport", "  next: ", "what it says:"))
    assert 0 < why < remedy < figures
    assert "rank 11 of communicator" in text.splitlines()[1]


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the outcome."""
    log = tmp_path / "log"
    log.write_bytes(write(Job(gpus=2, channels=1)))
    assert run(["judge", str(log), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["outcome"] == "unmeasured"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\x7fELF\x02\x01\x01" + bytes(64), "binary", id="program"),
        pytest.param(b"\x28\xb5\x2f\xfd" + bytes(16), "archive", id="zstd"),
        pytest.param(b"hello\n", "unknown", id="a-text-that-nobody-knows"),
    ],
)
def test_what_holds_no_output_is_unmeasured_and_says_why(
    data: bytes, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never an error of ours, never a verdict."""
    file = tmp_path / "file"
    file.write_bytes(data)
    assert run(["judge", str(file), "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert (answer["kind"], answer["verdict"]) == ("unknown", "undetermined")
    assert [f["code"] for f in answer["findings"]] == [code]
    assert all(f["remedy"] for f in answer["findings"])


@pytest.mark.parametrize("name", ["", "missing"])
def test_what_cannot_be_read_is_a_usage_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder and a file that is not there: the cause, and what to type instead."""
    assert run(["judge", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "poolshift judge -" in said or "standard input" in said
