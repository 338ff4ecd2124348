"""Lines that were seen before, recognised many at a time, so that Python looks at each distinct one only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from infra.probes.readers.nccl_scan import BEFORE, MESSAGE, Lines, Places, Scan, Words

M = TypeVar("M")
N = TypeVar("N", np.int64, np.uint64)
Rows = NDArray[np.uint64]  # one byte string each, zeros where it is shorter

TEXT = 120  # bytes; longer messages are no rows
KEY = BEFORE  # bytes; longer keys are none either
_SMALL = 512  # rows with which a table begins: most logs are short, and fresh memory costs more than reading them
_ALIKE = np.uint64(0x0101010101010101)  # eight words of eight are the same
_BUT_SIX = np.uint64((1 << KEY - 6) - 1)
_KEPT = np.tri(TEXT + 1, TEXT, -1, dtype=np.uint8) * np.uint8(255)
# By how many bytes are kept: the first ones of a message (and a free word behind it), the last ones of a key.
_FIRST = np.pad(_KEPT, ((0, 0), (0, 8))).view(np.uint64)
_LAST = np.ascontiguousarray(_KEPT[: KEY + 1, KEY - 1 :: -1]).view(np.uint64)


class Table:
    """Rows of eight words or a multiple that were seen before, numbered as they came.

    A row's hash names the one slot in which its number may stand. Whether it is the same row is seen by comparing the
    whole of it, so none is ever taken for another. Of two rows with one slot the later is remembered.
    """

    def __init__(self, words: int, most: int) -> None:
        random = Random(words)  # noqa: S311 - any fixed odd numbers do
        self._factors = np.array([random.getrandbits(64) | 1 for _ in range(words)], dtype=np.uint64)
        self._most = most
        self._rows = np.zeros((0, words), dtype=np.uint64)
        self.size = 0
        self._hold(min(most, _SMALL))

    def find(self, rows: Rows) -> Places:
        """The number of each row, -1 where it is not known."""
        numbers = self._slots[self._slot(rows)].astype(np.intp)
        known = numbers < self.size
        for eight in (self._rows.take(numbers, axis=0) == rows).view(np.uint64).T:
            known &= eight == _ALIKE
        return np.where(known, numbers, -1)

    def add(self, rows: Rows) -> None:
        """Give the rows the next numbers, as long as there is room."""
        rows = rows[: self.room]
        if self.size + len(rows) > len(self._rows):
            self._hold(min(self._most, 4 * (self.size + len(rows))))
        numbers = np.arange(self.size, self.size + len(rows))
        self._rows[numbers] = rows
        self._slots[self._slot(rows)] = numbers
        self.size += len(rows)

    @property
    def room(self) -> int:
        """How many more rows can be added."""
        return self._most - self.size

    def clear(self) -> None:
        self._slots[:] = 0
        self.size = 0

    def one_each(self, rows: Rows) -> Places:
        """Where each distinct row stands first; of two with the same slot only one."""
        return np.sort(np.unique(self._slot(rows), return_index=True)[1])

    def _hold(self, room: int) -> None:
        """Make place for so many rows, with four slots for each."""
        known = self._rows[: self.size]
        self._rows = np.zeros((room, self._factors.size), dtype=np.uint64)
        self._rows[: self.size] = known
        bits = (4 * room - 1).bit_length()
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, dtype=np.int32)
        self._slots[self._slot(known)] = np.arange(self.size)

    def _slot(self, rows: Rows) -> Rows:
        slots: Rows = np.einsum("ij,j->i", rows, self._factors) >> self._shift
        return slots


class Repeats(Generic[M]):
    """What speakers said, each wording with its meaning and how often it was said again."""

    def __init__(self, room: int) -> None:
        self._table = Table(TEXT // 8 + 1, room)
        self._counts = np.zeros(0, dtype=np.int64)
        self._meanings: list[M] = []

    def count(self, rows: Rows, able: NDArray[np.bool_]) -> Places:
        """Count the rows that were said before, and say which were not."""
        numbers = self._table.find(rows)
        again = able & (numbers >= 0)
        np.add.at(self._counts, numbers[again], 1)
        return np.flatnonzero(~again)

    def learn(self, rows: Rows, meanings: Sequence[M]) -> None:
        """Remember what rows mean, as long as there is room."""
        self._meanings += meanings[: self._table.room]
        self._table.add(rows)
        self._counts = grown(self._counts, self._table.size)

    @property
    def full(self) -> bool:
        return not self._table.room

    def take(self) -> Iterator[tuple[M, int]]:
        """Meanings and counts since the last time; all is forgotten."""
        for number in np.flatnonzero(self._counts).tolist():
            yield self._meanings[number], int(self._counts[number])
        self._counts[:] = 0
        self._meanings.clear()
        self._table.clear()


def grown(values: NDArray[N], size: int) -> NDArray[N]:
    """The same array, or a longer one with zeros behind, that holds `size` values."""
    if size <= values.size:
        return values
    return np.concatenate([values, np.zeros(2 * size - values.size, dtype=values.dtype)])


def key_rows(scan: Scan, lines: Lines) -> tuple[Rows, Places]:
    """What stands in front of "NCCL " behind the last blank but those of "[7] ", and its length; 0 where too long."""
    rows = _windows(scan, lines.at, KEY)
    letters = rows.view(np.uint8)
    begins = _bits(letters == ord(" ")) & _BUT_SIX | _bits(letters == ord("\n"))
    last = np.frexp((begins & ~(begins >> 1)).astype(np.float64))[1]  # no run of ones, so that nothing is rounded up
    length = np.where(begins > 0, KEY - last, 0)
    rows &= _LAST.take(length, axis=0)
    letters[:, 0] = length
    return rows, length


def _bits(marks: NDArray[np.bool_]) -> Words:
    """Each row's 64 marks as a number, the first one lowest."""
    return np.packbits(marks, bitorder="little").view("<u8")


def text_rows(scan: Scan, lines: Lines, speakers: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Message and speaker of each line, and whether it is short enough to be whole in its row."""
    length = np.maximum(lines.end - lines.at - MESSAGE, 0)
    whole = length <= TEXT
    length = np.minimum(length, TEXT)
    rows = _windows(scan, lines.at + (BEFORE + MESSAGE), TEXT + 8)
    rows &= _FIRST.take(length, axis=0)
    rows[:, -1] = speakers << np.uint64(8) | length.astype(np.uint64)
    return rows, whole


def _windows(scan: Scan, at: Places, width: int) -> Rows:
    """The `width` bytes from each place of the buffer on."""
    every: NDArray[np.void] = np.ndarray((scan.buffer.size - width,), f"V{width}", scan.buffer, strides=(1,))
    return every[at].view(np.uint64).reshape(-1, width // 8)
