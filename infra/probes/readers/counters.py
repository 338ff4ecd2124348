"""Byte counters: `rdma statistic`, files of /sys/class/infiniband printed with their path, `ethtool -S`, and LNet's.

mlx5's port_xmit_data and port_rcv_data count words of four bytes. Two snapshots in one text give a difference.
"""

from __future__ import annotations

import re
from typing import Any

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import whole

# One line, or with -p a line per counter; what a terminal wrapped goes on in the next line too.
_STATISTIC = re.compile(
    r"^link (?P<device>[\w.\-]+)/(?P<port>\d+)(?P<pairs>(?:(?:[ \t]+|[ \t]*\n[ \t]*)[a-z]\w*(?:[ \t]+|\n)\d\S*)+)", re.M
)
_FILE = re.compile(
    r"infiniband/(?P<device>[\w.\-]+)/ports/(?P<port>\d+)/(?:hw_)?counters/(?P<name>\w+)[:=\s]\s*(?P<value>\d+)\s*$",
    re.M,
)
_DUMP = re.compile(r"^[^\S\n]*(?P<name>[a-z][a-z0-9_]+)\s*[:=]\s*(?P<value>\d+)\s*$", re.M)
# Names that only RDMA devices have: an Ethernet interface counts tx_bytes and rx_bytes too.
_OF_RDMA = {"rdma_read_bytes", "rdma_write_bytes", "port_xmit_data", "port_rcv_data", "tx_pkts", "rx_pkts"}
_NET = re.compile(r"^[^\S\n]*-?\s*net type:\s*(\S+)", re.M)
_WORDS = {"port_xmit_data": "tx_bytes", "port_rcv_data": "rx_bytes"}
_TROUBLE = (
    "rx_drops",
    "retrans_pkts",
    "retrans_bytes",
    "retrans_timeout_events",
    "out_of_sequence",
    "rnr_nak_retry_err",
)


_STATISTICS = re.compile(r"^[^\S\n]*(?P<name>[a-z]\w*):[^\S\n]*(?P<value>\d+)[^\S\n]*$", re.M)
_NIC_TROUBLE = (
    "rx_discards_phy",
    "tx_discards_phy",
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "link_down_events_phy",
    "rx_out_of_buffer",
    "roce_slow_restart",
)


def read_counters(text: str) -> ToolReading | None:
    """Read counters of RDMA devices, or None."""
    snapshots: dict[str, list[dict[str, int]]] = {}
    beyond = _beyond(text)
    for match in _STATISTIC.finditer(text):
        words = match["pairs"].split()
        pairs = {n: c for n, v in zip(words[::2], words[1::2], strict=False) if (c := whole(v)) is not None}
        snapshots.setdefault(match["device"], []).append(pairs)
    for match in _FILE.finditer(text):
        count = whole(match["value"])
        if count is None:
            continue
        of_device = snapshots.setdefault(match["device"], [{}])
        if match["name"] in of_device[-1]:
            of_device.append({})
        of_device[-1][match["name"]] = count
    if not snapshots:
        snapshots = _dumped(text)
    if not snapshots:
        return None
    devices = {name: _as_bytes(found[-1]) for name, found in snapshots.items()}
    figures: dict[str, Any] = {"devices": devices}
    for name in ("tx_bytes", "rx_bytes", "rdma_read_bytes", "rdma_write_bytes"):
        values = [d[name] for d in devices.values() if name in d]
        if values:
            figures[name] = sum(values)
    deltas = {name: _moved(found[0], found[-1]) for name, found in snapshots.items() if len(found) > 1}
    if deltas:
        figures["moved"] = deltas
        totals = [sum(d.get(n, 0) for n in ("tx_bytes", "rx_bytes")) for d in deltas.values()]
        back = sorted(f"{device}.{n}" for device, d in deltas.items() for n, moved in d.items() if moved < 0)
        if back:
            figures["went_back"] = back  # a reset or another device: the differences say nothing
        else:
            figures["moved_bytes"] = sum(totals)
    trouble = {f"{d}.{n}": v[n] for d, v in devices.items() for n in _TROUBLE if v.get(n)}
    figures["errors"] = trouble
    if beyond:
        figures["out_of_range"] = beyond
    return ToolReading(kind=Kind.FABRIC, tool="counters", figures=figures, complete=None)


