"""Entries and the chain that binds each to all before it.

The hash of an entry covers its content, the digest of its raw output and the hash of the entry before. Changing an
entry, or removing or reordering any that others follow, breaks the chain. What the chain alone cannot show: that the
newest entries were dropped, for what is left is a whole chain; and that somebody who can write to the database
computed all of it anew. A `Head` kept elsewhere finds either. Pure: no database here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
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


@dataclass(frozen=True, kw_only=True)
class Head:
    """The newest entry of a ledger at some time. `ledger` is the hash of its first entry, which no append changes."""

    ledger: str
    seq: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Break:
    """One place where the ledger is not what was written."""

    seq: int
    what: str
    observed: str
    expected: str

    def wording(self) -> str:
        """One line."""
        return f"entry {self.seq} {self.what}: {self.observed} (expected {self.expected})"


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


def storable(data: Any) -> Any:
    """The data as it will be read back: text keys, lists, and words for what JSON or a database has no place for."""
    if isinstance(data, Mapping):
        return {storable(str(key)): storable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [storable(item) for item in data]
    if isinstance(data, str):
        return str(data).encode("utf-8", "backslashreplace").decode()
    if isinstance(data, float):
        return data if math.isfinite(data) else str(data)
    return data if data is None or isinstance(data, bool | int) else storable(str(data))


def breaks(kept: Iterable[Kept]) -> Iterator[Break]:
    """Where a chain is broken, oldest first; nothing when it holds. Entries come in order of `seq`."""
    expected, last = GENESIS, 0
    for item in kept:
        if item.seq != last + 1:
            what = "is missing" if item.seq == last + 2 else f"to {item.seq - 1} are missing"
            yield Break(seq=last + 1, what=what, observed=f"{item.seq} follows {last}", expected=f"{last + 1}")
        if item.previous != expected:
            yield Break(
                seq=item.seq, what="does not follow the one before it", observed=item.previous, expected=expected
            )
        sealed = seal(item.previous, item.entry, item.raw_digest)
        if sealed != item.hash:
            what = f"({item.entry.kind} {item.entry.subject}) was changed after it was written"
            yield Break(seq=item.seq, what=what, observed=sealed, expected=item.hash)
        expected, last = item.hash, item.seq


def behind(head: Head, kept: Mapping[int, str], first: str) -> Break | None:
    """What a head that was kept elsewhere shows: entries dropped from the end, or a chain computed anew.

    Args:
        head: as it was kept.
        kept: hashes of the ledger's entries by `seq`, at least that of the head.
        first: hash of the ledger's first entry, "" when it is empty.

    """
    if first != head.ledger:
        return Break(seq=1, what="belongs to another ledger", observed=first or "no entry", expected=head.ledger)
    found = kept.get(head.seq)
    if found is None:
        last = max(kept, default=0)
        return Break(
            seq=last + 1, what="and what followed was cut off", observed=f"{last} entries", expected=f"{head.seq}"
        )
    if found != head.hash:
        return Break(
            seq=head.seq, what="is not what was written, nor are those before it", observed=found, expected=head.hash
        )
    return None


def failing_since(history: Iterable[Kept]) -> str:
    """RFC 3339 of the first verdict of the current unbroken row of non-passes; "" when the newest passes or none is.

    `history` is oldest first and of one pool and one check.
    """
    since = ""
    for item in history:
        since = "" if item.entry.outcome == "pass" else since or item.entry.at
    return since
