"""What a slice of a swap goes through, stage by stage. Each looks before it acts, and hands back the slice as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from infra import connect
from infra.errors import GateHeld, PoolshiftError, Unmeasured
from infra.kube import leases
from infra.model.cluster import Node
from infra.model.pools import Pool
from infra.model.record import SliceRecord, SliceStage, Step
from infra.model.verdict import Finding, Outcome
from tasks import drain, fence, machines, opening, wishes
from tasks import readiness as ready
from tasks import validate as validation
from tasks.board import board_of
from tasks.facts import csi_of, evidence_in, gate_dict, keep, target_of
from tasks.identity import pool_words
from tasks.move_report import told_as_one
from tasks.rules import gate as gates
from tasks.rules.outcome import End
from tasks.rules.wording import and_more, gate_words, plural
from tasks.run import Run, reach
from tasks.swap_record import Whole, opened, slices_of, target_nodes, untouched


class Stopped(Exception):
    """A slice goes no further: `outcome` fail or unmeasured, with the reason. Both pools are consistent."""

    def __init__(self, slice_: int, outcome: Outcome, reason: str, data: Mapping[str, Any] | None = None) -> None:
        self.outcome, self.reason, self.data = outcome, f"slice {slice_}: {reason}", dict(data or {})
        super().__init__(self.reason)

    def as_error(self, run: Run) -> PoolshiftError:
        """For a step that has no gate after it."""
        kind = GateHeld if self.outcome is Outcome.FAIL else Unmeasured
        return kind(
            f"run {run.name}",
            self.reason,
            expected="a first slice that makes room for the target",
            remedy="mend what it names and run the same command again, or: poolshift rollback SPEC",
        )


def _drain(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    """Before there is a target, work goes to the source's other nodes; afterwards to proven target nodes only."""
    if not entry.nodes:
        return entry
    others: list[str] = []
    if entry.number > 1:
        fence.fence(run.kube, untouched(run, whole, entry), run.name)
        others = [n.name for n in opened(run)]
    board = board_of(run, len(entry.nodes), f"slice {entry.number}")
    found = drain.move(
        run.kube, run.spec, list(entry.nodes), others, run.name, run.clock, run.say,
        on_wave=board.wave, on_progress=board.stand, steer=wishes.steer(run),
    )  # fmt: skip
    if not found.ok:
        outcome = Outcome.UNMEASURED if found.end is End.UNKNOWN else Outcome.FAIL
        raise Stopped(entry.number, outcome, f"not drained: {found.reason}", found.to_dict())
    return replace(entry, moved=found.to_dict())


