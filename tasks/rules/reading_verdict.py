"""A reading in the words of `poolshift judge --json`: the figures, and a verdict about what the output shows.

The verdict here is about the excerpt; whether it opens a gate is `JudgeResult.outcome`, which asks for more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from infra.model.reading import NcclLog, Reading
from infra.model.verdict import Finding, Level
from infra.probes.readers.ends import CUT
from tasks.rules.transport import Transport

_DOUBTS = {
    "traceback": re.compile(r"Traceback \(most"),
    "child-killed": re.compile(r": line \d+: +\d+ (?:Killed|Terminated)\b"),
    "log-cut": re.compile(CUT),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The fields to print, the verdict about the excerpt and its findings."""

    fields: dict[str, Any] = field(default_factory=dict)
    verdict: str = "undetermined"
    findings: tuple[Finding, ...] = ()


def answer_log(log: NcclLog, transport: Transport) -> Answer:
    """An NCCL log."""
    channels: dict[str, int] = {family.value: count for family, count in log.net_channels.items()}
    if channels:
        channels.setdefault("socket", 0)
    fatal = next((w for w in log.warnings if w.fatal), None)
    first = fatal or next(iter(log.warnings), None)
    layers = {hca.link_layer for hca in log.hcas}
    fields: dict[str, Any] = {
        "transport": transport.name,
        "provider": transport.provider,
        "network_name": transport.network,
        "nccl_version": log.version,
        "plugin_version": log.plugin_version,
        "plugin_loaded": log.plugin_loaded,
        "libfabric_version": log.libfabric_version,
        "platform": log.platform,
        "provider_filter": log.provider_filter,
        "ofi_protocol": log.ofi_protocols[0] if len(log.ofi_protocols) == 1 else None,
        "fabric": log.fabrics[0] if len(log.fabrics) == 1 else None,
        "rdma": transport.rdma,
        "fallback": transport.fallback,
        "gdr": transport.gdr,
        "evidence": transport.evidence,
        "fatal": transport.fatal,
        "cause": transport.cause,
        "hosts": len(log.hosts) or None,
        "nranks": transport.nranks,
        "nnodes": transport.nnodes,
        "net_channels": channels,
        "p2p_channels": log.p2p_channels,
        "inter_node_edges": [list(edge) for edge in log.edges],
        "selected_counts": dict(log.selected),
        "efa_nics": log.nics[0] if len(log.nics) == 1 else None,
        "hcas": [hca.text for hca in log.hcas],
        "hca_count": len(log.hcas) or None,
        "link_layer": next(iter(layers)) if len(layers) == 1 else None,
        "mixed_link_layers": len(layers) > 1,
        "socket_interfaces": list(log.socket_interfaces),
        "devices_seen": list(log.devices),
        "ranks_seen_devices": list(log.devices),
        "ranks_seen": list(log.prefix_ranks),
        "prefix_rank": log.prefix_ranks[0] if len(log.prefix_ranks) == 1 else None,
        "warnings": log.warning_count,
        "errno": first.facts.get("errno") if first else None,
        "gid_index": first.facts.get("gid_index") if first else None,
        "timestamp": (first.time or None) if first else None,
        "nics": list(dict.fromkeys(str(w.facts["nic"]) for w in log.warnings if "nic" in w.facts)),
    }
    return Answer(fields=fields, verdict=transport.verdict, findings=transport.findings)


def bad_end(reading: Reading) -> Finding | None:
    """What the output says of a program that did not end by itself.

    A traceback alone may be of a caught error, a child that a shell saw killed may be a monitor that its script ended,
    and a log that was cut hides an end that may have been good.
    """
    said = sorted(reading.ended_badly, key=lambda text: bool(_kind_of(text)))
    if not said:
        return None
    doubt = _kind_of(said[0])
    return Finding(
        level=Level.WARN if doubt else Level.BLOCK,
        code=doubt or "ended-badly",
        object="job",
        observed=f'the output says "{said[0]}"',
        expected="all that the program printed" if doubt == "log-cut" else "a program that ends by itself",
        remedy="Fetch the log again, from its beginning to its end"
        if doubt == "log-cut"
        else "Read what the process that ended first says before this line",
    )


def _kind_of(text: str) -> str:
    """The code of a saying that is no certain failure, or ""."""
    return next((code for code, words in _DOUBTS.items() if words.search(text)), "")
