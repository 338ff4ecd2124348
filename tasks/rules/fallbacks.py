"""The ways in which a job runs on without its fabric and without an error, each with its reason and its remedy."""

from __future__ import annotations

from infra.fabrics.fabric import Fabric
from infra.model.reading import NcclLog, family_of, is_software
from infra.model.verdict import Finding, Level
from tasks.rules.gpudirect import gpudirect
from tasks.rules.remedies import remedy_of
from tasks.rules.wording import and_more, plural

_DEVICE_REMEDY = "Request the RDMA resource in the pod; check the device plugin and /dev/infiniband in the pod"
_PLUGIN_REMEDY = "Put the fabric's NCCL plugin on the image's LD_LIBRARY_PATH, or name it in NCCL_NET_PLUGIN"
# Why NCCL is on sockets, the most telling line first: hint -> remedy.
_TCP_CAUSES: dict[str, str] = {
    "plugin-disabled": "Remove what switches the plugin off from the pod's environment (NCCL_GPUDIRECTTCPX_*)",
    "receive-path-unreachable": remedy_of("receive-path-unreachable"),
    "plugin-init-failed": "Read the plugin's lines above this one; check device, driver and plugin versions",
    "plugin-unloadable": "Install the library that the loader names, or use an image built for this fabric",
    "no-efa-device": "Request the EFA resource in the pod and check that the EFA device plugin runs on the node",
    "ofi-init-failed": "Read the NET/OFI lines above this one; check libfabric and driver versions",
    "no-verbs-driver": "Put rdma-core with the adapter's driver into the workload's image; for gIB, mount the node's "
    "/home/kubernetes/bin/gib at /usr/local/gib",
    "no-ib-device": _DEVICE_REMEDY,
    "no-verbs-library": "Install rdma-core (libibverbs) in the workload's image",
    "plugin-missing": _PLUGIN_REMEDY,
    "internal-verbs-refused": _DEVICE_REMEDY,
}
_SHOWN = 4  # kinds of warnings that are told one by one
_RANKED_HEALTH = ("failed", "efa-unavailable", "stalled", "degraded", "invalid", "suspicious")


def explain(
    log: NcclLog,
    *,
    name: str | None,
    tcp: bool,
    rdma: bool | None,
    gdr: str | None,
    fabric: Fabric | None,
    nodes: int | None,
    single: bool,
    by_design: bool,
    evidence: str,
    gpus: frozenset[str] = frozenset(),
) -> tuple[tuple[Finding, ...], str, str | None]:
    """Findings, the verdict about what is shown, and the short cause (or None)."""
    parts = [
        _failures(log, name),
        _sockets(log, name, single=single, by_design=by_design, fabric=fabric),
        _mixed(log, name, tcp=tcp),
        _software(log, name),
        gpudirect(log, name, gdr, single=single, fabric=fabric, gpus=gpus),
        _nics(log, name, fabric),
        _hidden(log, single=single, nodes=nodes),
        _path(log, gdr, fabric),
    ]
    known = [f for found, _ in parts for f in found]
    unexplained = _unexplained(log, {f.code for f in known})
    findings = (*known, *unexplained)
    verdicts = {v for _, v in parts if v}
    verdict = next((v for v in _RANKED_HEALTH if v in verdicts), None)
    if verdict is None:
        verdict = _without_defect(name, rdma, gdr, single=single, evidence=evidence, by_design=by_design)
        if verdict == "healthy" and unexplained:
            verdict = "suspicious"
    blocking = [f for f in findings if f.level is Level.BLOCK] or [f for f in findings if f.level is Level.WARN]
    return findings, verdict, blocking[0].code if blocking and verdict != "healthy" else None


def _without_defect(
    name: str | None, rdma: bool | None, gdr: str | None, *, single: bool, evidence: str, by_design: bool
) -> str:
    if single or by_design:
        return "not-applicable"
    if rdma and evidence in {"channels", "selected"}:
        return "healthy"
    if name == "libfabric" and gdr == "all" and evidence == "channels":
        return "healthy"  # GPUDirect channels exist only over a provider that can do RDMA
    return "undetermined"


_Part = tuple[list[Finding], str | None]  # findings, and the verdict they force


def _failures(log: NcclLog, name: str | None) -> _Part:
    fatal = [w for w in log.warnings if w.fatal]
    if fatal:
        first = fatal[0]
        found = Finding(
            level=Level.BLOCK,
            code=first.code,
            object=first.host or "job",
            observed=first.text[:200],
            remedy=remedy_of(first.code),
        )
        return [found], "failed"
    stalled = [w for w in log.warnings if w.code == "tcpx-control-timeout"]
    if stalled:
        found = Finding(
            level=Level.BLOCK,
            code="tcpx-control-timeout",
            object=stalled[0].host or "job",
            observed=f"{log.warning_count} control time-outs of the receive path",
            remedy="Check that the receive-path daemon runs in every pod, in the plugin's version",
        )
        return [found], "stalled"
    if name is None and {"no-efa-device", "ofi-init-failed", "ofi-no-protocol"} & set(log.hints):
        code = next(c for c in ("no-efa-device", "ofi-no-protocol", "ofi-init-failed") if c in log.hints)
        return [_hint(log, code, Level.BLOCK, _TCP_CAUSES.get(code, ""))], "efa-unavailable"
    return [], None


