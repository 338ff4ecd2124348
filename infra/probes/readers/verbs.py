"""The verbs tools: ibv_devinfo, ibstat, iblinkinfo. A rate is Gb/s, an MTU bytes."""

from __future__ import annotations

import re
from typing import Any

from infra.model.reading import Kind, ToolReading, is_efa

_LINK = re.compile(
    r"==\(\s*(?:(?P<width>\d+X)\s+(?P<lane>[\d.]+) Gbps\s+)?(?P<state>\w+)/\s*(?P<physical>\w+)\)==>(?P<rest>.*)$", re.M
)


def read_ibv_devinfo(text: str) -> ToolReading | None:
    """Read ibv_devinfo, or None."""
    if re.search(r"No IB devices found", text):
        figures: dict[str, Any] = {"devices": []}
        return ToolReading(
            kind=Kind.FABRIC, tool="ibv_devinfo", figures=figures, complete=True, healthy=False, cause="no-ib-device"
        )
    if not re.search(r"^\s*hca_id:\s*\S+", text, re.M):
        return None
    devices = [_device(block) for block in re.split(r"(?m)^(?=\s*hca_id:)", text) if "hca_id:" in block]
    return _verbs_reading("ibv_devinfo", devices, {"active": "PORT_ACTIVE"})


def _device(block: str) -> dict[str, Any]:
    def word(name: str) -> str | None:
        match = re.search(rf"^\s*{name}:\s*(\S+)", block, re.M)
        return match[1] if match else None

    mtu, width, speed = word("active_mtu"), word("active_width"), re.search(r"active_speed:\s*([\d.]+) Gbps", block)
    name, layer = word("hca_id") or "", word("link_layer")
    lanes = re.fullmatch(r"(\d+)X", width or "")
    return {
        "device": name,
        "state": word("state"),
        "physical_state": word("phys_state"),
        "active_mtu_bytes": int(mtu) if mtu and mtu.isdigit() else None,
        "link_layer": layer,
        "rate_gbps": float(speed[1]) * int(lanes[1]) if speed and lanes else None,
        "firmware": word("fw_ver"),
        "efa": is_efa(name) or word("transport") == "unspecified",
    }


def read_ibstat(text: str) -> ToolReading | None:
    """Read ibstat, or None. An EFA device has no CA type and an unknown link layer, and is well."""
    if not re.search(r"^\s*CA '[^']+'", text, re.M):
        return None
    devices = []
    for block in re.split(r"(?m)^(?=\s*CA ')", text):
        name = re.match(r"\s*CA '([^']+)'", block)
        if not name:
            continue
        values = dict(re.findall(r"^\s*([A-Z][A-Za-z ]*?): *(\S*)[^\n]*$", block, re.M))
        rate, layer = values.get("Rate", ""), values.get("Link layer")
        devices.append(
            {
                "device": name[1],
                "state": values.get("State"),
                "physical_state": values.get("Physical state"),
                "rate_gbps": int(rate) if rate.isdigit() else None,
                "link_layer": layer,
                "firmware": values.get("Firmware version") or None,
                "efa": is_efa(name[1]) or (layer == "Unknown" and not values.get("CA type")),
            }
        )
    return _verbs_reading("ibstat", devices, {"active": "Active"})


def read_ibstatus(text: str) -> ToolReading | None:
    """Read ibstatus, or None."""
    if not re.search(r"^\s*Infiniband device '[^']+' port \d+ status:", text, re.M):
        return None
    devices = []
    for block in re.split(r"(?m)^(?=\s*Infiniband device ')", text):
        name = re.match(r"\s*Infiniband device '([^']+)'", block)
        if not name:
            continue
        values = dict(re.findall(r"^\s*([a-z_ ]+?):\s*(?:\d+: )?(\S+)", block, re.M))
        rate = values.get("rate", "")
        devices.append(
            {
                "device": name[1],
                "state": values.get("state"),
                "physical_state": values.get("phys state"),
                "rate_gbps": float(rate) if re.fullmatch(r"\d+(?:\.\d+)?", rate) else None,
                "link_layer": values.get("link_layer"),
                "efa": is_efa(name[1]),
            }
        )
    return _verbs_reading("ibstatus", devices, {"active": "ACTIVE"})


def read_rdma_link(text: str) -> ToolReading | None:
    """Read `rdma link`, or None. It names no link layer, so it is whole once each line has a state."""
    links = re.findall(r"^\s*link (\S+)/\d+ state (\w+) physical_state (\w+)", text, re.M)
    if not links:
        return None
    devices: list[dict[str, Any]] = [
        {"device": name, "state": state, "physical_state": physical, "efa": is_efa(name)}
        for name, state, physical in links
    ]
    return _verbs_reading("rdma-link", devices, {"active": "ACTIVE"}, layered=False)


def _verbs_reading(
    tool: str, devices: list[dict[str, Any]], words: dict[str, str], *, layered: bool = True
) -> ToolReading:
    whole = all(d["state"] and (d.get("link_layer") or not layered) for d in devices)
    down = [d["device"] for d in devices if d["state"] and d["state"] != words["active"]]
    figures: dict[str, Any] = {"devices": devices, "device_count": len({d["device"] for d in devices}), "down": down}
    if len(devices) == 1:
        figures |= devices[0]
    return ToolReading(
        kind=Kind.FABRIC,
        tool=tool,
        figures=figures,
        complete=whole,
        healthy=False if down else (True if whole and devices else None),
        cause="port-down" if down else None,
    )


def read_iblinkinfo(text: str) -> ToolReading | None:
    """Read iblinkinfo, or None. The switch's aggregation node is no host; unused switch ports are Down by nature."""
    if not _LINK.search(text) or not re.search(r"^\s*(?:CA|Switch)[: ]", text, re.M):
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
    lanes, widths = {float(m["lane"]) for m in links}, {m["width"] for m in links}
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
            "all_active": all(m["state"] == "Active" and m["physical"] == "LinkUp" for m in links) if links else None,
        },
        complete=None,
    )


def _host(name: str) -> str:
    """The host of an adapter's node description: "gpu-a HCA-1" or "gpu-a mlx5_0"; "" for a switch."""
    match = re.fullmatch(r"(\S+) (?:HCA-\d+|mlx\d_\w+|hfi1_\d+)", name.strip())
    return match[1] if match else ""
