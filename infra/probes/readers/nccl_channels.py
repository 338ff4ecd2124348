"""Channel lines of an NCCL log: what one says, and sums over many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from infra.probes.readers.nccl_prefix import HEAD
from infra.probes.readers.nccl_state import ChannelLine, RankState

K = TypeVar("K", bound=Hashable)
_CHANNEL = re.compile(
    rb"(?:(\d{1,9})(?:/\d+)? : |^|\s)(\d{1,9})(?:\[[0-9a-fA-F]+\])? -> (\d{1,9})(?:\[[0-9a-fA-F]+\])?"
    rb"(?: +\[(send|receive)\])? +via NET/([^/\n]{1,40})/(\d{1,9})((?:/[\w=]+|\([^()\n]*\))*)"
    rb"(?: comm 0x[0-9a-fA-F]+ nRanks \d+)?[\s|]*$"  # RCCL and NCCLs derived from it name the communicator
)

# Not any "NCCL ": a network may be called "NCCL RDMA Plugin v8".
_ANOTHER = re.compile(rb"NCCL (?:INFO|WARN|TRACE|ABORT|version|failure|[Ee]rror|operations)\b")


def parse_channel(text: bytes) -> ChannelLine | None:
    """A complete channel line, else None."""
    match = _CHANNEL.search(text)
    if not match:
        return None
    suffixes = match[7].replace(b"(", b"/(").split(b"/")
    if any(s and s != b"GDRDMA" and b"GDRDMA".startswith(s) for s in suffixes):
        return None  # cut inside the word: whether GDR is on is not said
    return ChannelLine(
        index=int(match[1] or 0),
        source=int(match[2]),
        target=int(match[3]),
        direction=(match[4] or b"").decode(),
        network=match[5].decode("utf-8", "replace").strip(),
        device=int(match[6]),
        gdr=b"GDRDMA" in suffixes,
    )


def until_next(text: bytes) -> bytes:
    """Cut a message where the next line was glued to it; that line's prefix goes too."""
    another = _ANOTHER.search(text)
    if another is None or text.startswith(b"NCCL "):
        return text
    part = text[: another.start()]
    head = None
    for head in HEAD.finditer(part):  # noqa: B007
        pass
    return part[: head.start()] if head else part


def count_lines(lines: Counter[ChannelLine], *, gdr: bool, send: bool) -> int:
    """A line without direction (very old versions print none) counts as a receive."""
    return sum(n for line, n in lines.items() if line.gdr is gdr and (line.direction == "send") is send)


def sums(lines: Counter[ChannelLine], key: Callable[[ChannelLine], K]) -> dict[K, int]:
    """How many lines by what `key` makes of one."""
    found: dict[K, int] = {}
    for line, count in lines.items():
        found[key(line)] = found.get(key(line), 0) + count
    return found


def rank_hosts(states: Iterable[RankState]) -> dict[int, set[str]]:
    """On which hosts a rank was seen as the near end of a channel."""
    hosts: dict[int, set[str]] = {}
    for state in states:
        if state.host:
            for rank in state.near_ends:
                hosts.setdefault(rank, set()).add(state.host)
    return hosts


def same_host(edge: tuple[int, int], hosts: dict[int, set[str]]) -> bool:
    source, target = (hosts.get(rank, set()) for rank in edge)
    return len(source) == 1 and source == target