def _unexplained(log: NcclLog, known: set[str]) -> list[Finding]:
    """Warnings that no other finding covers and that healthy jobs do not print: nobody knows that they are harmless."""
    if any(w.fatal for w in log.warnings):
        return []
    found: dict[str, Finding] = {}
    aborted = any(m.ended == "aborted" for c in log.communicators for m in c.members)
    for warning in log.warnings:
        harmless = warning.facts.get("harmless")
        if (harmless and (aborted or harmless != "where-aborted")) or warning.code in known or len(found) >= _SHOWN:
            continue
        code = "unexplained-warning" if warning.code == "other" else warning.code
        found.setdefault(
            warning.text[-120:] if warning.code == "other" else code,
            Finding(
                level=Level.WARN,
                code=code,
                object=warning.host or "job",
                observed=warning.text[:200],
                expected="no warning that healthy jobs do not print",
                remedy=remedy_of(code),
            ),
        )
    return list(found.values())


def _sockets(log: NcclLog, name: str | None, *, single: bool, by_design: bool, fabric: Fabric | None) -> _Part:
    meant = fabric is not None and fabric.rdma  # without it, whoever put FastSocket in the image may have wanted it
    if name not in {"socket", "libfabric-tcp", *(["fastsocket"] if meant else [])} or single:
        return [], None
    if by_design:
        found = Finding(
            level=Level.INFO,
            code="tcp-by-design",
            object="network",
            observed="NCCL runs over TCP, as this machine type is built to",
        )
        return [found], None
    disabled = _disabled(log)
    if disabled:
        cause, remedy = "disabled-by-environment", f"Remove {disabled} from the pod's environment"
        observed = f"{disabled} keeps NCCL off the fabric"
    elif name == "libfabric-tcp":
        cause, remedy = (
            "libfabric-over-tcp",
            "Check that the fabric's libfabric provider is in the image and sees devices",
        )
        observed = f"libfabric provider {', '.join(log.providers)} is TCP"
    elif name == "fastsocket":
        cause, remedy, observed = "tcp-fallback", _PLUGIN_REMEDY, "NCCL runs over FastSocket, which is TCP"
    else:
        cause = next((c for c in _causes(log, fabric) if c in log.hints), "tcp-fallback")
        remedy = _TCP_CAUSES.get(cause, "Run with NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,NET,ENV to see why")
        observed = log.hints.get(cause, "NCCL chose sockets and the log does not say why").rstrip(".")
    return [Finding(level=Level.BLOCK, code=cause, object="network", observed=observed, remedy=remedy)], "degraded"


def _causes(log: NcclLog, fabric: Fabric | None) -> tuple[str, ...]:
    """Where a plugin alone reaches the fabric, or was asked for, its absence explains more than NCCL's own verbs."""
    own = fabric is None or fabric.pin in {None, "IB"}
    if own and not log.env.get("NCCL_NET_PLUGIN"):
        return tuple(_TCP_CAUSES)
    return tuple(sorted(_TCP_CAUSES, key=lambda cause: cause in {"no-ib-device", "internal-verbs-refused"}))


