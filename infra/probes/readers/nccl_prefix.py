"""The part of a log line in front of NCCL's message: `host:pid:tid [device]`, whatever a launcher put before it."""

from __future__ import annotations

import re
from typing import NamedTuple

# A redacted process id (XXXXX, ****) is accepted; the thread id is missing in redacted and in very old lines.
HEAD = re.compile(
    rb"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.\-]*):(?P<pid>\d+|[Xx*]+)(?::(?P<tid>\d+|[Xx*]+))?\s+\[(?P<dev>\d{1,9})\]\s*"
)
_GLUED = re.compile(rb"^\d\d(?:\.\d+)?Z?(?=[A-Za-z])")  # what is left of a time stamp that stands right before the host
_STAMP = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:(?:\d\d(?:[.,]\d+)?[+-]\d\d:)?$")
_DEVICE_ONLY = re.compile(rb"(?:^|[\s>|:])\[(?P<dev>\d{1,9})\]\s*$")
# mpirun --tag-output `[1,4]<stdout>:`, PRRTE `[job,4]<stdout>:`, srun -l `4: `, a launcher's `[155] ` or `4| `
_RANK = re.compile(
    rb"^\s*(?:\[\d+,(?P<tag>\d{1,9})\]\s*(?:<std(?:out|err|diag)>)?:?|\[[^\]\s,]+,(?P<prte>\d{1,9})\]<std|(?P<srun>\d{1,9}):\s|"
    rb"\[(?P<bracket>\d{1,9})\]\s+|\[(?:default|rank)(?P<torch>\d{1,9})\]:)"
)
_TIME = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)\]|(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?Z?)")


class Head(NamedTuple):
    """Who wrote a line. Empty strings and None where the prefix is cut or redacted."""

    host: str
    pid: str
    tid: str
    device: int | None
    rank: int | None
    clean: bool  # nothing but a known prefix stands before it, so `host` was not glued to other text


def parse_head(head: bytes) -> Head:
    """Read the text in front of `NCCL INFO` (without a WARN's source place)."""
    words = head[: max(head.rfind(b"["), 0)].rstrip()
    match = HEAD.search(head, len(words) - len(words.rsplit(None, 1)[-1])) if words else None
    numeric = match is not None and match["host"].isdigit() and match["tid"] is None
    if match is None or numeric or match.end() < len(head.rstrip()):  # numeric: a redacted host left pid and tid
        device = _DEVICE_ONLY.search(head)
        return Head("", "", "", int(device["dev"]) if device else None, None, False)
    before, (host, pid, tid, number) = head[: match.start()], match.groups()
    if before[-1:] not in b" \t" and _STAMP.search(before):
        host = _GLUED.sub(b"", host)
    return Head(
        host.decode(),
        pid.decode(),
        (tid or b"").decode(),
        int(number),
        prefix_rank(before),
        not before or before[-1:] in b" \t>|:\"'",
    )


def strip_place(head: bytes) -> bytes:
    """Remove the source place that a WARN line carries in front of the message."""
    end = head.rstrip()
    match = None
    for match in HEAD.finditer(end):  # noqa: B007
        pass
    return end[: match.end()] if match else end


def line_time(head: bytes) -> str:
    """The time stamp of a line's prefix as it stands there, or ""."""
    match = _TIME.search(head)
    return (match[1] or match[2]).decode() if match else ""


def prefix_rank(head: bytes) -> int | None:
    """The rank that a launcher wrote in front of a line."""
    match = _RANK.match(head)
    if not match:
        return None
    return int(next(group for group in match.groups() if group is not None))
