"""Step 8: the work leaves the source. What leaves, and what it costs, is in the record before the first pod does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from infra.clock import rfc3339
from infra.errors import Unmeasured
from infra.kube import leases, read, records
from infra.model.pools import Pool
from infra.model.record import Step, StepState
from infra.model.verdict import Outcome
from infra.model.workload import Snapshot
from tasks import drain, ledgers, opening, planning, pools, swap, swap_record, wishes
from tasks.board import board_of
from tasks.facts import LEAVING, MOVING, gate_done, noted, source_of, target_of, under_way
from tasks.identity import pool_identity, pool_words
from tasks.move_report import MoveReport, told_as_one
from tasks.proof import judge
from tasks.rules.forcing import forced_pods
from tasks.rules.outcome import End
from tasks.rules.sentences import allowed_by
from tasks.rules.wording import and_more, plural
from tasks.run import Done, Run, reopen
from tasks.swap_stages import Stopped

_FORCED = "forced"


def migrate(run: Run) -> Done:
    """Step 8. The target opens, the source is fenced, and the work moves in waves, gangs as one.

    In a swap, slice after slice first; what no slice takes moves at the end.
    """
    swapping = swap_record.applies(run)
    proof = None
    if not (swap_record.begun(run) if swapping else under_way(run)):
        # The gate may have been passed days ago: nodes, plugins and the age of the evidence are looked at once more.
        proof = judge(run)
        if proof.outcome is not Outcome.PASS:
            reopen(run, Step.READINESS, Step.VALIDATE, Step.GATE)
            return gate_done(proof)
    source = source_of(run)
    snapshot = read.snapshot(run.kube)
    old = [n.name for n in planning.nodes_of(snapshot, source)]
    if len(old) < source.nodes and not under_way(run):
        raise Unmeasured(
            pool_words(run.spec.source),
            f"{plural(len(old), 'node')} in Kubernetes",
            expected=f"{source.nodes}, as the cloud says",
            remedy="put the pool's label back on its nodes; a node that is not seen would not be drained",
        )
    note_leaving(run, source, snapshot, old)
    moving = {key: value for key, value in _moving(run, snapshot, old).items() if key != "uids"}
    note_forced(run, snapshot, old)
    before: list[Mapping[str, Any]] = []
    if swapping:
        try:
            swap.go_on(run, proof)
        except Stopped as stop:
            return Done(summary=stop.reason, state=StepState.HELD, data={**stop.data, "outcome": stop.outcome})
        before, old = swap_record.moved(run), swap_record.rest(run)
        if not old:
            _release(run)
            return _moved_off(moving, before, None, 0)
    _release(run)
    new = [n.name for n in planning.nodes_of(read.snapshot(run.kube, owners=False, storage=False), target_of(run))]
    if not swapping:  # there each slice has opened its own nodes, and no node that it has not proven
        opening.open_nodes(run.kube, new)
    board = board_of(run, len(old))
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
    return _moved_off(moving, before, found, len(board.rows))


def _release(run: Run) -> None:
    """Later nodes of the target come open."""
    leases.check()
    run.target.release(run.spec.target)


def _moved_off(
    moving: Mapping[str, Any], before: Sequence[Mapping[str, Any]], last: MoveReport | None, shown: int
) -> Done:
    """The step's end, the drains of a swap's slices and the last one told as one. `last` None: nothing was left.

    `shown`: waves that the run has shown, those of processes before this one among them.
    """
    told = told_as_one([*before, *([last.to_dict()] if last else [])])
    if last is not None and not last.ok:
        outcome = Outcome.UNMEASURED if last.end is End.UNKNOWN else Outcome.FAIL
        summary = f"{last.reason} ({plural(len(last.restored), 'node')} put back)"
        data = {**moving, **told, "outcome": outcome, "remedies": last.remedies}
        return Done(summary=summary, state=StepState.HELD, data=data)
    waves, refused = len(told["waves"]), told["evictions"].get("refused", 0)
    summary = (
        f"{plural(moving['pods'], 'pod')} of {plural(len(moving['workloads']), 'workload')} moved off "
        f"{plural(len(told['nodes']), 'node')} in {plural(max(waves, shown), 'wave')}"
    )
    if waves >= shown:  # how many were refused to a process before this one, nobody knows
        summary += f", {plural(refused, 'eviction')} refused"
    return Done(summary=summary, data={**moving, **told, "outcome": Outcome.PASS})


def _moving(run: Run, snapshot: Snapshot, nodes: Iterable[str]) -> dict[str, Any]:
    """Which pods and workloads leave, noted before the first of them does: a restart sees only the rest of them."""
    before = noted(run, MOVING)
    if before:
        return dict(before)
    leaving = [p for p in snapshot.on(nodes) if not p.mirror and not p.finished and not p.of_daemonset]
    roots = [root for p in leaving if (root := snapshot.root(p.owner)) is not None]
    uids = {f"{r.kind}/{r.namespace}/{r.name}": r.uid for r in roots}
    found: dict[str, Any] = {"pods": len(leaving), "workloads": sorted(uids), "uids": uids}
    records.write_note(run.kube, run.name, MOVING, found)
    return found


def note_leaving(run: Run, source: Pool, snapshot: Snapshot, nodes: Iterable[str]) -> None:
    """Which pool and which nodes are emptied, by what none made later under their names has: only these may go."""
    before, names = noted(run, LEAVING), set(nodes)
    if before.get("made") and source.made:
        pools.must_be(source, before["made"])
    uids = {n.uid for n in snapshot.nodes if n.name in names} | set(before.get("nodes") or ())
    made = before["made"] if before else source.made
    records.write_note(run.kube, run.name, LEAVING, {"made": list(made), "nodes": sorted(uids)})


def note_forced(run: Run, snapshot: Snapshot, nodes: Iterable[str]) -> None:
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