def _about_to_give(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    """The cloud must know these machines as the source's before the first goes: afterwards, unknown means gone."""
    del whole
    known = connect.slices(run.source).instances(run.spec.source)
    strange = sorted(name for name, (_, machine) in entry.nodes.items() if machine not in known)
    if strange:
        raise Unmeasured(
            pool_words(run.spec.source),
            f"the cloud does not count the machines of {and_more(strange, 3)} to it",
            expected="every node's spec.providerID among the pool's instances",
            remedy=f"kubectl get node {strange[0]} -o jsonpath='{{.spec.providerID}}', and see the pool in the console",
        )
    return entry


def _give(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    """End exactly these machines, each proven empty right before, and see that no other has gone with them.

    What came to them since the drain is drained once more: a run that was held here would never get past it.
    """
    if not entry.nodes:
        return entry
    known = connect.slices(run.source).instances(run.spec.source)
    standing = {
        name: (uid, machine)
        for name, (uid, machine) in entry.nodes.items()
        if machine in known and not known[machine].going
    }
    if standing:
        if found := machines.occupied(run, standing):
            run.say(f"slice {entry.number}: {and_more([f.fact() for f in found], 3)} since the drain; draining again")
            again = _drain(run, whole, replace(entry, nodes=standing))
            entry = replace(entry, moved=told_as_one([entry.moved, again.moved]))
        run.say(f"slice {entry.number}: giving up {and_more(sorted(standing), 4)}, proven empty by UID")
        machines.give_up(run, run.source, run.spec.source, standing, partial(_not_empty, entry.number))
    reach(f"slice-{entry.number}:asked")
    kept = [whole.nodes[name] for name in untouched(run, whole, entry)]
    machines.await_gone(run, run.source, run.spec.source, entry.nodes, {machine for _, machine in kept})
    return entry


def _not_empty(number: int, found: list[Finding]) -> Stopped:
    unknown = all(f.code == "emptiness-unverified" for f in found)
    outcome = Outcome.UNMEASURED if unknown else Outcome.FAIL
    reason = f"not empty: {and_more([f.fact() for f in found], 3)}; not given up"
    return Stopped(number, outcome, reason, {"findings": [f.to_dict() for f in found]})


def _await_room(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    del whole
    machines.await_room(run, entry.add, f"slice {entry.number}")
    return entry


def _grow(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    del whole
    run.say(f"slice {entry.number}: {pool_words(run.spec.target)} grows to {plural(entry.total, 'node')}")
    leases.check()
    connect.slices(run.target).grow(run.spec.target, entry.total)
    reach(f"slice-{entry.number}:growing")
    machines.await_nodes(run, run.target, run.spec.target, entry.total)
    return entry


def _prove(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    """Readiness and the whole validation on the new nodes, with one idle proven node as partner; then the gate."""
    del whole
    pool = target_of(run)
    look = ready.settle(run.kube, pool, run.clock, run.say, csi_of(run, pool))
    if look.outcome is not Outcome.PASS:
        raise Stopped(entry.number, look.outcome, f"readiness: {look.reason}", {"verdicts": [look.to_dict()]})
    fresh, partner = _to_prove(run, pool)
    base = evidence_in(run.data(Step.BASELINE))
    found = validation.validate(
        run.kube, pool, run.spec, run.name, run.hash, run.clock, run.say,
        baseline=base, readiness=(look,), nodes=[*fresh, *partner], attempt=f"slice{entry.number}",
    )  # fmt: skip
    keep(run, found.verdicts, found.evidence, found.raw)
    gate = gates.judge(
        evidence=found.evidence,
        baseline=base,
        readiness=(look,),
        spec=run.spec,
        spec_hash=run.hash,
        pool=replace(
            pool, nodes=len(fresh) + len(partner)
        ),  # the slice, and not the whole pool, is what is proven here
        node_uids=[n.uid for n in (*fresh, *partner)],
        now=run.clock.now(),
        simulated=run.simulated,
        name=f"slice {entry.number}",
    )
    keep(run, gate.verdicts)
    for verdict in gate.verdicts:
        if verdict.outcome is not Outcome.PASS:
            run.say(f"slice {entry.number}: {verdict.outcome.value} {verdict.check}: {verdict.reason}")
    run.say(f"slice {entry.number}: {gate_words(gate)}")
    if gate.outcome is not Outcome.PASS:
        raise Stopped(entry.number, gate.outcome, gate_words(gate), gate_dict(gate))
    return replace(entry, new=tuple(n.uid for n in fresh), gate=gate_dict(gate))


def _to_prove(run: Run, pool: Pool) -> tuple[list[Node], list[Node]]:
    """The nodes that no slice has proven yet, and one idle proven node, which shows that they reach the others."""
    proven = {uid for e in slices_of(run) for uid in e.new}
    fresh = [n for n in target_nodes(run) if n.uid not in proven]
    partner = [n for n in validation.idle(run.kube, pool) if n.uid in proven][:1]
    return fresh, partner


def _open(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    del whole
    names = [n.name for n in target_nodes(run) if n.uid in entry.new]
    opening.open_nodes(run.kube, names)
    run.say(f"slice {entry.number}: {plural(len(names), 'proven node')} open to work")
    return entry


STAGES = (
    (SliceStage.DRAINED, _drain),
    (SliceStage.GIVING, _about_to_give),
    (SliceStage.GIVEN, _give),
    (SliceStage.FREE, _await_room),
    (SliceStage.GROWN, _grow),
    (SliceStage.PROVEN, _prove),
    (SliceStage.OPEN, _open),
)
"""In order: what the slice has reached when the work beside it is done."""
