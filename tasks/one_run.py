"""Which entries of the ledger are one run's: names are used again, on other clusters and after a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.kube.records import RunRecord
from infra.ledger import Kept
from tasks.rules.wording import plural

KEY = "run_origin"  # of an entry's payload


def origin_of(record: RunRecord | None) -> str:
    """When a run began, and the UID of its record, which no other run has; "" without a record."""
    return f"{record.created}/{record.uid}" if record is not None and record.uid else ""


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The newest run of a name: its evidence, that of the pool it is compared with, and how much was left out."""

    kept: tuple[Kept, ...]
    baseline: tuple[Kept, ...]
    left_out: int

    @property
    def origin(self) -> str:
        """When it began and its record's UID; "" in entries that were written before this was kept."""
        return _origin(self.kept[-1])

    def wording(self) -> str:
        """For a person: which run this is, and what was not looked at."""
        began, _, uid = self.origin.partition("/")
        words = f"begun {began}" + (f", record {uid}" if uid else "") if began else "of its newest pool and spec"
        pools = ", ".join(dict.fromkeys(str(k.entry.payload.get("pool") or k.entry.pool) for k in self.kept))
        measured = [k.entry.at for k in self.kept]
        text = f"the run {words}; measured {measured[0]} to {measured[-1]} on {pools}"
        other = plural(self.left_out, "measurement")
        return text + (f"; {other} of other runs of this name left out" if self.left_out else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "origin": self.origin,
            "measured_from": self.kept[0].entry.at,
            "measured_to": self.kept[-1].entry.at,
            "left_out": self.left_out,
        }


def newest(kept: Sequence[Kept], judged: set[str], source: str) -> OneRun:
    """The newest run among the evidence of a name, which has some of the `judged` pools.

    Of each judged pool the entries that share origin, spec and the cloud's own name of the pool with its newest one.
    Entries of before origins were kept have none, which is one in common, too: then the others tell them apart.
    """
    last = [[k for k in kept if k.entry.pool == pool][-1] for pool in judged & {k.entry.pool for k in kept}]
    # Pools that were looked at one after another, as a revalidation does, have each their own newest.
    mine = tuple(k for k in kept if any(_same(k, end) and _same_pool(k, end) for end in last))
    before = [k for k in kept if k.entry.pool == source and _same(k, mine[-1]) and k.seq < mine[-1].seq]
    baseline = tuple(k for k in before if _same_pool(k, before[-1]))
    return OneRun(kept=mine, baseline=baseline, left_out=sum(k.entry.pool in judged for k in kept) - len(mine))


def _origin(kept: Kept) -> str:
    return str(kept.entry.payload.get(KEY) or "")


def _same(one: Kept, other: Kept) -> bool:
    def key(kept: Kept) -> tuple[str, str, bool]:
        return _origin(kept), kept.entry.spec_hash, kept.entry.simulated

    return key(one) == key(other)


def _same_pool(one: Kept, other: Kept) -> bool:
    return (one.entry.pool, one.entry.payload.get("pool")) == (other.entry.pool, other.entry.payload.get("pool"))
