"""What a run found and who decided, written to the ledger. $POOLSHIFT_LEDGER names it: a file, or a database URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from infra.ledger import Entry, Ledger
from infra.ledger.chain import failing_since
from infra.model.evidence import Evidence
from infra.model.verdict import Verdict
from tasks.home import home


def location() -> str:
    """The ledger's URL or path: $POOLSHIFT_LEDGER, else ledger.db in poolshift's home."""
    return os.environ.get("POOLSHIFT_LEDGER") or str(home() / "ledger.db")


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
) -> None:
    """Append evidence (with its raw output, by digest) and verdicts. Raises Unreachable when they cannot be kept."""
    outputs = raw or {}
    with Ledger.open(location()) as ledger:
        for item in evidence:
            ledger.append(
                Entry(
                    at=item.measured,
                    kind="evidence",
                    run=run,
                    pool=pool,
                    subject=f"{item.probe}/{item.mode}",
                    spec_hash=item.spec_hash,
                    simulated=item.simulated,
                    payload=item.to_dict(),
                ),
                outputs.get(item.raw_digest),
            )
        for verdict in verdicts:
            ledger.append(
                Entry(
                    at=at,
                    kind="verdict",
                    run=run,
                    pool=pool,
                    subject=verdict.check,
                    outcome=verdict.outcome.value,
                    spec_hash=spec_hash,
                    simulated=simulated,
                    payload=verdict.to_dict(),
                )
            )


def decide(run: str, pool: str, at: str, kind: str, subject: str, facts: Mapping[str, object], simulated: bool) -> None:
    """Append who decided what: an approval, or what was forced."""
    with Ledger.open(location()) as ledger:
        ledger.append(
            Entry(at=at, kind=kind, run=run, pool=pool, subject=subject, payload=dict(facts), simulated=simulated)
        )


def since(pool: str, check: str) -> str:
    """RFC 3339 since when this check of this pool has not passed, by our own history; "" when it passes or is new."""
    with Ledger.open(location()) as ledger:
        return failing_since(ledger.entries(pool=pool, kind="verdict", subject=check))
