"""What a small tool's reading amounts to, alone and against what the machine type should show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.fabrics.fabric import Fabric
from infra.model.reading import Kind, ToolReading, is_efa
from infra.model.verdict import Finding, Level
from tasks.rules.device_checks import EFA_FIXED_GBPS, RATE_SHARE
from tasks.rules.machine import contradiction, partly_of_another, seen_in_devices
from tasks.rules.reading_verdict import Answer
from tasks.rules.tool_words import OBSERVED, QUOTED, REMEDIES, instead
from tasks.rules.wording import and_more

_DEVICE_LISTS = {"ibstat", "ibstatus", "ibv_devinfo", "rdma-link", "ibdev2netdev"}
_NO_NIC = re.compile(r"bond|^(?:rxe|siw|eth|lo\b)")
NIC_SHARE = 0.9  # of a port's rate; public health checks ask 360-380 of 400 Gb/s and 90 of 100 on EFA
RATED_ITERATIONS = 100  # fewer show the start of a run, not its rate
RATED_BYTES = 64 << 10  # a smaller message waits for the operation, not for the wire
WIRE_BYTES = 1 << 20  # where a run goes so far, smaller messages than that say nothing against the wire


def answer_tool(reading: ToolReading, *, fabric: Fabric | None = None) -> Answer:
    """Figures with their units. `pass` only against an expectation: a device that is not listed is never missed."""
    reading = _of_fabric(reading, fabric)
    findings = _failure(reading) + _doubts(reading) + (_against(reading, fabric) if fabric is not None else ())
    fields = {
        "tool": reading.tool,
        **reading.figures,
        "complete": reading.complete,
        "healthy": reading.healthy,
        "cause": reading.cause,
        "suspicious": bool(reading.suspicious),
    }
    verdict = _verdict(reading, findings, fabric)
    if verdict in {"undetermined", "healthy"} and not findings:
        findings = (_reason(reading, fabric),)
    return Answer(fields=fields, verdict=verdict, findings=findings)


def _of_fabric(reading: ToolReading, fabric: Fabric | None) -> ToolReading:
    """The reading without the down ports of devices that stand beside an EFA machine type's own."""
    if fabric is None or fabric.kind != "efa" or reading.cause != "port-down":
        return reading
    own = {port["device"] for port in _own_ports(reading.figures, fabric)}
    down: list[str] = [name for name in reading.figures["down"] if name.split()[0] in own]
    beside = [name for name in reading.figures["down"] if name not in down]
    figures = {**reading.figures, "down": down, "down_beside": beside}
    if down:
        return replace(reading, figures=figures)
    return replace(reading, figures=figures, healthy=True if reading.complete else None, cause=None)


def _verdict(reading: ToolReading, findings: tuple[Finding, ...], fabric: Fabric | None) -> str:
    if any(f.level is Level.BLOCK for f in findings):
        return "failed" if reading.healthy is False else "degraded"
    if reading.suspicious:
        return "suspicious"
    if fabric is not None and reading.complete and _covers(reading, fabric):
        return "undetermined" if _of_another(reading, fabric) else "pass"
    return "healthy" if reading.healthy else "undetermined"


def _failure(reading: ToolReading) -> tuple[Finding, ...]:
    if reading.healthy is not False:
        return ()
    figures, cause = reading.figures, reading.cause or "unhealthy"
    down = figures.get("down")
    return (
        Finding(
            level=Level.BLOCK,
            code=cause,
            object=", ".join(down or ()) or str(figures.get("component") or figures.get("device") or reading.tool),
            observed=_observed(reading, cause),
            expected="every port active" if down else "",
            remedy=REMEDIES.get(cause, "Read the tool's own lines about it, and run it again on this node alone"),
        ),
    )


def _observed(reading: ToolReading, cause: str) -> str:
    """What the tool said: its own words where the reading has them."""
    if states := reading.figures.get("down_states"):
        return f"{reading.tool} shows the port as {' and '.join(states)}"
    said = str(reading.figures.get("error") or "")
    if errors := reading.figures.get("errors"):
        return f"{reading.tool} ends with error {', '.join(str(e) for e in errors)}"
    if said and reading.tool in QUOTED:
        return f'{reading.tool} says: "{said}"'
    return OBSERVED.get(cause, f"{reading.tool} reports {cause}")


