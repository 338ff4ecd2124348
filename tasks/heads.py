"""The newest entry of the ledger, remembered outside it: in the cluster that it is about, and on this machine."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from infra.errors import Unreachable
from infra.kube import heads
from infra.kube.api import Kube
from infra.ledger import Head, Ledger
from tasks.home import home

_FILE = "ledger-heads.json"


def place(ledger: Ledger) -> str:
    """Which database, as one comparable word: a file is a file of one machine."""
    return f"{socket.gethostname()} {ledger.where}" if ledger.where.startswith("sqlite") else ledger.where


def remember(ledger: Ledger, kube: Kube | None, at: str) -> None:
    """Keep the ledger's head elsewhere. Raises what the cluster answers when it cannot be written there.

    A head that this ledger no longer holds stays where it is kept: it is what shows that entries were dropped or
    written anew, and the first entry that follows such a change must not hide it.
    """
    head = ledger.head()
    if head is None:
        return
    entry = {"ledger": head.ledger, "seq": head.seq, "hash": head.hash, "at": at, "where": place(ledger)}
    key = head.ledger[:32]
    known = _local()
    if _follows(ledger, head, known.get(key)):
        _write_local({**known, key: entry})
    if kube is not None and all(_follows(ledger, head, e) for e in heads.read(kube) if e.get("ledger") == head.ledger):
        heads.write(kube, key, entry)


def _follows(ledger: Ledger, head: Head, entry: Mapping[str, Any] | None) -> bool:
    """Is `head` newer than what is remembered, in a ledger that still holds it?"""
    kept = head_of(entry) if entry else None
    return kept is None or (kept.seq < head.seq and ledger.hash_of(kept.seq) == kept.hash)


def of_machine() -> list[dict[str, Any]]:
    """The heads that this machine remembers."""
    return list(_local().values())


def head_of(entry: Mapping[str, Any]) -> Head | None:
    """A remembered head, or None for what is none."""
    seq = entry.get("seq")
    if not isinstance(seq, int) or not entry.get("ledger") or not entry.get("hash"):
        return None
    return Head(ledger=str(entry["ledger"]), seq=seq, hash=str(entry["hash"]))


def _write_local(heads_: Mapping[str, Any]) -> None:
    """All at once, beside what other processes write at the same time. Raises Unreachable."""
    path = home() / _FILE
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    try:
        part.write_text(json.dumps(heads_, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as cause:
        raise Unreachable(
            f"file {path}",
            f"cannot be written: {cause.strerror}",
            remedy="make POOLSHIFT_HOME a folder that can be written, with room",
        ) from cause


def _local() -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((home() / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}
