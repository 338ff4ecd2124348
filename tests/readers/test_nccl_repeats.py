"""What a rank says again is only counted: the count is the same as if each line had been looked at."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from nccl_writer import Job, write

from infra.model.reading import NcclLog
from infra.probes.readers.nccl_log import EXCERPT, NcclLogReader
from infra.probes.readers.nccl_table import Table

ROUNDS = 30
JOBS = {
    "efa": Job(rounds=ROUNDS, trees=True),
    "verbs-of-an-old-version": Job(rounds=ROUNDS, fabric="ib", version="2.10.3"),
    "one-rank-on-sockets-later": Job(
        rounds=ROUNDS, socket_ranks=frozenset({3}), bad_rounds=frozenset(range(20, ROUNDS))
    ),
}


def read(first: bytes, *pieces: bytes) -> NcclLog:
    reader = NcclLogReader()
    for piece in (first, *pieces):
        reader.feed(piece)
    return reader.reading()


@pytest.mark.parametrize("name", JOBS)
def test_repeats_count_like_lines_that_are_looked_at(name: str) -> None:
    """A fresh reader for each half knows nothing of the other: the sums of both are those of the whole."""
    data = write(JOBS[name])
    cut = data.rfind(b"\n", 0, EXCERPT + 1000) + 1
    tail = data[cut:].splitlines(keepends=True)
    assert len(tail) > 500
    whole = read(data[:cut], *(b"".join(tail[at : at + 200]) for at in range(0, len(tail), 200)))
    assert whole == read(data[:cut], *(b"".join(tail[at : at + 9]) for at in range(0, len(tail), 9)))
    for field in ("net_channels", "channel_networks", "providers", "selected"):
        halves = [getattr(read(part), field) for part in (data[:cut], data[cut:])]
        assert getattr(whole, field) == {k: sum(h.get(k, 0) for h in halves) for k in getattr(whole, field)}, field
    assert sum(whole.ring_gdr) == (JOBS[name].ranks * ROUNDS if JOBS[name].numbers >= (2, 24) else 0)
    assert {rank.connected_rings for rank in whole.ranks} == {ROUNDS}


def test_a_log_behind_ever_new_prefixes_is_the_same_log() -> None:
    """A time stamp in front of each line hides nobody and makes nobody up."""
    data = write(JOBS["efa"])
    stamped = b"".join(b"2026-03-13T22:26:02.%09dZ %b" % pair for pair in enumerate(data.splitlines(keepends=True)))
    plain, other = read(data, data), read(stamped, stamped)
    assert dataclasses.replace(other, torn=plain.torn) == plain


def test_a_row_is_never_taken_for_another() -> None:
    """Neither when slots are shared nor when the table is full."""
    rng = random.Random(4)
    rows = np.array([[rng.getrandbits(3) for _ in range(3)] for _ in range(4000)], dtype=np.uint64)
    rows = np.pad(np.unique(rows, axis=0), ((0, 0), (2, 3)))
    table = Table(8, len(rows) // 2)
    table.add(rows)
    found = table.find(rows)
    assert set(found[found >= 0]) <= set(range(len(rows) // 2))
    assert all(number in {at, -1} for at, number in enumerate(found.tolist()))
    assert (found >= 0).sum() > len(rows) // 3
    table.clear()
    assert (table.find(rows) == -1).all()
