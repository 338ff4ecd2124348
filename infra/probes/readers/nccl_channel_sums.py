"""Sums over the channel lines of an NCCL log, taken many at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from infra.probes.readers.nccl_scan import Places
from infra.probes.readers.nccl_state import NO_CHANNELS, ChannelLine, RankChannels, RankState, Way
from infra.probes.readers.nccl_table import Numbers, grown

K = TypeVar("K", bound=Hashable)
_EDGES = 65_536
_WAYS = 65_536
_MOST = 1 << 22  # distinct facts of one kind: 8,192 ranks with 64 channels both ways say a quarter of it
_BITS = 30  # of a number of up to nine digits: two of them make a key
_LOW = (1 << _BITS) - 1


class Columns(NamedTuple):
    """What channel lines say, side by side. `way` is a number that `Channels` gave, -1 where a line says nothing."""

    way: Places
    channel: Places
    source: Places
    target: Places

    def of(self, which: NDArray[np.bool_]) -> Columns:
        """Some of them."""
        return Columns(*(column[which] for column in self))


class Channels:
    """The channel lines of a log: how many each rank has of each way, and between which ranks they are.

    What a communicator says again adds nothing to what is kept.
    """

    def __init__(self, most: int = _MOST) -> None:
        self.overflow = False  # more was said than is kept
        self._ways: dict[Way, int] = {}
        self._pairs = Numbers(most)  # rank and way
        self._counts = np.zeros(0, dtype=np.int64)  # of each pair
        self._channels = Numbers(most)  # pair and channel
        self._near_ends = Numbers(most)  # rank and its number in a communicator
        self._edges = Numbers(_EDGES)  # source and target

    def way(self, way: Way) -> int:
        """Its number in `Columns`."""
        number = self._ways.get(way, -1)
        if number < 0 and len(self._ways) < _WAYS:
            number = self._ways[way] = len(self._ways)
        self.overflow |= number < 0
        return number

    def columns(self, lines: Sequence[ChannelLine | None]) -> Columns:
        """The same lines in columns."""
        said = [(self.way(line.way), *line[:3]) if line else (-1, 0, 0, 0) for line in lines]
        return Columns(*np.array(said, dtype=np.intp).reshape(-1, 4).T)

    def count(self, ranks: Places, columns: Columns) -> None:
        """Take lines in the order in which ranks said them."""
        said = columns.way >= 0
        if not said.all():
            ranks, columns = ranks[said], columns.of(said)
        if not ranks.size:
            return
        pairs = self._pairs.of(ranks << _BITS | columns.way)
        kept = pairs >= 0
        if not kept.all():
            self.overflow = True
            ranks, pairs, columns = ranks[kept], pairs[kept], columns.of(kept)
        self._counts = grown(self._counts, len(self._pairs))
        np.add.at(self._counts, pairs, 1)
        way, channel, source, target = columns
        channels = self._channels.of(pairs << _BITS | channel)
        near = np.where(self._say(lambda way: way.direction == "send")[way], source, target)
        near_ends = self._near_ends.of((ranks << _BITS | near)[self._say(lambda way: way.direction != "")[way]])
        if not self._edges.full:
            self._edges.of(source << _BITS | target)
        self.overflow |= bool((channels < 0).any() or (near_ends < 0).any())

    def _say(self, what: Callable[[Way], bool]) -> NDArray[np.bool_]:
        return np.fromiter(map(what, self._ways), dtype=bool, count=len(self._ways))

    def edges(self) -> Iterator[tuple[int, int]]:
        """The first distinct edges, in their order."""
        return ((key >> _BITS, key & _LOW) for key in self._edges)

    def by_rank(self) -> dict[int, RankChannels]:
        """What each rank said, by its number."""
        ways = list(self._ways)
        pairs = [(key >> _BITS, ways[key & _LOW]) for key in self._pairs]
        counts: dict[int, dict[Way, int]] = {}
        for (rank, way), count in zip(pairs, self._counts.tolist(), strict=False):
            counts.setdefault(rank, {})[way] = count
        sets = {True: dict[int, set[int]](), False: dict[int, set[int]]()}
        for key in self._channels:
            rank, way = pairs[key >> _BITS]
            sets[way.direction == "send"].setdefault(rank, set()).add(key & _LOW)
        near: dict[int, set[int]] = {}
        for key in self._near_ends:
            near.setdefault(key >> _BITS, set()).add(key & _LOW)
        return {
            rank: RankChannels(said, *(frozenset(found.get(rank, ())) for found in (sets[True], sets[False], near)))
            for rank, said in counts.items()
        }


def total(channels: Iterable[RankChannels]) -> dict[Way, int]:
    """How many lines there are of each way, whoever said them."""
    found: dict[Way, int] = {}
    for rank in channels:
        for way, count in rank.ways.items():
            found[way] = found.get(way, 0) + count
    return found


def count_lines(ways: Mapping[Way, int], *, gdr: bool, send: bool) -> int:
    """A line without direction (very old versions print none) counts as a receive."""
    return sum(n for way, n in ways.items() if way.gdr is gdr and (way.direction == "send") is send)


def sums(ways: Mapping[Way, int], key: Callable[[Way], K]) -> dict[K, int]:
    """How many lines by what `key` makes of their way."""
    found: dict[K, int] = {}
    for way, count in ways.items():
        found[key(way)] = found.get(key(way), 0) + count
    return found


def rank_hosts(states: Iterable[RankState], channels: Mapping[int, RankChannels]) -> dict[int, set[str]]:
    """On which hosts a rank was seen as the near end of a channel."""
    hosts: dict[int, set[str]] = {}
    for state in states:
        if state.host:
            for rank in channels.get(state.number, NO_CHANNELS).near_ends:
                hosts.setdefault(rank, set()).add(state.host)
    return hosts


def same_host(edge: tuple[int, int], hosts: Mapping[int, set[str]]) -> bool:
    """Do both ranks have one host, the same?"""
    source, target = (hosts.get(rank, set()) for rank in edge)
    return len(source) == 1 and source == target
