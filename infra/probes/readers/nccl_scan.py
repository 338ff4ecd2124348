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

BEFORE = 64  # bytes in front of the block, for looks back; an even number
BEHIND = 256  # bytes behind it, for looks ahead
MESSAGE = 10  # bytes from "NCCL " to the message, the length of "NCCL INFO "
_LOOK = np.dtype([("first", "<u8"), ("second", "<u8")])
_NEWLINE = ord("\n")


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


_OWN, _INFO, _NET, _PEER = _word(b"NCCL "), _word(b"NCCL INF"), _word(b" via NET"), _word(b" via P2P")
_WORTH = np.zeros(1 << 16, dtype=bool)  # by the first two bytes of a message: may it be an interesting one?
for _first, _second in BEGINNINGS:
    _WORTH[_first | _second << 8] = True


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
    own: Lines  # one for each "NCCL "
    information: NDArray[np.bool_]  # which of `own` go on with "INFO "
    telling: Lines  # those that may say something
    channels: Lines  # "NCCL INFO … via NET/"
    foreign: bytes  # the lines without an "NCCL " in them
    peers: int  # how many " via P2P/" there are


class Scanner:
    """Scans block after block. Its buffers stay, since fresh memory for each block costs more than the scan."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.uint8)
        self._hits = np.empty(0, dtype=bool)
        self._more = np.empty(0, dtype=bool)

    def scan(self, data: bytes) -> Scan:
        """One pass over a block of whole lines."""
        size = len(data)
        self._fill(data)
        block = self._buffer[BEFORE:]
        ends = np.flatnonzero(np.equal(block[: size + 1], _NEWLINE, out=self._hits[: size + 1]))

        at, look = self._find(b"NCCL ", size)
        mine = look["first"] & 0xFFFFFFFFFF == _OWN
        if not mine.all():
            at, look = at[mine], look[mine]
        line = _line_of(ends, at)
        own = Lines(np.where(line > 0, ends[line - 1] + 1, 0), at, ends[line])
        informing = look["first"] >> 40 & 0xFF == ord("I")
        worth = _WORTH[look["second"] >> 16 & 0xFFFF]

        via, beyond = self._find(b" via ", size)
        slash = beyond["second"] & 0xFF == ord("/")
        nets = via[(beyond["first"] == _NET) & slash]
        said = np.flatnonzero(informing)
        before = np.searchsorted(at[said], nets) - 1
        said = said[before[before >= 0]]
        said = said[own.end[said] > nets[before >= 0]]
        return Scan(
            buffer=self._buffer,
            own=own,
            information=(look["first"] == _INFO) & (look["second"] & 0xFFFF == _word(b"O ")),
            telling=own.of(worth | ~informing),
            channels=own.of(said),
            foreign=_foreign(data, ends, line),
            peers=int(np.count_nonzero((beyond["first"] == _PEER) & slash)),
        )

    def _fill(self, data: bytes) -> None:
        room = BEFORE + len(data) + BEHIND
        if self._buffer.size < room:
            self._buffer = np.full(room + room % 2, _NEWLINE, dtype=np.uint8)
            self._hits, self._more = np.empty((2, self._buffer.size), dtype=bool)
        self._buffer[BEFORE : room - BEHIND] = np.frombuffer(data, dtype=np.uint8)
        self._buffer[room - BEHIND : room] = _NEWLINE

    def _find(self, word: bytes, size: int) -> tuple[Places, NDArray[np.void]]:
        """Where `word` may stand, and the 16 bytes there.

        Letters are compared in pairs, as 16-bit numbers on even offsets: half as many steps, and few false hits. On
        an even offset the word's third letter begins such a pair, on an odd one its second.
        """
        pairs = self._buffer[BEFORE : BEFORE + (size + 3) // 2 * 2].view("<u2")
        hits, more = self._hits[: pairs.size], self._more[: pairs.size]
        even = _word(word[2:4])
        np.equal(pairs, even, out=hits)
        np.bitwise_or(hits, np.equal(pairs, _word(word[1:3]), out=more), out=hits)
        places = np.flatnonzero(hits)
        places = places * 2 - 1 - (pairs[places] == even)
        looks: NDArray[np.void] = np.ndarray((size + BEFORE,), _LOOK, self._buffer, strides=(1,))[places + BEFORE]
        return places, looks


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
