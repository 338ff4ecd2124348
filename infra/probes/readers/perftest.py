"""perftest (ib_write_bw, ib_read_bw, ib_send_bw and their latency tests): text in any unit, and JSON.

An output may hold several runs, one for each NIC: the figures are those of the slowest, `runs` has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import json_objects, number, whole

_CAPTION = re.compile(r"^[^\S\n]*#bytes\s+#?iterations\s+.*$", re.M)
_COLUMN = re.compile(
    r"(BW peak|BW average|MsgRate|CPU_Util|t_min|t_max|t_typical|t_avg|t_stdev|99(?:\.9)?% percentile)\[([^\]]+)\]"
)
_UNITS = {
    "Gb/sec": "gbps",
    "MiB/sec": "mib_s",
    "MB/sec": "mb_s",
    "Mpps": "mpps",
    "%": "percent",
    "usec": "us",
    "cycles": "cycles",
}
_PROPERTY = re.compile(
    r"\b(Device|Dual-port|Link type|Transport type|Connection type|Mtu|GID index|Number of qps)\s*:\s*(\S+)"
)
_TITLE = re.compile(
    r"^[^\S\n]*(?:-{20,}[^\S\n]*\n[^\S\n]*)?"
    r"((?:RDMA_\w+|Send|Atomic\w*) (?:Post List )?(?:BW|Bidirectional BW|Latency) Test)[^\S\n]*$",
    re.M,
)
_ROUNDED = 1.001  # no mean is above its peak; with -D and -N the peak is 0
_TO_ITSELF = re.compile(r"\bib_\w+_(?:bw|lat)\b[^\n]*\s(?:localhost|127\.\d+\.\d+\.\d+|::1)(?:\s[^\n]*)?$", re.M)
_RULE = re.compile(r"^[^\S\n]*-{20,}\s*$", re.M)
_ADDRESS = re.compile(r"^[^\S\n]*(local|remote) address:\s*(.*)\n(?:\s*GID:\s*(\S+))?", re.M)
_ERRORS = {
    "completion-error": r"Completion with error.*|Failed status \d+.*",
    "peer-not-reached": r"Unable to init the socket connection.*|Couldn't connect to .*",
    "no-ib-device": r"Unable to find the Infiniband/RoCE device.*|IB device \S+ not found.*",
    "memory-registration-failed": r"Couldn't allocate MR.*",
    "queue-pair-failed": r"Failed to modify QP.*",
    # whatever else it could not do: its warnings begin otherwise
    "tool-failed": r"(?m)^ *(?:\w+: )?(?:Couldn't|Could not|Unable to|Failed to|Problems with|ERROR:) .*",
}


def read_perftest(text: str) -> ToolReading | None:
    """Read a perftest output, or None."""
    if '"test_info"' in text and '"results"' in text:
        return _read_json(text)
    pieces = _pieces(text)
    if not pieces:
        return None
    return _reading([_run(piece, test) for test, piece in pieces], text)


def _pieces(text: str) -> list[tuple[str | None, str]]:
    """(title, text) of each run: it begins at a title, or at a caption that has no title of its own."""
    titles = {match.start(): match[1] for match in _TITLE.finditer(text)}
    starts: list[int] = list(titles)
    fresh = False
    for at, caption in sorted([(at, False) for at in titles] + [(m.start(), True) for m in _CAPTION.finditer(text)]):
        if caption and not fresh:
            starts.append(at)
        fresh = not caption
    starts.sort()
    # What stands before the only run's caption (a cut title, the properties) is that run's.
    if len(starts) == 1:
        return [(titles.get(starts[0]), text)]
    return [(titles.get(start), text[start:end]) for start, end in pairwise([*starts, len(text)])]


def _run(text: str, test: str | None) -> dict[str, Any]:
    caption = _CAPTION.search(text)
    run: dict[str, Any] = {"test": test}
    for name, value in _PROPERTY.findall(text):
        run.setdefault(name.lower().replace(" ", "_").replace("-", "_"), value)
    end = _RULE.search(text, caption.end()) if caption else None
    rows, whole_rows = _rows(text[caption.end() : end.start() if end else None], caption) if caption else ([], False)
    run["rows"] = _one_way(rows, test)
    if rows:
        run |= rows[-1]
    run["complete"] = bool(rows) and whole_rows and end is not None
    run["loopback"] = _loopback(text)
    return run


def _loopback(text: str) -> bool | None:
    """Do both ends have one address, or one host? By GID where it is shown, else by an InfiniBand LID (never 0).

    None where the address of an end is not shown: then nobody knows where the bytes went.
    """
    if _TO_ITSELF.search(text):
        return True
    ends: dict[str, set[str]] = {}
    for side, rest, gid in _ADDRESS.findall(text):
        lid = re.search(r"LID (0x)?0*([1-9a-f][0-9a-f]*)", rest)
        ends.setdefault(side, set()).add(gid or (lid[2] if lid else ""))
    local, remote = (ends.get(side, set()) - {""} for side in ("local", "remote"))
    return bool(local & remote) if local and remote else None


def _reading(runs: list[dict[str, Any]], text: str) -> ToolReading:
    slowest = min(runs, key=lambda run: float(run.get("one_way_gbps", "inf")))
    figures: dict[str, Any] = dict(slowest)
    complete = all(run["complete"] for run in runs)
    figures.pop("complete")
    if len(runs) > 1:
        figures["runs"] = runs
    found = ((code, re.search(pattern, text)) for code, pattern in _ERRORS.items())
    code, error = next(((code, match[0][:120]) for code, match in found if match), (None, None))
    if error:
        figures["error"] = error
    loops = sorted({str(run.get("device")) for run in runs if run.get("loopback")})
    return ToolReading(
        kind=Kind.FABRIC,
        tool="perftest",
        figures=figures,
        complete=complete,
        healthy=False if code else None,
        cause=code,
        suspicious=f"both ends of the run are one port ({', '.join(loops)}): no wire was measured" if loops else None,
    )


def _one_way(rows: list[dict[str, Any]], test: object) -> list[dict[str, Any]]:
    """The rows with their average in Gb/s and one direction; a bidirectional run prints the sum of both.

    MiB/sec is exact. Without a unit, or with MB/sec, which versions mean differently, there is no such figure.
    """
    share = 0.5 if "bidir" in str(test).lower() else 1
    for row in rows:
        if "bw_average_gbps" in row:
            row["one_way_gbps"] = round(share * row["bw_average_gbps"], 3)
        elif "bw_average_mib_s" in row:
            row["one_way_gbps"] = round(share * row["bw_average_mib_s"] * (1 << 20) * 8 / 1e9, 3)
    return rows


def _rows(table: str, caption: re.Match[str]) -> tuple[list[dict[str, Any]], bool]:
    """(The rows below a caption, whether each line that begins like a row is one)."""
    names = [
        f"{re.sub(r'[^a-z0-9]+', '_', n.lower()).strip('_')}_{_UNITS.get(u, u)}" for n, u in _COLUMN.findall(caption[0])
    ]
    found, undamaged = [], True
    for line in table.splitlines():
        words = line.split()
        if not words or not words[0].isdigit():
            continue
        size, iterations, values = whole(words[0]), whole("".join(words[1:2])), [number(w) for w in words[2:]]
        if size is None or iterations is None or None in values or len(values) != len(names):
            undamaged = False
            continue
        row = dict(zip(names, values, strict=True))
        peak, mean = (next((v for n, v in row.items() if n.startswith(w)), None) for w in ("bw_peak", "bw_average"))
        if peak and mean and mean > _ROUNDED * peak:
            undamaged = False
            continue
        found.append({"msg_size_bytes": size, "iterations": iterations, **row})
    return found, undamaged


def _read_json(text: str) -> ToolReading:
    documents, valid = json_objects(text)
    runs = [_json_run(d) for d in documents if "test_info" in d or "results" in d]
    if not valid or not runs:
        figures: dict[str, Any] = {"format": "json", "valid_json": False}
        return ToolReading(kind=Kind.FABRIC, tool="perftest", figures=figures, complete=False)
    return _reading(runs, text)


def _json_run(document: Mapping[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = {"format": "json", "valid_json": True}
    info, results = document.get("test_info"), document.get("results")
    if isinstance(info, dict):
        run |= {k.lower(): v for k, v in info.items() if isinstance(v, str) or number(v) is not None}
    rows = [r for r in (results if isinstance(results, list) else [results]) if isinstance(r, dict)]
    unit = _json_unit(run)
    names = {
        "MsgSize": "msg_size_bytes",
        "n_iterations": "iterations",
        "MsgRate": "msgrate_mpps",
        "BW_peak": f"bw_peak_{unit}",
        "BW_average": f"bw_average_{unit}",
    }
    shown = [
        {name: value for key, name in names.items() if (value := number(row.get(key))) is not None} for row in rows
    ]
    both_ways = any(key.startswith("bidir") and str(value).upper() in {"ON", "1", "TRUE"} for key, value in run.items())
    run["rows"] = _one_way(shown, "bidirectional" if both_ways else run.get("test"))
    if run["rows"]:
        run |= run["rows"][-1]
    run["complete"] = bool(rows) and isinstance(info, dict)
    run["loopback"] = None  # the document has no addresses
    return run


def _json_unit(info: Mapping[str, Any]) -> str:
    """The JSON names its unit in some versions only; elsewhere the figure stays without one."""
    for value in info.values():
        if isinstance(value, str) and value in _UNITS:
            return _UNITS[value]
    return "as_printed"