def _disabled(log: NcclLog) -> str:
    """The environment setting that forbids the fabric, as NAME=VALUE, or ""."""
    for key, off in (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket"), ("NCCL_NET_PLUGIN", "none")):
        if log.env.get(key, "").lower() == off:  # NCCL compares network names without case
            return f"{key}={log.env[key]}"
    return ""


def _mixed(log: NcclLog, name: str | None, *, tcp: bool) -> _Part:
    found: list[Finding] = []
    if name == "mixed":
        shown = {**log.selected, **log.channel_networks} or log.providers
        remedy = (
            "Find the rank that says Socket in its own log; pin NCCL_NET so that it fails instead"
            if tcp
            else "Run one image, with the fabric's plugin, on every node; pin NCCL_NET so that a rank without it fails"
        )
        found.append(
            Finding(
                level=Level.BLOCK if tcp else Level.WARN,
                code="mixed-transport",
                object="job",
                observed=f"ranks or communicators use different networks: {', '.join(sorted(shown))}"
                + _on_network(log, "Socket" if tcp else min(log.selected, key=lambda n: log.selected[n], default="")),
                remedy=remedy,
            )
        )
        return found, "degraded" if tcp else "suspicious"
    layers = {hca.link_layer for hca in log.hcas}
    if {"IB", "RoCE"} <= layers:
        found.append(
            Finding(
                level=Level.WARN,
                code="mixed-link-layers",
                object="devices " + ", ".join(h.text for h in log.hcas),
                observed="InfiniBand and Ethernet devices are used together",
                remedy="Name the fabric's devices in NCCL_IB_HCA",
            )
        )
        return found, "suspicious"
    return found, None


def on_software(log: NcclLog, name: str | None) -> bool:
    """Are all verbs devices made by the kernel over an Ethernet interface (rxe, siw)? Then no adapter does RDMA."""
    return name in {"ib", "roce"} and bool(log.hcas) and all(is_software(hca.text) for hca in log.hcas)


def _software(log: NcclLog, name: str | None) -> _Part:
    if not on_software(log, name):
        return [], None
    found = Finding(
        level=Level.BLOCK,
        code="software-rdma",
        object=", ".join(hca.text for hca in log.hcas),
        observed="RDMA that the kernel makes over Ethernet: the path is that of sockets",
        expected="a device of the fabric",
        remedy=_DEVICE_REMEDY,
    )
    return [found], "degraded"


def _on_network(log: NcclLog, name: str) -> str:
    """Who is on this one, as far as the log names them."""
    by_rank = [
        f"rank {m.rank} of communicator {c.id} on {m.host}"
        for c in log.communicators
        for m in c.members
        if m.network == name
    ]
    family = family_of(name).value
    by_host = sorted({r.host for r in log.ranks if r.host and (name in r.networks or family in r.channels)})
    named = by_rank or by_host
    return f"; on {name}: {and_more(named, 4)}" if name and named else ""


def _nics(log: NcclLog, name: str | None, fabric: Fabric | None) -> _Part:
    if name in {None, "socket", "libfabric-tcp", "mixed"} or fabric is None or not fabric.rdma:
        return [], None
    counts = set(log.nics) if name in {"efa", "libfabric"} else {n for r in log.ranks for n in r.nics}
    low = [n for n in counts if n < fabric.nics and n < fabric.net_devices]
    if name in {"efa", "libfabric"}:
        low = [n for n in counts if n < fabric.nics]
    found: list[Finding] = []
    if low:
        found.append(
            Finding(
                level=Level.BLOCK,
                code="fewer-nics",
                object="pod",
                observed=f"a rank sees {plural(min(low), 'NIC')}",
                expected=f"{fabric.nics} on {fabric.machine_type}",
                remedy="Request all RDMA resources of the node in the pod; check allocatable against the machine type",
            )
        )
    slow = [s for s in log.speeds_mb_s if s < fabric.nic_gb_s * 8000 * 0.99]
    if slow:
        found.append(
            Finding(
                level=Level.BLOCK,
                code="wrong-rate",
                object="device",
                observed=f"a device runs at {min(slow) / 1000:g} Gb/s",
                expected=f"{fabric.nic_gb_s * 8:g} Gb/s",
                remedy="Check the port's rate with ibstat; reseat or replace the cable, or replace the node",
            )
        )
    return found, "degraded" if found else None


def _hidden(log: NcclLog, *, single: bool, nodes: int | None) -> _Part:
    spans = any(n > 1 for c in log.communicators for n in c.nnodes)
    if spans and not log.net_channels and any(m for c in log.communicators for m in c.mnnvl):
        found = Finding(
            level=Level.WARN,
            code="hidden-by-nvlink",
            object="job",
            observed="all nodes are in one NVLink domain (MNNVL 1): no NIC takes part",
            remedy="Run again with NCCL_MNNVL_ENABLE=0 and look for NET channels",
        )
        return [found], "suspicious"
    if single and nodes is not None and nodes > 1:
        found = Finding(
            level=Level.WARN,
            code="hidden-by-placement",
            object="job",
            observed="every communicator stays inside one node",
            expected=f"{plural(nodes, 'node')}",
            remedy="Place one pod per node (pod anti-affinity or topology spread) and run again",
        )
        return [found], "invalid"
    return [], None


def _path(log: NcclLog, gdr: str | None, fabric: Fabric | None) -> _Part:
    found = []
    if "gdr-read-off" in log.hints and gdr != "receive-only":
        found.append(
            _hint(
                log,
                "gdr-read-off",
                Level.INFO,
                "Sends are staged unless GPU and NIC share a switch; see NCCL_NET_GDR_READ",
            )
        )
    if fabric is not None and fabric.ofi_protocol and log.ofi_protocols:
        expected = fabric.ofi_protocol
        if set(log.ofi_protocols) != {expected}:
            found.append(
                Finding(
                    level=Level.WARN,
                    code="ofi-protocol",
                    object="aws-ofi-nccl",
                    observed=f"transport protocol {', '.join(log.ofi_protocols)}",
                    expected=f"{expected} on {fabric.machine_type}",
                    remedy="Remove OFI_NCCL_PROTOCOL from the environment",
                )
            )
    return found, None


def _hint(log: NcclLog, code: str, level: Level, remedy: str) -> Finding:
    return Finding(level=level, code=code, object="log line", observed=log.hints.get(code, code), remedy=remedy)
