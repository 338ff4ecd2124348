"""Which network an NCCL log shows, how strong the evidence is, and which of the known silent fallbacks it carries.

Pure. `describe` says what the text shows, however short it is; whether that amounts to a proof for a whole job is
the question of `tasks.rules.transport_proof`.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.fabrics.fabric import Fabric
from infra.model.reading import Family, NcclLog, family_of
from infra.model.verdict import Finding
from tasks.rules.fallbacks import explain, on_software

# Network families whose data path is of RDMA class. TCPX and TCPXO count: the intended accelerated fabric of their
# machines. Libfabric and UCX depend on the provider underneath.
RDMA_FAMILIES = frozenset({Family.IB, Family.GIB, Family.FASTRAK, Family.TCPX})
_TCP_FAMILIES = frozenset({Family.SOCKET, Family.FASTSOCKET})
_TCP_PROVIDERS = frozenset({"tcp", "sockets", "udp", "net", "tcp;ofi_rxm", "udp;ofi_rxd"})
_RDMA_PROVIDERS = frozenset({"efa", "efa-direct", "cxi", "verbs", "verbs;ofi_rxm", "opx", "psm2"})
_FAILED = frozenset(
    {
        *("no-efa-device", "ofi-init-failed", "ofi-no-protocol", "plugin-init-failed", "plugin-disabled"),
        "receive-path-unreachable",
    }
)
_FAMILY_NAMES = {
    Family.GIB: "gib",
    Family.FASTRAK: "fastrak",
    Family.TCPX: "tcpx",
    Family.FASTSOCKET: "fastsocket",
    Family.UCX: "ucx",
    Family.SOCKET: "socket",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Transport:
    """What a log shows of the path between nodes; the words are those of `poolshift judge --json`."""

    name: str | None
    provider: str | None
    network: str | None
    rdma: bool | None
    fallback: bool | None
    gdr: str | None
    evidence: str
    verdict: str
    cause: str | None
    fatal: bool
    single_node: bool
    mixed: bool
    nranks: int | None
    nnodes: int | None
    findings: tuple[Finding, ...]


def describe(
    log: NcclLog,
    *,
    fabric: Fabric | None = None,
    nodes: int | None = None,
    one_host: bool = False,
    gpus: frozenset[str] = frozenset(),
) -> Transport:
    """Read the transport off a log. `fabric` and `nodes` say what was expected, where the caller knows.

    `one_host`: the caller knows (from a list of ranks beside the log) that no rank is on another host. `gpus` are their
    names, from such a list.
    """
    families, evidence = _families(log)
    mixed = len(families) > 1 or _providers_mixed(log)
    single = (one_host or _single_node(log)) and evidence != "channels"
    name = "mixed" if mixed else _name(log, families)
    tcp = bool(families & _TCP_FAMILIES) or _providers_mixed(log)
    provider = _provider(log)
    rdma = False if on_software(log, name) else _rdma(name, provider, families, tcp=tcp)
    fatal = any(w.fatal for w in log.warnings)
    by_design = fabric is not None and not fabric.rdma
    fallback = _fallback(log, name, single=single, fabric=fabric, tcp=tcp)
    gdr = _gdr(log) if name not in {"socket", "libfabric-tcp", "fastsocket", None} else _gdr_without_name(log, name)
    network = _network(log)
    findings, verdict, cause = explain(
        log,
        name=name,
        tcp=tcp,
        rdma=rdma,
        gdr=gdr,
        fabric=fabric,
        nodes=nodes,
        single=single,
        by_design=by_design,
        evidence=evidence,
        gpus=gpus,
    )
    return Transport(
        name=name,
        provider=provider,
        network=network,
        rdma=None if single else rdma,
        fallback=fallback,
        gdr=gdr,
        evidence=evidence,
        verdict=verdict,
        cause=cause,
        fatal=fatal,
        single_node=single,
        mixed=mixed,
        nranks=max((n for c in log.communicators for n in c.nranks), default=None),
        nnodes=max((n for c in log.communicators for n in c.nnodes), default=None),
        findings=findings,
    )


def family_of_name(log: NcclLog, name: str) -> Family:
    """The family of a selected network; HPC-X prints its plugin's device list under NET/IB, whatever its name."""
    family = family_of(name)
    if family is Family.OTHER and log.hcas:
        return Family.IB if name.upper().startswith(("IB", "SHARP", "MLNX")) else family
    return family


def _families(log: NcclLog) -> tuple[frozenset[Family], str]:
    """The families in use and the strongest kind of line that says so."""
    channels = frozenset(f for f, n in log.net_channels.items() if n)
    selected = frozenset(family_of_name(log, name) for name in log.selected)
    if channels:
        return channels | selected, "channels"  # a rank's choice without a channel is one too: neither hides the other
    if selected:
        return selected, "selected"
    if log.providers:
        return frozenset({Family.LIBFABRIC}), "selected"
    if log.hcas:
        return frozenset({Family.IB}), "selected"
    if log.socket_interfaces and not _only_bootstrap(log) and not _plugin_at_work(log):
        return frozenset({Family.SOCKET}), "selected"
    if "fastsocket-started" in log.hints:
        return frozenset({Family.FASTSOCKET}), "selected"
    hinted = _hinted(log)
    return (frozenset({hinted}), "indirect") if hinted else (frozenset(), "none")


