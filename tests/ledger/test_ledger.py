"""The ledger: what is written stays, and every change of it shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from infra.errors import Unreachable
from infra.ledger import Entry, Ledger
from infra.ledger.chain import failing_since, last_pass
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
    engine = sa.create_engine(POSTGRES)
    for table in (ENTRIES, RAW):
        table.drop(engine, checkfirst=True)
    engine.dispose()
    yield POSTGRES


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


@pytest.mark.parametrize("column", ["at", "kind", "run", "pool", "subject", "outcome", "spec_hash", "payload", "hash"])
def test_a_change_of_any_field_is_found(url: str, column: str) -> None:
    with Ledger.open(url) as ledger:
        for day in (1, 2, 3):
            ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", "fail"))
        value = '{"gb_s":355}' if column == "payload" else "pass"
        with ledger._engine.begin() as connection:
            connection.execute(ENTRIES.update().where(ENTRIES.c.seq == 2).values({column: value}))

        assert any("entry 2" in line or "entry 3" in line for line in ledger.verify())


def test_a_removed_entry_is_found(ledger: Ledger) -> None:
    for day in (1, 2, 3):
        ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", "fail"))
    with ledger._engine.begin() as connection:
        connection.execute(ENTRIES.delete().where(ENTRIES.c.seq == 2))

    assert "entry 2 is missing: 3 follows 1" in ledger.verify()


def test_changed_raw_output_is_found(ledger: Ledger) -> None:
    kept = ledger.append(verdict("2026-01-01T00:00:00Z", "fail"), b"slow")
    with ledger._engine.begin() as connection:
        connection.execute(RAW.update().where(RAW.c.digest == kept.raw_digest).values(data=b"not even zlib"))

    assert ledger.verify() == ["entry 1: its raw output was changed"]


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
    assert last_pass(history) == "2026-01-02T00:00:00Z"
    assert failing_since(history[:2]) == ""
    assert failing_since([]) == ""


def test_a_database_that_cannot_be_opened_is_an_error_with_the_place_and_no_password() -> None:
    with pytest.raises(Unreachable) as caught:
        Ledger.open("sqlite:////proc/nowhere/ledger.db")

    assert "/proc/nowhere" in str(caught.value)


@pytest.mark.parametrize("text", ["not json", '{"gb_s": NaN}', '{"gb_s": 1e999}', "[1]", '"\\ud800"', ""])
def test_a_payload_that_is_not_what_we_write_is_a_broken_entry(ledger: Ledger, text: str) -> None:
    for day in (1, 2):
        ledger.append(verdict(f"2026-01-0{day}T00:00:00Z", "fail"))
    with ledger._engine.begin() as connection:
        connection.execute(ENTRIES.update().where(ENTRIES.c.seq == 1).values(payload=text))

    assert ledger.verify() == ["entry 1 (verdict transport-proof) was changed after it was written"]


def test_raw_output_that_cannot_be_read_is_an_error_of_the_ledger(ledger: Ledger) -> None:
    with ledger._engine.begin() as connection:
        RAW.drop(connection)

    with pytest.raises(Unreachable, match="ledger"):
        ledger.raw("0" * 64)