def _beyond(text: str) -> list[str]:
    """Names of figures that no counter of 64 bits can show. They are left out of all sums, and said to be."""
    names = [m["name"] for pattern in (_FILE, _DUMP) for m in pattern.finditer(text) if whole(m["value"]) is None]
    for match in _STATISTIC.finditer(text):
        words = match["pairs"].split()
        names += [n for n, v in zip(words[::2], words[1::2], strict=False) if v.isdigit() and whole(v) is None]
    return sorted(set(names))


def _dumped(text: str) -> dict[str, list[dict[str, int]]]:
    """The files of one hw_counters folder as `name: value`; a second list is another device or another time."""
    lists: list[dict[str, int]] = [{}]
    for match in _DUMP.finditer(text):
        count = whole(match["value"])
        if count is None:
            continue
        if match["name"] in lists[-1]:
            lists.append({})
        lists[-1][match["name"]] = count
    lists = [found for found in lists if len(_OF_RDMA & set(found)) >= 2]
    return {f"list {number}": [found] for number, found in enumerate(lists, 1)}


def _as_bytes(counters: dict[str, int]) -> dict[str, int]:
    return counters | {target: counters[words] * 4 for words, target in _WORDS.items() if words in counters}


def _moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    first, last = _as_bytes(before), _as_bytes(after)
    return {name: last[name] - first[name] for name in last if name in first}


def read_ethtool(text: str) -> ToolReading | None:
    """Read `ethtool -S` of an RDMA NIC (mlx5), or None: bytes by RDMA beside those of the kernel's own traffic.

    A second list is another interface or another time, which it does not say: nothing is added up or subtracted.
    """
    starts = [m.end() for m in re.finditer(r"^[^\S\n]*NIC statistics:[^\S\n]*$", text, re.M)]
    if not starts or "_vport_rdma_" not in text:
        return None  # an interface of no RDMA NIC
    lists = [
        {m["name"]: n for m in _STATISTICS.finditer(text[begin:end]) if (n := whole(m["value"])) is not None}
        for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)
    ]
    figures: dict[str, Any] = {"lists": len(lists)}
    if len(lists) == 1:
        shown = lists[0]
        for way in ("tx", "rx"):
            by_rdma = [n for name, n in shown.items() if re.fullmatch(rf"{way}_vport_rdma_\w+_bytes", name)]
            figures |= {f"{way}_rdma_bytes": sum(by_rdma)} if by_rdma else {}
            figures |= {f"{way}_{key}": shown[name] for key, name in (
                ("wire_bytes", f"{way}_bytes_phy"), ("kernel_bytes", f"{way}_bytes")) if name in shown}  # fmt: skip
        figures["errors"] = {name: shown[name] for name in _NIC_TROUBLE if shown.get(name)}
    return ToolReading(kind=Kind.FABRIC, tool="ethtool", figures=figures, complete=None)


def read_lnet(text: str) -> ToolReading | None:
    """Read `lnetctl net show -v`, or None: messages by network, so that efa and tcp can be compared."""
    marks = list(_NET.finditer(text))
    if not marks or "nid:" not in text:
        return None
    nets: dict[str, dict[str, int]] = {}
    beyond: set[str] = set()
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(text)
        found = nets.setdefault(mark[1], {})
        for name, value in re.findall(
            r"^[^\S\n]*(send_count|recv_count|drop_count):\s*(\d+)\s*$", text[mark.start() : end], re.M
        ):
            if (count := whole(value)) is not None:
                found[name] = found.get(name, 0) + count
            else:
                beyond.add(f"{mark[1]} {name}")
    figures: dict[str, Any] = {"nets": nets} | ({"out_of_range": sorted(beyond)} if beyond else {})
    down = re.findall(r"^[^\S\n]*-?\s*nid:\s*(\S+)\n[^\S\n]*status:\s*down\b", text, re.M)
    if not down:
        return ToolReading(kind=Kind.FABRIC, tool="lnetctl", figures=figures, complete=None)
    figures["down"] = down
    return ToolReading(kind=Kind.FABRIC, tool="lnetctl", figures=figures, healthy=False, cause="net-down")