def _doubts(reading: ToolReading) -> tuple[Finding, ...]:
    """What keeps an output from being believed, and what stands beside the answer."""
    figures, found = reading.figures, []
    if reading.cause == "not-readable":
        said = f"this output cannot be read ({figures.get('reader_error')})"
        found.append(("not-readable", reading.tool, said, "Give the tool's output alone, as it printed it"))
    if reading.suspicious:
        found.append(("implausible", reading.tool, reading.suspicious, _past_caches(reading)))
    if twice := figures.get("seen_twice"):
        said = "listed twice: these are lists of several hosts or times, and none of them is judged"
        found.append(("seen-twice", ", ".join(twice), said, "Give the list of one host at a time"))
    if senders := figures.get("senders"):
        said = "lines of several processes or hosts, sorted out: none of them is judged"
        found.append(("several-senders", and_more(senders, 4), said, "Give the output of one of them at a time"))
    if (software := figures.get("software")) and len(software) == figures.get("device_count"):
        said = "made by the kernel over Ethernet: no RDMA device is here"
        found.append(("software-rdma", ", ".join(software), said, REMEDIES["no-ib-device"]))
    if beyond := figures.get("out_of_range"):
        said = "more than 64 bits can hold: no counter shows that, so it is left out of all sums"
        found.append(("out-of-range", ", ".join(beyond), said, "Read the counters again, in text that nothing altered"))
    if reading.tool == "fi_info" and reading.healthy is None and (error := figures.get("error")):
        said = f"fi_getinfo failed ({error}) beside a list of devices: one of two hosts or times is not well"
        found.append(("error-beside-list", reading.tool, said, "Give the list of one host at a time"))
    if short := sum(figures.get(f"{side}_short_ios") or 0 for side in ("read", "write")):
        said = f"{short} operations moved less than was asked for"
        found.append(("short-ios", reading.tool, said, "Check the file's size and the space that is left"))
    if beside := figures.get("down_beside"):
        found.append(("port-down-beside", ", ".join(beside), "not active, and no EFA device: not the fabric's", ""))
    return tuple(
        Finding(
            level=Level.INFO if code == "port-down-beside" else Level.WARN,
            code=code,
            object=name,
            observed=observed,
            remedy=remedy,
        )
        for code, name, observed, remedy in found
    )


def _reason(reading: ToolReading, fabric: Fabric | None) -> Finding:
    """Why a whole answer is not there, and what would give one."""
    if reading.cause == "tool-missing":
        observed, remedy = "the tool is not installed: that says nothing about devices", "Run it where it is installed"
    elif reading.figures.get("torn"):
        observed = "it stops in the middle of a line, so more may have followed"
        remedy = "Run the tool again and give all that it printed, to its last line's end"
    elif reading.complete is False:
        observed, remedy = "the output is not whole", "Run the tool again and give all that it printed"
    elif fabric is None:
        observed = "figures without anything to compare them with"
        answers = reading.tool in {*_DEVICE_LISTS, "fi_info", "perftest"}
        remedy = "Name the machine type (--machine)" if answers else instead(reading)
    elif _covers(reading, fabric):
        observed, remedy = _of_another(reading, fabric), "Judge it as the machine type that it is from"
    elif reading.tool == "perftest":
        observed, remedy = _unrated(reading.figures, fabric)
    elif reading.tool in _DEVICE_LISTS and fabric.rdma and not _shows_rates(reading.figures, fabric):
        observed = "a list without the ports' rates: a link that was trained at half of its rate looks like any other"
        remedy = "Give what ibstat prints, or ibv_devinfo -v"
    elif reading.tool in _DEVICE_LISTS and fabric.rdma:
        observed = f"these are not the {fabric.nics} RDMA devices of {fabric.machine_type}"
        remedy = "Judge it as the machine type that it is from"
    elif reading.tool == "fi_info" and fabric.provider == "efa":
        observed = f"the list is not that of the {fabric.nics} EFA devices of {fabric.machine_type}"
        remedy = "Give what fi_info -p efa prints, as the machine type that it is from"
    else:
        observed, remedy = f"{fabric.machine_type} has no figure that answers for this output", instead(reading)
    return Finding(level=Level.INFO, code="not-judged", object=reading.tool, observed=observed, remedy=remedy)


def _past_caches(reading: ToolReading) -> str:
    return REMEDIES["implausible-storage" if reading.kind is Kind.STORAGE else "implausible"]


