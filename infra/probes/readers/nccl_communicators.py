"""Who belongs to which communicator, and which network it got there, from NCCL's `comm …` lines."""

from __future__ import annotations

import re
from typing import NamedTuple

from infra.model.reading import Communicator
from infra.probes.readers.nccl_channels import until_next
from infra.probes.readers.nccl_state import MAX_MEMBERS, CommState, MemberState, RankState, ThreadState

# ncclCommInitRank comm 0x… rank 3 nranks 16 cudaDev 3 … commId 0x… - Init START, and its short forms back to 2.4;
# comm 0x… rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0 from 2.21 on.
COMM = re.compile(
    rb"(?:\[Rank \d+\] )?(?:nccl\w+ )?comm (0x[0-9a-fA-F]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?=\s|$)"
    rb"(?: nNodes (\d{1,9}) localRanks \d+ localRank \d+(?: MNNVL (\d{1,9}))?)?(.*)"
)
_PARENT = re.compile(rb"parent (0x[0-9a-fA-F]+)(?: (splitCount \d+ color -?\d+))?")
PER_COMMUNICATOR = (2, 14)  # before, the network is chosen once per process, not per communicator


# Behind the last " - " of a line, and what it says of the communicator.
_STAGES = {
    b"Init START": "",
    b"Init COMPLETE": "complete",
    b"Destroy COMPLETE": "destroyed",
    b"Abort COMPLETE": "aborted",
}
_ENDS = tuple(_STAGES)
_ENDED = frozenset({"destroyed", "aborted"})
_STATE = re.compile(rb"[A-Z][a-z]+ [A-Z]{4,}")  # how NCCL words a communicator's state: Init FAILED
_MEMO = 16_384  # lines
_POINTERS = 4_096  # of one process
_UNKNOWN = (None, None)


class CommLine(NamedTuple):
    """What one `comm …` line says; `key` is its commId, b"" where the version prints none."""

    pointer: bytes
    rank: int
    nranks: int
    nnodes: int | None
    mnnvl: int | None
    key: bytes
    parent: bytes
    split: bytes  # the parent's how-manieth split and the color: the same for all ranks of the new one
    stage: str  # "", complete, destroyed or aborted


def parse_comm(text: bytes) -> CommLine | None:
    """The line's facts, or None when it is no whole `comm …` line."""
    match = COMM.match(text)
    if match is None:
        return None
    pointer, rank, nranks, nnodes, mnnvl, rest = match.groups()
    named = rest.partition(b"commId ")[2]
    parent = _PARENT.search(rest) if b"parent" in rest else None
    facts = (
        pointer,
        int(rank),
        int(nranks),
        int(nnodes) if nnodes else None,
        int(mnnvl) if mnnvl else None,
        named.partition(b" ")[0] if named.startswith(b"0x") else b"",
        parent[1] if parent else b"",
        (parent[2] or b"") if parent else b"",
        next(stage for words, stage in _STAGES.items() if rest.endswith(words)) if rest.endswith(_ENDS) else "",
    )
    return tuple.__new__(CommLine, facts)  # in a third of the time that its constructor takes


