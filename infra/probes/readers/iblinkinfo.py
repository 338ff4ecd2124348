"""iblinkinfo: the links of an InfiniBand fabric, seen from one node. A rate is Gb/s."""

from __future__ import annotations

import re

from infra.model.reading import Kind, ToolReading
from infra.probes.readers.figures import number

_LINK = re.compile(
    r"==\(\s*(?:(?P<width>\d{1,3}X)\s+(?P<lane>[\d.]+) Gbps\s+)?(?P<state>\w+)/\s*(?P<physical>\w+)\)==>(?P<rest>.*)$",
    re.M,
)
_WELL = ("Active", "LinkUp")


def read_iblinkinfo(text: str) -> ToolReading | None:
    """Read iblinkinfo, or None. The switch's aggregation node is no host; unused switch ports are Down by nature."""
    if not _LINK.search(text) or not re.search(r"^[^\S\n]*(?:CA|Switch)[: ]", text, re.M):
        return None
    hosts: dict[str, None] = {}
    links: list[re.Match[str]] = []
    down = 0
    owner = ""
    for line in text.splitlines():
        head = re.match(r"\s*(CA|Switch):?\s+(.*?):?\s*$", line)
        if head and not _LINK.search(line):
            owner = head[2] if head[1] == "CA" else ""
            name = _host(owner)
            if name:
                hosts[name] = None
            continue
        link = _LINK.search(line)
        if not link:
            continue
        peer = re.search(r'"([^"]+)"', link["rest"])
        internal = "Aggregation Node" in owner or (peer is not None and "Aggregation Node" in peer[1])
        if peer and not internal and (name := _host(peer[1])):
            hosts[name] = None
        if link["width"] and not internal:
            links.append(link)
        elif not link["width"]:
            down += 1
    broken = [m[0].strip() for m in links if (m["state"], m["physical"]) != _WELL or "Could be" in m["rest"]]
    rates, widths = [number(m["lane"]) for m in links], {m["width"] for m in links}
    lanes = {float(rate) for rate in rates if rate is not None}
    lane, width = (next(iter(lanes)) if len(lanes) == 1 else None), (next(iter(widths)) if len(widths) == 1 else None)
    return ToolReading(
        kind=Kind.FABRIC,
        tool="iblinkinfo",
        figures={
            "hosts": list(hosts),
            "lane_gbps": lane,
            "width": width,
            "link_gbps": lane * int(width[:-1]) if lane and width else None,
            "lanes_gbps": sorted(lanes),
            "links": len(links),
            "down_ports": down,
            "error": broken[0][:120] if broken else None,
            "all_active": all(m["state"] == "Active" and m["physical"] == "LinkUp" for m in links) if links else None,
        },
        complete=False if None in rates else None,
        healthy=False if broken else None,
        cause="link-below-its-best" if broken else None,
    )


def _host(name: str) -> str:
    """The host of an adapter's node description: "gpu-a HCA-1" or "gpu-a mlx5_0"; "" for a switch."""
    match = re.fullmatch(r"(\S+) (?:HCA-\d+|mlx\d_\w+|hfi1_\d+)", name.strip())
    return match[1] if match else ""