def _unrated(figures: Mapping[str, Any], fabric: Fabric) -> tuple[str, str]:
    """Why a run of perftest is no measurement of the NIC."""
    rates = [rate for run in _runs(figures) for rate in _rates(run)]
    if any(rate > _most(fabric) for rate in rates):
        return f"{max(rates):g} Gb/s is more than one NIC of {fabric.machine_type} carries", "Measure between two nodes"
    if any(run.get("loopback") is None for run in _runs(figures)):
        json = any(run.get("format") == "json" for run in _runs(figures))
        said = "the addresses of both ends are not shown, so the bytes may not have left the node"
        return said, "Give the text that it prints: its JSON has no addresses" if json else "Give all its lines"
    if rates and any("BW" not in str(run.get("test")) for run in _runs(figures)):
        return "the title is missing, so one direction and both cannot be told apart", "Give the lines above the table"
    if rates:
        return f"the device is not shown, or is none of {fabric.machine_type}", "Give the lines above the table, too"
    if any("one_way_gbps" in row for run in _runs(figures) for row in run.get("rows", ())):
        said = f"messages below 64 KiB, runs under {RATED_ITERATIONS} iterations and sums of two ports show no rate"
        return said, "Run it on one port with -s 65536 or larger, -n 5000"
    return "no average whose unit is known", "Run a bandwidth test with --report_gbits"


def _against(reading: ToolReading, fabric: Fabric) -> tuple[Finding, ...]:
    """What the tool shows below what this machine type has. A list that is not whole misses nothing."""
    figures = reading.figures
    if reading.tool in _DEVICE_LISTS and figures.get("devices") is not None:
        fewer = _fewer(_own_devices(figures, fabric), fabric) if reading.complete else ()
        return fewer + _wrong_rates(figures, fabric)
    if reading.tool == "fi_info" and fabric.provider == "efa" and figures.get("efa_device_found") is not None:
        listed = "FI_EP_RDM" in figures.get("types", ()) or not figures["efa_device_found"]
        return _fewer(int(figures.get("efa_domains") or 0), fabric) if listed and reading.complete else ()
    if reading.tool == "perftest":
        return tuple(f for run in _runs(figures) for f in _below_rate(run, fabric))
    return ()


def _below_rate(run: Mapping[str, Any], fabric: Fabric) -> tuple[Finding, ...]:
    floor, slowest = NIC_SHARE * fabric.nic_gb_s * 8, min(_rates(run, WIRE_BYTES) or _rates(run), default=None)
    if slowest is None or slowest >= floor:
        return ()
    return (
        Finding(
            level=Level.BLOCK,
            code="nic-below-rate",
            object=str(run.get("device") or "NIC"),
            observed=f"{slowest:g} Gb/s on average",
            expected=f"at least {floor:g} Gb/s on {fabric.machine_type}",
            remedy="Check the port's rate, the PCIe link and the GPU that the NIC belongs to",
        ),
    )


