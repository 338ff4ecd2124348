"""What carried a small tool's output here, undone: launchers, log shippers, mail and Markdown put marks on its lines.

NCCL's own lines name their process, so their reader finds them behind anything. The lines of other tools do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent

_DEPTH = 4  # marks before one line, e.g. of kubectl --prefix and --timestamps, quoted
_LOOKED = 2000  # lines; a mark that none of them has is on none
_SENDERS = 64  # beyond, the labels are words of the text
# Marks that no tool prints, so that lines without them may stand between: ssh's warnings, mpirun's banner.
_CERTAIN = (
    r"\[\d+,\d+\](?:<std(?:out|err|diag)>)?: ?",  # mpirun --tag-output
    r"\[[^\]\s,]+,\d+\]<std(?:out|err)>: ?",  # PRRTE
    r"\[pod/[^\]\s]+\] ",  # kubectl --prefix
    r"\((?:[\w.-]+,? )?(?:rank=\d+, )?pid=\d+(?:, ip=[\w.:]+)?\) ",  # Ray, SkyPilot
)
# Marks that may be words of a tool: they stand on every line, from the first that has one to the last.
_UNBROKEN = (
    r"(?:> ?)+",  # a quoted mail
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out|err) [FP] )?",  # kubectl
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w./-]+(?:\[\d+\])?: ",  # journald, syslog
    r" {0,3}\d{1,4}: ",  # srun --label
    r"[\w.-]+ +\| ",  # docker compose
)
_TIMES = frozenset(_UNBROKEN[:2])  # tell no sender from another
_FENCE = re.compile(r"^\s*```\w*\s*$")
_PROMPT = re.compile(r"^(?:\S+@\S+|\[\S+@\S+ [^\]\n]*\])?:?\S*[$#]\s*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """The text as the tool printed it, each sender's lines together, and who they are (none where nobody is named).

    `beside` are the parts that no mark is on: words about the output, or another output.
    """

    text: str
    senders: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


def unpacked(text: str) -> Carried:
    """Take the marks off. What lies between the lines of two senders is sorted out, and that they are two is told."""
    lines = dedent(text).split("\n")
    end = [lines.pop()] if not lines[-1] else []
    labels = [""] * len(lines)
    bare = set(range(len(lines)))
    for _ in range(_DEPTH):
        found = [_take_off(lines, labels, mark) for mark in (*_CERTAIN, *_UNBROKEN)]
        bare = bare.difference(*found)
        if not any(found):
            break
    beside = ["\n".join(lines[n] for n in sorted(bare))] if len(bare) < len(lines) else []
    senders = tuple(dict.fromkeys(label for label in labels if label))
    if len(senders) > _SENDERS:
        return Carried(text=text)
    if len(senders) > 1:
        groups = [[line for line, label in zip(lines, labels, strict=True) if label == s] for s in ("", *senders)]
        lines = [line for group in groups for line in group]
    beside += _bare_ends(lines)
    apart = tuple(dedent(f"{part}\n") for part in beside if part.strip())
    return Carried(text=dedent("\n".join([*lines, *end])), senders=senders, beside=apart)


def _take_off(lines: list[str], labels: list[str], mark: str) -> set[int]:
    """Take one kind of mark off all lines that have it, if they have it in the way in which it is put on. Of which?"""
    pattern = re.compile(rf"\s*({mark})" if mark in _CERTAIN else f"({mark})")
    if not any(map(pattern.match, lines[:_LOOKED])):
        return set()
    found = {n: match for n, line in enumerate(lines) if (match := pattern.match(line))}
    if mark in _UNBROKEN:
        between = range(min(found), max(found) + 1)
        if len(found) < 2 or any(lines[n].strip() and n not in found for n in between):
            return set()
    for n, match in found.items():
        lines[n] = lines[n][match.end() :]
        if mark not in _TIMES:
            labels[n] = f"{labels[n]} {match[1].strip()}".strip()
    return set(found)


def _bare_ends(lines: list[str]) -> list[str]:
    """Remove the fences around the one block that ends a text, or an empty prompt. What stands before the block?"""
    fences = [n for n, line in enumerate(lines) if _FENCE.match(line)]
    last = max((n for n, line in enumerate(lines) if line.strip()), default=-1)
    if len(fences) == 2 and fences[1] == last:
        lines[fences[0]] = lines[fences[1]] = ""
        return ["\n".join(lines[: fences[0]])]
    if last > 0 and _PROMPT.match(lines[last]):
        lines[last] = ""
    return []
