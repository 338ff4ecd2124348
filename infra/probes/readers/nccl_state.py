"""What is remembered while an NCCL log streams by: one small record per rank, communicator and kind of line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from infra.model.reading import Communicator, Member, RankLog

MAX_RANKS = 65_536
MAX_MEMBERS = 65_536


@dataclass(slots=True)
class RankState:
    """Everything one rank said so far."""

    host: str
    pid: str
    device: int | None
    prefix_rank: int | None = None
    networks: dict[str, None] = field(default_factory=dict)
    providers: dict[str, None] = field(default_factory=dict)
    nics: set[int] = field(default_factory=set)
    net_devices: set[int] = field(default_factory=set)
    channels: Counter[str] = field(default_factory=Counter)
    gdr: int = 0
    plain: int = 0
    send_channels: set[int] = field(default_factory=set)
    receive_channels: set[int] = field(default_factory=set)
    ring_gdr: set[bool] = field(default_factory=set)
    connected: int = 0
    coll_channels: int | None = None
    sequence: int = 0
    pointers: dict[str, str] = field(default_factory=dict)

    def freeze(self) -> RankLog:
        return RankLog(
            host=self.host,
            pid=self.pid,
            device=self.device,
            prefix_rank=self.prefix_rank,
            networks=tuple(self.networks),
            providers=tuple(self.providers),
            nics=tuple(sorted(self.nics)),
            net_devices=tuple(sorted(self.net_devices)),
            channels=dict(self.channels),
            gdr_channels=self.gdr,
            plain_channels=self.plain,
            send_channels=frozenset(self.send_channels),
            receive_channels=frozenset(self.receive_channels),
            ring_gdr=tuple(sorted(self.ring_gdr)),
            connected_rings=self.connected,
            coll_channels=self.coll_channels,
        )


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
    ended: bool = False


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
