"""Validate a pool by measurement, from cheap to dear, stopping at the first thing that decides.

Transport proof on every rank (pinned, and unpinned in the workload's image), bandwidth sweep, devices, storage,
training step against the source pool. What was not run is unmeasured, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra.clock import Clock
from infra.kube import read as cluster
from infra.kube.api import Kube
from infra.model.cluster import Node
from infra.model.evidence import Evidence
from infra.model.measurement import Steps
from infra.model.pools import Pool
from infra.model.spec import MigrationSpec, RevalidationSpec
from infra.model.verdict import Finding, Outcome, Verdict, worst
from infra.probes import catalogue
from infra.probes.catalogue import Probe
from tasks import checks
from tasks.locate import locate
from tasks.measuring import Session
from tasks.rules import bandwidth, compare, gate, hardware
from tasks.rules.idle import idle_nodes
from tasks.rules.probe_verdict import unmeasured
from tasks.rules.storage_verdict import clients_of
from tasks.rules.wording import plural
from tasks.spending import Spending

Spec = MigrationSpec | RevalidationSpec
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Verdicts, the evidence behind them, and what it cost. `raw` maps the digest in the evidence to the output."""

    verdicts: tuple[Verdict, ...]
    evidence: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()
    gpu_minutes: float = 0.0
    estimated_gpu_minutes: float = 0.0
    nodes: tuple[str, ...] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Fail, else unmeasured, else pass; nothing at all is unmeasured."""
        return worst(v.outcome for v in self.verdicts)

    @property
    def summary(self) -> str:
        """One line: what decided, and the cost."""
        price = plural(round(self.gpu_minutes), "GPU-minute")
        # the pinned proof fails closed and says little; what a job gets says what happened
        by_interest = sorted(self.verdicts, key=lambda v: v.check != gate.WORKLOAD)
        for outcome in (Outcome.FAIL, Outcome.UNMEASURED):
            for verdict in by_interest:
                if verdict.outcome is outcome:
                    return f"{verdict.check}: {outcome.value}: {verdict.reason} ({price})"
        if not self.verdicts:
            return f"measured {plural(len(self.evidence), 'probe')} on {plural(len(self.nodes), 'node')} ({price})"
        return f"{plural(len(self.verdicts), 'check')} pass on {plural(len(self.nodes), 'node')} ({price})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON for the run record; the raw output is not in it."""
        return {
            "outcome": self.outcome.value,
            "verdicts": [v.to_dict() for v in self.verdicts],
            "evidence": [e.to_dict() for e in self.evidence],
            "findings": [f.to_dict() for f in self.findings],
            "gpu_minutes": round(self.gpu_minutes, 2),
            "estimated_gpu_minutes": round(self.estimated_gpu_minutes, 2),
            "nodes": list(self.nodes),
        }


def validate(
    kube: Kube,
    pool: Pool,
    spec: Spec,
    run: str,
    spec_hash: str,
    clock: Clock,
    say: Say,
    *,
    baseline: Sequence[Evidence] = (),
    readiness: Sequence[Verdict] = (),
    nodes: Sequence[Node] | None = None,
    attempt: str = "",
) -> Validation:
    """Prove the pool.

    Args:
        kube: the cluster.
        pool: to be proven.
        spec: what is asked for and the limits.
        run: names the probes.
        spec_hash: binds the evidence.
        clock: the cluster's.
        say: shows progress.
        baseline: evidence of the source pool, for the step-time comparison and storage.
        readiness: verdicts of the readiness step. Where one is no pass, only the cheap proof runs: it shows what a
            job gets on such a pool.
        nodes: default: all nodes of the pool.
        attempt: tells validations of one run apart.

    """
    taking_part = list(nodes) if nodes is not None else _nodes(kube, pool)
    session = Session.open(kube, pool, taking_part, spec, run, spec_hash, clock, say, attempt=attempt)
    say(f"validation: {session.estimate().wording()}")
    if len(taking_part) < 2:
        return _closed(session, f"{plural(len(taking_part), 'node')} in the pool: no network between nodes to measure")
    if odd := hardware.other_machines(taking_part, pool.machine_type):
        return _closed(session, odd)
    stop = _prove(session)
    not_ready = [v for v in readiness if v.outcome is not Outcome.PASS]
    if not stop and not_ready:
        stop = f"{not_ready[0].check} is {not_ready[0].outcome.value}: {not_ready[0].reason}"
    if not stop:
        stop = _bandwidth(session)
    if not stop:
        second = catalogue.nccl_tests(spec.validation)
        if second is not None:
            checks.nccl_tests(session, second)
        checks.devices(session, catalogue.devices(spec.validation))
        _storage(session, baseline)
        _train_step(session, baseline)
    return _closed(session, f"not run: {stop}")


