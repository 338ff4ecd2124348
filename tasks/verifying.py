"""Is the ledger what was written? The chain, the raw output behind it, and where it ended when it was last seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import NotFound, PoolshiftError
from infra.kube import api
from infra.kube import heads as cluster_heads
from infra.ledger import Break, Head, Ledger
from infra.ledger.chain import behind
from infra.model.spec import Cluster
from infra.model.verdict import Outcome
from tasks import heads, ledgers
from tasks.rules.wording import plural

_ANOTHER = (
    "put the other ledger back, or verify it where it is (POOLSHIFT_LEDGER); if it is meant to be gone, remove what is "
    "remembered of it: its entry in ledger-heads.json of POOLSHIFT_HOME, its key in the cluster's ConfigMap "
    f"{cluster_heads.NAME}"
)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found. `compared`: where heads of this ledger were kept. `notes`: what could not be compared.

    `others`: other ledgers that were in this place before, and where they are remembered.
    """

    where: str
    entries: int
    head: Head | None
    breaks: tuple[Break, ...]
    compared: tuple[str, ...]
    notes: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """A whole chain whose end nobody can tell is unmeasured: its newest entries may be gone.

        So is one that took the place of another: what that one held cannot be told from this one.
        """
        if self.breaks:
            return Outcome.FAIL
        return Outcome.PASS if self.compared and not self.others else Outcome.UNMEASURED

    @property
    def exit_code(self) -> int:
        """0 it holds, 3 it does not, 4 its end is not known."""
        return self.outcome.exit_code

    @property
    def summary(self) -> str:
        """One line."""
        if self.breaks:
            return f"{plural(len(self.breaks), 'break')}; the first: {self.breaks[0].wording()}"
        holds = f"{self.entries} {'entry' if self.entries == 1 else 'entries'}, each as it was written"
        if self.others:
            return f"{holds}; another ledger was in this place before, and is not there to be checked"
        if self.compared:
            return f"{holds}; the end is the one kept in {' and '.join(self.compared)}"
        return f"{holds}; that none is missing at the end cannot be told"

    def lines(self) -> list[str]:
        """For a person: the answer, every break, and what was not compared."""
        text = [f"{self.outcome.value}: ledger {self.where}: {self.summary}"]
        text += [f"  {broken.wording()}" for broken in self.breaks[:20]]
        text += [f"  and {len(self.breaks) - 20} more"] if len(self.breaks) > 20 else []
        text += [f"  {note}" for note in (*self.notes, *self.others)]
        return text + ([f"  next: {_ANOTHER}"] if self.others and not self.breaks else [])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `first` is the first entry that does not fit."""
        shown = [{"entry": b.seq, "what": b.what, "observed": b.observed, "expected": b.expected} for b in self.breaks]
        return {
            "outcome": self.outcome.value,
            "exit_code": self.exit_code,
            "ledger": self.where,
            "entries": self.entries,
            "head": {"entry": self.head.seq, "hash": self.head.hash} if self.head else None,
            "summary": self.summary,
            "first": shown[0] if shown else None,
            "breaks": shown,
            "compared": list(self.compared),
            "notes": [*self.notes, *self.others],
        }


def verify(cluster: Cluster, run: str | None = None) -> Checked:
    """Check the whole ledger; with `run`, that it holds anything of that run.

    Raises NotFound when there is no ledger, or none of that run; Unreachable when it cannot be read.
    """
    if not ledgers.exists():
        raise NotFound(
            f"ledger {ledgers.location()}", "does not exist", remedy="set POOLSHIFT_LEDGER to the one that was written"
        )
    with Ledger.open(ledgers.location()) as ledger:
        if run is not None and not ledger.entries(run=run):
            raise ledgers.unknown_run(ledger, run, "entry")
        found = ledger.verify()
        hashes = ledger.hashes()
        head = ledger.head()
        compared: list[str] = []
        notes: list[str] = []
        replaced: list[str] = []
        for name, read in (("this machine", heads.of_machine), ("the cluster", lambda: _of_cluster(cluster))):
            try:
                broken, matched, others = _compare(read, head, hashes, heads.place(ledger))
            except PoolshiftError as error:
                notes.append(f"not compared with {name}: {error.object}: {error.observed}")
                continue
            found += [b for b in broken if b not in found]
            if matched:
                compared.append(name)
                replaced += [f"{name} also remembers {other}" for other in others]
            elif not broken:
                notes.append(f"not compared with {name}: it keeps no head of this ledger")
        found.sort(key=lambda b: b.seq)
        return Checked(
            where=ledger.where,
            entries=len(hashes),
            head=head,
            breaks=tuple(found),
            compared=tuple(compared),
            notes=tuple(notes),
            others=tuple(replaced),
        )


def _of_cluster(cluster: Cluster) -> list[dict[str, Any]]:
    return cluster_heads.read(api.connect(cluster))


def _compare(
    read: Callable[[], Iterable[Mapping[str, Any]]], head: Head | None, hashes: Mapping[int, str], place: str
) -> tuple[list[Break], bool, list[str]]:
    """What the remembered heads show, whether any is of this ledger, and which were of others in its place.

    A head of the same database that begins otherwise counts only where none of this one is known: a ledger may have
    been put aside, and a new one begun in its place.
    """
    first = head.ledger if head else ""
    remembered = [(entry, found) for entry in read() if (found := heads.head_of(entry)) is not None]
    mine = [found for _, found in remembered if found.ledger == first]
    here = mine or [found for entry, found in remembered if entry.get("where") == place]
    broken = [b for found in here if (b := behind(found, hashes, first)) is not None]
    others = [
        (
            f"another ledger in this place, of {plural(found.seq, 'entry')} "
            f"until {entry.get('at')}: it was put aside or replaced"
        )
        for entry, found in remembered
        if entry.get("where") == place and found.ledger != first
    ]
    return broken, bool(mine) and not broken, others
