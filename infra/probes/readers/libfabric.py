"""libfabric's tools and log: fi_info, fi_pingpong, and lines that begin with `libfabric:`."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import number
from infra.probes.readers.figures import whole as whole_number

_PROVIDER = re.compile(r"^[^\S\n]*provider:\s*(\S+)", re.M)
_FIELD = re.compile(r"^[^\S\n]*(fabric|domain|version|type|protocol):\s*(\S+)", re.M)
_GETINFO = re.compile(r"fi_getinfo\S*:?\s*(?:provider \S+ returned )?(-\d+)(?:\s*\(([^)]*)\))?")
_MISSING = re.compile(r"fi_(?:info|pingpong): (?:command )?not found|executable file not found in \$PATH.*fi_info")
# fi_pingpong counts what was sent and acknowledged; the programs of fabtests count iterations.
_PINGPONG = re.compile(
    r"^[^\S\n]*(?P<name>name\s+)?bytes\s+(?P<counted>#sent\s+#ack|iters)\s+total\s+time\s+MB/sec\s+usec/xfer", re.M
)
_PINGPONG_PROVIDER = re.compile(
    r"(?:\bprov_name:\s*|\bfi_\w+\b.*?\s-p\s*|\bprovider\s*[:=]\s*|FI_PROVIDER=)[\"']?([\w;]+)"
    r"(?![\w;]|\s*\n\s*fabric:)"  # of a list that fi_info printed
)
# The two ways in which both report a call that failed.
_FAILED = re.compile(
    r"^\[error\] (?:fabtests:\S*|\S*pingpong\.c:)\d+\s*: .+$|^\w+\(\): \S+\.c:\d+\s*, ret=-?\d+ \([^)\n]*\)", re.M
)
_NOT_RDMA = {"tcp", "sockets", "udp", "shm", "sm2", "net", "tcp;ofi_rxm", "udp;ofi_rxd"}
_RELIABLE = "FI_EP_RDM"
_BY_ADDRESS = "EFA-"  # libfabric before 1.16 gives each device a fabric of its own, named by its address
_UNIT = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_fi_info(text: str) -> ToolReading | None:
    """Read fi_info, or None. libfabric 2 lists a device under two fabrics: only distinct domains are devices."""
    text = _FAILED.sub("", text)  # of the same library, and another tool
    missing = _MISSING.search(text)
    error = _GETINFO.search(text)
    blocks = re.split(r"(?m)^(?=\s*provider:)", text)
    shown = [_entry(block) for block in blocks if _PROVIDER.search(block)]
    entries = [entry for entry in shown if "domain" in entry]
    if missing and not entries:
        return ToolReading(kind=Kind.FABRIC, tool="fi_info", figures={"efa_device_found": None}, cause="tool-missing")
    if not entries and not (error and not text.lstrip().startswith("libfabric:") and "<warn>" not in text):
        return None
    providers = sorted({e["provider"] for e in entries})
    of_efa = [e for e in entries if e["provider"] == "efa"]
    # A device has a domain for each type of endpoint (rdmap86s0-rdm, rdmap86s0-dgrm): the reliable one counts it.
    efa = sorted({e["domain"] for e in of_efa if e.get("type") == _RELIABLE})
    whole = error is None and missing is None and all({"fabric", "domain", "type", "protocol"} <= set(e) for e in shown)
    # What EFA's provider lists runs over EFA: with another fabric or protocol beside it, a line is of another entry.
    whole = whole and all(
        e["fabric"].lower().startswith("efa") and e["protocol"].startswith("FI_PROTO_EFA")
        for e in of_efa
        if whole and e["type"] == _RELIABLE
    )
    # Fields in front of the first provider are of a list whose beginning is gone.
    whole = whole and (bool(_PROVIDER.search(blocks[0])) or not _FIELD.search(blocks[0]))
    # Each device stands under every fabric of its provider; a name that does not is a damaged one.
    by_fabric: dict[str, set[str]] = {}
    for entry in of_efa:
        if entry.get("type") == _RELIABLE:
            fabric = entry.get("fabric", "")
            by_fabric.setdefault(_BY_ADDRESS if fabric.startswith(_BY_ADDRESS) else fabric, set()).add(entry["domain"])
    whole = whole and all(domains == set(efa) for domains in by_fabric.values())
    addressed = {(e["fabric"], e["domain"]) for e in of_efa if e.get("fabric", "").startswith(_BY_ADDRESS) and whole}
    addressed = {pair for pair in addressed if pair[1] in efa}
    whole = whole and len(addressed) == len({fabric for fabric, _ in addressed}) == len({d for _, d in addressed})
    # One list names nothing twice: two are two hosts', or one host's at two times.
    seen = Counter(tuple(sorted(e.items())) for e in of_efa)
    twice = sorted({dict(entry)["domain"] for entry, times in seen.items() if times > 1})
    whole = whole and not twice
    figures: dict[str, Any] = {
        "providers": providers,
        "provider": providers[0] if len(providers) == 1 else None,
        "domains": sorted({e["domain"] for e in entries}),
        "fabrics": sorted({e["fabric"] for e in entries if "fabric" in e}),
        "types": sorted({e["type"] for e in entries if "type" in e}),
        "protocols": sorted({e["protocol"] for e in entries if "protocol" in e}),
        "efa_domains": len(efa),
        "efa_device_found": bool(of_efa) if entries else (False if error else None),
        "seen_twice": twice,
        "error": whole_number(error[1]) if error else None,
    }
    return ToolReading(
        kind=Kind.FABRIC,
        tool="fi_info",
        figures=figures,
        complete=whole and bool(entries),
        healthy=False if error and not entries else None,
        cause="no-matching-provider" if error and not entries else None,
    )


def _entry(block: str) -> dict[str, str]:
    provider = _PROVIDER.search(block)
    found = {"provider": provider[1]} if provider else {}
    for name, value in _FIELD.findall(block):
        found.setdefault(name, value)
    return found


def read_fi_pingpong(text: str) -> ToolReading | None:
    """Read the table of fi_pingpong or of a program of fabtests, or None.

    Over tcp or shm it proves a path, never RDMA.
    """
    caption, error = _PINGPONG.search(text), _FAILED.search(text)
    if not caption and not error:
        return None
    of_fabtests = caption["counted"] == "iters" if caption else "pingpong.c" not in error[0] if error else False
    rows = (
        _transfers(text[caption.end() :], rate=4 if of_fabtests else 5, named=bool(caption["name"])) if caption else []
    )
    names = [match[1] for match in _PINGPONG_PROVIDER.finditer(text)]
    # What libfabric gave goes before what was asked for: `-p tcp` becomes tcp;ofi_rxm.
    name = max(names, key=len) if names else None
    rdma = None if name is None else (False if name in _NOT_RDMA else name in {"efa", "verbs", "cxi", "opx"} or None)
    cause = "not-rdma" if rdma is False else (None if rows else "no-transfer")
    if error and "fi_getinfo" in error[0]:
        cause = "no-matching-provider"
    elif error and rows:
        cause = "transfer-failed"
    return ToolReading(
        kind=Kind.FABRIC,
        tool="fabtests" if of_fabtests else "fi_pingpong",
        figures={
            "provider": name,
            "rdma": rdma,
            "rows": rows,
            "peak_mb_s": max((r["mb_s"] for r in rows), default=None),
            "error": error[0][:120] if error else None,
        },
        complete=None,
        healthy=False if cause else None,
        cause=cause,
    )


def _transfers(table: str, *, rate: int, named: bool) -> list[dict[str, Any]]:
    """The rows of the table, whose column `rate` behind a test's name is MB/s; a size may be 1.5m."""
    rows = []
    for line in table.splitlines():
        words = line.split()[named:]
        size = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)", words[0]) if words else None
        if len(words) < rate + 2 or not size:
            continue
        base, speed, time = number(size[1]), number(words[rate]), number(words[rate + 1])
        if base is None or speed is None or time is None:
            continue
        rows.append({"size_bytes": int(base * _UNIT[size[2]]), "mb_s": float(speed), "usec_per_transfer": float(time)})
    return rows


