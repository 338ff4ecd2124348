"""What containers saw on each node, and what the shared file system gave them. Pure.

A tool that was missing says nothing about devices: that node is unmeasured, not bad and not good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from infra.fabrics import Fabric
from infra.model.cluster import Node
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks.rules.device_checks import CHECKS, REMEDY
from tasks.rules.wording import and_more

DEVICES, STORAGE = "devices", "storage"
MACHINE_LABEL = "node.kubernetes.io/instance-type"
MAX_STORAGE_LOSS = 0.10  # against the source pool; AWS blocks a client change that costs more (parallelcluster)
# Of the slowest client of the source pool: clients share a file system unevenly, and one far below hangs on its path.
LEAST_OF_SLOWEST = 0.7
LEAST_OF_MEDIAN = 0.5  # of the source pool's clients, where the slowest of them was a broken one itself


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientIo:
    """One node's direct I/O, bytes a second (None: the output does not say).

    `complete`: fio came to its end, on the shared file system; `doubt` says why it is not shown to have been there.
    """

    node: str
    write_bytes_s: float | None
    read_bytes_s: float | None
    errors: int
    complete: bool
    doubt: str = ""


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
    """Nodes that the cluster does not say to be of the pool's machine type, or "": figures of it may not fit them.

    The label is the cloud's word. Without it a node may be anything that has as many GPUs and NICs.
    """
    said = {n.name: n.labels.get(MACHINE_LABEL, "") for n in nodes}
    other = {name: f"is {kind}" if kind else "does not say" for name, kind in said.items() if kind != machine_type}
    shown = and_more([f"{name} {kind}" for name, kind in sorted(other.items())], 3)
    return f"the pool is said to be {machine_type or 'of no type'}, and {shown} ({MACHINE_LABEL})" if other else ""


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
    for check in CHECKS:
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
                    remedy=REMEDY[code],
                )
            )
    return findings, unknown


def _storage_unusable(clients: Sequence[ClientIo], nodes: Sequence[str], fabric: Fabric | None) -> str:
    lost = sorted(set(nodes) - {c.node for c in clients if c.complete})
    if doubts := {c.node: c.doubt for c in clients if c.doubt and c.node in nodes}:
        shown = and_more([f"{node}: {why}" for node, why in sorted(doubts.items())], 2)
        return f"not shown to be the shared file system that was measured ({shown})"
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
