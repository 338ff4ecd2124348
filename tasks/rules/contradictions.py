"""What cannot be true of one job at once: its lines against each other, its counters and its pool. Pure.

Whoever reads such a log does not know which half to believe, so that it proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.fabrics.fabric import Fabric
from infra.model.reading import Family, NcclLog
from infra.model.verdict import Finding, Level
from tasks.rules.launcher import misplaced_tags
from tasks.rules.machine import contradiction, seen_in_log
from tasks.rules.transport import Transport, family_of_name
from tasks.rules.wording import and_more, plural

_ONE_JOB = "Give the log of one job alone"
_OF_PLUGINS = frozenset({Family.LIBFABRIC, Family.GIB, Family.FASTRAK, Family.TCPX})
_NAMES = {
    "version": "NCCL version",
    "plugin_version": "aws-ofi-nccl",
    "libfabric_version": "libfabric",
    "platform": "platform",
}


def contradicted(
    log: NcclLog,
    transport: Transport,
    fabric: Fabric | None,
    counted: tuple[Finding, ...],
    start: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """Everything. `counted` are the findings of the byte counters, `start` is the start line of the program."""
    return (
        *_against_counters(transport, counted),
        *_other_network(log, fabric),
        *_gdr_denied(log),
        *_gdr_withheld(log, transport),
        *_against_environment(log),
        *_refused(log),
        *_several(log, start),
        *_other_machine(log, fabric),
        *_more_nics(log, fabric),
        *_across_nodes(log, fabric),
        *misplaced_tags(log),
    )


def _refused(log: NcclLog) -> tuple[Finding, ...]:
    """A rank that did not get a network, and named none afterwards: what it named before is of something else."""
    return tuple(
        Finding(
            level=Level.WARN,
            code="network-refused",
            object=f"{rank.host}:{rank.pid}",
            observed=f'says "{log.hints.get(rank.refused[0], rank.refused[0])}" and names no network after it',
            expected="the network that it has instead, or no such line",
            remedy="Give all of this rank's lines: a communicator that it made late may be on TCP",
        )
        for rank in log.ranks
        if rank.refused
    )[:4]


def _several(log: NcclLog, start: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Two versions of what a job has one of, or two orders for its ranks: two jobs, or two images in one."""
    values = {_NAMES.get(name, name): found for name, found in log.disagreements.items()}
    if len(log.ofi_protocols) > 1:
        values["transport protocol"] = log.ofi_protocols
    said = start.get("nccl")
    same = isinstance(said, str) and log.version and (said == log.version or said.startswith(f"{log.version}."))
    if isinstance(said, str) and log.version and not same and "NCCL version" not in values:
        values["NCCL version"] = (log.version, f"{said} (the program)")
    return tuple(
        Finding(
            level=Level.WARN,
            code="versions-differ",
            object="job",
            observed=f"{name} {and_more(list(found), 4)}",
            expected="one",
            remedy=f"{_ONE_JOB}; run one image on every node",
        )
        for name, found in values.items()
    )


def _other_machine(log: NcclLog, fabric: Fabric | None) -> tuple[Finding, ...]:
    """Plugin, driver and PCI buses tell the machine, in part or by name."""
    said = contradiction(seen_in_log(log), fabric) if fabric is not None else ""
    if fabric is None or not said:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="other-machine",
            object="job",
            observed=said,
            expected=fabric.machine_type,
            remedy="Judge it as the machine type that it is from, or give the log of this pool",
        ),
    )


def _more_nics(log: NcclLog, fabric: Fabric | None) -> tuple[Finding, ...]:
    """More interfaces than the machine type has are another machine's."""
    most = max((n for rank in log.ranks for n in rank.nics), default=0)
    if fabric is None or not fabric.rdma or most <= fabric.nics:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="more-nics",
            object="pod",
            observed=f"a rank sees {plural(most, 'NIC')}",
            expected=f"{fabric.nics} on {fabric.machine_type}",
            remedy="Check that the machine type is the pool's and that the log is this pool's",
        ),
    )


def _across_nodes(log: NcclLog, fabric: Fabric | None) -> tuple[Finding, ...]:
    """NVLink between nodes, which no communicator says that it has, or which the machine type has not."""
    told = any(1 in c.mnnvl for c in log.communicators)
    if told and fabric is not None and not fabric.mnnvl:
        observed, expected = "MNNVL 1: NVLink between nodes", f"none on {fabric.machine_type}"
    elif "mnnvl" in log.hints and not told:
        observed = f'"{log.hints["mnnvl"]}", and no communicator says that it is in an NVLink domain of nodes'
        expected = "one of the two"
    else:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="mnnvl-contradicted",
            object="job",
            observed=observed,
            expected=expected,
            remedy="Give the log of this pool's job alone; with NCCL_MNNVL_ENABLE=0, look for NET channels",
        ),
    )


