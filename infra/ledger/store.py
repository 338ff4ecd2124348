"""The ledger's database: SQLite in a file by default, PostgreSQL by URL for teams.

Only inserts. One writer at a time: SQLite's own write lock, an advisory lock on PostgreSQL, so that two processes
cannot append to the same end of the chain. A lock that is not had within `PATIENCE` seconds is an error.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from infra.errors import BadSpec, Unreachable
from infra.ledger.chain import GENESIS, Break, Entry, Head, Kept, breaks, canonical, digest, seal, storable

PATIENCE = 30
_AT_ONCE = 200  # entries in memory while all are checked
# psycopg is what libpq's own drivers are called by; a URL as every other tool writes it must do.
_POSTGRESQL = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": PATIENCE},
    # A server that is gone without a word must not hold a run for ever (libpq's own limits are hours).
    "postgresql": {"connect_timeout": 10, "keepalives_idle": 10, "tcp_user_timeout": PATIENCE * 1000},
}
_LOCK = 0x706F6F6C  # any constant; names our lock among the database's advisory locks
_META = sa.MetaData()
ENTRIES = sa.Table(
    "poolshift_ledger",
    _META,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    # Text, not VARCHAR: PostgreSQL refuses what is longer, SQLite does not, and a pod's name with its namespace may be.
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("pool", sa.Text, nullable=False, index=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("spec_hash", sa.Text, nullable=False),
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
        with self._writing() as connection:  # under the lock: two that begin at once would both make the tables
            _META.create_all(connection)

    @classmethod
    def open(cls, url: str | Path) -> Ledger:
        """A file path for SQLite, or a SQLAlchemy URL.

        Raises:
            BadSpec: the URL is none, or names a database that no driver here speaks to.
            Unreachable: the database's own words.

        """
        text = str(url)
        if "://" not in text:
            try:
                Path(text).parent.mkdir(parents=True, exist_ok=True)
            except OSError as cause:
                raise Unreachable(f"ledger {text}", str(cause), remedy="choose another place for it") from cause
            return cls(_engine(sa.URL.create("sqlite", database=text)))
        try:
            parsed = sa.make_url(text)
        except sa.exc.ArgumentError as cause:
            raise BadSpec(
                "POOLSHIFT_LEDGER",
                "is no database URL",
                expected="a file, or postgresql://USER:PASSWORD@HOST/NAME",
                remedy="unset POOLSHIFT_LEDGER, and the ledger is a file in POOLSHIFT_HOME",
            ) from cause
        return cls(_engine(parsed.set(drivername=_POSTGRESQL.get(parsed.drivername, parsed.drivername))))

    @property
    def where(self) -> str:
        """The database, without a password."""
        return self._engine.url.render_as_string(hide_password=True)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def append(self, entry: Entry, raw: bytes | None = None) -> Kept:
        """Write one entry at the end of the chain; see `extend`."""
        return self.extend([(entry, raw)])[0]

    def extend(self, entries: Iterable[tuple[Entry, bytes | None]]) -> list[Kept]:
        """Write entries, each with its raw output, at the end of the chain: all of them or none.

        Raises Unreachable; then nothing was written, but where the server went away while it was told to commit:
        what was written twice is in the chain twice.
        """
        with self._writing() as connection:
            last = connection.execute(
                sa.select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq.desc()).limit(1)
            ).first()
            seq, previous = (last.seq, last.hash) if last else (0, GENESIS)
            written = []
            for given, raw in entries:
                entry, raw_digest = _storable(given), digest(raw)
                seq += 1
                sealed = seal(previous, entry, raw_digest)
                kept = Kept(seq=seq, entry=entry, raw_digest=raw_digest, previous=previous, hash=sealed)
                if raw is not None:
                    known = connection.execute(sa.select(RAW.c.digest).where(RAW.c.digest == raw_digest)).first()
                    if known is None:
                        connection.execute(RAW.insert().values(digest=raw_digest, data=zlib.compress(raw, 6)))
                connection.execute(ENTRIES.insert().values(**_row(kept)))
                written.append(kept)
                previous = sealed
            return written

    def entries(
        self, *, run: str | None = None, pool: str | None = None, kind: str | None = None, subject: str | None = None
    ) -> list[Kept]:
        """Entries that match, oldest first."""
        query = sa.select(ENTRIES).order_by(ENTRIES.c.seq)
        for column, wanted in (("run", run), ("pool", pool), ("kind", kind), ("subject", subject)):
            if wanted is not None:
                query = query.where(ENTRIES.c[column] == wanted)
        with self._reading() as connection:
            return [_kept(row) for row in connection.execute(query)]

    def runs(self) -> list[str]:
        """The names of all runs, the one written last first. Raises Unreachable."""
        last = sa.func.max(ENTRIES.c.seq)
        query = sa.select(ENTRIES.c.run).where(ENTRIES.c.run != "").group_by(ENTRIES.c.run).order_by(last.desc())
        with self._reading() as connection:
            return [row.run for row in connection.execute(query)]

    def head(self) -> Head | None:
        """The newest entry, to be kept elsewhere; None for an empty ledger. Raises Unreachable."""
        hashes = sa.select(ENTRIES.c.seq, ENTRIES.c.hash)
        with self._reading() as connection:
            first = connection.execute(hashes.order_by(ENTRIES.c.seq).limit(1)).first()
            last = connection.execute(hashes.order_by(ENTRIES.c.seq.desc()).limit(1)).first()
        return Head(ledger=first.hash, seq=last.seq, hash=last.hash) if first and last else None

    def hashes(self) -> dict[int, str]:
        """Every entry's hash by its number. Raises Unreachable."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq))
            return {row.seq: row.hash for row in rows}

    def hash_of(self, seq: int) -> str | None:
        """One entry's hash, or None where there is no such entry. Raises Unreachable."""
        with self._reading() as connection:
            return connection.execute(sa.select(ENTRIES.c.hash).where(ENTRIES.c.seq == seq)).scalar()

    def raw(self, raw_digest: str) -> bytes | None:
        """The raw output behind a digest, or None. Raises Unreachable, and zlib.error where it was damaged."""
        with self._reading() as connection:
            found = connection.execute(sa.select(RAW.c.data).where(RAW.c.digest == raw_digest)).first()
        return _decompress(found.data) if found else None

    def verify(self) -> list[Break]:
        """Every place where the chain, or a raw output, is not what was written, oldest first; empty when all holds."""
        lost: list[Break] = []
        found = list(breaks(self._checking_raw(lost)))
        return sorted([*found, *lost], key=lambda broken: broken.seq)

    def _checking_raw(self, lost: list[Break]) -> Iterator[Kept]:
        """Every entry, oldest first and one after the other: years of evidence do not fit in memory."""
        with self._reading() as connection:
            query = sa.select(ENTRIES).order_by(ENTRIES.c.seq)
            for row in connection.execution_options(yield_per=_AT_ONCE).execute(query):
                kept = _kept(row)
                if (broken := self._raw_break(kept)) is not None:
                    lost.append(broken)
                yield kept

    def _raw_break(self, item: Kept) -> Break | None:
        if not item.raw_digest:
            return None
        try:
            raw = self.raw(item.raw_digest)
        except zlib.error as cause:
            return Break(
                seq=item.seq, what="has raw output that was changed", observed=str(cause), expected=item.raw_digest
            )
        if raw is None:
            return Break(seq=item.seq, what="has lost its raw output", observed="none", expected=item.raw_digest)
        found = digest(raw)
        if found != item.raw_digest:
            return Break(seq=item.seq, what="has raw output that was changed", observed=found, expected=item.raw_digest)
        return None

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, UnicodeDecodeError) as cause:
            raise self._trouble(cause) from cause

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """One transaction that no other writer can be in."""
        try:
            with self._engine.connect() as connection:
                if self._engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{PATIENCE}s'"))
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
                yield connection
                connection.commit()
        except sa.exc.SQLAlchemyError as cause:
            raise self._trouble(cause) from cause

    def _trouble(self, cause: Exception) -> Unreachable:
        return Unreachable(
            f"ledger {self.where}",
            str(cause).splitlines()[0],
            remedy="look at the database; without its ledger a run does not go on to anything irreversible",
        )


