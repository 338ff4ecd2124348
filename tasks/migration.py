"""The eleven steps. Each reads, judges, acts and reads back; each finds its own work done and says so.

What a step leaves in the record is what later steps and the report read: plain JSON, small. The gate is in `proof`,
moving the work in `leaving`, the end of the old pool in `retiring`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from infra.errors import Unmeasured
from infra.kube import leases, read, records
from infra.model.pools import Pool
from infra.model.record import Step, StepState
from infra.model.spec import MoveMode, Repeat
from infra.model.verdict import Level, Outcome, Verdict
from tasks import approvals, ledgers, planning, pools, swap, swap_record
from tasks import readiness as ready
from tasks import report as reporting
from tasks import soak as soaking
from tasks import validate as validation
from tasks.facts import (
    LISTED,
    MOVING,
    SOURCE_PRIOR,
    TARGET_PRIOR,
    csi_of,
    evidence_in,
    judged,
    keep,
    noted,
    source_of,
    target_of,
    verdicts_in,
)
from tasks.identity import pool_identity, pool_words
from tasks.leaving import migrate, note_forced
from tasks.proof import gate
from tasks.retiring import retire
from tasks.rules.folding import lines
from tasks.rules.story import stands_in_the_way
from tasks.rules.wording import plural
from tasks.run import Done, Run


def plan(run: Run) -> Done:
    """Step 1. Held where something blocks, with every finding in the record, before anything is touched."""
    found = planning.survey(run)
    if found.blocks:
        blocks = [f for f in found.shown if f.level is Level.BLOCK]
        said = stands_in_the_way(len(blocks))
        for line in lines(blocks):
            run.say(line)
        data = {**_brief(found.to_dict()), "outcome": Outcome.FAIL}
        return Done(summary=f"refused: {said}; nothing was touched", state=StepState.HELD, data=data)
    run.say(f"plan: {found.summary}")
    for line in lines(f for f in found.findings if f.level is Level.WARN):
        run.say(line)
    return Done(summary=found.summary, data=_brief(found.to_dict()))


def _brief(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as the record keeps it: a ConfigMap holds 1 MiB, and one line for each of 4,000 pods fills it."""
    moves = dict(plan["moves"])
    moves["waves"] = [{**wave, "pods": len(wave["pods"])} for wave in moves["waves"]]
    moves["never"] = moves["never"][:LISTED]
    moves["findings"] = []  # among the plan's own
    worst_first = sorted(plan["findings"], key=lambda f: list(Level).index(f["level"]))
    return {**plan, "moves": moves, "findings": worst_first[:LISTED]}


def baseline(run: Run) -> Done:
    """Step 2. The source pool, measured with the same probes on its idle nodes, so that like is compared with like."""
    if run.spec.gate.max_step_ratio is None:
        return Done(summary="not asked for: the gate compares nothing with the source pool")
    pool, spec = source_of(run), run.spec
    if swap_record.applies(run):  # like with like: no slice has more nodes to be compared than the smallest
        spec = spec.model_copy(update={"target": spec.target.model_copy(update={"nodes": swap_record.smallest(run)})})
    found = validation.measure(run.kube, pool, spec, run.name, run.hash, run.clock, run.say)
    keep(run, found.verdicts, found.evidence, found.raw, run.spec.source)
    # Held, not failed: the run goes on to show what else it finds, the gate holds, and the next run measures again.
    lacking = any(v.outcome is not Outcome.PASS for v in found.verdicts)
    return Done(summary=found.summary, state=StepState.HELD if lacking else StepState.DONE, data=found.to_dict())


def provision(run: Run) -> Done:
    """Step 3. The cloud is kept from working against us first; what it was like before is in the record."""
    for note, cloud, part in (
        (SOURCE_PRIOR, run.source, run.spec.source),
        (TARGET_PRIOR, run.target, run.spec.target),
    ):
        if note == SOURCE_PRIOR and swap_record.laid_out(run) is not None:
            continue  # done before the first slice: EKS may show the old size for a while, and must not hear it again
        found = cloud.find(part)
        # A target of somebody else's is refused by the creation below, and must not be changed before that.
        if found is not None and (note == SOURCE_PRIOR or found.ours == run.name):
            leases.check()
            _remember(run, note, cloud.fence_for_run(part, run.name))
    if swap_record.applies(run):
        snapshot = read.snapshot(run.kube)
        note_forced(run, snapshot, [n.name for n in planning.nodes_of(snapshot, source_of(run))])
        pool = swap.provision(run)
    else:
        pool = pools.provision(run.target, run.spec.target, run.name, run.clock, run.say)
    leases.check()
    _remember(run, TARGET_PRIOR, run.target.fence_for_run(run.spec.target, run.name))
    summary = f"{pool_words(run.spec.target)}: {pool.state.value}, {plural(pool.nodes, 'node')} of {pool.machine_type}"
    return Done(summary=summary, data={"pool": _pool(pool)})