class Communicators:
    """All communicators of a log."""

    def __init__(self) -> None:
        self.states: dict[bytes, CommState] = {}
        self.members = 0
        self.overflow = False
        self._known: dict[bytes, tuple[CommLine, MemberState]] = {}  # by the middle of a line that names its commId

    def read(self, text: bytes, thread: ThreadState | None) -> bool:
        """Take one `comm` line. False for one that tells of a state that nobody here knows."""
        if thread is None:
            return True
        # A communicator's beginning, completion and end differ at both ends: what stands between is read once.
        middle, _, end = text.rpartition(b" - ")
        stage = _STAGES.get(end)
        line, member = self._known.get(middle, _UNKNOWN)
        if stage is not None and line is not None and member is not None and member.state is thread.rank:
            _point(thread.rank, line.pointer, line.key)
            self._tell(line, member, stage, thread)
            return True
        line = parse_comm(until_next(text).rstrip())
        if line is None:
            return True
        member = self._hear(line, thread)
        if stage is None:
            return _STATE.fullmatch(end) is None
        if line.key and member is not None and member.state is thread.rank and b"NCCL " not in middle:
            self._remember(middle, line, member)
        return True

    def _remember(self, middle: bytes, line: CommLine, member: MemberState) -> None:
        if len(self._known) >= _MEMO:
            self._known.clear()
        self._known[middle] = line, member
        if middle.startswith(b"nccl"):  # the end leaves out which call the beginning was
            self._known[middle.partition(b" ")[2]] = line, member

    def _hear(self, line: CommLine, thread: ThreadState) -> MemberState | None:
        """Take a line's facts. Whose they are, None where there is no room for more."""
        rank = thread.rank
        state = self._state(line, rank)
        if state is None:
            return None
        state.nranks.add(line.nranks)
        if line.nnodes is not None:
            state.nnodes.add(line.nnodes)
        if line.mnnvl is not None:
            state.mnnvl.add(line.mnnvl)
        member = state.members.get(line.rank)
        if member is None or member.state is not rank:
            member = self._member(state, line.rank, thread)
            if member is None:
                return None
        self._tell(line, member, line.stage, thread)
        return member

    def _tell(self, line: CommLine, member: MemberState, stage: str, thread: ThreadState) -> None:
        """How far a member has come, and the network that its thread named before."""
        thread.member = member
        if not member.network:
            member.network = thread.pending or self._of_parent(line.parent, thread)
            thread.pending = ""
        if stage in _ENDED:
            member.ended = stage
            thread.rank.pointers.pop(line.pointer, None)
        elif stage == "complete":
            member.complete = True

    def _state(self, line: CommLine, rank: RankState) -> CommState | None:
        """The communicator of a line: by commId or its split where printed, else by the process's own count of them."""
        if line.nranks > MAX_MEMBERS:
            self.overflow = True
            return None
        parent = rank.pointers.get(line.parent) if line.split else None
        split = parent + b" " + line.split if parent else b""
        key = line.key or split or rank.pointers.get(line.pointer, b"")
        if not key:
            if line.stage in _ENDED:
                rank.strays += 1
                return None
            key = b"#%d" % rank.sequence
            rank.sequence += 1
        _point(rank, line.pointer, key)
        state = self.states.get(key)
        if state is None and len(self.states) < MAX_MEMBERS:
            state = self.states[key] = CommState(key.decode("utf-8", "replace"))
        self.overflow |= state is None
        return state

    def _member(self, state: CommState, rank: int, thread: ThreadState) -> MemberState | None:
        member = state.members.get(rank)
        if member is None:
            if self.members >= MAX_MEMBERS:
                self.overflow = True
                return None
            self.members += 1
            member = state.members[rank] = MemberState(rank, thread.rank)
        elif member.state is not thread.rank:
            state.contradictory = True  # two processes say that they are the same rank
        return member

    def _of_parent(self, parent: bytes, thread: ThreadState) -> str:
        """A split communicator uses its parent's network."""
        key = thread.rank.pointers.get(parent) if parent else None
        if key is None or key not in self.states:
            return ""
        return next((m.network for m in self.states[key].members.values() if m.state is thread.rank), "")

    def freeze(self, version: str | None) -> tuple[Communicator, ...]:
        """All communicators, in order of first sight."""
        once = version is not None and version_tuple(version) < PER_COMMUNICATOR
        for state in self.states.values():
            for member in state.members.values():
                if not member.network and once and len(member.state.networks) == 1:
                    member.network = next(iter(member.state.networks))
        return tuple(state.freeze() for state in self.states.values())


def _point(rank: RankState, pointer: bytes, key: bytes) -> None:
    if len(rank.pointers) < _POINTERS:
        rank.pointers[pointer] = key


def version_tuple(version: str) -> tuple[int, ...]:
    """(2, 27, 7) of "2.27.7"; what is no number ends it."""
    parts: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)