def measure(
    kube: Kube, pool: Pool, spec: Spec, run: str, spec_hash: str, clock: Clock, say: Say, *, attempt: str = "base"
) -> Validation:
    """The baseline: the same programs on idle nodes of the source pool, as a job there gets its network.

    Nothing is judged here but whether it could be measured. Fewer than two idle nodes: no evidence, and the
    comparison at the gate is unmeasured.
    """
    nodes = idle(kube, pool)
    target = getattr(getattr(spec, "target", None), "nodes", None)
    if isinstance(target, int):
        nodes = nodes[:target]
    session = Session.open(kube, pool, nodes, spec, run, spec_hash, clock, say, attempt=attempt, judged=False)
    if len(nodes) < 2:
        reason = f"{plural(len(nodes), 'idle node')} in pool {pool.name}: two are needed to measure the network"
        say(f"baseline: {reason}")
        return Validation(verdicts=unmeasured(("baseline",), reason))
    for probe in catalogue.baseline_probes(spec.validation):
        _measure_one(session, probe)
    lost = [e.probe for e in session.evidence if not e.complete]
    verdicts = unmeasured(("baseline",), f"{', '.join(lost)}: {session.last_reason}") if lost else ()
    return replace(_closed(session, ""), verdicts=verdicts)


def repeat_proof(
    kube: Kube,
    pool: Pool,
    spec: Spec,
    run: str,
    spec_hash: str,
    clock: Clock,
    say: Say,
    spending: Spending | None = None,
) -> Validation:
    """The transport proof once more, on idle nodes. No two idle nodes: nothing is claimed, so no verdict."""
    nodes = idle(kube, pool)
    if len(nodes) < 2:
        say(f"transport not proven again: {plural(len(nodes), 'idle node')} left in pool {pool.name}")
        return Validation(verdicts=())
    session = Session.open(kube, pool, nodes, spec, run, spec_hash, clock, say, attempt="soak", spending=spending)
    if odd := hardware.other_machines(nodes, pool.machine_type):
        return Validation(verdicts=unmeasured((gate.TRANSPORT,), odd))
    checks.proof(session, catalogue.transport_proof(spec.validation), gate.TRANSPORT)
    return replace(_closed(session, ""), verdicts=tuple(session.verdicts))


def _prove(session: Session) -> str:
    """What a job gets, then what the pool can do: the second explains a failure of the first.

    Two scouts with a GPU each go first. Where even they are on sockets, the pinned run is left to them too.
    """
    validation = session.spec.validation
    path, pinning = catalogue.workload_path(validation), catalogue.transport_proof(validation)
    if checks.scout(session, catalogue.scout(path), gate.WORKLOAD):
        if session.offers_rdma():
            checks.proof(session, catalogue.scout(pinning), gate.TRANSPORT, session.nodes[:2])
        if session.partly_on_fabric():
            locate(session, catalogue.pair(validation))
        return f"{gate.WORKLOAD} is {Outcome.FAIL.value} on two nodes already"
    delivered = checks.proof(session, path, gate.WORKLOAD)
    pinned = checks.proof(session, pinning, gate.TRANSPORT)
    bad = [v for v in (delivered, pinned) if v.outcome is not Outcome.PASS]
    if not bad:
        return ""
    if session.partly_on_fabric():
        locate(session, catalogue.pair(validation))
    return f"{bad[0].check} is {bad[0].outcome.value}"


