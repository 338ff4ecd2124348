"""What containers saw on each node, and what the shared file system gave them. Pure.

A tool that was missing says nothing about devices: that node is unmeasured, not bad and not good.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from infra.fabrics import Fabric
from infra.model.cluster import Node
from infra.model.measurement import whole
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks.rules.wording import and_more

DEVICES, STORAGE = "devices", "storage"
MACHINE_LABEL = "node.kubernetes.io/instance-type"
MAX_STORAGE_LOSS = 0.10  # against the source pool; AWS blocks a client change that costs more (parallelcluster)
# Of the slowest client of the source pool: clients share a file system unevenly, and one far below hangs on its path.
LEAST_OF_SLOWEST = 0.7
LEAST_OF_MEDIAN = 0.5  # of the source pool's clients, where the slowest of them was a broken one itself
_DRIVERS = {"efa": frozenset({"efa"}), "roce": frozenset({"mlx5_core", "mlx5_ib"})}
RATE_SHARE = 0.99  # a port's rate against the machine type's: it is a setting, not a measurement
EFA_FIXED_GBPS = 100  # what older EFA drivers give as the rate of any device
_ACTIVE = re.compile(r"\bACTIVE$")  # ACTIVE_DEFER is a link that has failed and waits
_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")
_REMEDY = {
    "gpu-count": "look for Xid errors in the node's kernel log; replace the node",
    "rdma-count": "check the interfaces of the launch template and the device plugin's allocatable",
    "rdma-port-down": "replace the node, or ask the cloud to repair the link",
    "rdma-rate": "check the link's width and speed, cable and switch port, or replace the node",
    "efa-domains": "check the EFA driver in the image of the node and the security group's rules to itself",
    "memlock": "add IPC_LOCK to the container, or raise the container runtime's LimitMEMLOCK",
    "plugin-missing": "install the network plugin in the image (aws-ofi-nccl), or mount it from the node (gIB, TCPXO)",
    "plugin-unloadable": "match the plugin's glibc, CUDA and libfabric with the image",
    "interface-missing": "correct the NCCL_*_IFNAME variable, or attach the network",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientIo:
    """One node's direct I/O, bytes a second (None: the output does not say). `complete`: fio came to its end."""

    node: str
    write_bytes_s: float | None
    read_bytes_s: float | None
    errors: int
    complete: bool


Check = Callable[[Mapping[str, Any], Fabric], tuple[str, str, str] | str | None]


def judge_reports(devices: Sequence[Mapping[str, Any]], nodes: Sequence[str], fabric: Fabric | None) -> Verdict:
    """The lines as they were printed. Of two reports of one node a defect counts, and neither proves the node well."""
    first = {str(d.get("node")): d for d in reversed(devices)}
    last = {str(d.get("node")): d for d in devices}
    verdicts = [judge_devices(reports, nodes, fabric) for reports in (first, last)]
    twice = sorted(node for node, times in Counter(str(d.get("node")) for d in devices).items() if times > 1)
    outcome = worst(v.outcome for v in verdicts)
    decisive = next(v for v in verdicts if v.outcome is outcome)
    if outcome is Outcome.PASS and twice:
        return replace(decisive, outcome=Outcome.UNMEASURED, reason=f"more than one report of {and_more(twice, 5)}")
    return decisive


def judge_devices(reports: Mapping[str, Mapping[str, Any]], nodes: Sequence[str], fabric: Fabric | None) -> Verdict:
    """One report for every node, each with all that the machine type has."""
    statistic = "devices, limits and libraries in a container on each node"
    if fabric is None:
        return Verdict(
            check=DEVICES,
            outcome=Outcome.UNMEASURED,
            statistic=statistic,
            reason="measured, not judged: nothing is known of this machine type",
        )
    missing = sorted(n for n in nodes if n not in reports or reports[n].get("ok") is not True)
    findings: list[Finding] = []
    unknown: list[str] = []
    for node in nodes:
        if node not in missing:
            bad, open_questions = _inspect(node, reports[node], fabric)
            findings += bad
            unknown += open_questions
    outcomes = [Outcome.PASS] if nodes else []
    outcomes += [Outcome.FAIL] * bool(findings) + [Outcome.UNMEASURED] * bool(missing or unknown)
    reasons = [f.wording() for f in findings[:3]] + unknown[:3]
    if missing:
        reasons.insert(0, f"no report from {and_more(missing, 5)}")
    return Verdict(
        check=DEVICES,
        outcome=worst(outcomes),
        observed=f"{len(nodes) - len(missing)} of {len(nodes)} nodes reported",
        limit=f"{fabric.gpus} GPUs and {fabric.nics} {fabric.kind} devices on every node",
        statistic=statistic,
        reason="; ".join(reasons) or "every node shows all of its devices, and the network plugin loads",
        findings=tuple(findings),
    )


