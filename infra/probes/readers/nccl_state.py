"""What is remembered while an NCCL log streams by: one small record per rank, communicator and kind of line."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from infra.model.reading import Communicator, Member, RankLog, family_of

MAX_RANKS = 65_536
MAX_MEMBERS = 65_536
MAX_LINES = 65_536  # distinct channel lines of one rank


@dataclass(frozen=True, slots=True)
class ChannelLine:
    """What a complete `… via NET/…` line says. `direction` is send, receive or "" where the version omits it."""

    index: int
    source: int
    target: int
    direction: str
    network: str
    device: int
    gdr: bool


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
    lines: Counter[ChannelLine] = field(default_factory=Counter)
    ring_gdr: set[bool] = field(default_factory=set)
    gdr_disabled: set[int] = field(default_factory=set)  # net devices of which NCCL said so
    connected: int = 0
    coll_channels: int | None = None
    sequence: int = 0
    pointers: dict[bytes, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)  # by thread: what it was refused and has no network since
    listed: set[int] = field(default_factory=set)  # threads that listed their verbs devices after a refusal
    strays: int = 0  # communicators that it ended and of which no beginning was seen

    def count(self, line: ChannelLine | None, times: int = 1) -> None:
        """Take a channel line that was said so many times."""
        if line is not None and (line in self.lines or len(self.lines) < MAX_LINES):
            self.lines[line] += times

    @property
    def near_ends(self) -> set[int]:
        """The rank numbers that this rank has in its channels."""
        return {line.source if line.direction == "send" else line.target for line in self.lines if line.direction}

    def freeze(self, *, listed: bool) -> RankLog:
        """`listed`: this version of NCCL names no network, its list of verbs devices says that it has one."""
        lines = self.lines
        families: Counter[str] = Counter()
        for line, count in lines.items():
            families[family_of(line.network).value] += count
        return RankLog(
            host=self.host,
            pid=self.pid,
            device=self.device,
            prefix_rank=self.prefix_rank,
            networks=tuple(self.networks),
            providers=tuple(self.providers),
            nics=tuple(sorted(self.nics)),
            net_devices=tuple(sorted({line.device for line in lines})),
            channels=dict(families),
            gdr_channels=sum(count for line, count in lines.items() if line.gdr),
            plain_channels=sum(count for line, count in lines.items() if not line.gdr),
            send_channels=frozenset(line.index for line in lines if line.direction == "send"),
            receive_channels=frozenset(line.index for line in lines if line.direction != "send"),
            ring_gdr=tuple(sorted(self.ring_gdr)),
            connected_rings=self.connected,
            coll_channels=self.coll_channels,
            refused=tuple({why: None for who, why in self.refused.items() if not (listed and who in self.listed)}),
            ends_alone=self.strays,
            gdr_denied=tuple(sorted(self.gdr_disabled & {line.device for line in lines if line.gdr})),
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
