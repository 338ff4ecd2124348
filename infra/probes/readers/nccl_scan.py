"""Where in a block NCCL's own lines and its network channels stand. Vector operations: this decides the reading speed.

Nine lines of ten in a large log name channels inside a node. They are passed over here without a look at each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from infra.probes.readers.nccl_phrases import BEGINNINGS

Span = tuple[int, int, int]  # where a line starts, where its (last) "NCCL " stands, where it ends

_PAD = b"\n" * 16  # behind the block, so that a look ahead needs no check
_WORTH = np.zeros(1 << 16, dtype=bool)  # by the first two bytes of a message: may it be an interesting one?
for _first, _second in BEGINNINGS:
    _WORTH[_first << 8 | _second] = True


@dataclass(frozen=True, slots=True)
class Spans:
    """`telling`: lines that may say something; `channels`: "NCCL INFO … via NET/"; `foreign`: what is not NCCL's."""

    telling: Iterator[Span]
    channels: Iterator[Span]
    foreign: bytes


def spans(data: bytes) -> Spans:
    """One pass over a block of whole lines."""
    block = np.frombuffer(data + _PAD, dtype=np.uint8)
    ends = np.flatnonzero(block == ord("\n"))
    at = np.flatnonzero(block == ord("N"))
    own = _spelled(block, at, b"NCCL ")
    information = block[own + 5] == ord("I")
    worth = _WORTH[block[own + 10].astype(np.uint16) << 8 | block[own + 11]]
    told = own[worth | ~information]
    said = own[information]
    nets = _spelled(block, at, b"NET/")
    nets = nets[nets > 4]
    nets = _spelled(block, nets - 5, b" via ") + 5
    before = np.searchsorted(said, nets) - 1
    nets, before = nets[before >= 0], before[before >= 0]
    said = said[before]
    same = np.searchsorted(ends, said) == np.searchsorted(ends, nets)
    return Spans(_spans(ends, told), _spans(ends, said[same]), _foreign(data, ends, own))


def _foreign(data: bytes, ends: NDArray[np.intp], own: NDArray[np.intp]) -> bytes:
    """The lines without an "NCCL " in them, the padding's empty ones left out."""
    other = np.ones(len(ends), dtype=bool)
    other[np.searchsorted(ends, own)] = False
    lines = np.flatnonzero(other)
    starts = np.where(lines > 0, ends[lines - 1] + 1, 0)
    filled = starts < np.minimum(ends[lines], len(data))
    return b"\n".join([data[s:e] for s, e in zip(starts[filled].tolist(), ends[lines][filled].tolist(), strict=True)])


def _spelled(block: NDArray[np.uint8], at: NDArray[np.intp], word: bytes) -> NDArray[np.intp]:
    """Of the places `at`, those where `word` stands."""
    for offset, letter in enumerate(word):
        at = at[block[at + offset] == letter]
    return at


def _spans(ends: NDArray[np.intp], at: NDArray[np.intp]) -> Iterator[Span]:
    line = np.searchsorted(ends, at)
    starts = np.where(line > 0, ends[line - 1] + 1, 0)
    return zip(starts.tolist(), at.tolist(), ends[line].tolist(), strict=True)
