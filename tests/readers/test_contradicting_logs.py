"""A run that is good but for a few lines that cannot be true of it: nobody knows which half to believe."""

from __future__ import annotations

import pytest
from nccl_writer import Job, write

from infra.model.verdict import Level, Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import JudgeResult, judge

JOB = Job(gpus=8, channels=8)
GOOD = write(JOB).decode().splitlines()
ENDS = [n for n, line in enumerate(GOOD) if "Destroy COMPLETE" in line]
OLD = [line for line in write(Job(gpus=8, channels=8, version="2.18.5")).decode().splitlines()]


def read(lines: list[str], machine: str = "p5en.48xlarge") -> JudgeResult:
    return judge(from_text("\n".join(lines) + "\n"), machine_type=machine, nodes=2)


def with_late(*texts: str, lines: list[str] = GOOD) -> JudgeResult:
    """The good run with lines of rank 9 near its end."""
    late = [f"node-2:1009:2709 [1] NCCL INFO {text}" for text in texts]
    return read([*lines[:-3], *late, *lines[-3:]])


def shown(result: JudgeResult) -> str:
    return " ".join([*result.missing, *(f.code for f in result.findings if f.level is not Level.INFO)])


PLUGIN_GONE = "NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so. Using internal net plugin."
USING = "Using network AWS Libfabric"


@pytest.mark.parametrize(
    "said",
    [
        [PLUGIN_GONE],
        ["NET/Plugin: Could not find: aws-ofi"],
        ["NET/Plugin : No plugin found, using internal implementation"],
        ["NET/IB : No device found."],
        ["NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.1<0>"],
        ["Failed to initialize NET plugin Libfabric"],
        ["NET/Plugin: libnccl-net-ofi.so: /lib/libc.so.6: version `GLIBC_2.38' not found"],
        ["NET/OFI aws-ofi-nccl initialization failed"],
        [USING, PLUGIN_GONE],
    ],
)
def test_a_rank_that_is_refused_its_network_and_names_none_after_it_is_no_proof(said: list[str]) -> None:
    answer = with_late(*said)
    assert answer.outcome is not Outcome.PASS
    assert any("2" in f.object and f.remedy for f in answer.findings if f.code in shown(answer))


def test_a_rank_that_names_its_network_after_a_refusal_has_it() -> None:
    """Every version of NCCL tries what it has, one after another."""
    assert with_late(PLUGIN_GONE, "Failed to initialize NET plugin IB", USING).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("NCCL version 2.18.5+cuda12.2", "NCCL version 2.27.7, 2.18.5"),
        ("NET/OFI Initializing aws-ofi-nccl 1.7.4-aws", "aws-ofi-nccl 1.14.0, 1.7.4-aws"),
        ("NET/OFI Using Libfabric version 1.18", "libfabric 2.1, 1.18"),
    ],
)
def test_two_versions_of_what_a_job_has_one_of_are_two_jobs(line: str, name: str) -> None:
    answer = with_late(line)
    assert answer.outcome is Outcome.UNMEASURED
    assert [f.observed for f in answer.findings if f.code == "versions-differ"] == [name]


def test_the_same_version_built_for_another_cuda_is_one_version() -> None:
    assert with_late("NCCL version 2.27.7+cuda13.0").outcome is Outcome.PASS


def test_a_log_of_another_nccl_than_the_programs_is_of_another_job() -> None:
    other = [line.replace('"nccl":"2.27.7"', '"nccl":"2.21.5"') for line in GOOD]
    assert "versions-differ" in shown(read(other))


def test_a_log_that_names_another_machine_type_than_the_pools_is_of_another_pool() -> None:
    line = "NET/OFI Running on p5en.48xlarge platform, Setting NCCL_TOPO_FILE environment variable to /x.xml"
    assert with_late(line).outcome is Outcome.PASS
    assert "other-machine" in shown(with_late(line.replace("p5en.48xlarge", "p5.48xlarge")))


@pytest.mark.parametrize("lines", [GOOD, OLD], ids=["2.27", "2.18"])
def test_a_communicator_that_all_ranks_abort_has_ended_as_older_pytorch_ends_it(lines: list[str]) -> None:
    aborted = [line.replace("Destroy COMPLETE", "Abort COMPLETE") for line in lines]
    assert read(lines).outcome is Outcome.PASS
    assert read(aborted).outcome is Outcome.PASS


@pytest.mark.parametrize("word", ["Abort COMPLETE", "Destroy"], ids=["one rank aborts", "one rank does not end"])
@pytest.mark.parametrize("rank", [0, 9, 15])
def test_a_communicator_that_its_ranks_end_in_different_ways_is_no_proof(rank: int, word: str) -> None:
    lines = list(GOOD)
    lines[ENDS[rank]] = lines[ENDS[rank]].replace("Destroy COMPLETE", word)
    answer = read(lines)
    assert answer.outcome is Outcome.UNMEASURED
    assert f"rank {rank} " in shown(answer)


@pytest.mark.parametrize("word", ["Abort", "Destroy"])
def test_an_end_without_a_beginning_shows_that_a_communicators_lines_are_gone(word: str) -> None:
    answer = with_late(f"comm 0x660009 rank 9 nranks 16 cudaDev 1 busId 13000 - {word} COMPLETE")
    assert answer.outcome is Outcome.UNMEASURED
    assert "the beginning of 1 communicator" in shown(answer)


def test_gpudirect_channels_beside_a_plugin_that_has_it_off_are_believed_by_nobody() -> None:
    assert with_late("NET/OFI GDR disabled on GDR-supported instance type p5en.48xlarge").outcome is not Outcome.PASS
