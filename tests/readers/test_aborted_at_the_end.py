"""How PyTorch before 2.6 ends a run that went well: by aborting its communicators, which sockets complain of."""

from __future__ import annotations

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

GOOD = write(Job(gpus=8, rounds=2, channels=2)).decode().splitlines()
SOCKET = "misc/socket.cc:{} -> 3"


def read(lines: list[str]) -> JudgeResult:
    return judge(from_text("\n".join(lines) + "\n"), machine_type="p5en.48xlarge", nodes=2)


def ended(*texts: str, by: str = "Abort COMPLETE") -> list[str]:
    """The good run whose ranks end their communicators so, each with these lines in front."""
    lines: list[str] = []
    for line in GOOD:
        if "Destroy COMPLETE" in line:
            head = line[: line.index("NCCL INFO") + 10]
            lines += [head + text for text in texts]
        lines.append(line.replace("Destroy COMPLETE", by))
    return lines


def test_sockets_that_close_at_an_abort_are_no_failure() -> None:
    """As public logs of runs that went well show them, many times over."""
    assert read(ended(*(SOCKET.format(place) for place in (47, 58, 781, 832)))).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(ended(SOCKET.format(47), by="Destroy COMPLETE"), id="nobody-aborts"),
        pytest.param(ended(SOCKET.format(47), "proxy.cc:1484 -> 3"), id="the-proxy-too"),
        pytest.param(ended(SOCKET.format(47), "transport/net.cc:804 -> 6"), id="the-transport-too"),
        pytest.param(ended(SOCKET.format(47).replace("3", "2")), id="a-system-error"),
    ],
)
def test_other_errors_that_are_handed_on_are_doubted(lines: list[str]) -> None:
    found = read(lines)
    assert found.outcome is Outcome.UNMEASURED
    assert "call-failed" in [f.code for f in found.findings]


def test_a_warning_behind_many_sockets_that_close_is_not_lost() -> None:
    closing = [SOCKET.format(place) for place in (47, 58, 781, 832) * 8]
    found = read(ended(*closing, "proxy.cc:1484 -> 3"))
    assert "call-failed" in [f.code for f in found.findings]


@pytest.mark.parametrize("others", [0, 64, 200])
def test_sockets_that_close_although_nobody_aborts_are_not_lost_behind_what_is_harmless(others: int) -> None:
    """What is harmless at an abort alone is of another kind than what always is."""
    lines = ended(SOCKET.format(47), by="Destroy COMPLETE")
    at, head = next((i, line[: line.index("NCCL INFO")]) for i, line in enumerate(lines) if "NCCL INFO" in line)
    plain = "NCCL WARN Could not find a path for pattern {}, falling back to simple order"
    found = read([*lines[:at], *(head + plain.format(i) for i in range(others)), *lines[at:]])
    assert found.outcome is Outcome.UNMEASURED
    assert "call-failed" in [f.code for f in found.findings]


def test_a_nic_whose_driver_lost_it_is_no_sound_run() -> None:
    """The kernel's own line, in front of a log that looks well."""
    said = "[  900.1] mlx5_core 0000:5c:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count"
    found = read([said, *GOOD])
    assert (found.outcome, [f.code for f in found.findings if f.level == "warn"]) == (
        Outcome.UNMEASURED,
        ["kernel-device-error"],
    )
