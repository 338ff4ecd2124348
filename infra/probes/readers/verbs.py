"""The verbs tools: ibv_devinfo, ibstat, ibstatus, rdma link, ibdev2netdev. An entry a port; rates Gb/s, MTU bytes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from infra.model.reading import Kind, ToolReading, is_efa, is_software
from infra.probes.readers.figures import number

# also where the kernel's modules, or /dev/infiniband, are missing
_NO_DEVICES = re.compile(r"No IB devices found|Failed to get IB devices list")


def read_ibv_devinfo(text: str) -> ToolReading | None:
    """Read ibv_devinfo, or None."""
    if not re.search(r"^[^\S\n]*hca_id:\s*\S+", text, re.M):
        if not _NO_DEVICES.search(text):
            return None
        return ToolReading(
            kind=Kind.FABRIC,
            tool="ibv_devinfo",
            figures={"devices": []},
            complete=True,
            healthy=False,
            cause="no-ib-device",
        )
    ports: list[dict[str, Any]] = []
    # beside devices it is another host's answer
    whole = not _NO_DEVICES.search(text) and _one_list(text, "hca_id:")
    for block in re.split(r"(?m)^(?=\s*hca_id:)", text):
        if "hca_id:" not in block:
            continue
        head, *parts = re.split(r"(?m)^[^\S\n]*port:\s*(\d+)", block)
        shown = list(zip(parts[::2], parts[1::2], strict=True)) or [("1", head)]
        whole = whole and str(len(shown)) == (_word(head, "phys_port_cnt") or str(len(shown)))
        for port, lines in shown:
            speed, width = _word(lines, "active_speed"), re.match(r"(\d{1,3})X", _word(lines, "active_width") or "")
            lane, name = number(speed), _word(head, "hca_id") or ""
            whole = whole and (speed is None or lane is not None)
            ports.append(
                {
                    "device": name,
                    "port": port,
                    "state": _word(lines, "state"),
                    "physical_state": _word(lines, "phys_state"),
                    "active_mtu_bytes": number(_word(lines, "active_mtu")),
                    "link_layer": _word(lines, "link_layer"),
                    "rate_gbps": float(lane) * int(width[1]) if lane is not None and width else None,
                    "firmware": _word(head, "fw_ver"),
                    "efa": is_efa(name) or _word(head, "transport") == "unspecified",
                }
            )
    # With -v all ports have a rate, without it none.
    verbose = re.search(r"^[^\S\n]*active_(?:width|speed):", text, re.M) is not None
    whole = whole and (not verbose or all(port["rate_gbps"] is not None for port in ports))
    return _verbs_reading("ibv_devinfo", ports, active="PORT_ACTIVE", whole=whole)


def _word(block: str, name: str) -> str | None:
    match = re.search(rf"^[^\S\n]*{name}:\s*(\S+)", block, re.M)
    return match[1] if match else None


def read_ibstat(text: str) -> ToolReading | None:
    """Read ibstat, or None. An EFA device has no CA type and an unknown link layer, and is well."""
    if not re.search(r"^[^\S\n]*CA '[^']+'", text, re.M):
        return None
    ports: list[dict[str, Any]] = []
    whole = _one_list(text, r"CA '")
    for block in re.split(r"(?m)^(?=\s*CA ')", text):
        name = re.match(r"\s*CA '([^']+)'", block)
        if not name:
            continue
        head, *parts = re.split(r"(?m)^[^\S\n]*Port (\d+):", block)
        of_device = _pairs(head)
        shown = list(zip(parts[::2], parts[1::2], strict=True)) or [("1", head)]
        whole = whole and of_device.get("Number of ports", str(len(shown))) == str(len(shown))
        for port, lines in shown:
            values = _pairs(lines)
            layer, rate = values.get("Link layer"), number(values.get("Rate"))
            whole = whole and rate is not None and "Physical state" in values
            ports.append(
                {
                    "device": name[1],
                    "port": port,
                    "state": values.get("State"),
                    "physical_state": values.get("Physical state"),
                    "rate_gbps": rate,
                    "link_layer": layer,
                    "firmware": of_device.get("Firmware version") or None,
                    "efa": is_efa(name[1]) or (layer == "Unknown" and not of_device.get("CA type")),
                }
            )
    return _verbs_reading("ibstat", ports, active="Active", whole=whole)


def _one_list(text: str, entry: str) -> bool:
    """Is every line that is not indented an entry of the list, from the first one on?

    A host's name between them begins another host's list; the tool's own complaint (ibpanic:) ends it early.
    """
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if re.match(rf"\s*{entry}", line)]
    depth = min((len(lines[n]) - len(lines[n].lstrip()) for n in starts), default=0)
    inside = [line for line in lines[starts[0] :] if line.strip()] if starts else []
    return all(re.match(rf"\s*{entry}", line) or len(line) - len(line.lstrip()) > depth for line in inside)


_LANE_GBPS = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}


def _trained_rate(block: str) -> float | None:
    """`rate: 400 Gb/sec (4X NDR)` in Gb/s; None where rate and lanes disagree, or the unit is another."""
    match = re.search(
        r"^[^\S\n]*rate:\s*(\S+) Gb/sec[^\S\n]*(?:\((\d{1,3})X(?: ([A-Z0-9]+))?\))?[^\S\n]*$", block, re.M
    )
    rate = number(match[1]) if match else None
    if match is None or rate is None:
        return None
    lane = _LANE_GBPS.get(match[3] or "")
    return rate if lane is None or abs(rate - lane * int(match[2])) <= 0.05 * rate else None


def _pairs(block: str) -> dict[str, str]:
    return dict(re.findall(r"^[^\S\n]*([A-Z][A-Za-z ]*?): *(\S*)[^\n]*$", block, re.M))


def read_ibstatus(text: str) -> ToolReading | None:
    """Read ibstatus, or None."""
    if not re.search(r"^[^\S\n]*Infiniband device '[^']+' port \d+ status:", text, re.M):
        return None
    ports: list[dict[str, Any]] = []
    whole = _one_list(text, r"Infiniband device '")
    for block in re.split(r"(?m)^(?=\s*Infiniband device ')", text):
        name = re.match(r"\s*Infiniband device '([^']+)' port (\d+)", block)
        if not name:
            continue
        values = dict(re.findall(r"^[^\S\n]*([a-z_ ]+?):\s*(?:\d+: )?(\S+)", block, re.M))
        rate = _trained_rate(block)
        whole = whole and rate is not None and "phys state" in values
        ports.append(
            {
                "device": name[1],
                "port": name[2],
                "state": values.get("state"),
                "physical_state": values.get("phys state"),
                "rate_gbps": rate,
                "link_layer": values.get("link_layer"),
                "efa": is_efa(name[1]),
            }
        )
    return _verbs_reading("ibstatus", ports, active="ACTIVE", whole=whole)


_NETDEV = re.compile(
    r"^[^\S\n]*(?:[0-9a-f]{4}:[0-9a-f:.]+ +)?(?P<device>[\w.\-]+) +(?:\([^)\n]*\)[^\n]*? )?port +(?P<port>\d+)"
    r"(?: +\((?P<state>\w+)\s*\))? +==> +(?P<netdev>[\w.\-]+) +\((?P<net>Up|Down)\)",
    re.M,
)


# iproute2 before 4.20 numbers its lines; an InfiniBand port tells its subnet first.
_LINK_HEAD = r"(?:link |\d+/\d+: )"
_LINK = re.compile(rf"^[^\S\n]*{_LINK_HEAD}(\S+)/(\d+):? (?:[^\n]*? )?state (\w+) physical_state (\w+)", re.M)


def read_rdma_link(text: str) -> ToolReading | None:
    """Read `rdma link`, or None. It names no link layer, so it is whole once each line has a state."""
    links = _LINK.findall(text)
    if not links:
        return None
    ports: list[dict[str, Any]] = [
        {"device": name, "port": port, "state": state, "physical_state": physical, "efa": is_efa(name)}
        for name, port, state, physical in links
    ]
    whole = _one_list(text, _LINK_HEAD) and len(links) == len(re.findall(rf"^[^\S\n]*{_LINK_HEAD}", text, re.M))
    return _verbs_reading("rdma-link", ports, active="ACTIVE", whole=whole, layered=False)


def read_ibdev2netdev(text: str) -> ToolReading | None:
    """Read ibdev2netdev (also -v), or None.

    It shows the network interface's state. A RoCE port is down with it; on InfiniBand that is IPoIB's, which RDMA does
    not need, and only -v shows the port's own.
    """
    links = list(_NETDEV.finditer(text))
    if not links:
        return None
    ports: list[dict[str, Any]] = []
    for link in links:
        ethernet = "ACTIVE" if link["net"] == "Up" else "DOWN"
        ports.append(
            {
                "device": link["device"],
                "port": link["port"],
                "state": link["state"] or (None if link["netdev"].startswith("ib") else ethernet),
                "netdev": link["netdev"],
                "netdev_state": link["net"],
                "efa": is_efa(link["device"]),
            }
        )
    whole = _one_list(text, r"\S.*==>") and len(links) == text.count("==>")
    reading = _verbs_reading("ibdev2netdev", ports, active="ACTIVE", whole=whole, layered=False)
    return reading if all(p["state"] for p in ports) else replace(reading, complete=whole)


def _verbs_reading(
    tool: str, ports: list[dict[str, Any]], *, active: str, whole: bool, layered: bool = True
) -> ToolReading:
    """`down` names what is not active, or has no link beneath, by its port where the device has several."""
    seen = Counter((p["device"], p["port"]) for p in ports)
    many = Counter(device for device, _ in seen)
    twice = sorted({device for (device, _), times in seen.items() if times > 1})
    whole = whole and not twice and all(p["state"] and (p.get("link_layer") or not layered) for p in ports)
    down: dict[str, str] = {}
    for port in ports:
        below = (port.get("physical_state") or "LinkUp").replace("_", "").lower()
        if (port["state"] and port["state"] != active) or below != "linkup":
            name = f"{port['device']} port {port['port']}" if many[port["device"]] > 1 else port["device"]
            physically = f"physically {port.get('physical_state')}"
            said = port["state"]
            down[name] = f"{said}, {physically}" if said == active else said or physically
    figures: dict[str, Any] = {
        "devices": ports,
        "device_count": len(many),
        "down": list(down),
        "down_states": sorted(set(down.values())),
        "seen_twice": twice,
        "software": sorted(device for device in many if is_software(device)),
    }
    if len(ports) == 1:
        figures |= ports[0]
    hardware = len(figures["software"]) < len(many)
    return ToolReading(
        kind=Kind.FABRIC,
        tool=tool,
        figures=figures,
        complete=whole,
        healthy=False if down else (True if whole and hardware else None),
        cause="port-down" if down else None,
    )