def other_machines(nodes: Sequence[Node], machine_type: str) -> str:
    """Nodes of another machine type than the pool is said to have, or "": its figures would judge the wrong thing."""
    other = {
        n.name: n.labels[MACHINE_LABEL] for n in nodes if n.labels.get(MACHINE_LABEL, machine_type) != machine_type
    }
    shown = and_more([f"{name} is {kind}" for name, kind in sorted(other.items())], 3)
    return f"the pool is said to be {machine_type or 'of no known type'}, and {shown}" if other else ""


def judge_storage(
    clients: Sequence[ClientIo], nodes: Sequence[str], fabric: Fabric | None, baseline: Sequence[ClientIo] | None
) -> Verdict:
    """Every node, reading and writing, no error, below what a client can move, and as fast as on the source pool."""
    statistic = "direct I/O of each node, all at once: mean and slowest node against the source pool"
    reason = _storage_unusable(clients, nodes, fabric)
    if reason:
        failed = sum(c.errors for c in clients)
        outcome = Outcome.FAIL if failed else Outcome.UNMEASURED
        return Verdict(check=STORAGE, outcome=outcome, statistic=statistic, reason=reason)
    observed = f"write {_mean(clients, 'write'):.2f}, read {_mean(clients, 'read'):.2f} GB/s per node"
    if not baseline or _storage_unusable(baseline, [c.node for c in baseline], None):
        return Verdict(
            check=STORAGE,
            outcome=Outcome.UNMEASURED,
            observed=observed,
            statistic=statistic,
            reason="measured, not judged: no complete measurement on the source pool to compare with",
        )
    floors = {way: (1 - MAX_STORAGE_LOSS) * _mean(baseline, way) for way in ("write", "read")}
    slow = [way for way, floor in floors.items() if _mean(clients, way) < floor]
    behind = _far_behind(clients, baseline)
    reasons = [f"{' and '.join(slow)} slower than on the source pool by over {MAX_STORAGE_LOSS:.0%}"] if slow else []
    if behind:
        reasons.append(f"far below the slowest client of the source pool: {and_more(behind, 5)}")
    ways = slow or list(floors)
    if reasons and len(clients) > len(baseline) and all(_total(clients, w) >= _total(baseline, w) for w in ways):
        return Verdict(
            check=STORAGE,
            outcome=Outcome.UNMEASURED,
            observed=observed,
            statistic=statistic,
            reason=f"{len(clients)} clients share what {len(baseline)} had to themselves on the source pool: the file "
            f"system's total may be the limit, so the clients are not compared ({'; '.join(reasons)})",
        )
    return Verdict(
        check=STORAGE,
        outcome=Outcome.FAIL if reasons else Outcome.PASS,
        observed=observed,
        limit=f"write >= {floors['write']:.2f}, read >= {floors['read']:.2f} GB/s per node",
        statistic=statistic,
        reason=f"{'; '.join(reasons)}: check the zone and the client's path (lnetctl net show -v)"
        if reasons
        else "as fast as on the source pool, on every node",
    )


def _far_behind(clients: Sequence[ClientIo], baseline: Sequence[ClientIo]) -> list[str]:
    """Nodes that a mean hides: each way that one moved far less than the source pool's slowest client."""
    found = []
    for way in ("write", "read"):
        before = [_rate(c, way) for c in baseline]
        floor = max(LEAST_OF_SLOWEST * min(before), LEAST_OF_MEDIAN * median(before))
        found += [
            f"node {c.node} ({way} {_rate(c, way):.3g} < {floor:.3g} GB/s)" for c in clients if _rate(c, way) < floor
        ]
    return found


def _inspect(node: str, report: Mapping[str, Any], fabric: Fabric) -> tuple[list[Finding], list[str]]:
    findings: list[Finding] = []
    unknown: list[str] = []
    for check in _CHECKS:
        said = check(report, fabric)
        if isinstance(said, str):
            unknown.append(f"node {node}: {said}")
        elif said:
            code, observed, expected = said
            findings.append(
                Finding(
                    level=Level.BLOCK,
                    code=code,
                    object=f"node {node}",
                    observed=observed,
                    expected=expected,
                    remedy=_REMEDY[code],
                )
            )
    return findings, unknown


