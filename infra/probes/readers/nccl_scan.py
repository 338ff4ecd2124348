"""Where in a block NCCL's own lines and its network channels stand. Vector operations: this decides the reading speed.

Nine lines of ten in a large log name channels inside a node. They are passed over here without a look at each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.probes.readers.nccl_phrases import BEGINNINGS

Places = NDArray[np.intp]
Words = NDArray[np.uint64]  # eight bytes each, the first one lowest

BEFORE = 64  # bytes in front of the block, for looks back; an even number
BEHIND = 256  # bytes behind it, for looks ahead
MESSAGE = 10  # bytes from "NCCL " to the message, the length of "NCCL INFO "
_NEWLINE = ord("\n")


def word(text: bytes) -> int:
    """Up to eight letters as the number that they are in `Words`."""
    return int.from_bytes(text, "little")


_WORTH = np.zeros(1 << 16, dtype=bool)  # by the first two bytes of a message: may it be an interesting one?
_WORTH[[word(beginning) for beginning in BEGINNINGS]] = True
_CHANNEL = word(b"Ch")  # most messages begin so, and are not


class Lines(NamedTuple):
    """Where lines start, where their (last) "NCCL " stands, where they end: offsets in the block, side by side."""

    start: Places
    at: Places
    end: Places

    def of(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Lines:
        """Some of them."""
        return Lines(self.start[which], self.at[which], self.end[which])


@dataclass(frozen=True, slots=True)
class Scan:
    """What one pass over a block finds. Valid until the next block is scanned."""

    buffer: NDArray[np.uint8]  # the block, with newlines before and behind it
    ends: Places  # of all lines
    at: Places  # each "NCCL "
    line: Places  # which line it stands in
    telling: Places  # which of them may say something
    channels: Places  # which of them go on with "INFO … via NET/"
    nets: Places  # where that " via NET/" stands
    foreign: bytes  # the lines without an "NCCL " in them
    peers: int  # how many " via P2P/" there are
    far_peers: bool  # whether one of them is " via P2P/MNNVL"

    def informing(self, at: Places) -> NDArray[np.bool_]:
        """Where an "NCCL " goes on with "INFO "."""
        words: Words = np.ndarray((self.buffer.size - 8,), "<u8", self.buffer, strides=(1,))
        informing: NDArray[np.bool_] = words[at + (BEFORE + 2)] == word(b"CL INFO ")
        return informing

    def lines(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Lines:
        """The lines of some of `at`."""
        line = self.line[which]
        return Lines(np.where(line > 0, self.ends[line - 1] + 1, 0), self.at[which], self.ends[line])


class Scanner:
    """Scans block after block. Its buffers stay, since fresh memory for each block costs more than the scan."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)
        self._pairs = np.empty(0, dtype="<u2")  # two letters from each byte of the buffer on
        self._words = np.empty(0, dtype="<u8")  # eight of them
        self._hits = np.empty(0, dtype=bool)
        self._more = np.empty(0, dtype=bool)

    def scan(self, data: bytes) -> Scan:
        """One pass over a block of whole lines."""
        size = len(data)
        self._fill(data)
        block, words = self._buffer[BEFORE:], self._words[BEFORE:]
        ends = np.flatnonzero(np.equal(block[: size + 1], _NEWLINE, out=self._hits[: size + 1]))

        at = self._find(b"NCCL ", size)
        first = words[at]
        mine = first & 0xFFFFFFFFFF == word(b"NCCL ")
        if not mine.all():
            at, first = at[mine], first[mine]
        line = _line_of(ends, at)
        informing = first >> 40 & 0xFF == ord("I")
        begins = self._pairs[at + (BEFORE + MESSAGE)]
        telling = np.flatnonzero((begins != _CHANNEL) | ~informing)
        telling = telling[_WORTH[begins[telling]] | ~informing[telling]]

        via = self._find(b" via ", size)
        what = words[via]
        nets, peers = via[what == word(b" via NET")], via[what == word(b" via P2P")]
        nets = nets[block[nets + 8] == ord("/")]
        beyond = self._pairs[peers + (BEFORE + 8)]
        said = np.flatnonzero(informing)
        before = np.searchsorted(at[said], nets) - 1
        nets, said = nets[before >= 0], said[before[before >= 0]]
        same = ends[line[said]] > nets
        return Scan(
            buffer=self._buffer,
            ends=ends,
            at=at,
            line=line,
            telling=telling,
            channels=said[same],
            nets=nets[same],
            foreign=_foreign(data, ends, line),
            peers=int(np.count_nonzero(beyond & 0xFF == ord("/"))),
            far_peers=bool((beyond == word(b"/M")).any()) and b" via P2P/MNNVL" in data,
        )

    def _fill(self, data: bytes) -> None:
        room = BEFORE + len(data) + BEHIND
        if self._buffer.size < room:
            self._buffer = np.full(room + room % 2, _NEWLINE, dtype=np.uint8)
            self._pairs, self._words = (
                np.ndarray((self._buffer.size - 8,), kind, self._buffer, strides=(1,)) for kind in ("<u2", "<u8")
            )
            self._hits, self._more = np.empty((2, self._buffer.size), dtype=bool)
        self._buffer[BEFORE : room - BEHIND] = np.frombuffer(data, dtype=np.uint8)
        self._buffer[room - BEHIND : room] = _NEWLINE

    def _find(self, text: bytes, size: int) -> Places:
        """Where four letters may stand behind another.

        Letters are compared in pairs, as 16-bit numbers on even offsets: half as many steps, and few false hits. On
        an even offset the text's third letter begins such a pair, on an odd one its second.
        """
        pairs = self._buffer[BEFORE : BEFORE + (size + 3) // 2 * 2].view("<u2")
        hits, more = self._hits[: pairs.size], self._more[: pairs.size]
        even = word(text[2:4])
        np.equal(pairs, even, out=hits)
        np.bitwise_or(hits, np.equal(pairs, word(text[1:3]), out=more), out=hits)
        hit = np.flatnonzero(hits)
        places: Places = hit * 2 - 1 - (pairs[hit] == even)
        return places


def _line_of(ends: Places, at: Places) -> Places:
    """In which line each place is. Most blocks have one in each line, which is seen faster than searched."""
    first = ends[: at.size]
    if at.size == first.size and (at < first).all() and (at[1:] > first[:-1]).all():
        return np.arange(at.size)
    return np.searchsorted(ends, at)


def _foreign(data: bytes, ends: Places, own: Places) -> bytes:
    """The lines that are not among `own`, empty ones left out."""
    other = np.ones(ends.size, dtype=bool)
    other[own] = False
    lines = np.flatnonzero(other)
    starts = np.where(lines > 0, ends[lines - 1] + 1, 0)
    filled = starts < np.minimum(ends[lines], len(data))
    return b"\n".join([data[s:e] for s, e in zip(starts[filled].tolist(), ends[lines][filled].tolist(), strict=True)])