def _gdr_withheld(log: NcclLog, transport: Transport) -> tuple[Finding, ...]:
    code = next((c for c in ("gdr-disabled-on-instance", "efa-without-rdma") if c in log.hints), "")
    if not code or transport.gdr != "all":
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="gdr-contradicted",
            object="job",
            observed=f'GDRDMA channels beside "{log.hints[code]}"',
            expected="one of the two",
            remedy="Believe neither; run this job again with all of its output kept apart",
        ),
    )


def _gdr_denied(log: NcclLog) -> tuple[Finding, ...]:
    """Ranks whose channels say GDRDMA over a device of which NCCL said that GPU Direct RDMA is disabled."""
    denied = [(rank, and_more([str(d) for d in rank.gdr_denied], 4)) for rank in log.ranks if rank.gdr_denied]
    return tuple(
        Finding(
            level=Level.WARN,
            code="gdr-contradicted",
            object=f"{rank.host}:{rank.pid}",
            observed=f"GDRDMA channels over net device {devices}, of which NCCL says that it has it disabled",
            expected="one of the two",
            remedy="Believe neither; run this job again with all of its output kept apart",
        )
        for rank, devices in denied
    )


def _other_network(log: NcclLog, fabric: Fabric | None) -> tuple[Finding, ...]:
    """A network that is RDMA elsewhere proves nothing about the network of this machine type."""
    if fabric is None or not fabric.nccl_net or not fabric.rdma:
        return ()
    accepted = {family_of_name(log, name) for name in fabric.nccl_net}
    shown = [*log.channel_networks, *log.selected]
    strange = sorted({n for n in shown if family_of_name(log, n) not in accepted | {Family.SOCKET}})
    if not strange:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="other-network",
            object="job",
            observed=f"NCCL names network {', '.join(strange)}",
            expected=f"{' or '.join(fabric.nccl_net)} on {fabric.machine_type}",
            remedy="Check that the machine type is the pool's and that the log is this pool's",
        ),
    )


def _against_environment(log: NcclLog) -> tuple[Finding, ...]:
    """A job that was told to use one network, or not to use one, beside lines of it: two jobs are in this log."""
    named = sorted({*log.channel_networks, *log.selected})
    used = {family_of_name(log, name) for name in named}
    told = log.env.get("NCCL_NET", "")
    wanted = next((family for family in Family if family.value == told.lower()), family_of_name(log, told))
    said = []
    if told and wanted is not Family.OTHER and used and wanted not in used:
        said.append((f"NCCL_NET={told} is set", and_more(named, 3)))
    if log.env.get("NCCL_NET_PLUGIN", "").lower() == "none" and used & _OF_PLUGINS:
        said.append(("NCCL_NET_PLUGIN=none is set", and_more(named, 3)))
    if (level := log.env.get("NCCL_NET_GDR_LEVEL", "")) in {"LOC", "0"} and log.gdr_send + log.gdr_receive:
        said.append((f"NCCL_NET_GDR_LEVEL={level}, never, is set", "GDRDMA channels"))
    if log.env.get("NCCL_IB_DISABLE") == "1" and Family.IB in used:
        said.append(("NCCL_IB_DISABLE=1 is set", and_more(named, 3)))
    only = log.provider_filter or ""
    if only and (others := [p for p in log.providers if not p.startswith(only)]):
        said.append((f"the plugin is told to take provider {only} only", f"provider {and_more(others, 3)}"))
    return tuple(
        Finding(
            level=Level.WARN,
            code="environment-contradicted",
            object="job",
            observed=f"{setting}, and the log names {shown}",
            expected="the network that was asked for, or none",
            remedy=_ONE_JOB,
        )
        for setting, shown in said
    )


def _against_counters(transport: Transport, counted: tuple[Finding, ...]) -> tuple[Finding, ...]:
    codes = {f.code for f in counted}
    if transport.rdma and "bytes-on-ethernet" in codes:
        observed = f"the log says {transport.name}, the counters say Ethernet"
    elif transport.rdma and "rdma-counters-still" in codes:
        observed = f"the log says {transport.name}, but the RDMA counters hardly moved"
    else:
        return ()
    return (
        Finding(
            level=Level.WARN,
            code="log-against-counters",
            object="job",
            observed=observed,
            remedy="Believe neither; find out which process wrote which line before going on",
        ),
    )
