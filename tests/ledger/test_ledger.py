"""The ledger: what is written stays, and every change of it shows."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from infra.errors import BadSpec, Unreachable
from infra.ledger import Entry, Ledger
from infra.ledger.chain import behind, failing_since
from infra.ledger.store import ENTRIES, RAW

POSTGRES = os.environ.get("POOLSHIFT_TEST_POSTGRES")


def verdict(at: str, outcome: str, **changes: object) -> Entry:
    values: dict[str, object] = {
        "at": at,
        "kind": "verdict",
        "run": "r",
        "pool": "p",
        "subject": "transport-proof",
        "outcome": outcome,
        "payload": {"gb_s": 1.5, "text": "é"},
    }
    return Entry(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "ledger.db")
        return
    if not POSTGRES:
        pytest.skip("POOLSHIFT_TEST_POSTGRES names no server to test against")
    drop_tables()
    yield POSTGRES


def drop_tables() -> None:
    assert POSTGRES
    engine = sa.create_engine(sa.make_url(POSTGRES).set(drivername="postgresql+psycopg"))
    for table in (ENTRIES, RAW):
        table.drop(engine, checkfirst=True)
    engine.dispose()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url) as opened:
        yield opened


def test_what_is_appended_is_read_back_in_order_with_its_raw_output(ledger: Ledger) -> None:
    first = ledger.append(verdict("2026-01-01T00:00:00Z", "fail"), b"NCCL INFO Using network Socket")
    ledger.append(verdict("2026-01-02T00:00:00Z", "pass", pool="other"))

    assert [k.entry.outcome for k in ledger.entries()] == ["fail", "pass"]
    assert ledger.entries(pool="p") == [first]
    assert ledger.raw(first.raw_digest) == b"NCCL INFO Using network Socket"
    assert ledger.verify() == []


def test_an_empty_ledger_verifies_and_knows_nothing(ledger: Ledger) -> None:
    assert ledger.entries() == []
    assert ledger.verify() == []
    assert ledger.raw("nothing") is None


def broken(ledger: Ledger) -> list[int]:
    return [found.seq for found in ledger.verify()]


def filled(url: str, days: int = 3) -> Ledger:
    ledger = Ledger.open(url)
    for day in range(1, days + 1):
        ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", "fail"), f"NCCL INFO day {day}".encode())
    return ledger


@pytest.mark.parametrize("column", [c.name for c in ENTRIES.columns if c.name != "seq"])
def test_one_changed_byte_in_any_column_names_the_first_entry_that_does_not_fit(url: str, column: str) -> None:
    """Bytes all over every text, one at a time; each change is undone before the next."""
    with filled(url) as ledger, ledger._engine.begin() as connection:
        before = connection.execute(sa.select(ENTRIES.c[column]).where(ENTRIES.c.seq == 2)).scalar_one()
    flips: list[object] = [not before]
    if isinstance(before, str):
        places = range(0, len(before), max(1, len(before) // 9))
        flips = [before[:i] + chr(ord(before[i]) ^ 1) + before[i + 1 :] for i in places] or ["x"]
    with Ledger.open(url) as ledger:
        for value in flips:
            with ledger._engine.begin() as connection:
                connection.execute(ENTRIES.update().where(ENTRIES.c.seq == 2).values({column: value}))
            assert broken(ledger)[:1] == [2], value
        with ledger._engine.begin() as connection:
            connection.execute(ENTRIES.update().where(ENTRIES.c.seq == 2).values({column: before}))
        assert broken(ledger) == []


def test_one_changed_byte_of_raw_output_is_found_at_its_entry(url: str) -> None:
    """Where it changes what the output says: a deflate stream ends in up to seven bits that mean nothing."""
    with filled(url) as ledger:
        wanted = ledger.entries()[1].raw_digest
        with ledger._engine.begin() as connection:
            before = connection.execute(sa.select(RAW.c.data).where(RAW.c.digest == wanted)).scalar_one()
        for place in (*range(0, len(before), 4), len(before)):
            data = before[:place] + bytes([(before[place] if place < len(before) else 0) ^ 0xFF]) + before[place + 1 :]
            with ledger._engine.begin() as connection:
                connection.execute(RAW.update().where(RAW.c.digest == wanted).values(data=data))
            assert broken(ledger) == [2], place


def test_a_removed_row_is_named_wherever_it_was(url: str) -> None:
    with filled(url) as ledger:
        head = ledger.head()
        assert head is not None
        for seq, named in ((2, 2), (1, 1)):
            with ledger._engine.begin() as connection:
                connection.execute(ENTRIES.delete().where(ENTRIES.c.seq == seq))
            assert broken(ledger)[0] == named
        assert "is missing" in ledger.verify()[0].wording() or "are missing" in ledger.verify()[0].wording()


def test_rows_that_changed_places_are_found(url: str) -> None:
    with filled(url) as ledger:
        with ledger._engine.begin() as connection:
            for old, new in ((2, 99), (3, 2), (99, 3)):
                connection.execute(ENTRIES.update().where(ENTRIES.c.seq == old).values(seq=new))
        assert broken(ledger)[0] == 2


def test_raw_output_that_is_gone_or_belongs_to_another_entry_is_found(url: str) -> None:
    with filled(url) as ledger:
        digests = [k.raw_digest for k in ledger.entries()]
        with ledger._engine.begin() as connection:
            connection.execute(RAW.delete().where(RAW.c.digest == digests[0]))
            connection.execute(RAW.update().where(RAW.c.digest == digests[2]).values(
                data=sa.select(RAW.c.data).where(RAW.c.digest == digests[1]).scalar_subquery()))  # fmt: skip
        assert broken(ledger) == [1, 3]


def test_a_head_kept_elsewhere_shows_a_cut_tail_another_ledger_and_a_chain_written_anew(url: str) -> None:
    with filled(url) as ledger:
        head = ledger.head()
        assert head is not None
        first = ledger.entries()[0].hash
        assert behind(head, ledger.hashes(), first) is None
        ledger.append(verdict("2026-01-04T00:00:00Z", "pass"))
        assert behind(head, ledger.hashes(), first) is None, "what was appended since is no change"

        with ledger._engine.begin() as connection:
            connection.execute(ENTRIES.delete().where(ENTRIES.c.seq >= 3))
        assert ledger.verify() == [], "the chain alone does not show it"
        cut = behind(head, ledger.hashes(), first)
        assert cut is not None
        assert cut.seq == 3
        ledger.append(verdict("2026-01-03T00:00:00Z", "pass"))
        assert ledger.verify() == []
        anew = behind(head, ledger.hashes(), first)
        assert anew is not None
        assert anew.seq == 3
        with ledger._engine.begin() as connection:
            connection.execute(ENTRIES.delete())
        assert behind(head, ledger.hashes(), "") is not None


def test_entries_are_kept_all_or_none(ledger: Ledger) -> None:
    def breaking_off() -> Iterator[tuple[Entry, bytes | None]]:
        yield verdict("2026-01-01T00:00:00Z", "pass"), b"x"
        raise InterruptedError

    with pytest.raises(InterruptedError):
        ledger.extend(breaking_off())

    assert ledger.entries() == []


@pytest.mark.parametrize(
    "payload",
    [
        {10: 1.0, 9: 2.0},
        {"a": (1, 2)},
        {"nan": float("nan"), "inf": float("-inf")},
        {"torn": "\udcff"},
        {"nul": "\0"},
        {"nested": [{"x": None, "y": True}]},
        {"big": 1 << 80, "small": 5e-324},
    ],
    ids=str,
)
def test_whatever_a_payload_holds_the_entry_holds_and_is_read_back_as_it_was_sealed(
    ledger: Ledger, payload: dict[str, object]
) -> None:
    kept = ledger.append(verdict("2026-01-01T00:00:00Z", "fail", payload=payload, subject="s" * 400 + "\0"))

    assert ledger.entries() == [kept]
    assert ledger.verify() == []


def test_writers_at_the_same_time_make_one_chain(url: str) -> None:
    Ledger.open(url).close()

    def write(worker: int) -> None:
        with Ledger.open(url) as ledger:
            for number in range(10):
                ledger.append(verdict("2026-01-01T00:00:00Z", "pass", run=f"{worker}-{number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with Ledger.open(url) as ledger:
        assert len(ledger.entries()) == 40
        assert ledger.verify() == []


def test_failing_since_is_the_start_of_the_current_row_of_failures(ledger: Ledger) -> None:
    for day, outcome in enumerate(["fail", "pass", "unmeasured", "fail"], start=1):
        ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", outcome))
    history = ledger.entries(pool="p", subject="transport-proof")

    assert failing_since(history) == "2026-01-03T00:00:00Z"
    assert failing_since(history[:2]) == ""
    assert failing_since([]) == ""


def test_a_database_that_cannot_be_opened_is_an_error_with_the_place_and_no_password() -> None:
    with pytest.raises(Unreachable) as caught:
        Ledger.open("sqlite:////proc/nowhere/ledger.db")

    assert "/proc/nowhere" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["not json", '{"gb_s": 1.5,"text":"é"}', '{"gb_s": NaN}', '{"gb_s": 1e999}', "[1]", '"\\ud800"', ""]
)
def test_a_payload_that_is_not_what_we_write_is_a_broken_entry(ledger: Ledger, text: str) -> None:
    for day in (1, 2):
        ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", "fail"))
    with ledger._engine.begin() as connection:
        connection.execute(ENTRIES.update().where(ENTRIES.c.seq == 1).values(payload=text))

    assert broken(ledger) == [1]


def test_raw_output_that_cannot_be_read_is_an_error_of_the_ledger(ledger: Ledger) -> None:
    with ledger._engine.begin() as connection:
        RAW.drop(connection)

    with pytest.raises(Unreachable, match="ledger"):
        ledger.raw("0" * 64)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://h/db", "MySQLdb"),
        ("nonsense://h/db", "nonsense"),
        ("://", "no database URL"),
        ("postgresql+nodriver://u:secret@h/db", "nodriver"),
    ],
)
def test_a_ledger_that_no_driver_here_speaks_to_is_a_bad_spec_that_says_so(url: str, says: str) -> None:
    with pytest.raises(BadSpec, match=says) as caught:
        Ledger.open(url)

    assert "secret" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("psycopg") is not None, reason="psycopg is installed")
def test_postgresql_without_its_driver_names_the_extra() -> None:
    with pytest.raises(BadSpec, match=r"poolshift\[postgresql\]"):
        Ledger.open("postgresql://u:secret@127.0.0.1:1/db")


def test_bytes_that_are_no_text_break_their_entry_and_not_the_reading(tmp_path: Path) -> None:
    with filled(str(tmp_path / "ledger.db")) as ledger:
        with ledger._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE poolshift_ledger SET outcome = CAST(x'66ff' AS TEXT) WHERE seq = 2")
        assert broken(ledger) == [2]


@pytest.mark.skipif(not POSTGRES, reason="POOLSHIFT_TEST_POSTGRES names no server to test against")
def test_a_server_that_goes_away_in_the_middle_leaves_nothing_half_written_and_is_used_again_when_it_is_back() -> None:
    assert POSTGRES
    drop_tables()

    def cut_off() -> Iterator[tuple[Entry, bytes | None]]:
        yield verdict("2026-01-02T00:00:00Z", "pass"), b"second"
        with other.begin() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        yield verdict("2026-01-03T00:00:00Z", "pass"), b"third"

    with Ledger.open(POSTGRES) as ledger:
        ledger.append(verdict("2026-01-01T00:00:00Z", "fail"), b"first")
        other = sa.create_engine(ledger._engine.url)
        with pytest.raises(Unreachable, match="look at the database"):
            ledger.extend(cut_off())
        other.dispose()
        assert [k.seq for k in ledger.entries()] == [1]
        assert ledger.append(verdict("2026-01-04T00:00:00Z", "pass")).seq == 2
        assert ledger.verify() == []


@pytest.mark.skipif(not POSTGRES, reason="POOLSHIFT_TEST_POSTGRES names no server to test against")
def test_a_server_that_is_not_there_is_unreachable_without_the_password() -> None:
    with pytest.raises(Unreachable) as caught:
        Ledger.open("postgresql://poolshift:secret@127.0.0.1:1/ledger")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [5, "text", 1.5])
def test_raw_output_that_became_another_type_breaks_its_entry_and_not_the_check(tmp_path: Path, value: object) -> None:
    """SQLite keeps any type in any column."""
    with filled(str(tmp_path / "ledger.db")) as ledger:
        with ledger._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE poolshift_raw SET data = ?", (value,))
        assert broken(ledger) == [1, 2, 3]
