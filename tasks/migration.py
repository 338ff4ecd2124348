"""The eleven steps. Each reads, judges, acts and reads back; each finds its own work done and says so.

What a step leaves in the record is what later steps and the report read: plain JSON, small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import Refused, Unmeasured
from infra.kube import leases, read, records
from infra.model.pools import Pool, PoolState
from infra.model.record import Step, StepState
from infra.model.spec import Repeat
from infra.model.verdict import Finding, Gate, Level, Outcome, Verdict, worst
from infra.model.workload import Pod, Snapshot
from tasks import approvals, drain, fence, ledgers, opening, planning, pools, swap, wishes
from tasks import readiness as ready
from tasks import report as reporting
from tasks import soak as soaking
from tasks import validate as validation
from tasks.board import Board
from tasks.facts import csi_of, evidence_in, gate_dict, keep, noted, source_of, target_of, verdicts_in
from tasks.identity import pool_identity, pool_words
from tasks.move_report import MoveReport, told_as_one
from tasks.rules import gate as gates
from tasks.rules.forcing import forced_pods
from tasks.rules.outcome import End
from tasks.rules.sentences import allowed_by
from tasks.rules.wording import and_more, gate_words, plural, span
from tasks.run import Done, Run, reopen

_MOVING, _RETIRING, _FORCED = "moving", "retiring", "forced"
_LEAVING, _UNDRAINED = "leaving", "nodes-undrained"
_CLOSED = "closed-until-proven"
_LISTED = 200  # findings and names kept in the record
_SOURCE_PRIOR, _TARGET_PRIOR = "cloud-prior-source", "cloud-prior-target"


def plan(run: Run) -> Done:
    """Step 1. Refuses, with every finding in the record, before anything is touched."""
    found = planning.survey(run)
    if found.blocks:
        for finding in found.blocks:
            run.say(f"block {finding.code}: {finding.wording()}")
        raise Refused(
            f"plan {run.name}",
            found.summary.removeprefix("refused: "),
            expected="no blocking finding",
            remedy="mend what it names; see all of them: poolshift plan SPEC",
        )
    run.say(f"plan: {found.summary}")
    return Done(summary=found.summary, data=_brief(found.to_dict()))


def _brief(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as the record keeps it: a ConfigMap holds 1 MiB, and one line for each of 4,000 pods fills it."""
    moves = dict(plan["moves"])
    moves["waves"] = [{**wave, "pods": len(wave["pods"])} for wave in moves["waves"]]
    moves["never"] = moves["never"][:_LISTED]
    moves["findings"] = []  # among the plan's own
    return {**plan, "moves": moves, "findings": plan["findings"][:_LISTED]}


def baseline(run: Run) -> Done:
    """Step 2. The source pool, measured with the same probes on its idle nodes, so that like is compared with like."""
    if run.spec.gate.max_step_ratio is None:
        return Done(summary="not asked for: the gate compares nothing with the source pool")
    pool, spec = source_of(run), run.spec
    if swap.applies(run):  # like with like: no slice has more nodes to be compared than the smallest
        spec = spec.model_copy(update={"target": spec.target.model_copy(update={"nodes": swap.smallest(run)})})
    found = validation.measure(run.kube, pool, spec, run.name, run.hash, run.clock, run.say)
    keep(run, found.verdicts, found.evidence, found.raw, run.spec.source)
    # Held, not failed: the run goes on to show what else it finds, the gate holds, and the next run measures again.
    lacking = any(v.outcome is not Outcome.PASS for v in found.verdicts)
    return Done(summary=found.summary, state=StepState.HELD if lacking else StepState.DONE, data=found.to_dict())


