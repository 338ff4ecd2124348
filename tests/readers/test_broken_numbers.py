"""Numbers and JSON that no tool prints: a reader neither breaks nor takes a figure from them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import pytest
from test_small_tools import TOOLS

from infra.model.reading import ToolReading
from infra.model.verdict import Outcome
from infra.probes.readers.figures import json_objects, number, whole
from infra.probes.readers.lines import from_text
from infra.probes.readers.payload import PayloadReader
from infra.probes.readers.tools import not_readable, read_tools, readings_of
from tasks.judge import judge
from tasks.rules.tool_verdict import answer_tool

BROKEN = ("1.2.3", "9" * 5000, "1e400", "NaN", "-", "0" * 30 + "x")
MORE = {
    "ibstatus": "Infiniband device 'mlx5_0' port 1 status:\n\tstate:\t\t 4: ACTIVE\n\trate:\t\t 400 Gb/sec (4X NDR)\n"
    "\tlink_layer:\t Ethernet\n",
    "rdma-link": "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev gpu0rdma0\n",
    "fio2": "Run status group 0 (all jobs):\n  READ: io=1.5GB, aggrb=1.5KB/s, minb=1KB/s, maxb=1KB/s, mint=1msec, "
    "maxt=1msec\n",
    "fio2-job": "a: (groupid=0, jobs=1): err= 0: pid=7\n  read : io=12MB, bw=12.5KB/s, iops=3, runt=9msec\n",
    "ior": "IOR-4.0.0: MPI\nMax Write: 1.5 MiB/sec (5.5 MB/sec)\nwrite 1.5 1 1 0\nSummary of all tests:\n"
    "write 1.5 1.5 1.5 0.0\n",
    "elbencho-json": '{"operation": "WRITE", "MiB/s [last]": "12.5", "elbencho": 1}\n',
    "iblinkinfo": 'Switch 0x1 SW:\n  1 1[ ] ==( 4X 25.78125 Gbps Active/ LinkUp)==> 2 1[ ] "n1 HCA-1" ( )\n',
    "perftest-rows": "#bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps]\n"
    " 65536 5000 1.0 1.0 1.0\n------------------------------\n",
}
TEXTS = {name: text for name, (text, _, _) in TOOLS.items()} | MORE
JSON = ("fio-json", "ior-json", "perftest-json", "elbencho-json")
DEEP = "[" * 100_000


def damaged(text: str) -> Iterator[str]:
    """Each of its first numbers in turn, as each broken one; then all of them."""
    for match in list(re.finditer(r"\d+(?:\.\d+)?", text))[:16]:
        for broken in BROKEN:
            yield text[: match.start()] + broken + text[match.end() :]
    for broken in BROKEN:
        yield re.sub(r"\d+(?:\.\d+)?", broken, text)


@pytest.mark.parametrize("name", TEXTS)
def test_a_broken_number_breaks_no_reader(name: str) -> None:
    """Nor does any figure become infinite: what was read is valid JSON."""
    for text in damaged(TEXTS[name]):
        for reading in read_tools(text):
            assert reading.cause != "not-readable", (text[:300], reading.figures)
            json.dumps(dict(reading.figures), allow_nan=False)


@pytest.mark.parametrize("name", JSON)
def test_json_nested_without_end_is_not_whole(name: str) -> None:
    text = TEXTS[name]
    for at in [match.end() for match in re.finditer(r'": ', text)]:
        for reading in read_tools(text[:at] + DEEP):
            assert reading.cause != "not-readable"
            assert reading.complete is not True


def test_payload_lines_that_are_no_payloads_count_as_broken() -> None:
    reader = PayloadReader()
    lines = [
        '{"poolshift":"all-reduce","event":"start","a":' + DEEP,
        '{"poolshift":"train-step","event":"step","step":1,"seconds":NaN}',
        '{"poolshift":"train-step","event":"step","step":1,"seconds":1e400}',
        '{"poolshift":"train-step","event":"step","step":1,"seconds":' + "9" * 400 + "}",
        '{"poolshift":"train-step","event":"step","step":' + "9" * 5000 + ',"seconds":1.0}',
        '{"poolshift":"train-step","event":"step","step":1.5,"seconds":1.0}',
    ]
    reader.feed("\n".join(lines).encode() + b"\n")
    reading = reader.reading()
    assert reading is not None
    assert (reading.broken, reading.steps_seconds) == (len(lines), ())


def test_an_output_that_breaks_its_reader_is_unmeasured_and_says_so() -> None:
    def read_breaking(text: str) -> ToolReading | None:
        raise IndexError(text)

    (reading,) = readings_of("a text", (read_breaking, lambda _: None))
    assert reading == not_readable("breaking", IndexError("a text"))
    answer = answer_tool(reading)
    assert answer.verdict == "undetermined"
    assert [(f.code, f.object) for f in answer.findings] == [("not-readable", "breaking")]
    assert "IndexError: a text" in answer.findings[0].observed


@pytest.mark.parametrize("text", [DEEP, "{" * 100_000, '{"a":' * 20_000, "9" * 100_000, '{"poolshift":' + DEEP])
def test_nothing_endless_is_more_than_unmeasured(text: str) -> None:
    assert judge(from_text(text)).outcome is Outcome.UNMEASURED
    assert judge(io.BytesIO(text.encode() + b"\n")).lines()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12", 12),
        ("-1.5", -1.5),
        (" 7 ", 7),
        ("1e3", 1000.0),
        (str(2**64), 2**64),
        (3, 3),
        (2.5, 2.5),
        ("1.2.3", None),
        ("", None),
        ("nan", None),
        ("1e400", None),
        ("9" * 21, None),
        (float("inf"), None),
        (float("nan"), None),
        (10**400, None),
        (True, None),
        (None, None),
        ([1], None),
    ],
)
def test_a_number_is_plain_finite_and_in_range(value: object, expected: float | None) -> None:
    assert number(value) == expected
    assert whole(value) == (expected if isinstance(expected, int) else None)


def test_json_objects_are_read_until_one_is_damaged() -> None:
    assert json_objects('x {"a":1}\n{"b":2} y') == ([{"a": 1}, {"b": 2}], True)
    assert json_objects('{"a":1}{"b":') == ([{"a": 1}], False)
    assert json_objects("none") == ([], True)


@pytest.mark.parametrize(
    "text",
    [
        f"link rdmap86s0/1 rx_bytes 5 tx_bytes {10**21} rdma_read_bytes 7\n",
        f"/sys/class/infiniband/mlx5_0/ports/1/counters/tx_bytes:{10**21}\n"
        "/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data:7\n",
        f"rdma_read_bytes: 5\nrdma_write_bytes: 6\ntx_bytes: {10**21}\n",
    ],
)
def test_a_counter_of_more_than_64_bits_is_said_to_be_left_out(text: str) -> None:
    answer = judge(from_text(text))
    assert answer.outcome is Outcome.UNMEASURED
    assert [(f.code, f.object) for f in answer.findings] == [("out-of-range", "tx_bytes")]


@pytest.mark.parametrize("text", ['{"poolshift":', '{"poolshift":\n', 'a {"poolshift" b\n'])
def test_the_beginning_of_a_payload_s_line_is_no_line_and_breaks_nothing(text: str) -> None:
    found = judge(from_text(text + "fi_getinfo: -61 (No data available)\n"))
    assert [f.code for f in found.findings] == ["no-matching-provider"]
