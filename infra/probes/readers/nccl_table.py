"""Lines that were seen before, recognised many at a time, so that Python looks at each distinct one only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from infra.probes.readers.nccl_scan import BEFORE, MESSAGE, Lines, Places, Scan, Words

M = TypeVar("M")
Rows = NDArray[np.uint64]  # one byte string each, zeros where it is shorter

TEXT = 120  # bytes; longer messages are no rows
TAIL = 56
KEY = BEFORE  # bytes; longer keys are none either
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: the golden ratio
_FEW, _MOST_BITS = 64, 20  # keys for which a set begins, and the bits of the number of its slots
_SMALL = 512  # rows with which a table begins: most logs are short, and fresh memory costs more than reading them
ALIKE = np.uint64(0x0101010101010101)  # eight words of eight are the same
_BUT_SIX = np.uint64((1 << KEY - 6) - 1)
_KEPT = np.tri(TEXT + 1, TEXT, -1, dtype=np.uint8) * np.uint8(255)
# By how many bytes are kept: the first ones of a message (and a free word behind it), the last ones of a key.
_FIRST = np.pad(_KEPT, ((0, 0), (0, 8))).view(np.uint64)
_FIRST_OF_TAIL = np.pad(_KEPT[: TAIL + 1, :TAIL], ((0, 0), (0, 8))).view(np.uint64)
_LAST = np.ascontiguousarray(_KEPT[: KEY + 1, KEY - 1 :: -1]).view(np.uint64)


class Table:
    """Rows of eight words or a multiple that were seen before, numbered as they came.

    A row's hash names the one slot in which its number may stand. Whether it is the same row is seen by comparing the
    whole of it, so none is ever taken for another. Of two rows with one slot the later is remembered.
    """

    def __init__(self, words: int, most: int) -> None:
        self._words = words
        self._most = most
        self._rows = np.zeros((0, words), dtype=np.uint64)
        self.size = 0
        self._hold(min(most, _SMALL))

    def find(self, rows: Rows) -> Places:
        """The number of each row, -1 where it is not known."""
        numbers = self._slots[self._slot(rows)].astype(np.intp)
        known = numbers < self.size
        for eight in (self._rows.take(numbers, axis=0) == rows).view(np.uint64).T:
            known &= eight == ALIKE
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
        self._rows = np.zeros((room, self._words), dtype=np.uint64)
        self._rows[: self.size] = known
        bits = (4 * room - 1).bit_length()
        self._shift = np.uint64(64 - bits)
        self._slots = np.zeros(1 << bits, dtype=np.int32)
        self._slots[self._slot(known)] = np.arange(self.size)

    def _slot(self, rows: Rows) -> Rows:
        slots: Rows = hashes(rows) >> self._shift
        return slots


class Numbers:
    """64-bit keys, numbered as they came.

    A slot has the last of the keys that share it, and the others cost a step of Python each time: slots are many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[int, int] = {}
        self._spread()

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    @property
    def full(self) -> bool:
        """Whether an unknown key gets no number."""
        return len(self._numbers) >= self._most

    def of(self, keys: Places) -> Places:
        """The number of each key; an unknown one gets the next, -1 where there is no more room."""
        slots = self._slot(keys)
        numbers: Places = np.where(self._keys[slots] == keys, self._held[slots], -1)
        strange = np.flatnonzero(numbers < 0)
        if strange.size:
            numbers[strange] = self._look(keys[strange], slots[strange])
            if self._held.size < min(16 * len(self._numbers), 1 << _MOST_BITS):
                self._spread()
        return numbers

    def clear(self) -> None:
        """Forget all keys."""
        self._numbers.clear()
        self._spread()

    def _look(self, keys: Places, slots: Places) -> Places:
        """The same for keys that are not in their slots: Python looks at the first one in each slot, and the hidden."""
        order = np.arange(keys.size)
        self._held[slots[::-1]] = order[::-1]
        first = self._held[slots]
        hidden = keys[first] != keys
        asked = np.flatnonzero((first == order) | hidden)
        numbers = np.zeros(keys.size, dtype=np.intp)
        numbers[asked] = [self._number(key) for key in keys[asked].tolist()]
        numbers = np.where(hidden, numbers, numbers[first])
        self._keys[slots], self._held[slots] = keys, numbers
        return numbers

    def _number(self, key: int) -> int:
        number = self._numbers.get(key, -1)
        if number < 0 and not self.full:
            number = self._numbers[key] = len(self._numbers)
        return number

    def _spread(self) -> None:
        """Make empty slots, 64 for each key while that is little memory. Known keys come back as they are asked for."""
        bits = min((64 * max(len(self._numbers), _FEW)).bit_length(), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        self._keys = np.zeros(1 << bits, dtype=np.intp)
        self._held = np.full(1 << bits, -1, dtype=np.intp)

    def _slot(self, keys: Places) -> Places:
        slots: Places = (keys.view(np.uint64) * _FACTOR >> self._shift).view(np.intp)
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


def grown(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The same array, or a longer one with zeros behind, that holds `size` values."""
    if size <= values.size:
        return values
    return np.concatenate([values, np.zeros(2 * size - values.size, dtype=values.dtype)])


def key_rows(scan: Scan, lines: Lines) -> tuple[Rows, Places]:
    """What stands in front of "NCCL " behind the last blank but those of "[7] ", and its length; 0 where too long."""
    rows = words_at(scan, lines.at, KEY // 8)
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


def text_rows(scan: Scan, lines: Lines, speakers: Places) -> tuple[Rows, NDArray[np.bool_]]:
    """Message and speaker of each line, and whether it is short enough to be whole in its row."""
    length = np.maximum(lines.end - lines.at - MESSAGE, 0)
    whole = length <= TEXT
    length = np.minimum(length, TEXT)
    rows = words_at(scan, lines.at + (BEFORE + MESSAGE), TEXT // 8 + 1)
    rows &= _FIRST.take(length, axis=0)
    rows[:, -1] = speakers << 8 | length
    return rows, whole


def tail_rows(scan: Scan, begin: Places, end: Places) -> tuple[Rows, Places]:
    """What stands between places of the buffer, and its length; 0 where it is too long for a row."""
    length = end - begin
    length[length > TAIL] = 0
    rows = words_at(scan, begin, TAIL // 8 + 1)
    rows &= _FIRST_OF_TAIL.take(length, axis=0)
    rows[:, -1] = length
    return rows, length


def hashes(rows: Rows) -> Rows:
    """A number for each row that tells it from most others."""
    found: Rows = np.einsum("ij,j->i", rows, _factors(rows.shape[1]))
    return found


@cache
def _factors(words: int) -> Rows:
    random = Random(words)  # noqa: S311 - any fixed odd numbers do
    return np.array([random.getrandbits(64) | 1 for _ in range(words)], dtype=np.uint64)


def words_at(scan: Scan, at: Places, count: int) -> Rows:
    """So many words from each place of the buffer on."""
    every: NDArray[np.void] = np.ndarray((scan.buffer.size - 8 * count,), f"V{8 * count}", scan.buffer, strides=(1,))
    return every[at].view(np.uint64).reshape(-1, count)