def _engine(url: sa.URL) -> sa.Engine:
    backend = url.get_backend_name()
    try:
        # A server that was started again must not cost the next write: connections are tried before they are used.
        engine = sa.create_engine(url, connect_args=_OPTIONS.get(backend, {}), pool_pre_ping=backend != "sqlite")
    except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as cause:
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else url.drivername
        raise BadSpec(
            f"ledger {url.render_as_string(hide_password=True)}",
            f"there is no database driver {missing} here",
            expected="SQLite, or PostgreSQL with psycopg",
            remedy="pip install 'poolshift[postgresql]'",
        ) from cause
    if backend == "sqlite":
        sa.event.listen(engine, "connect", _read_any_bytes)
    return engine


def _read_any_bytes(connection: Any, _: object) -> None:
    """SQLite keeps whatever bytes somebody wrote; those that are no text must break one entry, not the reading."""
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")


def _decompress(data: object) -> bytes:
    """Whole and nothing behind it. Raises zlib.error, for what is no bytes as well (SQLite keeps any type)."""
    if not isinstance(data, bytes):
        raise zlib.error(f"of type {type(data).__name__}")
    stream = zlib.decompressobj()
    raw = stream.decompress(data) + stream.flush()
    if not stream.eof or stream.unused_data:
        raise zlib.error("cut off" if not stream.eof else "something was put behind it")
    return raw


def _storable(entry: Entry) -> Entry:
    """The entry as it will be read back, so that its hash is of what is stored."""
    words = ("at", "kind", "run", "pool", "subject", "outcome", "spec_hash")
    # PostgreSQL's text holds no NUL; the payload is JSON, which writes it as an escape
    texts = {name: storable(getattr(entry, name)).replace("\0", "\\0") for name in words}
    return replace(entry, **texts, payload=storable(entry.payload))


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
        as_written = canonical(found) == text
    except (ValueError, RecursionError):
        return {"unreadable": storable(text)}
    return found if as_written and isinstance(found, dict) else {"unreadable": storable(text)}
