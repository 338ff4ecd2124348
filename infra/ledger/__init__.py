"""The ledger: evidence, verdicts and who decided what. Append-only, chained by hash, verifiable."""

from infra.ledger.chain import Break, Entry, Head, Kept
from infra.ledger.store import Ledger

__all__ = ["Break", "Entry", "Head", "Kept", "Ledger"]
