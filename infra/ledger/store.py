"""The ledger's database: SQLite in a file by default, PostgreSQL by URL for teams.

Only inserts. One writer at a time: SQLite's own write lock, an advisory lock on PostgreSQL, so that two processes
cannot append to the same end of the chain.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from infra.errors import Unreachable
from infra.ledger.chain import GENESIS, Entry, Kept, breaks, canonical, digest, seal

_LOCK = 0x706F6F6C  # any constant; names our lock among the database's advisory locks
_META = sa.MetaData()
ENTRIES = sa.Table(
    "poolshift_ledger",
    _META,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at", sa.String(40), nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("run", sa.String(80), nullable=False, index=True),
    sa.Column("pool", sa.String(300), nullable=False, index=True),
    sa.Column("subject", sa.String(200), nullable=False),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("spec_hash", sa.String(64), nullable=False),
    sa.Column("simulated", sa.Boolean, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("raw_digest", sa.String(64), nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
RAW = sa.Table(
    "poolshift_raw",
    _META,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


class Ledger:
    """Open one with `Ledger.open`; close it, or use it as a context manager."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        try:
            _META.create_all(engine)
        except sa.exc.SQLAlchemyError as cause:
            raise self._trouble(cause) from cause

    @classmethod
    def open(cls, url: str | Path) -> Ledger:
        """A file path for SQLite, or a SQLAlchemy URL. Raises Unreachable with the database's own words."""
        text = str(url)
        if "://" not in text:
            try:
                Path(text).parent.mkdir(parents=True, exist_ok=True)
            except OSError as cause:
                raise Unreachable(f"ledger {text}", str(cause), remedy="choose another place for it") from cause
            text = f"sqlite:///{text}"
        options: dict[str, Any] = {"connect_args": {"timeout": 30}} if text.startswith("sqlite") else {}
        return cls(sa.create_engine(text, **options))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def append(self, entry: Entry, raw: bytes | None = None) -> Kept:
        """Write one entry at the end of the chain. Raises Unreachable; then nothing was written."""
        with self._writing() as connection:
            last = connection.execute(
                sa.select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq.desc()).limit(1)
            ).first()
            seq, previous = (last.seq + 1, last.hash) if last else (1, GENESIS)
            raw_digest = digest(raw)
            kept = Kept(
                seq=seq,
                entry=entry,
                raw_digest=raw_digest,
                previous=previous,
                hash=seal(previous, entry, raw_digest),
            )
            if raw is not None:
                known = connection.execute(sa.select(RAW.c.digest).where(RAW.c.digest == raw_digest)).first()
                if known is None:
                    connection.execute(RAW.insert().values(digest=raw_digest, data=zlib.compress(raw, 6)))
            connection.execute(ENTRIES.insert().values(**_row(kept)))
            return kept

    def entries(
        self, *, run: str | None = None, pool: str | None = None, kind: str | None = None, subject: str | None = None
    ) -> list[Kept]:
        """Entries that match, oldest first."""
        query = sa.select(ENTRIES).order_by(ENTRIES.c.seq)
        for column, wanted in (("run", run), ("pool", pool), ("kind", kind), ("subject", subject)):
            if wanted is not None:
                query = query.where(ENTRIES.c[column] == wanted)
        try:
            with self._engine.connect() as connection:
                return [_kept(row) for row in connection.execute(query)]
        except sa.exc.SQLAlchemyError as cause:
            raise self._trouble(cause) from cause

    def raw(self, raw_digest: str) -> bytes | None:
        """The raw output behind a digest, or None. Its own digest is checked by `verify`. Raises Unreachable."""
        try:
            with self._engine.connect() as connection:
                found = connection.execute(sa.select(RAW.c.data).where(RAW.c.digest == raw_digest)).first()
        except sa.exc.SQLAlchemyError as cause:
            raise self._trouble(cause) from cause
        return zlib.decompress(found.data) if found else None

    def verify(self) -> list[str]:
        """Every place where the chain, or a raw output, is not what was written; empty when all holds."""
        kept = self.entries()
        found = breaks(kept)
        for item in kept:
            if not item.raw_digest:
                continue
            try:
                raw = self.raw(item.raw_digest)
            except zlib.error:
                raw = b""
            if raw is None:
                found.append(f"entry {item.seq}: its raw output is gone")
            elif digest(raw) != item.raw_digest:
                found.append(f"entry {item.seq}: its raw output was changed")
        return found

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """One transaction that no other writer can be in."""
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                yield connection
                connection.commit()
        except sa.exc.SQLAlchemyError as cause:
            raise self._trouble(cause) from cause

    def _trouble(self, cause: Exception) -> Unreachable:
        where = self._engine.url.render_as_string(hide_password=True)
        return Unreachable(
            f"ledger {where}",
            str(cause).splitlines()[0],
            remedy="look at the database; without its ledger a run does not go on to anything irreversible",
        )


def _row(kept: Kept) -> dict[str, Any]:
    entry = kept.entry
    return {
        "seq": kept.seq,
        "at": entry.at,
        "kind": entry.kind,
        "run": entry.run,
        "pool": entry.pool,
        "subject": entry.subject,
        "outcome": entry.outcome,
        "spec_hash": entry.spec_hash,
        "simulated": entry.simulated,
        "payload": canonical(entry.payload),
        "raw_digest": kept.raw_digest,
        "previous": kept.previous,
        "hash": kept.hash,
    }


def _kept(row: Any) -> Kept:
    return Kept(
        seq=row.seq,
        entry=Entry(
            at=row.at,
            kind=row.kind,
            run=row.run,
            pool=row.pool,
            subject=row.subject,
            outcome=row.outcome,
            spec_hash=row.spec_hash,
            simulated=row.simulated,
            payload=_payload(row.payload),
        ),
        raw_digest=row.raw_digest,
        previous=row.previous,
        hash=row.hash,
    )


def _payload(text: str) -> dict[str, Any]:
    """The payload as it was written. What cannot have been written by us is kept as it is, and breaks the seal."""
    try:
        found = json.loads(text)
        canonical(found).encode()
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"unreadable": text}
