"""A run that is good but for a few lines that cannot be true of it: nobody knows which half to believe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.errors import BadSpec
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


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("NCCL_NET", ("AWS Libfabric", "Socket")),
        ("NCCL_NET_PLUGIN", ("ofi", "none")),
        ("NCCL_IB_DISABLE", ("0", "1")),
    ],
)
def test_ranks_that_are_told_to_use_different_networks_are_two_jobs(key: str, values: tuple[str, str]) -> None:
    """Whoever says it first hid the other."""
    told = [f"{key} set by environment to {value}." for value in values]
    assert with_late(told[0]).outcome is with_late(told[0], told[0]).outcome is Outcome.PASS
    answer = with_late(*told)
    assert answer.outcome is Outcome.UNMEASURED
    assert [f.observed for f in answer.findings if f.code == "versions-differ"] == [f"{key} {', '.join(values)}"]


def test_a_setting_that_may_differ_between_ranks_is_no_contradiction() -> None:
    told = [f"NCCL_{key} set by environment to {n}" for key in ("IB_HCA", "SOCKET_IFNAME", "TOPO_FILE") for n in "ab"]
    assert with_late(*told).outcome is Outcome.PASS


@pytest.mark.parametrize(("level", "outcome"), [("LOC", Outcome.UNMEASURED), ("SYS", Outcome.PASS)])
def test_gpudirect_that_the_job_was_told_never_to_use_is_believed_by_nobody(level: str, outcome: Outcome) -> None:
    assert with_late(f"NCCL_NET_GDR_LEVEL set by environment to {level}").outcome is outcome


def test_what_cannot_all_be_true_is_not_called_healthy() -> None:
    answer = with_late("NCCL version 2.18.5+cuda12.2")
    assert answer.verdict == "suspicious"
    assert answer.lines()[0] == "unmeasured: all-reduce, suspicious"


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


@pytest.mark.parametrize(
    "line",
    [
        "Using network Socket [repeated 7x across cluster]",
        "Using network Sock~et",
        "Using network",  # the name stands on the next line, where a terminal broke this one
        "Assigned NET plugin",
        "Assigned NET plugin Socket to comm",
        "Assigned NET plugin Socket",
        "NET/OFI Selected provider is tcp; fabric",
        "Channel 00/0 : 9[1] -> 10[2] [send] via NET/Socket/0 [repeated 7x across cluster] (Ray deduplicates logs)",
        "Channel 00/0 : 9[1] -> 10[2] [send] via NET/Soc",
        "Channel 00/0 : 9[1] -> 10[2] [send] via NET/Socket/0 <and 9 more>",
        "Channel 00/0 : 7[7] -> 8[0] via P2P/MNNVL",
        "MNNVL 1 cliqueId 5 cliqueSize 16 cliqueRank 9",
        "RAS declaring peer 10.0.0.2<1> as DEAD; rasDeadPeersHash 0x1",
        "RAS send stuck timeout error (60s) on socket connection with 10.0.0.2<1>",
        "comm 0x5500090001 rank 9 nranks 16 cudaDev 1 busId 13000 - Init FAILED",
        "comm 0x5500090000 rank 9 nRanks 16 nNodes 2 localRanks 8 localRank 1 MNNVL 1",
        "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
        "NET/OFI Need to force simple protocol: GDR not supported",
        "NET/OFI Setting provider_filter to tcp",
        "NET/OFI Using transport protocol SENDRECV (user set)",
        "NCCL_NET_PLUGIN set by environment to none.",
        "NCCL_NET set by environment to Socket.",
    ],
)
def test_a_line_that_names_a_network_and_cannot_be_read_or_be_true_is_no_proof(line: str) -> None:
    answer = with_late(line)
    assert answer.outcome is not Outcome.PASS
    assert answer.missing or any(f.remedy for f in answer.findings)


def test_lines_of_ray_that_stand_for_many_leave_out_who_said_the_others() -> None:
    """Also those that say something good."""
    answer = with_late("cudaDriverVersion 12080 [repeated 14x across cluster] (Ray deduplicates logs by default.)")
    assert answer.outcome is Outcome.UNMEASURED
    assert "RAY_DEDUP_LOGS=0" in shown(answer)


def test_a_rank_with_more_nics_than_the_machine_type_has_is_of_another_pool() -> None:
    answer = read(GOOD, "p6-b200.48xlarge")
    assert answer.outcome is Outcome.UNMEASURED
    assert "more-nics" in shown(answer)


def test_nvlink_between_nodes_of_a_machine_type_without_it_is_of_another_pool() -> None:
    assert "mnnvl-contradicted" in shown(read([line.replace("MNNVL 0", "MNNVL 1") for line in GOOD]))


def test_a_net_device_that_the_machine_type_cannot_have_is_of_another_pool() -> None:
    answer = read([line.replace("Libfabric/7/", "Libfabric/99/") for line in GOOD])
    assert "no device 99" in shown(answer)


ENVELOPES: dict[str, Callable[[str], str]] = {
    "other-key": lambda line: json.dumps({"data": line + "\n", "level": "info"}),
    "nested": lambda line: json.dumps({"kubernetes": {"pod": "a"}, "line": line}),
    "array": lambda line: f"[1710368762.1, {json.dumps({'text': line})}]",
    "stamped": lambda line: f"2026-03-13T22:26:02Z stdout {json.dumps({'event': line})}",
}


@pytest.mark.parametrize("style", ENVELOPES)
def test_what_a_shipper_wrapped_under_any_name_is_read(style: str) -> None:
    """A good run stays one, and a bad line in an envelope is not lost."""
    wrap = ENVELOPES[style]
    wrapped = [wrap(line) if "NCCL " in line else line for line in GOOD]
    assert read(wrapped).outcome is Outcome.PASS
    bad = wrap("node-2:1009:2709 [1] NCCL INFO Using network Socket")
    assert read([*GOOD[:-3], bad, *GOOD[-3:]]).outcome is Outcome.FAIL


@pytest.mark.parametrize("nodes", [0, -1])
def test_no_node_at_all_is_refused(nodes: int) -> None:
    with pytest.raises(BadSpec, match="1 or more"):
        judge(from_text("\n".join(GOOD)), machine_type="p5en.48xlarge", nodes=nodes)


LOG = write(Job(gpus=8, channels=8, payload=False))
TABLE = write_table(Table())  # its processes are 7000 to 7015
OF_TABLE = b"".join(line.replace(b":10", b":70", 1) for line in LOG.splitlines(keepends=True))


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        pytest.param(OF_TABLE, Outcome.PASS, id="the-log-of-the-table"),
        pytest.param(LOG, Outcome.UNMEASURED, id="other-processes-of-the-same-hosts"),
        pytest.param(OF_TABLE.replace(b"node-", b"other-"), Outcome.UNMEASURED, id="other-hosts"),
        pytest.param(re.sub(rb"node-(\d):\d+:\d+", rb"node-\1:XXXXXX", LOG), Outcome.PASS, id="hidden-processes"),
        pytest.param(
            re.sub(rb"node-(\d):\d+:\d+", rb"other-\1:XXXXXX", LOG), Outcome.UNMEASURED, id="hidden-and-other-hosts"
        ),
    ],
)
def test_a_log_proves_the_network_of_no_table_that_other_processes_printed(log: bytes, outcome: Outcome) -> None:
    """Two good halves of two runs are no proof of either."""
    found = judge(from_text(log + TABLE), machine_type="p5en.48xlarge", nodes=2)
    assert next(v.outcome for v in found.verdicts if v.check == "transport-proof") is outcome
    assert found.outcome is outcome
    assert any("this log is of another run" in item for item in found.missing) == (outcome is not Outcome.PASS)


GIB = write(Job(gpus=8, channels=8, fabric="gib", nics=8, payload=False)).decode().splitlines()


def test_a_rank_that_lost_the_fabrics_plugin_is_told_though_it_is_on_rdma_too() -> None:
    """NCCL's own verbs carry the bytes of that rank as well, by another way than the others' plugin."""
    whole = judge(from_text("\n".join(GIB)), machine_type="a3-ultragpu-8g", nodes=2)
    assert (whole.verdict, [f.code for f in whole.findings]) == ("healthy", [])
    own = re.compile(r"(network|plugin) gIB")
    lost = [own.sub(r"\1 IB", line) if line.startswith("node-2:1009:") else line for line in GIB]
    found = judge(from_text("\n".join(lost)), machine_type="a3-ultragpu-8g", nodes=2)
    assert (found.verdict, found.outcome) == ("suspicious", Outcome.UNMEASURED)
    assert (found.fields["rdma"], found.fields["fallback"]) == (True, False)
    said = next(f for f in found.findings if f.code == "mixed-transport")
    assert "on IB: rank 9 of communicator 0xabc0 on node-2" in said.observed
    assert "plugin" in said.remedy
