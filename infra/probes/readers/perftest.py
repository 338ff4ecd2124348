"""perftest (ib_write_bw, ib_read_bw, ib_send_bw and their latency tests): text in any unit, and JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from infra.model.reading import Kind, ToolReading

_CAPTION = re.compile(r"^\s*#bytes\s+#?iterations\s+.*$", re.M)
_COLUMN = re.compile(
    r"(BW peak|BW average|MsgRate|t_min|t_max|t_typical|t_avg|t_stdev|99(?:\.9)?% percentile)\[([^\]]+)\]"
)
_UNITS = {"Gb/sec": "gbps", "MiB/sec": "mib_s", "MB/sec": "mb_s", "Mpps": "mpps", "usec": "us", "cycles": "cycles"}
_PROPERTY = re.compile(r"\b(Device|Link type|Transport type|Connection type|Mtu|GID index|Number of qps)\s*:\s*(\S+)")
_TITLE = re.compile(r"^\s*((?:RDMA_\w+|Send|Atomic\w*) (?:Post List )?(?:BW|Bidirectional BW|Latency) Test)\s*$", re.M)
_ERROR = re.compile(
    r"Completion with error.*|Failed status \d+.*|Unable to init the socket connection.*|Couldn't connect to .*|"
    r"Unable to find the Infiniband/RoCE device.*|IB device \S+ not found.*|"
    r"Couldn't allocate MR.*|Failed to modify QP.*"
)


def read_perftest(text: str) -> ToolReading | None:
    """Read a perftest run, or None."""
    if '"test_info"' in text and '"results"' in text:
        return _read_json(text)
    caption = None
    for caption in _CAPTION.finditer(text):  # noqa: B007 - the last table counts
        pass
    title = _TITLE.search(text)
    if caption is None and title is None:
        return None
    figures: dict[str, Any] = {"test": title[1] if title else None}
    for name, value in _PROPERTY.findall(text):
        figures.setdefault(name.lower().replace(" ", "_"), value)
    rows = _rows(text, caption) if caption else []
    figures["rows"] = rows
    if rows:
        figures |= rows[-1]
    error = _ERROR.search(text)
    return ToolReading(
        kind=Kind.FABRIC,
        tool="perftest",
        figures=figures,
        complete=bool(rows) and bool(re.search(r"^\s*-{20,}\s*$", text[caption.end() :] if caption else "", re.M)),
        healthy=False if error else None,
        cause=error[0][:120] if error else None,
    )


def _rows(text: str, caption: re.Match[str]) -> list[dict[str, Any]]:
    names = [
        f"{re.sub(r'[^a-z0-9]+', '_', n.lower()).strip('_')}_{_UNITS.get(u, u)}" for n, u in _COLUMN.findall(caption[0])
    ]
    found = []
    for line in text[caption.end() :].splitlines():
        words = line.split()
        if len(words) != len(names) + 2 or not all(re.fullmatch(r"-?[\d.]+", w) for w in words):
            continue
        try:
            figures = [float(w) for w in words[2:]]
            found.append(
                {
                    "msg_size_bytes": int(words[0]),
                    "iterations": int(words[1]),
                    **dict(zip(names, figures, strict=True)),
                }
            )
        except ValueError:
            continue
    return found


def _read_json(text: str) -> ToolReading:
    figures: dict[str, Any] = {"format": "json", "valid_json": True}
    try:
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
        info, results = document["test_info"], document["results"]
    except (ValueError, KeyError, TypeError):
        figures["valid_json"] = False
        return ToolReading(kind=Kind.FABRIC, tool="perftest", figures=figures, complete=False)
    if isinstance(info, dict):
        figures |= {k.lower(): v for k, v in info.items() if isinstance(v, str | int | float)}
    results = results[-1] if isinstance(results, list) and results else results
    unit = _json_unit(figures)
    for key, name in (("MsgSize", "msg_size_bytes"), ("n_iterations", "iterations"), ("MsgRate", "msgrate_mpps")):
        if isinstance(results, dict) and isinstance(results.get(key), int | float):
            figures[name] = results[key]
    for key, name in (("BW_peak", "bw_peak"), ("BW_average", "bw_average")):
        if isinstance(results, dict) and isinstance(results.get(key), int | float):
            figures[f"{name}_{unit}"] = results[key]
    return ToolReading(kind=Kind.FABRIC, tool="perftest", figures=figures, complete=isinstance(results, dict))


def _json_unit(info: dict[str, Any]) -> str:
    """The JSON names its unit in some versions only; elsewhere the figure stays without one."""
    for value in info.values():
        if isinstance(value, str) and value in _UNITS:
            return _UNITS[value]
    return "as_printed"
