"""A small tool's output behind the marks of whatever carried it here: the same reading, and no more than it had."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tool_outputs import FI_INFO, PERFTEST, PINGPONG, fi_info, ibstat

from infra.model.verdict import Outcome
from infra.probes.readers.carried import unpacked
from infra.probes.readers.detect import read
from infra.probes.readers.lines import from_text
from tasks.judge import judge

REAL = Path(__file__).parent / "real"
LNET = """net:
    - net type: efa
      local NI(s):
        - nid: 10.0.0.1@efa
          status: up
          interfaces:
              0: rdmap86s0
              1: rdmap87s0
          statistics:
              send_count: 7
              recv_count: 9
"""
TOOLS = {
    "fi_info": FI_INFO,
    "fi_pingpong": PINGPONG,
    "ibstat": ibstat("Active", "Active"),
    "ibstatus": (REAL / "ibstatus-roce.txt").read_text(),
    "ibv_devinfo": (REAL / "ibv-devinfo-efa-layer-infiniband.txt").read_text().partition("\n")[2],
    "rdma-link": "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev p1p1\n"
    "link mlx5_1/1 state ACTIVE physical_state LINK_UP netdev p1p2\n",
    "perftest": PERFTEST,
    "ior": (REAL / "ior-4-in-an-operator-log.txt").read_text(),
    "elbencho": (REAL / "elbencho-write.txt").read_text(),
    "lnetctl": LNET,
    "counters": "rdma_read_bytes: 5\ntx_bytes: 10\ntx_pkts: 2\nrx_pkts: 1\n",
    "fio": "Run status group 0 (all jobs):\n  WRITE: bw=251MiB/s (263MB/s), 251MiB/s-251MiB/s (263MB/s-263MB/s), "
    "io=15.8GiB (16.9GB), run=64441-64441msec\n",
}


def each(mark: str | Callable[[int], str]) -> Callable[[str], str]:
    """Put a mark in front of every line."""

    def put(text: str) -> str:
        lines = text.splitlines(keepends=True)
        return "".join((mark if isinstance(mark, str) else mark(n)) + line for n, line in enumerate(lines))

    return put


CARRIERS: dict[str, Callable[[str], str]] = {
    "quoted": each("> "),
    "quoted-twice": each("> > "),
    "mpirun": each("[1,0]<stdout>:"),
    "prrte": each("[prterun-node-1-77@1,0]<stdout>: "),
    "srun": each(" 0: "),
    "ray": each("(Worker pid=3590, ip=10.48.4.17) "),
    "skypilot": each("(worker1, rank=1, pid=33870, ip=10.48.4.17) "),
    "skypilot-head": each("(head, rank=0, pid=32) "),
    "kubectl-timestamps": each(lambda n: f"2026-11-30T15:00:{n % 60:02d}.123456789Z "),
    "kubectl-prefix": each("[pod/probe-0/main] "),
    "kubectl-both": each(lambda n: f"[pod/probe-0/main] 2026-11-30T15:00:{n % 60:02d}.123456789Z "),
    "containerd": each(lambda n: f"2026-11-30T15:00:{n % 60:02d}.123456789Z stdout F "),
    "compose": each("probe-1  | "),
    "journald": each("Nov 30 15:00:01 node-1 probe[812]: "),
    "indented": each("    "),
    "fence": lambda text: f"```\n{text}```\n",
    "fence-with-words": lambda text: f"This is what it says:\n```console\n{text}```\n",
    "prompt": lambda text: f"{text}user@host:~$ \n",
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "docker-json": lambda text: "".join(json.dumps({"log": line}) + "\n" for line in text.splitlines(keepends=True)),
    "ssh-warning": lambda text: "Warning: Permanently added 'h' (ED25519)\n" + each("[1,0]<stdout>:")(text),
}


def said(text: str) -> object:
    """A reading without who said it: one sender changes nothing."""
    reading = read(from_text(text)).tool
    assert reading is not None
    return {**reading.figures, "senders": None}, reading.tool, reading.complete, reading.healthy, reading.cause


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_the_reading_is_the_same_behind_any_mark(tool: str, carrier: str) -> None:
    """As it is for NCCL's own lines."""
    assert said(CARRIERS[carrier](TOOLS[tool])) == said(TOOLS[tool])