def _gpus(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    count = whole(_map(report, "gpus").get("count"))
    if count is None:
        return f"GPUs not counted (nvidia-smi {_map(report, 'gpus').get('state', 'not run')})"
    return None if count == fabric.gpus else ("gpu-count", f"{count} GPUs in the container", str(fabric.gpus))


def _rdma(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """Devices of the fabric's own driver: some machine types show further RDMA devices that are not of it."""
    drivers = _DRIVERS.get(fabric.kind)
    if drivers is None:
        return None
    if "verbs" not in report:
        return "RDMA devices not listed"
    devices = {n: d for n, d in _map(report, "verbs").items() if isinstance(d, Mapping) and d.get("driver") in drivers}
    nodes = [n for n in listed(report, "infiniband") if str(n).startswith("uverbs")]
    seen = min(len(devices), len(nodes))
    if seen < fabric.nics:
        return "rdma-count", f"{seen} {fabric.kind} devices in the container", str(fabric.nics)
    ports = [(name, port) for name, device in devices.items() for port in _map(device, "ports").values()]
    silent = sorted(set(devices) - {name for name, port in ports if isinstance(port, Mapping) and port.get("state")})
    if silent:
        return f"no port with a state shown of {and_more(silent, 4)}"
    shown = [(name, port) for name, port in ports if isinstance(port, Mapping)]
    down = sorted(name for name, port in shown if not _ACTIVE.search(str(port.get("state", ""))))
    if down:
        return "rdma-port-down", f"port not active: {and_more(down, 4)}", "ACTIVE"
    return _rates(shown, fabric)


def _rates(ports: Sequence[tuple[str, Mapping[str, Any]]], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """The rate to which each link was trained, Gb/s: at half of it everything works, at half the speed."""
    rates = {name: _RATE.match(str(port.get("rate", ""))) for name, port in ports}
    if silent := sorted(name for name, rate in rates.items() if rate is None):
        return f"no rate shown of {and_more(silent, 4)}"
    shown = {name: float(rate[1]) for name, rate in rates.items() if rate}
    if fabric.kind == "efa" and set(shown.values()) == {EFA_FIXED_GBPS}:
        return None  # says nothing; the sweep measures it
    wanted = fabric.nic_gb_s * 8
    slow = sorted(name for name, rate in shown.items() if rate < wanted * RATE_SHARE)
    if not slow:
        return None
    return "rdma-rate", f"{and_more([f'{n} at {shown[n]:g}' for n in slow], 4)} Gb/s", f"{wanted:g} Gb/s"


def _domains(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    if fabric.provider != "efa":
        return None
    info = _map(report, "fi_info")
    if info.get("state") in {None, "missing", "timed-out"}:
        return f"EFA domains not listed (fi_info {info.get('state') or 'not run'})"
    count = len({str(domain) for domain in listed(info, "domains")})
    return None if count >= fabric.nics else ("efa-domains", f"{count} EFA domains in fi_info", str(fabric.nics))


def _memlock(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """RDMA pins memory: unlimited, or the capability that ignores the limit."""
    if fabric.kind not in _DRIVERS:
        return None
    limits = report.get("memlock")
    if not isinstance(limits, Mapping) or "soft_bytes" not in limits:
        return "locked-memory limit not read"
    if limits.get("ipc_lock") is True or limits["soft_bytes"] is None:
        return None
    return "memlock", f"{limits['soft_bytes']} bytes of locked memory and no IPC_LOCK", "unlimited"


def _plugin(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    """A network plugin that loads, in this image. NCCL is silent when there is none."""
    if not fabric.rdma:
        return None
    if "libraries" not in report:
        return "libraries not listed"
    libraries = [item for item in listed(report, "libraries") if isinstance(item, Mapping)]
    plugins = [item for item in libraries if "libnccl-net" in str(item.get("path"))]
    if any(item.get("loads") is True for item in plugins):
        return None
    if not plugins:
        return "plugin-missing", "no libnccl-net*.so in the image", "the network plugin of this fabric"
    return "plugin-unloadable", f"{plugins[0].get('path')}: {plugins[0].get('error')}", "a library that loads"


def _interfaces(report: Mapping[str, Any], fabric: Fabric) -> tuple[str, str, str] | str | None:
    missing = listed(report, "interfaces_missing")
    return ("interface-missing", and_more([str(m) for m in missing], 4), "interfaces that exist") if missing else None


_CHECKS: tuple[Check, ...] = (_gpus, _rdma, _domains, _memlock, _plugin, _interfaces)


def _map(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(data: Mapping[str, Any], key: str) -> list[Any]:
    """A list of the report, empty where it is none."""
    value = data.get(key)
    return value if isinstance(value, list) else []


def _storage_unusable(clients: Sequence[ClientIo], nodes: Sequence[str], fabric: Fabric | None) -> str:
    lost = sorted(set(nodes) - {c.node for c in clients if c.complete})
    if lost or not nodes:
        return f"no complete fio output from {and_more(lost, 5) or 'any node'}"
    if failed := [c for c in clients if c.errors]:
        return f"fio reports errors on {and_more([c.node for c in failed], 5)}"
    if silent := [c.node for c in clients if not c.write_bytes_s or not c.read_bytes_s]:
        return f"fio moved nothing one way on {and_more(silent, 5)}"
    most = max(fabric.storage_client_gb_s.values(), default=None) if fabric else None
    for client in clients:
        peak = max(client.write_bytes_s or 0.0, client.read_bytes_s or 0.0) / 1e9
        if most is not None and peak > most:
            return f"implausible: {peak:.1f} GB/s on node {client.node}, a client moves at most {most:g} GB/s; a cache?"
    return ""


def _mean(clients: Sequence[ClientIo], way: str) -> float:
    """GB/s per node."""
    return fmean(_rate(c, way) for c in clients)


def _rate(client: ClientIo, way: str) -> float:
    """GB/s of one node."""
    return (getattr(client, f"{way}_bytes_s") or 0.0) / 1e9


def _total(clients: Sequence[ClientIo], way: str) -> float:
    """All clients together, GB/s."""
    return _mean(clients, way) * len(clients)
