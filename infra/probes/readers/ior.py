"""IOR 2 to 4 and elbencho: text, JSON and CSV. Bandwidths are MiB/s as printed."""

from __future__ import annotations

import csv
import re
from typing import Any

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import json_objects, number

_ROW = re.compile(r"^[^\S\n]*(write|read)\s+([\d.]+)\s+.*?\s(\d+)\s*$", re.M)
_MAX = re.compile(r"Max (Write|Read):\s+([\d.]+) (MiB|MB)/sec(?: \(([\d.]+) MB/sec\))?")
_SUMMARY = re.compile(r"^[^\S\n]*(?:\S+:\s+)?(write|read)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s", re.M)  # max, min, mean
# IOR's own comparison of what it read with what it wrote, in its versions' words, and what ends it.
_CORRUPT = re.compile(r"^.*\b[Ii]ncorrect data on \w.*$|^.*\bdata check (?:error|FAILED).*$", re.M)
_ERROR = re.compile(r"^[^\S\n]*(?:ior )?ERROR: .*$", re.M)
_OPERATION = re.compile(
    r"^[^\S\n]*(WRITE|READ|RWMIX\w*|MKDIRS|STAT|RMFILES|SYNC|DROPCACHE)?\s*([A-Z][\w /]*?)\s*:\s*(.+)$"
)

_COMMAND = re.compile(r"^\W*COMMAND LINE: (.*)$", re.M)  # with --resfile
_ASKED = (("write", re.compile(r'"(?:-w|--write)"')), ("read", re.compile(r'"(?:-r|--read)"')))
_UNITS = {"Throughput MiB/s": "mib_s", "Throughput MB/s": "mb_s"}  # the latter with --base10


def read_ior(text: str) -> ToolReading | None:
    """Read IOR's output, or None."""
    if '"bwMiB"' in text or '"bwMaxMIB"' in text:
        return _read_json(text)
    if re.search(r"^\W*access,bw\(MiB/s\),", text, re.M):
        return _read_csv(text)
    words = ("IOR-", "Max Write:", "Max Read:", "Max(MiB)")
    if not any(word in text for word in words) or "MiB" not in text:
        return None
    table, _, summary = text.partition("Summary of all tests")
    if not summary and "Max(MiB)" in text:
        table, summary = "", text
    rows: dict[str, list[float]] = {"write": [], "read": []}
    iterations: set[int] = set()
    shown: list[float | None] = []
    for match in _ROW.finditer(table):
        value, iteration = number(match[2]), number(match[3])
        shown.append(value)
        if value is not None:
            rows[match[1]].append(int(value) if float(value).is_integer() else value)
        if isinstance(iteration, int):
            iterations.add(iteration)
    figures: dict[str, Any] = {
        "write_rows_mib_s": rows["write"],
        "read_rows_mib_s": rows["read"],
        "iterations": max(iterations) + 1 if iterations else None,
    }
    for match in _SUMMARY.finditer(summary):
        figures[f"max_{match[1]}_mib_s"], figures[f"mean_{match[1]}_mib_s"] = number(match[2]), number(match[4])
        shown += [number(match[2]), number(match[4])]
    for match in _MAX.finditer(text):
        unit, side = ("mib_s" if match[3] == "MiB" else "mb_s"), match[1].lower()
        figures[f"max_{side}_{unit}"] = number(match[2])
        shown.append(number(match[2]))
        if match[4]:
            figures[f"max_{side}_mb_s"] = number(match[4])
    finished = re.search(r"^(?:Run f|F)inished\s*:", text, re.M) is not None
    return _reading(figures, text, complete=finished and None not in shown)


def _reading(figures: dict[str, Any], text: str, *, complete: bool | None) -> ToolReading:
    """With what IOR says about the run itself; wrong data goes before any figure."""
    corrupt, error = _CORRUPT.search(text), _ERROR.search(text)
    said = corrupt or error
    if said:
        figures["error"] = said[0].strip()[:120]
    return ToolReading(
        kind=Kind.STORAGE,
        tool="ior",
        figures=figures,
        complete=complete,
        healthy=False if said else None,
        cause="data-corruption" if corrupt else ("io-error" if error else None),
    )


def _read_json(text: str) -> ToolReading:
    documents, valid = json_objects(text)
    figures: dict[str, Any] = {"format": "json", "valid_json": valid}
    results = list(_results(documents))
    for side in ("write", "read"):
        values = [v for r in results if r.get("access") == side and (v := number(r.get("bwMiB"))) is not None]
        figures[f"{side}_rows_mib_s"] = values
        if values:
            figures[f"max_{side}_mib_s"] = max(values)
    return _reading(figures, text, complete=valid and bool(results))


