"""What a run found and who decided, written to the ledger. $POOLSHIFT_LEDGER names it: a file, or a database URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from infra.errors import NotFound
from infra.kube.api import Kube
from infra.ledger import Entry, Ledger
from infra.ledger.chain import failing_since
from infra.model.evidence import Evidence
from infra.model.verdict import Verdict
from tasks import heads, one_run
from tasks.home import home
from tasks.rules.wording import and_more


def location() -> str:
    """The ledger's URL or path: $POOLSHIFT_LEDGER, else ledger.db in poolshift's home."""
    return os.environ.get("POOLSHIFT_LEDGER") or str(home() / "ledger.db")


def exists() -> bool:
    """A file that is not there yet is no ledger; what a URL names is found out by asking."""
    return "://" in location() or Path(location()).is_file()


def unknown_run(ledger: Ledger, run: str, what: str) -> NotFound:
    """The error for a run of which the ledger holds no `what` ("entry"), with the runs that it knows."""
    known = ledger.runs()
    other = "POOLSHIFT_LEDGER names another ledger"
    return NotFound(
        f"run {run}",
        f"has no {what} in ledger {ledger.where}",
        expected=f"one of: {and_more(known, 10)}" if known else "a ledger that is not empty",
        remedy=f"poolshift report {known[0]} --verify, or another of these names; {other}" if known else other,
    )


def keep(
    run: str,
    pool: str,
    at: str,
    *,
    verdicts: Iterable[Verdict] = (),
    evidence: Iterable[Evidence] = (),
    raw: Mapping[str, bytes] | None = None,
    spec_hash: str = "",
    simulated: bool = False,
    kube: Kube | None = None,
    origin: str = "",
) -> None:
    """Append evidence (with its raw output, by digest) and verdicts, all or none; `kube` remembers where it ended.

    `origin` tells this run from others of its name: see `tasks.one_run`.

    Raises Unreachable when they cannot be kept.
    """
    outputs = raw or {}
    common: dict[str, Any] = {"run": run, "pool": pool, "simulated": simulated}
    entries: list[tuple[Entry, bytes | None]] = [
        (
            Entry(
                at=item.measured,
                kind="evidence",
                subject=f"{item.probe}/{item.mode}",
                spec_hash=item.spec_hash,
                payload={**item.to_dict(), **({one_run.KEY: origin} if origin else {})},
                **{**common, "simulated": item.simulated},
            ),
            outputs.get(item.raw_digest),
        )
        for item in evidence
    ]
    entries += [(_verdict_entry(v, at, spec_hash, common), None) for v in verdicts]
    with Ledger.open(location()) as ledger:
        ledger.extend(entries)
        heads.remember(ledger, kube, at)


def _verdict_entry(verdict: Verdict, at: str, spec_hash: str, common: Mapping[str, Any]) -> Entry:
    return Entry(
        at=at,
        kind="verdict",
        subject=verdict.check,
        outcome=verdict.outcome.value,
        spec_hash=spec_hash,
        payload=verdict.to_dict(),
        **common,
    )


def decide(
    run: str,
    pool: str,
    at: str,
    kind: str,
    subject: str,
    facts: Mapping[str, object],
    simulated: bool,
    kube: Kube | None = None,
) -> None:
    """Append who decided what: an approval, or what was forced."""
    with Ledger.open(location()) as ledger:
        ledger.append(
            Entry(at=at, kind=kind, run=run, pool=pool, subject=subject, payload=dict(facts), simulated=simulated)
        )
        heads.remember(ledger, kube, at)


def since(pool: str, check: str, *, simulated: bool) -> str:
    """RFC 3339 since when this check of this pool has not passed, by our own history; "" when it passes or is new."""
    with Ledger.open(location()) as ledger:
        found = ledger.entries(pool=pool, kind="verdict", subject=check)
    return failing_since(k for k in found if k.entry.simulated is simulated)


def last_pass(pool: str, check: str, *, simulated: bool) -> str:
    """RFC 3339 of the newest pass of this check of this pool, by our own history; "" for none. Raises Unreachable."""
    with Ledger.open(location()) as ledger:
        found = ledger.entries(pool=pool, kind="verdict", subject=check)
    return next(
        (k.entry.at for k in reversed(found) if k.entry.outcome == "pass" and k.entry.simulated is simulated), ""
    )


def since_by_name(name: str, check: str, *, simulated: bool) -> str:
    """The same for a pool of which only its own name is known; "" where none or several are."""
    if not exists():
        return ""
    with Ledger.open(location()) as ledger:
        found = [k for k in ledger.entries(kind="verdict", subject=check) if k.entry.simulated is simulated]
    mine = [k for k in found if k.entry.pool.endswith(f"-{name}")]
    return failing_since(mine) if len({k.entry.pool for k in mine}) == 1 else ""


def past(pool: str, *, simulated: bool) -> list[Evidence]:
    """Everything that was measured of a pool, oldest first. Raises Unreachable."""
    with Ledger.open(location()) as ledger:
        found = ledger.entries(pool=pool, kind="evidence")
    return [Evidence.from_dict(k.entry.payload) for k in found if k.entry.simulated is simulated]
