"""What a small tool's reading amounts to, alone and against what the machine type should show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.fabrics.fabric import Fabric
from infra.model.reading import Kind, ToolReading, is_efa
from infra.model.verdict import Finding, Level
from tasks.rules.reading_verdict import Answer

_DEVICE_LISTS = {"ibstat", "ibstatus", "ibv_devinfo", "rdma-link"}
NIC_SHARE = 0.9  # of a port's rate; public health checks ask 360-380 of 400 Gb/s and 90 of 100 on EFA


def answer_tool(reading: ToolReading, *, fabric: Fabric | None = None) -> Answer:
    """Figures with their units. `pass` only against an expectation: a device that is not listed is never missed."""
    findings = _failure(reading) + (_against(reading, fabric) if fabric is not None else ())
    fields = {
        "tool": reading.tool,
        **reading.figures,
        "complete": reading.complete,
        "healthy": reading.healthy,
        "cause": reading.cause,
        "suspicious": bool(reading.suspicious),
    }
    return Answer(fields=fields, verdict=_verdict(reading, findings, fabric), findings=findings)


def _verdict(reading: ToolReading, findings: tuple[Finding, ...], fabric: Fabric | None) -> str:
    if any(f.level is Level.BLOCK for f in findings):
        return "failed" if reading.healthy is False else "degraded"
    if reading.suspicious:
        return "suspicious"
    if fabric is not None and reading.complete and _covers(reading, fabric):
        return "pass"
    return "healthy" if reading.healthy else "undetermined"


def _failure(reading: ToolReading) -> tuple[Finding, ...]:
    found = []
    if reading.healthy is False:
        found.append(
            Finding(
                level=Level.BLOCK,
                code=reading.cause or "unhealthy",
                object=str(reading.figures.get("component") or reading.figures.get("device") or reading.tool),
                observed=_OBSERVED.get(reading.cause or "", f"{reading.tool} says that it is not well"),
                remedy=_REMEDIES.get(reading.cause or "", ""),
            )
        )
    if reading.suspicious:
        found.append(Finding(level=Level.WARN, code="implausible", object=reading.tool, observed=reading.suspicious))
    return tuple(found)


_OBSERVED = {
    "not-rdma": "the provider is TCP or shared memory: a path is shown, RDMA is not",
    "port-down": "a port is not active",
    "no-ib-device": "no RDMA device is visible",
    "nvml-library-not-found": "the plugin cannot load NVIDIA's management library",
    "no-devices": "the plugin found no device to advertise",
    "exec-format-error": "the image is built for another architecture",
}
_REMEDIES = {
    "not-rdma": "Run it again with the fabric's provider (-p efa)",
    "no-ib-device": "Request the RDMA resource in the pod; check the device plugin and the driver on the node",
    "nvml-library-not-found": "Run the plugin under the NVIDIA runtime class, or mount the driver's libraries",
    "no-devices": "Check the machine type, the network interfaces of the launch template and the plugin's selectors",
    "exec-format-error": "Use an image for the node's architecture",
    "port-down": "Check cable and switch port, or replace the node",
}


def _against(reading: ToolReading, fabric: Fabric) -> tuple[Finding, ...]:
    """What the tool shows below what this machine type has."""
    figures = reading.figures
    if reading.tool in _DEVICE_LISTS and figures.get("devices") is not None:
        return _fewer(_own_devices(figures, fabric), fabric)
    if reading.tool == "fi_info" and fabric.provider == "efa" and figures.get("efa_device_found") is not None:
        return _fewer(int(figures.get("efa_domains") or 0), fabric)
    average = _one_way(figures)
    if reading.tool == "perftest" and isinstance(average, int | float):
        floor = NIC_SHARE * fabric.nic_gb_s * 8
        if average < floor:
            return (
                Finding(
                    level=Level.BLOCK,
                    code="nic-below-rate",
                    object=str(figures.get("device") or "NIC"),
                    observed=f"{average:g} Gb/s on average",
                    expected=f"at least {floor:g} Gb/s on {fabric.machine_type}",
                    remedy="Check the port's rate, the PCIe link and the GPU that the NIC belongs to",
                ),
            )
    return ()


def _one_way(figures: Mapping[str, Any]) -> float | None:
    """The average of perftest in Gb/s and one direction; a bidirectional run prints the sum of both."""
    rate = figures.get("bw_average_gbps")
    if not isinstance(rate, int | float):
        return None
    return rate / 2 if "bidirectional" in str(figures.get("test")).lower() else rate


def _own_devices(figures: Mapping[str, Any], fabric: Fabric) -> int:
    """Distinct devices of the machine type's own kind: an EFA node may have other RDMA devices beside."""
    efa = fabric.kind == "efa"
    return len({d["device"] for d in figures.get("devices") or () if bool(d.get("efa")) is efa})


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
        return reading.healthy is True and _own_devices(figures, fabric) == fabric.nics
    if reading.tool == "fi_info":
        return fabric.provider == "efa" and int(figures.get("efa_domains") or 0) == fabric.nics
    rate, device = _one_way(figures), figures.get("device")
    if reading.tool != "perftest" or not isinstance(device, str) or not isinstance(rate, int | float):
        return False
    # A NIC of the other kind was measured somewhere else; more than the wire carries was not measured at all.
    return is_efa(device) is (fabric.kind == "efa") and rate <= fabric.nic_gb_s * 8 * 1.02
