"""The gate between proof and the first irreversible step. Pure.

Every required check must be answered by evidence that is intact, fresh, of this pool's very nodes and of this spec.
Figures are judged again here, so limits changed since are the ones that hold. What is missing is unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from infra.clock import parse_time
from infra.fabrics import Fabric, fabric_of
from infra.model.evidence import Evidence
from infra.model.measurement import Steps, Sweep
from infra.model.pools import Pool
from infra.model.spec import MigrationSpec, RevalidationSpec
from infra.model.verdict import Gate, Outcome, Verdict, worst
from tasks.rules import bandwidth, compare, hardware, lustre_path
from tasks.rules.wording import age, and_more, plural

READINESS, TRANSPORT, WORKLOAD = "readiness", "transport-proof", "workload-path"
CLOCK_SKEW = timedelta(minutes=5)  # evidence from further in the future has a clock that cannot be trusted
NCCL_TESTS = "nccl-tests"
PROBE_OF: Mapping[str, str] = {
    NCCL_TESTS: NCCL_TESTS,
    TRANSPORT: "transport-proof",
    WORKLOAD: "workload-path",
    bandwidth.FLOOR: "bandwidth",
    bandwidth.SHAPE: "bandwidth",
    bandwidth.PLAUSIBILITY: "bandwidth",
    hardware.DEVICES: "devices",
    hardware.STORAGE: "storage",
    lustre_path.CHECK: "storage",
    compare.CHECK: "train-step",
}
# What the pool can do, and what jobs get, are two questions: one's evidence does not answer the other.
_MODE_OF: Mapping[str, str] = {
    WORKLOAD: "workload",
    **dict.fromkeys((TRANSPORT, NCCL_TESTS, bandwidth.FLOOR, bandwidth.SHAPE, bandwidth.PLAUSIBILITY), "pinned"),
}
# May run on some of the pool's nodes: as many as the source pool had for its side of the comparison.
_ON_A_PART = frozenset({compare.CHECK})


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    """What evidence must belong to."""

    pool: str
    machine_type: str
    node_uids: frozenset[str]
    size: int  # nodes that the cloud says the pool has
    gpus: int  # a node should offer; 0 when nobody says
    spec_hash: str
    now: datetime
    max_age: timedelta
    simulated: bool = False  # the cluster is the sandbox; its evidence is no other cluster's, and the reverse


def required(spec: MigrationSpec | RevalidationSpec) -> tuple[str, ...]:
    """The checks that this spec asks for, from cheap to dear."""
    checks = [READINESS, TRANSPORT, WORKLOAD]
    checks += [bandwidth.FLOOR, bandwidth.SHAPE, bandwidth.PLAUSIBILITY, hardware.DEVICES]
    if spec.validation.nccl_tests_image:
        checks.append(NCCL_TESTS)
    if spec.validation.storage and spec.validation.storage_claim:
        checks.append(hardware.STORAGE)
        if spec.validation.storage_path == "rdma":
            checks.append(lustre_path.CHECK)
    if spec.validation.train_step and spec.gate.max_step_ratio is not None:
        checks.append(compare.CHECK)
    return tuple(checks)


def judge(
    *,
    evidence: Sequence[Evidence],
    baseline: Sequence[Evidence],
    readiness: Sequence[Verdict],
    spec: MigrationSpec | RevalidationSpec,
    spec_hash: str,
    pool: Pool,
    node_uids: Collection[str],
    now: datetime,
    simulated: bool = False,
    name: str = "proof",
) -> Gate:
    """All required checks.

    Args:
        evidence: of the pool to be proven, one validation's.
        baseline: of the source pool, for the comparison of steps.
        readiness: verdicts of the readiness step.
        spec: limits and what is asked for.
        spec_hash: of `spec`, as the evidence carries it.
        pool: to be proven. Its machine type's figures hold where the spec names none.
        node_uids: of the pool's nodes as they are now. A node replaced since has proven nothing.
        now: against which ages are told.
        simulated: the cluster is the sandbox.
        name: of the gate, for the report.

    """
    fabric = fabric_of(pool.machine_type)
    binding = Binding(
        pool=pool.identity,
        machine_type=pool.machine_type,
        node_uids=frozenset(node_uids),
        size=pool.nodes,
        gpus=fabric.gpus if fabric else sum(pool.gpus.values()),
        spec_hash=spec_hash,
        now=now,
        max_age=spec.gate.max_evidence_age,
        simulated=simulated,
    )
    checks = required(spec)
    verdicts = [v for v in readiness if v.check == READINESS]
    verdicts += [_answer(check, evidence, baseline, spec, binding) for check in checks if check != READINESS]
    return Gate(name=name, required=checks, verdicts=tuple(verdicts))


def refusal(evidence: Evidence, binding: Binding, *, partial: bool = False) -> str:
    """Why this evidence is not about this pool now, or "". `partial`: it may come from some of the nodes."""
    if not evidence.intact:
        return "was altered after it was sealed"
    if evidence.pool != binding.pool or not binding.pool:
        return f"is of pool {evidence.pool or 'unknown'}"
    if evidence.simulated is not binding.simulated:
        return (
            "is simulated, and the cluster is real" if evidence.simulated else "is real, and the cluster is simulated"
        )
    if evidence.machine_type != binding.machine_type:
        return f"is of machine type {evidence.machine_type or 'unknown'}"
    if evidence.spec_hash != binding.spec_hash:
        return "was measured under another spec"
    if reason := _other_nodes(evidence, binding, partial=partial):
        return reason
    return _stale(evidence, binding)


def _other_nodes(evidence: Evidence, binding: Binding, *, partial: bool) -> str:
    measured = set(evidence.node_uids)
    if not binding.node_uids or not measured:
        return "names no nodes"
    if len(binding.node_uids) < binding.size:
        return f"cannot be of the whole pool: {len(binding.node_uids)} of its {binding.size} nodes are seen"
    gone = measured - binding.node_uids
    if gone:
        return f"is of {plural(len(gone), 'node')} no longer in the pool (other UIDs)"
    left_out = binding.node_uids - measured
    return f"leaves out {plural(len(left_out), 'node')} of the pool" if left_out and not partial else ""


def _time_of(evidence: Evidence) -> datetime | None:
    try:
        return parse_time(evidence.measured)
    except ValueError:
        return None


def _stale(evidence: Evidence, binding: Binding) -> str:
    measured = _time_of(evidence)
    if measured is None:
        return "does not say when it was measured"
    if measured > binding.now + CLOCK_SKEW:
        return f"claims to be from {evidence.measured}, which is in the future"
    if binding.now - measured > binding.max_age:
        return f"is {age(measured, binding.now)} old (gate.max_evidence_age)"
    return ""


def _answer(
    check: str,
    evidence: Sequence[Evidence],
    baseline: Sequence[Evidence],
    spec: MigrationSpec | RevalidationSpec,
    binding: Binding,
) -> Verdict:
    """One check: every piece of its probe's evidence that counts must pass, and none may be altered.

    Some of the nodes are enough where a check asks for no more, and to show a defect: it is one of the pool.
    """
    of_probe = [e for e in evidence if e.probe == PROBE_OF[check] and e.mode == _MODE_OF.get(check, e.mode)]
    refused: list[str] = []
    bound: list[tuple[Evidence, Verdict]] = []
    for item in of_probe:
        why = refusal(item, binding, partial=True)
        if not why:
            verdict = _judge_one(check, item, baseline, spec, binding) if item.complete else _of_incomplete(check, item)
            if verdict.outcome is not Outcome.FAIL:
                why = refusal(item, binding, partial=check in _ON_A_PART)
            if not why:
                bound.append((item, verdict))
                continue
        refused.append(f"evidence {item.id[:8] or '?'} {why}")
    if any(not e.intact for e in of_probe) or not bound:
        reason = and_more(sorted(set(refused)), 3) or f"probe {PROBE_OF[check]} was not run"
        return Verdict(check=check, outcome=Outcome.UNMEASURED, reason=reason)
    outcome = worst(v.outcome for _, v in bound)
    decisive = next(v for _, v in bound if v.outcome is outcome)
    return replace(decisive, evidence=tuple(e.id for e, _ in bound))


def _of_incomplete(check: str, evidence: Evidence) -> Verdict:
    """A probe that broke off may have shown a defect; it has never shown that there is none."""
    stored = evidence.verdict(check)
    if stored is not None and stored.outcome is Outcome.FAIL:
        return stored
    said = f": {stored.reason}" if stored is not None and stored.reason else ""
    return Verdict(check=check, outcome=Outcome.UNMEASURED, reason=f"the probe did not come to its end{said}")


def _judge_one(
    check: str,
    evidence: Evidence,
    baseline: Sequence[Evidence],
    spec: MigrationSpec | RevalidationSpec,
    binding: Binding,
) -> Verdict:
    stored = evidence.verdict(check)
    if check in _SWEEP:
        # Kept before figures carried their doubts: what the output lacked then, only its verdict says.
        untold = stored is not None and stored.outcome is Outcome.UNMEASURED and "doubt" not in evidence.reading
        return stored if stored is not None and untold else _SWEEP[check](evidence, spec, binding)
    if check == compare.CHECK:
        return _step_time(evidence, baseline, spec, binding)
    return stored or Verdict(check=check, outcome=Outcome.UNMEASURED, reason="the evidence does not answer it")


def _sweep(evidence: Evidence) -> Sweep:
    return Sweep.from_dict(evidence.reading)


def _expected(evidence: Evidence, spec: MigrationSpec | RevalidationSpec, binding: Binding) -> bandwidth.Expected:
    """What the sweep had to be, from spec, pool and machine type, never from what the run says of itself."""
    gpus = binding.gpus or evidence.reading.get("gpus_per_node")
    return bandwidth.Expected(
        nodes=len(binding.node_uids),
        gpus=gpus if isinstance(gpus, int) else 0,
        sizes=tuple(spec.validation.sweep_sizes),
    )


def _floor(evidence: Evidence, spec: MigrationSpec | RevalidationSpec, binding: Binding) -> Verdict:
    expected, floors = _expected(evidence, spec, binding), spec.gate.min_busbw_gb_s
    return bandwidth.judge_floor(_sweep(evidence), expected, fabric_of(binding.machine_type), floors)


def _shape(evidence: Evidence, spec: MigrationSpec | RevalidationSpec, binding: Binding) -> Verdict:
    return bandwidth.judge_shape(_sweep(evidence), _expected(evidence, spec, binding))


def _plausibility(evidence: Evidence, spec: MigrationSpec | RevalidationSpec, binding: Binding) -> Verdict:
    fabric: Fabric | None = fabric_of(binding.machine_type)
    return bandwidth.judge_plausibility(_sweep(evidence), _expected(evidence, spec, binding), fabric)


_SWEEP: Mapping[str, Callable[[Evidence, MigrationSpec | RevalidationSpec, Binding], Verdict]] = {
    bandwidth.FLOOR: _floor,
    bandwidth.SHAPE: _shape,
    bandwidth.PLAUSIBILITY: _plausibility,
}


def _step_time(
    evidence: Evidence, baseline: Sequence[Evidence], spec: MigrationSpec | RevalidationSpec, binding: Binding
) -> Verdict:
    """Against the newest run on the source pool with the same image and command line."""
    limit = spec.gate.max_step_ratio
    if limit is None:
        return Verdict(check=compare.CHECK, outcome=Outcome.UNMEASURED, reason="no limit: gate.max_step_ratio is null")
    other = [
        e
        for e in baseline
        if e.probe == evidence.probe
        and e.intact
        and e.complete
        and e.spec_hash == binding.spec_hash  # which names the source
        and e.pool != binding.pool
        and not binding.node_uids & set(e.node_uids)  # pools that share nodes are no two pools
        and (e.simulated, e.mode) == (evidence.simulated, evidence.mode)
        and (e.image, e.arguments) == (evidence.image, evidence.arguments)
        and (at := _time_of(e)) is not None
        and at <= binding.now + CLOCK_SKEW
    ]
    newest = max(other, key=lambda e: _time_of(e) or binding.now, default=None)
    if reason := incomparable(evidence, newest):
        return Verdict(check=compare.CHECK, outcome=Outcome.UNMEASURED, reason=reason)
    verdict = compare.judge(_steps(newest), _steps(evidence), limit=limit, confidence=spec.gate.confidence)
    if newest is None:
        return replace(verdict, reason="no baseline: the same run, intact and complete, on the source pool is missing")
    return replace(
        verdict, reason=f"{verdict.reason}; source measured {age(parse_time(newest.measured), binding.now)} ago"
    )


def incomparable(evidence: Evidence, other: Evidence | None) -> str:
    """Why the steps of two pools are not of one program, on as many nodes as it was given; or ""."""
    sides = [side for side in (evidence, other) if side is not None]
    if odd := next((odd for side in sides if (odd := _misplaced(side))), ""):
        return odd
    ids = {side.versions.get("image_id", "") for side in sides}
    if len(ids) > 1 or "," in (known := ids.pop()) or not known:
        return f"not comparable: {evidence.image} is not shown to be the same image (by id) on every node of both pools"
    return ""


def _misplaced(evidence: Evidence) -> str:
    """The program must have found itself on as many nodes as it was given, one pod each."""
    given, said = len(set(evidence.node_uids)), evidence.reading.get("hosts")
    return "" if said == given else f"the run on {evidence.pool} says {said or 'no'} nodes, its pods had {given}"


def _steps(evidence: Evidence | None) -> Steps | None:
    return None if evidence is None else Steps.from_dict(evidence.reading)