def _plugin_at_work(log: NcclLog) -> bool:
    """A plugin of the fabric has begun and has not failed: interfaces that sockets list beside it decide nothing."""
    started = {"ofi-started", "tcpx-started", "fastrak-started", "gib-started"} & set(log.hints)
    return bool(started) and not _FAILED & set(log.hints)


def _only_bootstrap(log: NcclLog) -> bool:
    """NCCL before 2.5 lists socket interfaces for its bootstrap, whatever carries the data."""
    old = log.version is not None and log.version.startswith(("2.0", "2.1.", "2.2.", "2.3.", "2.4."))
    return old and "no-ib-device" not in log.hints


def _hinted(log: NcclLog) -> Family | None:
    """What warnings betray of the network, when no line names it."""
    for warning in log.warnings:
        call = str(warning.facts.get("call", ""))
        if warning.code == "tcpx-control-timeout":
            return Family.TCPX
        if call.startswith("ibv_") or warning.code.startswith("ib-") or warning.facts.get("link_layer"):
            return Family.IB
        if warning.code == "ofi-completion-error":
            return Family.LIBFABRIC
    return None


def _providers_mixed(log: NcclLog) -> bool:
    kinds = {p in _TCP_PROVIDERS for p in log.providers}
    return len(kinds) > 1


def _provider(log: NcclLog) -> str | None:
    return next(iter(log.providers)) if len(log.providers) == 1 else None


def _network(log: NcclLog) -> str | None:
    """The network's name as NCCL printed it; None where it printed several or none."""
    names = list(log.selected) or list(log.channel_networks)
    return names[0] if len(names) == 1 else None


def _name(log: NcclLog, families: frozenset[Family]) -> str | None:
    if len(families) != 1:
        return None
    family = next(iter(families))
    if family is Family.LIBFABRIC:
        if any(p in _TCP_PROVIDERS for p in log.providers):
            return "libfabric-tcp"
        return "efa" if any(p.startswith("efa") for p in log.providers) else "libfabric"
    if family in {Family.IB, Family.UCX} and (family is Family.IB or log.hcas):
        return _verbs_name(log)
    return _FAMILY_NAMES.get(family)


def _verbs_name(log: NcclLog) -> str:
    """`ib` or `roce` where the link layer is shown; the majority names a mixture, which is a finding of its own."""
    layers = [hca.link_layer for hca in log.hcas]
    if layers:
        return "roce" if layers.count("RoCE") > layers.count("IB") else "ib"
    if any(w.facts.get("link_layer") == "RoCE" for w in log.warnings):
        return "roce"
    return "ib-verbs"


def _rdma(name: str | None, provider: str | None, families: frozenset[Family], *, tcp: bool) -> bool | None:
    if name is None:
        return None
    if name in {"socket", "libfabric-tcp", "fastsocket"} or (name == "mixed" and tcp):
        return False
    if name == "efa":
        return True
    if name == "libfabric":
        return True if provider in _RDMA_PROVIDERS else None
    return True if families <= RDMA_FAMILIES or name in {"ib", "roce"} else None


def _fallback(log: NcclLog, name: str | None, *, single: bool, fabric: Fabric | None, tcp: bool) -> bool | None:
    """Whether the job went on over TCP where RDMA was meant; None where that cannot be told."""
    if single:
        return None
    if name in {"socket", "libfabric-tcp"} or (name == "mixed" and tcp):
        return fabric is None or fabric.rdma
    if name is not None:
        return name == "fastsocket" and fabric is not None and fabric.rdma
    # Nothing is selected yet, but a plugin of the fabric is at work: no fallback so far.
    return False if _plugin_at_work(log) else None


def _gdr(log: NcclLog) -> str | None:
    """all, none, partial, receive-only or None. Channel lines go before ring summaries and device lines."""
    with_gdr, plain = log.gdr_send + log.gdr_receive, log.plain_send + log.plain_receive
    if with_gdr or plain:
        if not plain:
            return "all"
        if not with_gdr:
            return "none"
        if log.gdr_receive and log.plain_send and not log.plain_receive and not log.gdr_send:
            return "receive-only"
        return "partial"
    off, on = log.ring_gdr
    if off or on:
        return "partial" if off and on else ("all" if on else "none")
    if {"efa-without-rdma", "gdr-disabled-on-instance"} & set(log.hints):
        return "none"
    off, on = log.gdr_lines
    if off or on:
        return "partial" if off and on else ("all" if on else "none")
    return None


def _gdr_without_name(log: NcclLog, name: str | None) -> str | None:
    return None if name else _gdr(log)


def _single_node(log: NcclLog) -> bool:
    """True when every communicator that was seen stays inside one node, so no NIC takes part."""
    sizes = [c for c in log.communicators if c.nranks]
    if not sizes:
        return False
    for communicator in sizes:
        if communicator.nnodes:
            if communicator.nodes != 1:
                return False
        elif communicator.size != 1:
            hosts = {m.host for m in communicator.members}
            if communicator.size is None or len(hosts) != 1 or len(communicator.members) < communicator.size:
                return False
    return True