def provision(run: Run) -> Done:
    """Step 3. The cloud is kept from working against us first; what it was like before is in the record."""
    for note, cloud, part in (
        (_SOURCE_PRIOR, run.source, run.spec.source),
        (_TARGET_PRIOR, run.target, run.spec.target),
    ):
        if note == _SOURCE_PRIOR and swap.laid_out(run) is not None:
            continue  # done before the first slice: EKS may show the old size for a while, and must not hear it again
        found = cloud.find(part)
        # A target of somebody else's is refused by the creation below, and must not be changed before that.
        if found is not None and (note == _SOURCE_PRIOR or found.ours == run.name):
            _remember(run, note, cloud.fence_for_run(part, run.name))
    if swap.applies(run):
        snapshot = read.snapshot(run.kube)
        _note_forced(run, snapshot, [n.name for n in planning.nodes_of(snapshot, source_of(run))])
        pool = swap.provision(run)
    else:
        pool = pools.provision(run.target, run.spec.target, run.name, run.clock, run.say)
    _remember(run, _TARGET_PRIOR, run.target.fence_for_run(run.spec.target, run.name))
    summary = f"{pool_words(run.spec.target)}: {pool.state.value}, {plural(pool.nodes, 'node')} of {pool.machine_type}"
    return Done(summary=summary, data={"pool": _pool(pool)})


def readiness(run: Run) -> Done:
    """Step 4. Not ready is no end: the cheap proof that follows shows what a job would get on such a pool."""
    pool = target_of(run)
    verdict = ready.settle(run.kube, pool, run.clock, run.say, csi_of(run, pool))
    for finding in verdict.findings:
        run.say(f"{finding.level.value} {finding.code}: {finding.fact()}")
    return _judged((verdict,), verdict.reason)


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
    done = _judged(found.verdicts, found.summary)
    return Done(summary=done.summary, state=done.state, data={**done.data, **found.to_dict()})


def gate(run: Run) -> Done:
    """Step 6. Every required verdict pass, on evidence that is fresh and of this pool."""
    found = judge(run)
    for verdict in found.verdicts:
        run.say(f"gate {verdict.outcome.value:10s} {verdict.check}: {verdict.reason}")
    keep(run, found.verdicts)
    if any(v.check == _CLOSED for v in found.verdicts):
        reopen(run, Step.READINESS, Step.VALIDATE)
    return _gate_done(found)


def judge(run: Run, at: datetime | None = None) -> Gate:
    """The gate as it stands now, from the record's evidence and the pool's nodes as they are at this moment.

    `at`: against which the evidence's age is told; default: now.
    """
    if swap.applies(run) and swap.begun(run):
        return swap.judge(run)
    pool = target_of(run)
    snapshot = read.snapshot(run.kube, pool.node_selector, owners=False, storage=False)
    found = gates.judge(
        evidence=evidence_in(run.data(Step.VALIDATE)),
        baseline=evidence_in(run.data(Step.BASELINE)),
        readiness=[ready.look(run.kube, pool, csi_of(run, pool))],
        spec=run.spec,
        spec_hash=run.hash,
        pool=pool,
        node_uids=[n.uid for n in planning.nodes_of(snapshot, pool)],
        now=at or run.clock.now(),
    )
    return replace(found, verdicts=(*found.verdicts, *_opened_early(run, pool)))


def _opened_early(run: Run, pool: Pool) -> Iterable[Verdict]:
    """Before work moves, nodes of a pool of ours that somebody has opened to it. They are closed again."""
    if pool.ours != run.name or _under_way(run):
        return
    names = opening.find_open(run.kube, pool.node_selector)
    if names:
        opening.close_nodes(run.kube, names, run.name)
        yield Verdict(
            check=_CLOSED,
            outcome=Outcome.UNMEASURED,
            observed=f"somebody opened {and_more(names, 3)} to work",
            limit="closed until proven",
            reason=f"{and_more(names, 3)} took work before the proof; closed again, the next run measures anew",
        )


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


