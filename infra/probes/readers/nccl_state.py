"""What is remembered while an NCCL log streams by: one small record per rank, communicator and kind of line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from infra.model.reading import Communicator, Member, RankLog, family_of

MAX_RANKS = 65_536
MAX_MEMBERS = 65_536


class Way(NamedTuple):
    """How a channel's data goes. `direction` is send, receive or "" where the version omits it."""

    direction: str
    network: str
    device: int
    gdr: bool


class ChannelLine(NamedTuple):
    """What a complete `… via NET/…` line says."""

    channel: int
    source: int
    target: int
    way: Way


class RankChannels(NamedTuple):
    """One rank's channel lines: how many told of each way, in order of first sight, and what they told apart from it.

    `near_ends` are the numbers that the rank has in them.
    """

    ways: Mapping[Way, int]
    send: frozenset[int]
    receive: frozenset[int]
    near_ends: frozenset[int]


NO_CHANNELS = RankChannels({}, frozenset(), frozenset(), frozenset())


@dataclass(slots=True)
class RankState:
    """Everything one rank said so far."""

    number: int
    host: str
    pid: str
    device: int | None
    prefix_rank: int | None = None
    networks: dict[str, None] = field(default_factory=dict)
    providers: dict[str, None] = field(default_factory=dict)
    nics: set[int] = field(default_factory=set)
    ring_gdr: set[bool] = field(default_factory=set)
    gdr_disabled: set[int] = field(default_factory=set)  # net devices of which NCCL said so
    connected: int = 0
    coll_channels: int | None = None
    sequence: int = 0
    pointers: dict[bytes, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # by thread: what it was refused and has no network since
    listed: set[int] = field(default_factory=set)  # threads that listed their verbs devices after a refusal
    strays: int = 0  # communicators that it ended and of which no beginning was seen

    def freeze(self, channels: RankChannels, *, listed: bool) -> RankLog:
        """`listed`: this version of NCCL names no network, its list of verbs devices says that it has one."""
        ways = channels.ways
        families: Counter[str] = Counter()
        for way, count in ways.items():
            families[family_of(way.network).value] += count
        return RankLog(
            host=self.host,
            pid=self.pid,
            device=self.device,
            prefix_rank=self.prefix_rank,
            networks=tuple(self.networks),
            providers=tuple(self.providers),
            nics=tuple(sorted(self.nics)),
            net_devices=tuple(sorted({way.device for way in ways})),
            channels=dict(families),
            gdr_channels=sum(count for way, count in ways.items() if way.gdr),
            plain_channels=sum(count for way, count in ways.items() if not way.gdr),
            send_channels=channels.send,
            receive_channels=channels.receive,
            ring_gdr=tuple(sorted(self.ring_gdr)),
            connected_rings=self.connected,
            coll_channels=self.coll_channels,
            refused=tuple({why: None for who, why in self.refused.items() if not (listed and who in self.listed)}),
            ends_alone=self.strays,
            gdr_denied=tuple(sorted(self.gdr_disabled & {way.device for way in ways if way.gdr})),
        )


class Told(NamedTuple):
    """What a message counts for when it is said again: as a sentence of NCCL's or not, and what it says of a rank."""

    weight: int
    phrase: str = ""
    match: re.Match[bytes] | None = None
    rank: RankState | None = None


@dataclass(slots=True)
class ThreadState:
    """A thread of a rank: a communicator's network is chosen and announced by one and the same thread."""

    rank: RankState
    pending: str = ""
    member: MemberState | None = None


@dataclass(slots=True)
class MemberState:
    """One rank's part in one communicator."""

    rank: int
    state: RankState
    network: str = ""
    complete: bool = False
    ended: str = ""  # destroyed or aborted


@dataclass(slots=True)
class CommState:
    """A communicator as described by the ranks that were seen."""

    id: str
    nranks: set[int] = field(default_factory=set)
    nnodes: set[int] = field(default_factory=set)
    mnnvl: set[int] = field(default_factory=set)
    members: dict[int, MemberState] = field(default_factory=dict)
    contradictory: bool = False

    def freeze(self) -> Communicator:
        return Communicator(
            id=self.id,
            nranks=frozenset(self.nranks),
            nnodes=frozenset(self.nnodes),
            mnnvl=frozenset(self.mnnvl),
            contradictory=self.contradictory,
            members=tuple(
                Member(
                    rank=m.rank,
                    host=m.state.host,
                    pid=m.state.pid,
                    device=m.state.device,
                    network=m.network,
                    complete=m.complete,
                    ended=m.ended,
                )
                for m in sorted(self.members.values(), key=lambda m: m.rank)
            ),
        )
