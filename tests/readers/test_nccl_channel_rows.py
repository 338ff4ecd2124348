"""Channel lines that are read all together say what each says that is read alone, however odd the lines are."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from nccl_writer import Job, write

from infra.probes.readers.nccl_channel_rows import ChannelRows
from infra.probes.readers.nccl_channel_sums import Channels, Columns
from infra.probes.readers.nccl_channels import read_channel
from infra.probes.readers.nccl_log import NcclLogReader
from infra.probes.readers.nccl_scan import MESSAGE, Places, Scanner
from infra.probes.readers.nccl_state import Way
from infra.probes.readers.nccl_table import Numbers

HEAD = b"node-1:1000:2000 [0] NCCL INFO "
PIECES = (
    *(b" ", b"  ", b"\t", b"\x00", b"\xff", b"|", b"x", b"7", b"0000", b"[", b"]", b"/", b":", b"->", b"-"),
    *(b" : ", b" -> ", b"[send]", b" [receive]", b" via NET/", b"/GDRDMA", b"/GDR", b"Channel ", b"NCCL ", HEAD),
    *(b"12345678", b"123456789", b"1234567890", b"7[7]", b"1[1b000]", b"1234[567]", b"node-2:1:2 [3] "),
)


def usual_line(rng: random.Random) -> bytes:
    """A channel line of any version, or one that is damaged in a place or two."""
    odd = rng.random() < 0.5
    index = rng.choice((b"1234567", b"12345678", b"123456789") if odd else (b"0", b"00", b"03/0", b"15/1", b"123/4"))
    ranks = (b"123456789", b"12[b3000]", b"1234[567]", b"x", b"") if odd else (b"0", b"7[7]", b"1[0]", b"1023[7]")
    ends = rng.choices((*ranks, b"12345678"), k=2)
    direction = rng.choice((b" [sent]", b"  [send]") if odd else (b"", b" [send]", b" [receive]"))
    network = rng.choice((b"Libfabric", b"AWS Libfabric", b"IB", b"Socket", b"NCCL RDMA Plugin v8"))
    suffix = rng.choice((b"/GDR", b"/Shared x", b" comm 0x5a nRanks 16") if odd else (b"", b"/GDRDMA", b"/GDRDMA(PCI)"))
    words = [b"Channel ", index, b" : ", ends[0], b" -> ", ends[1], direction, b" via NET/", network, b"/3", suffix]
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        words.insert(rng.randrange(len(words) + 1), rng.choice(PIECES))
    if rng.random() < 0.1:
        words.pop(rng.randrange(len(words)))
    return HEAD + b"".join(words)


@pytest.mark.parametrize("seed", range(8))
def test_lines_that_are_read_together_say_what_each_says_alone(seed: int) -> None:
    rng, scanner, channels = random.Random(seed), Scanner(), Channels()
    rows, together = ChannelRows(channels.way), 0
    for _ in range(20):
        data = b"".join(usual_line(rng) + b"\n" for _ in range(rng.randrange(60)))
        scan = scanner.scan(data)
        lines = scan.lines(scan.channels)
        read = np.array(rows.read(scan, lines, scan.nets)).T
        for given, at, end in zip(read.tolist(), lines.at.tolist(), lines.end.tolist(), strict=True):
            if given[0] >= 0:
                alone = read_channel(data[at + MESSAGE : end])
                assert alone is not None, data[at:end]
                assert given == [channels.way(alone.way), *alone[:3]], data[at:end]
                together += 1
    assert together > 100


@pytest.mark.parametrize("version", ["2.27.7", "2.10.3"])
def test_a_whole_log_has_no_line_that_must_be_read_alone(version: str) -> None:
    data = write(Job(nodes=2, gpus=8, channels=16, trees=True, version=version, fabric="ib", payload=False))
    scan = Scanner().scan(data)
    columns = ChannelRows(Channels().way).read(scan, scan.lines(scan.channels), scan.nets)
    assert columns.way.size == data.count(b" via NET/")
    assert (columns.way >= 0).all()


def test_channels_of_many_blocks_add_up_to_those_of_one() -> None:
    """Whether a line is the first of its kind in a block or the hundredth, and whoever stands around it."""
    rng = random.Random(3)
    lines = write(Job(nodes=3, gpus=4, channels=6, rounds=2, trees=True, plain_ranks=frozenset({5}))).splitlines(True)
    for _ in range(200):
        at = rng.randrange(len(lines))
        lines[at] = lines[at].replace(rng.choice((b"[send]", b" -> ", b"/GDRDMA", b" : ")), rng.choice(PIECES), 1)
    readings = []
    for size in (len(lines), 97, 5):
        reader = NcclLogReader()
        reader.feed(b"".join(lines[:50]))
        for at in range(50, len(lines), size):
            reader.feed(b"".join(lines[at : at + size]))
        readings.append(reader.reading())
    assert readings[0] == readings[1] == readings[2]


@pytest.mark.parametrize("most", [40, 100_000])
def test_a_key_keeps_the_number_that_it_got(most: int) -> None:
    rng, numbers, expected = random.Random(most), Numbers(most), dict[int, int]()
    for _ in range(200):
        keys = [rng.randrange(rng.choice((10, 5_000, 1 << 60))) for _ in range(rng.randrange(100))]
        for key in keys:
            if len(expected) < most:
                expected.setdefault(key, len(expected))
        assert numbers.of(np.array(keys, dtype=np.intp)).tolist() == [expected.get(key, -1) for key in keys]
    assert list(numbers) == list(expected)
    assert numbers.full == (most == 40)


def calls_to_read(lines: int) -> int:
    """How many Python functions it takes to read that many lines without a prefix, each of its own device."""
    calls, data = 0, b"".join(b"0 -> 1 via NET/IB/%d\n" % device for device in range(lines))

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    reader, before = NcclLogReader(), sys.getprofile()
    sys.setprofile(seen)
    try:
        reader.feed(data)
    finally:
        sys.setprofile(before)
    assert sum(reader.reading().net_channels.values()) == lines
    return calls


def test_twice_as_many_lines_without_prefixes_are_twice_the_work() -> None:
    assert calls_to_read(800) < 2.5 * calls_to_read(400)


def columns(ranks: range, channels: int, way: int) -> tuple[Places, Columns]:
    """Every rank says every channel, to the next rank."""
    rank, channel = (axis.ravel() for axis in np.meshgrid(np.array(ranks), np.arange(channels), indexing="ij"))
    return rank, Columns(np.full(rank.size, way), channel, rank, rank + 1)


def test_a_full_house_lacks_nothing_until_somebody_stays_outside() -> None:
    channels = Channels(most=8)
    way = channels.way(Way("send", "IB", 0, True))
    channels.count(*columns(range(4), 2, way))
    channels.count(*columns(range(4), 2, way))
    assert (len(channels.by_rank()), channels.overflow) == (4, False)
    channels.count(*columns(range(1), 3, way))
    assert channels.overflow


@pytest.mark.slow
def test_8192_ranks_with_64_channels_both_ways_are_all_kept() -> None:
    channels = Channels()
    for direction in ("send", "receive"):
        channels.count(*columns(range(8192), 64, channels.way(Way(direction, "IB", 0, True))))
    channels.count(*columns(range(1), 65, channels.way(Way("send", "IB", 0, True))))
    assert not channels.overflow
