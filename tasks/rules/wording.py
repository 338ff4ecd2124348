"""How facts become words: ages, bounded lists, sizes. Shared by findings, progress lines and reports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from infra.model.verdict import Gate, Outcome


def rfc3339(moment: datetime) -> str:
    """UTC, whole seconds, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(moment: datetime, now: datetime) -> str:
    """The largest unit that fits at least twice, else the next: "271 days", "26 hours", "90 seconds"."""
    return span(now - moment)


def span(length: timedelta) -> str:
    """A duration in one rounded-down unit: "271 days", "26 hours", "4 minutes", "90 seconds"."""
    seconds = max(0, int(length.total_seconds()))
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}s"
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def since_words(moment: datetime | None, now: datetime) -> str:
    """With its age, where the time of the look is known: a dump may not say when it was taken."""
    if moment is None:
        return ""
    return f"{rfc3339(moment)} ({age(moment, now)})" if now > moment else rfc3339(moment)


def and_more(names: Sequence[str], limit: int) -> str:
    """The first `limit` names and how many are left: "a, b, c and 9 more"."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def plural(count: int, noun: str) -> str:
    """ "1 node", "2 nodes", "2 entries"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("ry") else f"{count} {noun}s"


def size(count: int) -> str:
    """Bytes in the largest binary unit that divides them: 256 MiB, 1 GiB, 1500 B."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step and count % step == 0:
            return f"{count // step} {unit}"
    return f"{count} B"


def gate_words(gate: Gate) -> str:
    """A gate in one line: which checks fail and which are unmeasured, by name. Why stands with each verdict."""
    if gate.outcome is Outcome.PASS:
        return f"open: {plural(len(gate.verdicts), 'verdict')}, every one pass"
    fails = [v.check for v in gate.verdicts if v.outcome is Outcome.FAIL]
    unknown = [v.check for v in gate.verdicts if v.outcome is Outcome.UNMEASURED] + list(gate.missing)
    named = (("fail", fails), ("unmeasured", unknown))
    return "held. " + "; ".join(f"{word}: {', '.join(names)}" for word, names in named if names)