def migrate(run: Run) -> Done:
    """Step 8. The target opens, the source is fenced, and the work moves in waves, gangs as one.

    In a swap, slice after slice first; what no slice takes moves at the end.
    """
    swapping = swap.applies(run)
    proof = None
    if not (swap.begun(run) if swapping else _under_way(run)):
        # The gate may have been passed days ago: nodes, plugins and the age of the evidence are looked at once more.
        proof = judge(run)
        if proof.outcome is not Outcome.PASS:
            reopen(run, Step.READINESS, Step.VALIDATE, Step.GATE)
            return _gate_done(proof)
    source = source_of(run)
    snapshot = read.snapshot(run.kube)
    old = [n.name for n in planning.nodes_of(snapshot, source)]
    if len(old) < source.nodes and not _under_way(run):
        raise Unmeasured(
            pool_words(run.spec.source),
            f"{len(old)} nodes in Kubernetes",
            expected=f"{source.nodes}, as the cloud says",
            remedy="put the pool's label back on its nodes; a node that is not seen would not be drained",
        )
    _note_leaving(run, source, snapshot, old)
    moving = _moving(run, snapshot, old)
    _note_forced(run, snapshot, old)
    before: list[Mapping[str, Any]] = []
    if swapping:
        try:
            swap.go_on(run, proof)
        except swap.Stopped as stop:
            return Done(summary=stop.reason, state=StepState.HELD, data={**stop.data, "outcome": stop.outcome})
        before, old = swap.moved(run), swap.rest(run)
        if not old:
            run.target.release(run.spec.target)
            return _moved_off(moving, before, None)
    run.target.release(run.spec.target)
    new = [n.name for n in planning.nodes_of(read.snapshot(run.kube, owners=False, storage=False), target_of(run))]
    if not swapping:  # there each slice has opened its own nodes, and no node that it has not proven
        opening.open_nodes(run.kube, new)
    board = Board(run=run, nodes=len(old))
    found = drain.move(
        run.kube,
        run.spec,
        old,
        new,
        run.name,
        run.clock,
        run.say,
        on_wave=board.wave,
        on_progress=board.stand,
        steer=wishes.steer(run),
    )
    return _moved_off(moving, before, found)


def _moved_off(moving: Mapping[str, Any], before: Sequence[Mapping[str, Any]], last: MoveReport | None) -> Done:
    """The step's end, the drains of a swap's slices and the last one told as one. `last` None: nothing was left."""
    told = told_as_one([*before, *([last.to_dict()] if last else [])])
    if last is not None and not last.ok:
        outcome = Outcome.UNMEASURED if last.end is End.UNKNOWN else Outcome.FAIL
        summary = f"stopped: {last.reason} ({plural(len(last.restored), 'node')} put back)"
        return Done(summary=summary, state=StepState.HELD, data={**moving, **told, "outcome": outcome})
    summary = (
        f"{plural(moving['pods'], 'pod')} of {plural(len(moving['workloads']), 'workload')} moved off "
        f"{plural(len(told['nodes']), 'node')} in {plural(len(told['waves']), 'wave')}, "
        f"{told['evictions'].get('refused', 0)} evictions refused"
    )
    return Done(summary=summary, data={**moving, **told, "outcome": Outcome.PASS})


def _under_way(run: Run) -> bool:
    """Has any work been fenced or moved by this run?"""
    record = records.read(run.kube, run.name)
    return record is not None and _MOVING in record.notes


def _moving(run: Run, snapshot: Snapshot, nodes: Iterable[str]) -> dict[str, Any]:
    """Which pods and workloads leave, noted before the first of them does: a restart sees only the rest of them."""
    before = noted(run, _MOVING)
    if before:
        return dict(before)
    leaving = [p for p in snapshot.on(nodes) if not p.mirror and not p.finished and _owner_kind(p) != "DaemonSet"]
    roots = [root for p in leaving if (root := snapshot.root(p.owner)) is not None]
    found: dict[str, Any] = {
        "pods": len(leaving),
        "workloads": sorted({f"{r.kind}/{r.namespace}/{r.name}" for r in roots}),
    }
    records.write_note(run.kube, run.name, _MOVING, found)
    return found


def _note_leaving(run: Run, source: Pool, snapshot: Snapshot, nodes: Iterable[str]) -> None:
    """Which pool and which nodes are emptied, by what none made later under their names has: only these may go."""
    before, names = noted(run, _LEAVING), set(nodes)
    if before.get("made") and source.made:
        pools.must_be(source, before["made"])
    uids = {n.uid for n in snapshot.nodes if n.name in names} | set(before.get("nodes") or ())
    made = before["made"] if before else source.made
    records.write_note(run.kube, run.name, _LEAVING, {"made": list(made), "nodes": sorted(uids)})