def _runs(figures: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The runs of a perftest output, one for each NIC."""
    return figures.get("runs") or (figures,)


def _rates(run: Mapping[str, Any], least: int = RATED_BYTES) -> list[float]:
    """Gb/s and one direction, of the messages that are large enough to show the wire: of `least` bytes or more."""
    if run.get("dual_port", "OFF") != "OFF":
        return []  # the sum of two ports
    rows = [
        r
        for r in run.get("rows", ())
        if r.get("msg_size_bytes", 0) >= least and r.get("iterations", 0) >= RATED_ITERATIONS
    ]
    return [r["one_way_gbps"] for r in rows if "one_way_gbps" in r]


def _most(fabric: Fabric) -> float:
    """Gb/s: more than the wire carries was not measured at all."""
    return fabric.nic_gb_s * 8 * 1.02


def _wrong_rates(figures: Mapping[str, Any], fabric: Fabric) -> tuple[Finding, ...]:
    """Ports of the fabric that run below their rate: a lane is lost, or the other end is slower."""
    if not fabric.rdma:
        return ()
    rated = [p for p in _own_ports(figures, fabric) if p.get("rate_gbps") is not None]
    wanted = fabric.nic_gb_s * 8
    if fabric.kind == "efa" and all(p["rate_gbps"] == EFA_FIXED_GBPS for p in rated):
        if not rated or wanted == EFA_FIXED_GBPS:
            return ()
        said = f"every device shows {EFA_FIXED_GBPS} Gb/s, as older EFA drivers give for any: the rate is not judged"
        remedy = "Measure the bandwidth"
        return (Finding(level=Level.INFO, code="rate-not-judged", object="ports", observed=said, remedy=remedy),)
    slow: dict[float, list[str]] = {}
    for port in rated:
        if port["rate_gbps"] < wanted * RATE_SHARE and port["device"] not in slow.get(port["rate_gbps"], ()):
            slow.setdefault(port["rate_gbps"], []).append(port["device"])
    return tuple(
        Finding(
            level=Level.BLOCK,
            code="wrong-rate",
            object=", ".join(names),
            observed=f"the port runs at {rate:g} Gb/s",
            expected=f"{wanted:g} Gb/s on {fabric.machine_type}",
            remedy="Check the link's width and speed, cable and switch port, or replace the node",
        )
        for rate, names in slow.items()
    )


def _own_ports(figures: Mapping[str, Any], fabric: Fabric) -> list[Mapping[str, Any]]:
    """Ports of the machine type's own kind: an EFA node may have other RDMA devices beside."""
    efa = fabric.kind == "efa"
    ports = [port for port in figures.get("devices") or () if bool(port.get("efa")) is efa]
    # Neither hardware that is shared (a bond of two), nor one that is none (RDMA over any Ethernet), is a NIC.
    return [port for port in ports if not _NO_NIC.search(str(port["device"]))]


def _own_devices(figures: Mapping[str, Any], fabric: Fabric) -> int:
    return len({port["device"] for port in _own_ports(figures, fabric)})


def _fewer(count: int, fabric: Fabric) -> tuple[Finding, ...]:
    if not fabric.rdma or count >= fabric.nics:
        return ()
    return (
        Finding(
            level=Level.BLOCK,
            code="fewer-nics",
            object=f"node of type {fabric.machine_type}",
            observed=f"{count} RDMA devices",
            expected=str(fabric.nics),
            remedy="Request all RDMA resources of the node; check allocatable and the interfaces of the node",
        ),
    )


def _covers(reading: ToolReading, fabric: Fabric) -> bool:
    """Does this output answer for the whole node, or for the one NIC that it names?"""
    if reading.kind is not Kind.FABRIC or not fabric.rdma:
        return False
    figures = reading.figures
    if reading.tool in _DEVICE_LISTS:
        whole = reading.healthy is True and _shows_rates(figures, fabric)
        return whole and _own_devices(figures, fabric) == fabric.nics and _of_kind(figures, fabric)
    if reading.tool == "fi_info":
        return fabric.provider == "efa" and int(figures.get("efa_domains") or 0) == fabric.nics
    return reading.tool == "perftest" and all(_rated(run, fabric) for run in _runs(figures))


def _of_another(reading: ToolReading, fabric: Fabric) -> str:
    """Why a node's list, or the NIC that was measured, is another machine type's, or "".

    That it may be one's of the same shape is no doubt here: what it shows, devices and links, is all of both.
    """
    ports = _own_ports(reading.figures, fabric)
    named = [*(reading.figures.get("domains") or ()), *(run.get("device") for run in _runs(reading.figures))]
    shown = [str(p["device"]) for p in ports] or [str(name) for name in named if is_efa(str(name))]
    return contradiction(seen_in_devices(shown), fabric) or partly_of_another(shown, fabric)


def _shows_rates(figures: Mapping[str, Any], fabric: Fabric) -> bool:
    return all(port.get("rate_gbps") is not None for port in _own_ports(figures, fabric))


def _of_kind(figures: Mapping[str, Any], fabric: Fabric) -> bool:
    """Ports that are faster than the machine type's, or of another link layer, are another machine's."""
    ports, most = _own_ports(figures, fabric), fabric.nic_gb_s * 8 / RATE_SHARE
    layers = {port["link_layer"] for port in ports if port.get("link_layer")}
    return all((port.get("rate_gbps") or 0) <= most for port in ports) and (
        fabric.kind != "roce" or layers <= {"Ethernet"}
    )


def _rated(run: Mapping[str, Any], fabric: Fabric) -> bool:
    """Was a NIC of this machine type measured? One of the other kind is somewhere else."""
    rates, device = _rates(run), run.get("device")
    if not rates or not isinstance(device, str) or "BW" not in str(run.get("test")):
        return False  # without its title a run in both directions looks like one of twice the rate
    if run.get("loopback") is not False or (fabric.kind == "roce" and run.get("link_type") != "Ethernet"):
        return False
    return is_efa(device) is (fabric.kind == "efa") and not _NO_NIC.search(device) and max(rates) <= _most(fabric)
