"""What the channel lines of a block say, read all together.

    Channel 03/0 : 7[7] -> 8[0] [send] via NET/Libfabric/3/GDRDMA

A line of exactly this shape falls into three short words and a tail, and many lines share each of them: what one means
is worked out once, for the tail by the same expression that reads whole lines. Other lines are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Literal

import numpy as np

from infra.probes.readers.nccl_channel_sums import Columns
from infra.probes.readers.nccl_channels import read_channel
from infra.probes.readers.nccl_scan import BEFORE, MESSAGE, Lines, Places, Scan, Words, word
from infra.probes.readers.nccl_state import Way
from infra.probes.readers.nccl_table import ALIKE, Numbers, Rows, hashes, tail_rows, words_at

_MEMO = 65_536  # words
_TAILS = 4_096
_CHANNEL = re.compile(rb"(\d{1,9})(?:/\d+)?")
_RANK = re.compile(rb"(\d{1,9})(?:\[[0-9a-fA-F]+\])?")
_FRONT = b"Channel 0 : 0 -> 0"  # stands for any that has the shape
_WHOLE = (1 << 64) - 1
_BLANKS = np.uint64(word(b" " * 8))
_ONES, _HIGHEST = np.uint64(word(b"\x01" * 8)), np.uint64(word(b"\x80" * 8))
_ONE, _SEVEN, _BYTE = np.uint64(1), np.uint64(7), np.uint64(8)  # bits
_THREE, _FOUR = np.uint64((1 << 24) - 1), np.uint64((1 << 32) - 1)  # letters


class ChannelRows:
    """Reads block after block. `number` gives the number of a way."""

    def __init__(self, number: Callable[[Way], int]) -> None:
        self._channels = _Meanings(_CHANNEL, "little")
        self._ranks = _Meanings(_RANK, "big")  # words that are looked at from their end
        self._tails = _Tails(number)

    def read(self, scan: Scan, lines: Lines, via: Places) -> Columns:
        """What lines say whose " via NET/" stands at `via`. Way -1: a line has another shape."""
        via, message = via + BEFORE, lines.at + (BEFORE + MESSAGE)
        before = words_at(scan, via - 8, 1)[:, 0]
        sends, receives = before >> _BYTE == word(b" [send]"), before == word(b"receive]")
        tail = via - 7 * sends - 10 * receives
        target, size = _up_to_blank(words_at(scan, tail - 8, 1)[:, 0].byteswap())
        at_target = tail - size
        source, arrow = words_at(scan, at_target - 12, 2).T
        source, size = _up_to_blank(source.byteswap())
        at_source = at_target - 4 - size
        begin, first = words_at(scan, message, 2).T
        channel, size = _up_to_blank(first)
        way = self._tails.ways(*tail_rows(scan, tail, lines.end + BEFORE))
        ends = self._ranks.of(np.concatenate([source, target]))
        columns = Columns(way, self._channels.of(channel), ends[: way.size], ends[way.size :])
        shaped = (
            (begin == word(b"Channel "))
            & (first >> (size.astype(np.uint64) * _BYTE) & _THREE == word(b" : "))
            & (message + 11 + size == at_source)
            & (arrow & _FOUR == word(b" -> "))
            & (columns.channel >= 0)
            & (columns.source >= 0)
            & (columns.target >= 0)
        )
        way[~shaped] = -1
        return columns


class _Meanings:
    """The number that the expression finds in a word of `_up_to_blank`; -1 in all others."""

    def __init__(self, expression: re.Pattern[bytes], order: Literal["little", "big"]) -> None:
        self._expression = expression
        self._order = order
        self._numbers = Numbers(_MEMO)
        self._values = np.zeros(0, dtype=np.intp)

    def of(self, words: Words) -> Places:
        if self._numbers.full:
            self._numbers.clear()
            self._values = self._values[:0]
        numbers = self._numbers.of(words.view(np.intp))
        if len(self._numbers) > self._values.size:
            fresh = [self._value(key) for key in islice(self._numbers, self._values.size, None)]
            self._values = np.concatenate([self._values, np.array(fresh, dtype=np.intp)])
        return np.where(numbers < 0, -1, self._values[numbers])

    def _value(self, key: int) -> int:
        letters = (key & _WHOLE ^ int(_BLANKS)).to_bytes(8, self._order)
        match = self._expression.fullmatch(letters.strip(b" "))
        return int(match[1]) if match else -1


class _Tails:
    """The number of the way that a channel line's tail tells, -1 of a tail that has to be seen with its line."""

    def __init__(self, number: Callable[[Way], int]) -> None:
        self._number = number
        self._numbers = Numbers(_TAILS)  # of hashes
        self._rows: Rows = np.zeros((_TAILS, 8), dtype=np.uint64)
        self._ways = np.zeros(_TAILS, dtype=np.intp)

    def ways(self, rows: Rows, length: Places) -> Places:
        if self._numbers.full:
            self._numbers.clear()
        known = len(self._numbers)
        numbers = self._numbers.of(hashes(rows).view(np.intp))
        if len(self._numbers) > known:
            news, first = np.unique(numbers, return_index=True)
            for number, row in zip(news.tolist(), first.tolist(), strict=True):
                if number >= known:
                    self._rows[number] = rows[row]
                    self._ways[number] = self._way(rows[row].tobytes()[: length[row]])
        same = (self._rows[numbers] == rows).view(np.uint64)[:, 0] == ALIKE
        return np.where(same & (numbers >= 0) & (length > 0), self._ways[numbers], -1)

    def _way(self, tail: bytes) -> int:
        line = None if b"->" in tail else read_channel(_FRONT + tail)
        return self._number(line.way) if line else -1


def _up_to_blank(words: Words) -> tuple[Words, Places]:
    """The letters before the first blank, each xor a blank and zeros behind them, and how many they are."""
    others = words ^ _BLANKS
    marks = others - _ONES & ~others & _HIGHEST  # the first letter that is a blank, and maybe some behind it
    kept: Words = ((marks & ~marks + _ONE) >> _SEVEN) - _ONE
    size: Places = (np.bitwise_count(kept) >> 3).astype(np.intp)
    return others & kept, size