def _note_forced(run: Run, snapshot: Snapshot, nodes: Iterable[str]) -> None:
    """Into the record and the ledger, before the first of them leaves: what is lost because the spec allows it."""
    before = noted(run, _FORCED)
    found = forced_pods(snapshot, nodes, allowed_by(run.spec.drain))
    fresh = {pod: why for pod, why in found.items() if pod not in before}
    for pod, why in fresh.items():
        facts = {"by": "spec", "why": why}
        at = rfc3339(run.clock.now())
        ledgers.decide(run.name, pool_identity(run.spec.source), at, "forced", pod, facts, run.simulated, run.kube)
    if fresh:
        run.say(f"the spec lets {plural(len(fresh), 'pod')} go at a loss: {and_more(sorted(fresh), 5)}")
        records.write_note(run.kube, run.name, _FORCED, {**before, **fresh})


def _owner_kind(pod: Pod) -> str:
    return pod.owner.kind if pod.owner else ""


def soak(run: Run) -> Done:
    """Step 9. Watched time, with conditions; then the transport once more, where two nodes are idle."""
    target = target_of(run)
    verdict = soaking.soak(
        run.kube,
        target,
        _moved(run.data(Step.MIGRATE)),
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
    done = _judged(verdicts, summary)
    return Done(summary=done.summary, state=done.state, data={**data, **done.data})


def retire(run: Run) -> Done:
    """Step 10. The gate once more; the source proven empty by UID right before each request to delete it."""
    source = run.source_pool()
    begun, made = noted(run, _RETIRING), _made(run)
    if source is None or (begun and (source.state is PoolState.DELETING or pools.is_other(source, made))):
        return _follow_deletion(run, begun)
    found = _judge_for_retirement(run)
    if found.outcome is not Outcome.PASS:
        return _gate_done(found)
    if not run.spec.retire.enabled:
        _give_back(run)
        return Done(summary="kept, empty and fenced, as the spec says", data={"outcome": Outcome.PASS, "kept": True})
    pools.must_be(source, made)
    findings = _not_empty(run)
    if any(f.code == _UNDRAINED for f in findings):
        reopen(run, Step.MIGRATE, Step.SOAK)
    if findings:
        return Done(
            summary=f"not empty: {and_more([f.fact() for f in findings], 3)}",
            state=StepState.HELD,
            data={"outcome": _outcome_of(findings), "findings": [f.to_dict() for f in findings[:_LISTED]]},
        )
    run.say(f"{pool_words(run.spec.source)} is empty: {plural(source.nodes, 'node')} verified by UID")
    records.write_note(run.kube, run.name, _RETIRING, {"nodes": source.nodes})
    return _follow_deletion(run, {"nodes": source.nodes})


def _follow_deletion(run: Run, begun: Mapping[str, Any]) -> Done:
    """Delete, or go on following a deletion that an earlier process asked for on proof."""

    def prove() -> None:
        if leases.lost():
            raise Refused(f"run {run.name}", leases.lost(), remedy="see who runs now: poolshift status")
        _close(run)
        findings = _not_empty(run)
        if findings:
            raise Unmeasured(
                pool_words(run.spec.source),
                f"is not proven empty: {and_more([f.fact() for f in findings], 3)}",
                expected="no pod on it",
                remedy="move what is named, then run the same command again; nothing more was deleted",
            )

    pools.retire(run.source, run.spec.source, run.clock, run.say, prove, _made(run), begun=bool(begun))
    _give_back(run)
    what = f"{plural(int(begun['nodes']), 'node')} verified empty, then deleted" if begun else "it is gone"
    return Done(summary=f"{pool_words(run.spec.source)} retired: {what}", data={"outcome": Outcome.PASS, **begun})


def _made(run: Run) -> list[str]:
    """`Pool.made` of the pool that was emptied; empty when the record does not say."""
    return [str(each) for each in noted(run, _LEAVING).get("made") or ()]


def _close(run: Run) -> None:
    """Fence and cordons as the move left them: whoever took one off since would have new pods land here."""
    source = run.source_pool()
    if source is not None:
        snapshot = read.snapshot(run.kube, source.node_selector, owners=False, storage=False)
        names = [n.name for n in planning.nodes_of(snapshot, source)]
        if mended := fence.mend(run.kube, run.name, (), names):
            run.say(f"somebody had taken our fence or cordon off {and_more(list(mended), 5)}: put back")


def _not_empty(run: Run) -> list[Finding]:
    """Why the source pool is not proven empty; as many nodes must be seen as the cloud says there are."""
    source = run.source_pool()
    if source is None:
        return []
    snapshot = read.snapshot(run.kube, source.node_selector, owners=False, storage=False)
    nodes = planning.nodes_of(snapshot, source)
    if len(nodes) < source.nodes:
        return [
            Finding(
                level=Level.BLOCK,
                code="nodes-unseen",
                object=pool_words(run.spec.source),
                observed=f"{len(nodes)} nodes in Kubernetes",
                expected=f"{source.nodes}, as the cloud says",
                remedy=f"kubectl get nodes -l {','.join(f'{k}={v}' for k, v in source.node_selector.items())}",
            )
        ]
    drained = set(noted(run, _LEAVING).get("nodes") or ())
    strange = [n.name for n in nodes if n.uid not in drained]
    if strange:
        return [
            Finding(
                level=Level.BLOCK,
                code=_UNDRAINED,
                object=pool_words(run.spec.source),
                observed=f"{and_more(strange, 3)} came after the drain",
                expected="only nodes that were drained, by UID",
                remedy="poolshift migrate SPEC, which drains them",
            )
        ]
    return [f for f in drain.verify_empty(run.kube, {n.name: n.uid for n in nodes}) if f.level is Level.BLOCK]


def _outcome_of(findings: Iterable[Finding]) -> Outcome:
    unknown = all(f.code in ("nodes-unseen", _UNDRAINED, "emptiness-unverified") for f in findings)
    return Outcome.UNMEASURED if unknown else Outcome.FAIL


def _judge_for_retirement(run: Run) -> Gate:
    """The gate on the same evidence, whose age is told at the time it opened: what came after, the soak has watched.

    The nodes must still be those that were proven, devices are looked at now, and a soak that ended too long ago is
    begun again.
    """
    passed, soaked = run.step(Step.GATE), run.step(Step.SOAK)
    found = judge(run, at=parse_time(passed.finished) if passed and passed.finished else None)
    if soaked is None or not soaked.finished:
        return replace(found, verdicts=(*found.verdicts, Verdict(check="soak", outcome=Outcome.UNMEASURED)))
    age = run.clock.now() - parse_time(soaked.finished)
    if age <= run.spec.gate.max_evidence_age:
        return found
    reopen(run, Step.SOAK)
    stale = Verdict(
        check="soak",
        outcome=Outcome.UNMEASURED,
        reason=f"ended {span(age)} ago; the next run watches again",
    )
    return replace(found, verdicts=(*found.verdicts, stale))


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


def _give_back(run: Run) -> None:
    """The target becomes an ordinary pool: its nodes' annotations as before, and repaired as the old pool was.

    We made it without repair, so what it was like before us says nothing of how it should live.
    """
    target = run.target_pool()
    if target is not None:
        snapshot = read.snapshot(run.kube, target.node_selector, owners=False, storage=False)
        fence.unfence(run.kube, run.name, [n.name for n in planning.nodes_of(snapshot, target)])
    prior, source = noted(run, _TARGET_PRIOR), noted(run, _SOURCE_PRIOR)
    if prior and swap.applies(run) and target is not None:  # it grew since: its size is fixed as if it were made so
        prior = {**prior, "min": target.nodes, "max": target.nodes}
    if prior:
        run.target.unfence(run.spec.target, {**prior, **{key: source[key] for key in ("repair",) if key in source}})


def _judged(verdicts: Iterable[Verdict], summary: str) -> Done:
    listed = list(verdicts)
    outcome = worst(v.outcome for v in listed)
    return Done(
        summary=summary,
        state=StepState.DONE if outcome is Outcome.PASS else StepState.HELD,
        data={"outcome": outcome, "verdicts": [v.to_dict() for v in listed]},
    )


def _gate_done(found: Gate) -> Done:
    return Done(
        summary=gate_words(found),
        state=StepState.DONE if found.outcome is Outcome.PASS else StepState.HELD,
        data=gate_dict(found),
    )


def _moved(data: Mapping[str, Any]) -> list[str]:
    return [str(item) for item in data.get("workloads") or ()]


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "identity": pool.identity,
        "machine_type": pool.machine_type,
        "nodes": pool.nodes,
        "zones": list(pool.zones),
        "reservation": pool.reservation,
    }