def readiness(run: Run) -> Done:
    """Step 4. Not ready is no end: the cheap proof that follows shows what a job would get on such a pool."""
    pool = target_of(run)
    verdict = ready.settle(run.kube, pool, run.clock, run.say, csi_of(run, pool))
    for line in lines(verdict.findings, remedies=False):
        run.say(line)
    return judged((verdict,), verdict.reason)


def validate(run: Run) -> Done:
    """Step 5. From cheap to dear, stopping at the first thing that decides."""
    base = run.data(Step.BASELINE)
    found = validation.validate(
        run.kube,
        target_of(run),
        run.spec,
        run.name,
        run.hash,
        run.clock,
        run.say,
        baseline=evidence_in(base),
        readiness=verdicts_in(run.data(Step.READINESS)),
    )
    keep(run, found.verdicts, found.evidence, found.raw)
    done = judged(found.verdicts, found.summary)
    return Done(summary=done.summary, state=done.state, data={**done.data, **found.to_dict()})


def approval(run: Run) -> Done:
    """Step 7. Who, when and why are in the record before any work moves."""
    found = approvals.granted(run.kube, run.name)
    if found is None:
        raise Unmeasured(
            f"run {run.name}", "nobody approved it", remedy=f"poolshift approve {run.name} --reason WHY, then run again"
        )
    ledgers.decide(
        run.name, pool_identity(run.spec.target), found["at"], "approval", "migrate", found, run.simulated, run.kube
    )
    return Done(summary=f"approved by {found['by']} at {found['at']}: {found['reason']}", data=found)


def _watched(run: Run) -> dict[str, str]:
    """The workloads that we have moved, with their UIDs: "" where they were not noted.

    One that its spec waits for, or leaves to its owner, may end and be gone.
    """
    spared = (MoveMode.WAIT, MoveMode.LEAVE)
    theirs = {f"{r.kind}/{r.namespace}/{r.name}" for r in run.spec.drain.workloads if r.mode in spared}
    moved = [str(item) for item in run.data(Step.MIGRATE).get("workloads") or ()]
    uids = noted(run, MOVING).get("uids") or {}
    return {name: str(uids.get(name, "")) for name in moved if name not in theirs}


def soak(run: Run) -> Done:
    """Step 9. Watched time, with conditions; then the transport once more, where two nodes are idle."""
    target = target_of(run)
    verdict = soaking.soak(
        run.kube,
        target,
        _watched(run),
        run.spec.soak,
        run.name,
        run.say,
        csi_of(run, target),
    )
    verdicts = [verdict]
    summary = f"{verdict.observed} watched: {verdict.reason}"
    data: dict[str, Any] = {}
    if verdict.outcome is Outcome.PASS and run.spec.soak.repeat_proof is not Repeat.NEVER:
        proof = validation.repeat_proof(run.kube, target, run.spec, run.name, run.hash, run.clock, run.say)
        verdicts += proof.verdicts
        data = proof.to_dict()
        keep(run, (), proof.evidence, proof.raw)
        if not proof.verdicts:
            summary += "; transport not proven again: fewer than two idle nodes"
            if run.spec.soak.repeat_proof is Repeat.ALWAYS:
                verdicts.append(
                    Verdict(
                        check="transport-proof",
                        outcome=Outcome.UNMEASURED,
                        reason="fewer than two idle nodes, and soak.repeat_proof is always",
                    )
                )
    keep(run, verdicts)
    done = judged(verdicts, summary)
    return Done(summary=done.summary, state=done.state, data={**data, **done.data})


def report(run: Run) -> Done:
    """Step 11."""
    path = reporting.write(run)
    run.say(f"report: {path}")
    facts = reporting.facts(run.record())
    return Done(summary=facts["headline"], data={"html": str(path), "outcome": Outcome.PASS})


def _remember(run: Run, note: str, prior: Mapping[str, Any]) -> None:
    """Keep the state before us, once: a second run must not take our own state for the prior one."""
    record = records.read(run.kube, run.name)
    if record is not None and note not in record.notes:
        records.write_note(run.kube, run.name, note, dict(prior))


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "identity": pool.identity,
        "machine_type": pool.machine_type,
        "nodes": pool.nodes,
        "zones": list(pool.zones),
        "reservation": pool.reservation,
    }


WORK: Mapping[Step, Callable[[Run], Done]] = {
    Step.PLAN: plan,
    Step.BASELINE: baseline,
    Step.PROVISION: provision,
    Step.READINESS: readiness,
    Step.VALIDATE: validate,
    Step.GATE: gate,
    Step.APPROVAL: approval,
    Step.MIGRATE: migrate,
    Step.SOAK: soak,
    Step.RETIRE: retire,
    Step.REPORT: report,
}
"""What each step does."""