def _results(node: Any) -> Any:
    """Every result object, at whatever depth this version nests them."""
    if isinstance(node, dict):
        if "access" in node and "bwMiB" in node:
            yield node
        for value in node.values():
            yield from _results(value)
    elif isinstance(node, list):
        for value in node:
            yield from _results(value)


def _read_csv(text: str) -> ToolReading:
    """`-O summaryFormat=CSV`: a caption and a row for each access of each iteration."""
    rows = _table(text, "access")
    figures: dict[str, Any] = {"format": "csv"}
    for side in ("write", "read"):
        values = [v for r in rows if r.get("access") == side and (v := number(r.get("bw(MiB/s)"))) is not None]
        figures[f"{side}_rows_mib_s"] = values
        if values:
            figures[f"max_{side}_mib_s"] = max(values)
            figures[f"mean_{side}_mib_s"] = sum(values) / len(values)
    iterations = [i for r in rows if (i := number(r.get("iter"))) is not None]
    figures["iterations"] = int(max(iterations)) + 1 if iterations else None
    return _reading(figures, text, complete=None)


def _table(text: str, key: str) -> list[dict[str, str]]:
    """The rows below the caption that names `key`; a row that is not whole is left out."""
    names: list[str] = []
    found = []
    for words in csv.reader(text.splitlines()):
        words = [word.strip() for word in words]
        if key in words and len(words) > 3:
            names = words
        elif names and len(words) == len(names):
            found.append(dict(zip(names, words, strict=True)))
    return found


def read_elbencho(text: str) -> ToolReading | None:
    """Read elbencho's result table or JSON, or None. `first`, `last`: when the first and the last worker ended."""
    if "MiB/s [last]" in text and re.search(r"^[^\n{]*\boperation,.*MiB/s \[last\]", text, re.M):
        return _elbencho_csv(text)
    if "FIRST DONE" in text and "LAST DONE" in text:
        return _elbencho_table(text)
    if '"MiB/s [last]"' in text or ('"operation"' in text and "MiB/s" in text and "elbencho" in text):
        return _elbencho_json(text)
    return None


def _elbencho_table(text: str) -> ToolReading:
    figures: dict[str, Any] = {}
    operation = ""
    for line in text[text.index("FIRST DONE") :].splitlines():
        match = _OPERATION.match(line)
        if not match:
            continue
        operation = match[1] or operation
        values, unit = match[3].split(), _UNITS.get(match[2].strip())
        if unit and operation and len(values) == 2:
            for name, value in zip(("first", "last"), values, strict=True):
                if (rate := number(value)) is not None:
                    figures[f"{operation.lower()}_{name}_{unit}"] = float(rate)
    error = re.search(r"^[^\S\n]*ERROR: .*$", text, re.M)
    return ToolReading(
        kind=Kind.STORAGE,
        tool="elbencho",
        figures=figures,
        # A rule ends each phase; how many were asked for only the command line says, where it is shown.
        complete=bool(figures)
        and re.search(r"^[^\S\n]*---\s*\Z", text, re.M) is not None
        and not error
        and not _phases_lost(text, figures),
        healthy=False if error else None,
        cause="io-error" if error else None,
    )


def _phases_lost(text: str, figures: dict[str, Any]) -> bool:
    """A phase that was asked for and did not run: a time limit that ends the writing leaves out the reading."""
    if any(name.startswith("rwmix") for name in figures):
        return False  # both in one phase
    commands = _COMMAND.findall(text)
    shown = {name.partition("_")[0] for name in figures}
    return any(side not in shown and asked.search(line) for line in commands for side, asked in _ASKED)


def _elbencho_csv(text: str) -> ToolReading:
    figures: dict[str, Any] = {"format": "csv"}
    for row in _table(text, "operation"):
        operation = row["operation"].lower()
        for word in ("first", "last"):
            value = number(row.get(f"MiB/s [{word}]"))
            if value is not None:
                figures[f"{operation}_{word}_mib_s"] = value
        if row.get("direct IO") in {"0", "1"}:
            figures["direct"] = row["direct IO"] == "1"
    return ToolReading(kind=Kind.STORAGE, tool="elbencho", figures=figures, complete=None)


def _elbencho_json(text: str) -> ToolReading:
    documents, valid = json_objects(text)
    figures: dict[str, Any] = {"valid_json": valid}
    for document in documents:
        operation = str(document.get("operation", "")).lower()
        for key, value in document.items():
            word = re.fullmatch(r"MiB/s \[(first|last)\]", key)
            if word and operation and (rate := number(value)) is not None:
                figures[f"{operation}_{word[1]}_mib_s"] = float(rate)
    return ToolReading(kind=Kind.STORAGE, tool="elbencho", figures=figures, complete=valid)
