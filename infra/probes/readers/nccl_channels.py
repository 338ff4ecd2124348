"""A channel line of an NCCL log: what it says."""

from __future__ import annotations

import re

from infra.probes.readers.nccl_prefix import HEAD
from infra.probes.readers.nccl_state import ChannelLine, Way

_MEMO = 65_536
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
    way = Way(
        direction=(match[4] or b"").decode(),
        network=match[5].decode("utf-8", "replace").strip(),
        device=int(match[6]),
        gdr=b"GDRDMA" in suffixes,
    )
    return ChannelLine(int(match[1] or 0), int(match[2]), int(match[3]), way)


def read_channel(message: bytes) -> ChannelLine | None:
    """The channel line that a message is, whatever was glued behind it."""
    return parse_channel(until_next(message)[-300:])


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


class OddLines:
    """Channel lines that are looked at one by one; what a wording means is worked out once."""

    def __init__(self) -> None:
        self.damaged = 0  # wordings that cannot be read to their end
        self._known: dict[bytes, ChannelLine | None] = {}

    def read(self, message: bytes) -> ChannelLine | None:
        """What it says, None if it is no complete channel line."""
        return self._known[message] if message in self._known else self.look(message)

    def look(self, message: bytes) -> ChannelLine | None:
        """The same, looked at again and counted again when damaged."""
        if len(self._known) >= _MEMO:
            self._known.clear()
        line = self._known[message] = read_channel(message)
        self.damaged += line is None
        return line
