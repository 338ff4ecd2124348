"""What is found by vector operations is what a plain look at each line finds, however odd the bytes are."""

from __future__ import annotations

import io
import random
import re

import numpy as np
import pytest

from infra.probes.readers import lines as readers_lines
from infra.probes.readers.lines import blocks
from infra.probes.readers.nccl_phrases import BEGINNINGS
from infra.probes.readers.nccl_prefix import HEAD, parse_head
from infra.probes.readers.nccl_scan import Scanner
from infra.probes.readers.nccl_table import KEY, key_rows

PIECES = (
    *(b"NCCL ", b"NCCL INFO ", b"NCCL WARN ", b"NCCL INFO Channel 00 : 1[0] -> 2[0]", b"NCCL INFO Using network IB"),
    *(b" via NET/", b" via NET", b"via NET/IB/0", b" via P2P/", b" via P2P/MNNVL", b" via P2P/MNNV"),
    *(b"\n", b"\n", b"\n\n"),
    *(b" ", b"  ", b"[0] ", b"node-1:1000:2000 [0] ", b"x" * 50, b"NCC", b"CCL ", b"\x00", b"\xff", b"a", b"\t"),
)


def odd_text(rng: random.Random) -> bytes:
    return b"".join(rng.choices(PIECES, k=rng.randrange(1, 120)))


@pytest.mark.parametrize("seed", range(6))
def test_a_scan_finds_what_a_look_at_each_line_finds(seed: int) -> None:
    rng, scanner = random.Random(seed), Scanner()
    for _ in range(10):
        data = odd_text(rng)
        scan = scanner.scan(data)
        own = [m.start() for m in re.finditer(b"NCCL ", data)]
        informing = {at for at in own if data[at + 5 : at + 6] == b"I"}
        assert scan.at.tolist() == own
        assert scan.line.tolist() == [data.count(b"\n", 0, at) for at in own]
        telling = [at for at in own if at not in informing or data[at + 10 : at + 12] in BEGINNINGS]
        assert scan.at[scan.telling].tolist() == telling
        nets = [m.start() for m in re.finditer(b" via NET/", data)]
        before = [max((at for at in informing if at < net), default=-1) for net in nets]
        assert scan.at[scan.channels].tolist() == [
            at for at, net in zip(before, nets, strict=True) if at >= 0 and b"\n" not in data[at:net]
        ]
        assert (scan.peers, scan.far_peers) == (data.count(b" via P2P/"), b" via P2P/MNNVL" in data)
        assert scan.foreign == b"\n".join(line for line in data.split(b"\n") if line and b"NCCL " not in line)
        assert np.flatnonzero(scan.informing(scan.at)).tolist() == [
            i for i, at in enumerate(own) if data.startswith(b"NCCL INFO ", at)
        ]


@pytest.mark.parametrize("seed", range(6))
def test_a_key_is_the_last_word_of_a_prefix_and_its_device(seed: int) -> None:
    rng, scanner = random.Random(seed), Scanner()
    for _ in range(10):
        data = odd_text(rng)
        scan = scanner.scan(data)
        lines = scan.lines(np.arange(scan.at.size))
        rows, length = key_rows(scan, lines)
        for row, size, start, at in zip(rows, length.tolist(), lines.start.tolist(), lines.at.tolist(), strict=True):
            head = data[start:at]
            key = head[head.rfind(b" ", 0, -6) + 1 :]
            expected = key if len(key) < KEY else b""
            assert size == len(expected)
            assert row.tobytes() == bytes([size]) + expected.rjust(KEY, b"\0")[1:]


def test_a_prefix_is_read_by_its_last_word_as_by_the_whole_of_it() -> None:
    rng = random.Random(1)
    words = [b"node-1:1000:2000", b"a:1", b"[0] ", b" [12] ", b"\t[3]", b" ", b">", b"2026-03-13T22:26:02"]
    words += [b":", b"[", b"x"]
    for _ in range(3000):
        head = b"".join(rng.choices(words, k=rng.randrange(1, 7)))
        whole = [m for m in HEAD.finditer(head) if m.end() >= len(head.rstrip())]
        numeric = bool(whole) and whole[-1]["host"].isdigit() and whole[-1]["tid"] is None
        assert bool(parse_head(head).pid) == (bool(whole) and not numeric), head
        if parse_head(head).pid:
            assert parse_head(head).pid.encode() == whole[-1]["pid"], head
            assert parse_head(head).device == int(whole[-1]["dev"]), head


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_blocks_of_any_size_hold_the_same_lines(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(size)
    text = b"".join(rng.choices((b"ab", b"c\n", b"\r\n", b"\r", b"\n", b"\x1b[0m", b"line"), k=400))
    monkeypatch.setattr(readers_lines, "BLOCK", size)
    read = b"".join(block.data for block in blocks(io.BytesIO(text)))
    expected = text.replace(b"\r\n", b"\n").removesuffix(b"\r").replace(b"\r", b"\n").replace(b"\x1b[0m", b"")
    assert read.rstrip(b"\n") == expected.rstrip(b"\n")
