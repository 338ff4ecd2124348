"""How a run that a person has ended is told: who and when, what had moved, what stays closed, how to go on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.rules.wording import and_more, plural


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What stands in place of what the steps would say: title, paragraph, and what to type next."""

    headline: str
    lead: str
    next: tuple[str, ...]


def cancelled(run: str, wish: Mapping[str, Any], notes: Mapping[str, Any], closed: Sequence[str] | None) -> Ending:
    """A run whose record says that it is cancelled.

    `notes` are the record's; `closed` the old pool's nodes that the run keeps closed, None: they could not be read.
    """
    why = f": {wish['reason']}" if wish.get("reason") else ""
    return Ending(
        headline=f"Cancelled by {wish.get('by', 'somebody')} at {wish.get('at', '?')}{why}",
        lead=f"{_moved(notes)} {_closed(closed)}",
        next=(
            f"to go on where it stood: poolshift resume {run}, then poolshift migrate SPEC (refused until then)",
            f"to give it up: poolshift rollback {run}",
        ),
    )


def undone(by: str, at: str, done: Sequence[str], stays: str) -> Ending:
    """A run that was rolled back: `done` is what was put back, `stays` what is left as it is."""
    back = f"Put back: {'; '.join(done)}." if done else "It had changed nothing that was to be put back."
    left = stays.removeprefix("; ")
    return Ending(
        headline=f"Rolled back by {by} at {at}",
        lead=f"{back} Its record in the cluster is removed; this report and the ledger are what is left.",
        next=(left,) if left else (),
    )


def _moved(notes: Mapping[str, Any]) -> str:
    rows = (notes.get("waves-shown") or {}).get("rows") or ()
    if not rows:
        begun = isinstance(notes.get("moving"), Mapping)
        return "No wave had ended." if begun else "No work had been moved."
    pods = sum(int(row.get("pods moved") or 0) for row in rows)
    empty = sum(int(str(row.get("empty") or "0").split()[0]) for row in rows)
    return (
        f"Until then {plural(pods, 'pod')} had moved in {plural(len(rows), 'wave')}, {plural(empty, 'node')} emptied."
    )


def _closed(nodes: Sequence[str] | None) -> str:
    if nodes is None:
        return "Which nodes of the old pool stay closed could not be read."
    if not nodes:
        return "No node of the old pool is kept closed."
    return f"Cordoned or fenced off until one of the commands below: {and_more(sorted(nodes), 6)}."
