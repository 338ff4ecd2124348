"""Where each slice of a swap stands, for people: rows of equal keys from the run record's notes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.model.record import SliceRecord
from tasks.rules.story_tables import pods_of
from tasks.rules.wording import and_more, plural

LAID_OUT = "swap"  # the note with the sizes of all slices
_NOT_BEGUN = "not begun"


def rows_of(notes: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row for each slice that was laid out or has begun. A note that cannot be read says so: it is no progress."""
    laid = notes.get(LAID_OUT)
    sizes = laid.get("sizes") if isinstance(laid, Mapping) else None
    planned = len(sizes) if isinstance(sizes, list) else 0
    numbers = {int(key[6:]) for key in notes if key.startswith("slice-") and key[6:].isdecimal()}
    return [_row(n, notes.get(f"slice-{n}"), planned) for n in sorted(numbers | set(range(1, planned + 1)))]


def _row(number: int, note: Any, planned: int) -> dict[str, str]:
    of = f" of {planned}" if planned else ""
    row = {"slice": f"{number}{of}", "given up": "", "moved": "", "made": "", "stage": _NOT_BEGUN, "gate": ""}
    if note is None:
        return row
    try:
        entry = SliceRecord.from_dict(note)
        return row | {
            "given up": and_more(sorted(entry.nodes), 4) or "nothing",
            "moved": _pods(entry.moved),
            "made": f"{entry.add}, {entry.total} in all",
            "stage": entry.stage.value,
            "gate": str(entry.gate.get("outcome") or ""),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return row | {"stage": f"unreadable: note.slice-{number} of the run's ConfigMap"}


def _pods(moved: Mapping[str, Any]) -> str:
    waves = moved.get("waves") or ()
    return plural(sum(map(pods_of, waves)), "pod") if waves else ""