def read_libfabric_log(text: str) -> ToolReading | None:
    """Read libfabric's own log, or None. An error at the end of one query does not mean that no device exists."""
    lines = [line for line in text.splitlines() if "libfabric:" in line]
    if not lines:
        return None
    joined = "\n".join(lines)
    error = _GETINFO.search(joined)
    capabilities = "Unsupported capabilities" in joined
    found = bool(re.search(r"found match for interface .*EFA|efa_device|EFA-fe80", joined))
    empty = "provider efa output empty list" in joined
    cause = None
    if "FI_HMEM capability requires RDMA" in joined:
        cause = "efa-without-rdma"
    elif capabilities:
        cause = "capabilities-not-supported"
    elif "Unsupported endpoint type" in joined:
        cause = "endpoint-type-not-supported"
    elif empty:
        cause = "empty-provider-list"
    return ToolReading(
        kind=Kind.FABRIC,
        tool="libfabric-log",
        figures={
            "efa_device_found": True if found else (False if empty else None),
            "error": whole_number(error[1]) if error else None,
            "supported": _capabilities(joined, "Supported", after="Unsupported capabilities"),
            "requested": _capabilities(joined, "Requested", after="Unsupported capabilities"),
        },
        cause=cause,
    )


def _capabilities(text: str, word: str, *, after: str) -> list[str] | None:
    start = text.find(after)
    match = re.search(rf"{word}: (FI_[A-Z_]+(?:, FI_[A-Z_]+)*)", text[start:] if start >= 0 else "")
    return match[1].split(", ") if match else None
