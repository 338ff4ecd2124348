"""One of a thing is not said in the plural."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.rules.wording import plural

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [
        (1, "node", "1 node"),
        (0, "rank", "0 ranks"),
        (2, "blocker", "2 blockers"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
        (1, "GPU-minute", "1 GPU-minute"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, words: str) -> None:
    assert plural(count, noun) == words


def counted(path: Path) -> Iterator[str]:
    """Places where a plural stands right after the length of something, in a text that is put together."""
    for text in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.JoinedStr)):
        for value, after in zip(text.values, text.values[1:], strict=False):
            is_count = isinstance(value, ast.FormattedValue) and ast.unparse(value.value).startswith("len(")
            if is_count and isinstance(after, ast.Constant) and re.match(r" [a-z]+s\b(?<! is)", str(after.value)):
                yield f"{path.name}:{value.lineno}{after.value}"


def test_no_step_and_no_command_writes_a_plural_after_a_count_of_its_own() -> None:
    files = [*(ROOT / "flows").rglob("*.py"), *(ROOT / "tasks").glob("*.py")]

    assert [place for path in files for place in counted(path)] == []
