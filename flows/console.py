"""What a person sees: progress lines with the time, tables, errors. Colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from infra.errors import BadSpec, PoolshiftError
from tasks.progress import complete, say

if TYPE_CHECKING:
    from rich.console import Console

    from infra.model.verdict import Finding

__all__ = ["out", "say", "show_error", "show_findings", "show_json", "show_table", "standard_input"]

_STYLES = {"block": "red", "warn": "yellow", "info": "dim"}


def out() -> Console:
    """Standard output; wide enough that lines of a log are not folded where no terminal says otherwise."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=width, soft_wrap=True)


def standard_input() -> BinaryIO:
    """Standard input as bytes. Raises BadSpec when there is none."""
    if sys.stdin is None:
        raise BadSpec("standard input", "is closed", expected="the output to read", remedy="name a file instead")
    return sys.stdin.buffer


def show_json(data: object) -> None:
    """One JSON document on standard output."""
    import orjson  # a plan of 100,000 pods is 60 MB: json takes seconds for it

    try:
        option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
        text = orjson.dumps(data, default=str, option=option).decode()
    except orjson.JSONEncodeError:  # numbers and texts that only json writes
        text = json.dumps(data, indent=2, default=str, ensure_ascii=False)
    sys.stdout.write(text + "\n")


def show_error(error: PoolshiftError, *, as_json: bool = False) -> None:
    """The error's facts, one per line, for a person; the same as JSON for a program."""
    facts = {
        "object": error.object,
        "observed": complete(error.observed),
        "expected": error.expected,
        "next": complete(error.remedy),
    }
    if as_json:
        show_json({"error": type(error).__name__, **facts, "exit_code": error.exit_code})
        return
    sys.stderr.write(f"\n{type(error).__name__}: {error.object}\n")
    for key, value in facts.items():
        if key != "object" and value:
            sys.stderr.write(f"  {key + ':':10s}{value}\n")


def show_findings(findings: Iterable[Finding]) -> None:
    """Findings, worst first."""
    from rich.markup import escape

    order = {"block": 0, "warn": 1, "info": 2}
    console = out()
    for finding in sorted(findings, key=lambda f: order[f.level]):
        style = _STYLES[finding.level]
        console.print(
            f"  [{style}]{finding.level.value:5s}[/] [bold]{finding.code}[/]  {escape(complete(finding.wording()))}"
        )


def show_table(rows: Iterable[Mapping[str, Any]], title: str = "") -> None:
    """Plain rows of equal keys as a table."""
    from rich.table import Table

    listed = list(rows)
    if not listed:
        return
    table = Table(title=title or None, title_justify="left")
    for column in listed[0]:
        table.add_column(column, overflow="fold")
    for row in listed:
        table.add_row(*(str(value) for value in row.values()))
    out().print(table)
