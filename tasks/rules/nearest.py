"""Which of the names that there are was probably meant by a misspelt one? Pure."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(written: str, names: Iterable[str]) -> list[str]:
    """The names that are the fewest letters away, at most three; none where every one is too far to be meant."""
    away = {name: _letters_between(written.lower(), name.lower()) for name in sorted(names)}
    least = min(away.values(), default=0)
    if least > max(1, len(written) // 3):
        return []
    return [name for name, letters in away.items() if letters == least][:3]


def did_you_mean(written: str, names: Iterable[str]) -> str:
    """The question for a person, "" where no name is near."""
    near = nearest(written, names)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _letters_between(one: str, other: str) -> int:
    """How many letters are to be added, left out or replaced to make one of the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for count, letter in enumerate(one, 1):
        before, row = row, [count]
        for at, its in enumerate(other, 1):
            row.append(min(before[at] + 1, row[-1] + 1, before[at - 1] + (letter != its)))
    return row[-1]