def _bandwidth(session: Session) -> str:
    probe = catalogue.bandwidth(session.spec.validation)
    verdicts = checks.sweep(session, probe)
    floor = next(v for v in verdicts if v.check == bandwidth.FLOOR)
    if floor.outcome is Outcome.FAIL and len(session.nodes) > 2:
        locate(session, catalogue.pair(session.spec.validation))
    bad = [v for v in verdicts if v.outcome is not Outcome.PASS]
    return f"{bad[0].check} is {bad[0].outcome.value}" if bad else ""


def _storage(session: Session, baseline: Sequence[Evidence]) -> None:
    probe = catalogue.storage(session.spec.validation)
    if probe is not None:
        before = [
            # of the same command line: other sizes or fewer jobs make another rate, whatever the pool
            e
            for e in baseline
            if e.probe == probe.name and e.intact and e.complete and (e.image, e.arguments) == (probe.image, probe.args)
        ]
        checks.storage(session, probe, clients_of(before[-1].reading) if before else None)


def _train_step(session: Session, baseline: Sequence[Evidence]) -> None:
    """On as many nodes as the source had, so that like is compared with like."""
    probe = catalogue.train_step(session.spec.validation)
    if probe is None:
        return
    before = [e for e in baseline if e.probe == probe.name and e.intact and e.complete]
    source = Steps.from_dict(before[-1].reading) if before else None
    count = source.hosts if source and source.hosts else len(session.nodes)
    limit = session.spec.gate.max_step_ratio

    def judge(steps: Steps) -> tuple[Verdict, ...]:
        if limit is None:
            return ()
        return (compare.judge(source, steps, limit=limit, confidence=session.spec.gate.confidence),)

    checks.train(session, probe, session.nodes[:count], judge)


def _measure_one(session: Session, probe: Probe) -> None:
    """One probe of the baseline: measured, not judged."""
    if probe.name == "bandwidth":
        checks.sweep(session, probe)
    elif probe.name == "storage":
        checks.storage(session, probe, None)
    else:
        checks.train(session, probe, session.nodes, lambda steps: ())


def _closed(session: Session, reason: str) -> Validation:
    """Every required check gets a verdict: what was not reached is unmeasured for this reason."""
    answered = {v.check for v in session.verdicts}
    missing = unmeasured([c for c in gate.required(session.spec) if c not in answered and c != gate.READINESS], reason)
    order = {check: number for number, check in enumerate(gate.required(session.spec))}
    verdicts = sorted((*session.verdicts, *missing), key=lambda v: order.get(v.check, len(order)))
    return Validation(
        verdicts=tuple(verdicts),
        evidence=tuple(session.evidence),
        findings=tuple(session.findings),
        gpu_minutes=session.spent,
        estimated_gpu_minutes=session.estimate().gpu_minutes,
        nodes=tuple(n.name for n in session.nodes),
        raw=dict(session.raw),
    )


def _nodes(kube: Kube, pool: Pool) -> list[Node]:
    found = cluster.snapshot(kube, pool.node_selector, owners=False, storage=False).nodes if pool.node_selector else ()
    return sorted(found, key=lambda n: n.name)


def idle(kube: Kube, pool: Pool) -> list[Node]:
    """Ready nodes of the pool on which nobody asks for its devices, by name."""
    if not pool.node_selector:
        return []
    snapshot = cluster.snapshot(kube, pool.node_selector, owners=False, storage=False)
    return idle_nodes(snapshot, snapshot.nodes, {*pool.gpus, *pool.rdma} or {"nvidia.com/gpu"})
