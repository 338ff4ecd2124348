"""Entries and the chain that binds each to all before it.

The hash of an entry covers its content, the digest of its raw output and the hash of the entry before. Changing an
entry, or removing or reordering any that others follow, breaks the chain. What the chain alone cannot show: that the
newest entries were dropped, for what is left is a whole chain; and that somebody who can write to the database
computed all of it anew. Keep the newest hash elsewhere to find either. Pure: no database here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept. `kind`: evidence | verdict | approval | forced | run. `at` is RFC 3339 of the cluster's clock."""

    at: str
    kind: str
    run: str
    pool: str
    subject: str
    outcome: str = ""
    spec_hash: str = ""
    simulated: bool = False
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An entry as it stands in the ledger."""

    seq: int
    entry: Entry
    raw_digest: str
    previous: str
    hash: str


def digest(raw: bytes | None) -> str:
    """SHA-256 of the raw output, "" for none."""
    return hashlib.sha256(raw).hexdigest() if raw is not None else ""


def seal(previous: str, entry: Entry, raw_digest: str) -> str:
    """The hash of an entry that follows `previous`."""
    content = {
        "at": entry.at,
        "kind": entry.kind,
        "run": entry.run,
        "pool": entry.pool,
        "subject": entry.subject,
        "outcome": entry.outcome,
        "spec_hash": entry.spec_hash,
        "simulated": entry.simulated,
        "payload": entry.payload,
        "raw": raw_digest,
        "previous": previous,
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def canonical(data: object) -> str:
    """JSON that is the same for equal data: keys sorted, no blanks, no NaN."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=str)


def breaks(kept: Iterable[Kept]) -> list[str]:
    """Where a chain is broken, in words; empty when it holds. Entries come in order of `seq`."""
    found = []
    expected, last = GENESIS, 0
    for item in kept:
        if item.seq != last + 1:
            found.append(f"entry {last + 1} is missing: {item.seq} follows {last}")
        if item.previous != expected:
            found.append(f"entry {item.seq} does not follow the one before it")
        if seal(item.previous, item.entry, item.raw_digest) != item.hash:
            found.append(f"entry {item.seq} ({item.entry.kind} {item.entry.subject}) was changed after it was written")
        expected, last = item.hash, item.seq
    return found


def failing_since(history: Iterable[Kept]) -> str:
    """RFC 3339 of the first verdict of the current unbroken row of non-passes; "" when the newest passes or none is.

    `history` is oldest first and of one pool and one check.
    """
    since = ""
    for item in history:
        since = "" if item.entry.outcome == "pass" else since or item.entry.at
    return since


def last_pass(history: Iterable[Kept]) -> str:
    """RFC 3339 of the newest pass, "" for never."""
    return max((item.entry.at for item in history if item.entry.outcome == "pass"), default="")
