"""Findings as lines of a log: those that say the same of many things are one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from infra.model.verdict import Finding, Level
from tasks.rules.wording import and_more, plural

UNKNOWN_MACHINE = "machine-type-unknown"
# What is judged by the machine's GPUs, devices and name: of a type that there is not, none of it can be well.
_OF_ITS_SHAPE = frozenset({"reservation-machine-type", "gang-without-room", "target-resource"})
_LENGTH = 160  # characters of a reason in a line; the report has the whole


def lines(findings: Iterable[Finding], *, remedies: bool = True) -> list[str]:
    """One line for each kind: level, code, objects, what is the matter, and, if asked for, what to do about it.

    Alike are findings of one code whose observations are the same but for a number in the name before the colon.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.level.value, each.code, _without_number(each.observed)), []).append(each)
    return [_line(group, remedies=remedies) for group in groups.values()]


def alike(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that say the same of many objects as one of all of them, in the order of the first."""
    groups: dict[Finding, list[str]] = {}
    for each in findings:
        groups.setdefault(replace(each, object=""), []).append(each.object)
    return [replace(what, object=and_more(list(dict.fromkeys(objects)), 3)) for what, objects in groups.items()]


def first_causes(findings: Sequence[Finding]) -> list[Finding]:
    """Without what follows from a machine type that nobody knows; its own finding says how many those are."""
    root = next((f for f in findings if f.code == UNKNOWN_MACHINE and f.level is Level.BLOCK), None)
    follows = [f for f in findings if f.code in _OF_ITS_SHAPE and f.level is Level.BLOCK] if root else []
    if root is None or not follows:
        return list(findings)
    verb = "follows" if len(follows) == 1 else "follow"
    told = replace(root, observed=f"{root.observed}; {plural(len(follows), 'other finding')} {verb} from it")
    return [told if f is root else f for f in findings if f not in follows]


def first_clause(text: str) -> str:
    """The first clause of a reason, cut where it is long: for a line that has the rest printed above it."""
    clause = text.partition("; ")[0].partition(". ")[0]
    return clause if len(clause) <= _LENGTH else f"{clause[:_LENGTH].rpartition(' ')[0] or clause[:_LENGTH]}…"


def _without_number(text: str) -> str:
    """Observations of "rdma-0: …" and "rdma-7: …" as one."""
    name, colon, rest = text.partition(":")
    stem, _, number = name.rpartition("-")
    return f"{stem}-N:{rest}" if colon and number.isdigit() else text


def _line(group: list[Finding], *, remedies: bool) -> str:
    first = group[0]
    observed, names = first.observed, list(dict.fromkeys(f.observed.partition(":")[0] for f in group))
    if len(names) > 1:
        observed = f"{and_more(names, 2)}:{observed.partition(':')[2]}"
    since = f", since {first.since}" if first.since else ""
    mend = f". {first.remedy}" if remedies and first.remedy else ""
    objects = and_more(list(dict.fromkeys(f.object for f in group)), 3)
    return f"{first.level.value} {first.code}: {objects}: {observed}{since}{mend}"