@pytest.mark.parametrize("carrier", ["quoted", "mpirun", "kubectl-both", "srun", "fence"])
@pytest.mark.parametrize("tool", ["fi_info", "ibstat", "perftest", "ibv_devinfo", "fio"])
def test_a_mark_makes_no_cut_output_whole(tool: str, carrier: str) -> None:
    """Wherever it is cut: what the bare text does not say, the carried one does not say either."""
    lines = TOOLS[tool].splitlines(keepends=True)
    for end in range(1, len(lines), max(1, len(lines) // 7)):
        bare = "".join(lines[:end])
        reading, carried = (read(from_text(text)).tool for text in (bare, CARRIERS[carrier](bare)))
        if reading is None or not reading.complete:
            assert carried is None or not carried.complete
        if reading is None or reading.healthy is not True:
            assert carried is None or carried.healthy is not True


@pytest.mark.parametrize("mark", ["[1,{}]<stdout>:", "[pod/probe-{}/main] ", "{}: ", "(W pid=1, ip=10.0.0.{}) "])
def test_two_halves_of_two_hosts_are_not_one_whole(mark: str) -> None:
    """Eight EFA devices of one host and eight others of another: no node of sixteen, in any order."""
    hosts = [each(mark.format(n))(fi_info(range(8 * n, 8 * n + 8))).splitlines(keepends=True) for n in (0, 1)]
    mixed = "".join(line for pair in zip(*hosts, strict=True) for line in pair)
    for text in (mixed, "".join(hosts[0] + hosts[1])):
        result = judge(from_text(text), machine_type="p5en.48xlarge")
        assert result.outcome is Outcome.UNMEASURED
        assert "several-senders" in [f.code for f in result.findings]
    assert judge(from_text(fi_info(range(16))), machine_type="p5en.48xlarge").outcome is Outcome.PASS


@pytest.mark.parametrize("carrier", ["quoted", "mpirun", "kubectl-timestamps", "journald", "fence"])
def test_a_list_without_a_mark_is_another_output(carrier: str) -> None:
    """A quoted answer above one's own, a fenced list below a bare one: two hosts, whatever stands on the lines."""
    first, second = (fi_info(range(8 * n, 8 * n + 8)) for n in (0, 1))
    text = first + CARRIERS[carrier](second)
    assert judge(from_text(text), machine_type="p5en.48xlarge").outcome is not Outcome.PASS
    ports = [ibstat("Active", "Active").replace("rdmap", f"rdmap{n}") for n in (4, 5)]
    reading = read(from_text(ports[0] + CARRIERS[carrier](ports[1]))).tool
    assert reading is not None
    assert not reading.complete
    assert reading.healthy is None


def test_two_fenced_lists_are_not_one() -> None:
    """Fences come off around one block alone: two blocks are two outputs."""
    lists = [f"```\n{fi_info(range(8 * n, 8 * n + 8))}```\n" for n in (0, 1)]
    assert "```" in unpacked("".join(lists)).text
    assert "```" in unpacked(lists[0] + "and on the other host the same\n").text


def test_a_port_that_is_down_is_told_whoever_says_it() -> None:
    """Several senders take away a good word, never a bad one."""
    text = each("[1,0]<stdout>:")(ibstat("Active")) + each("[1,1]<stdout>:")(ibstat("Active", "Down"))
    assert judge(from_text(text)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "text",
    [
        LNET,
        "1: lo: <LOOPBACK,UP> mtu 65536\n    inet 127.0.0.1/8\n2: eth0: <UP> mtu 9001\n",
        "a | b\nplain words\nc | d\n",
        "2026-11-30 15:00:00 begun\nwork\n2026-11-30 15:00:09 ended\n",
    ],
)
def test_words_of_a_text_are_no_marks(text: str) -> None:
    """Marks that a tool may print itself stand on every line, or are left alone."""
    assert unpacked(text).text == text
