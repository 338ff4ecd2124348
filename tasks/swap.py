"""A swap: the pools change places in slices, for a reservation that cannot hold both.

A slice takes nodes of the source, proves them empty, has the cloud end exactly their machines, waits until the
reservation has them back, makes target nodes of them and proves these by the whole gate. The first slice is the
canary: the steps provision, readiness, validate and gate are about it, and no further node is given up before it has
passed. Each stage is in the run's record before the next begins, so a run that was killed goes on where it stood. A
slice that fails stops the run: what was given up is the target's, every other source node is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from infra import connect
from infra.errors import GateHeld, PoolshiftError, Unmeasured
from infra.kube import leases, read, records
from infra.model.cluster import Node
from infra.model.pools import Pool, PoolState
from infra.model.record import SliceRecord, SliceStage, Step
from infra.model.spec import Strategy
from infra.model.survey import Reservation
from infra.model.verdict import Finding, Gate, Outcome
from infra.model.workload import Snapshot
from tasks import drain, fence, machines, opening, planning, pools, wishes
from tasks import readiness as ready
from tasks import validate as validation
from tasks.facts import csi_of, evidence_in, gate_dict, gate_in, keep, noted, source_of, target_of
from tasks.identity import pool_words
from tasks.move_report import told_as_one
from tasks.rules import gate as gates
from tasks.rules import swap as rules
from tasks.rules.gangs import find_gangs
from tasks.rules.outcome import End
from tasks.rules.placement import without_room
from tasks.rules.wording import and_more, gate_words, plural
from tasks.run import Run, reach

_NOTE = "swap"


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


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The swap as it was laid out before the first node was given up. `nodes` are all source nodes."""

    sizes: tuple[rules.Size, ...]
    nodes: Mapping[str, tuple[str, str]]


def applies(run: Run) -> bool:
    """Did the plan that this run passed decide for a swap?"""
    return run.data(Step.PLAN).get("strategy") == Strategy.SWAP


def begun(run: Run) -> bool:
    """Has the canary passed, and has the next slice begun or been allowed to?"""
    entries = slices_of(run)
    return bool(entries) and entries[0].stage.reached(SliceStage.PROVEN)


def smallest(run: Run) -> int:
    """Nodes of the smallest slice: so many the baseline is measured on, for each slice is compared with it."""
    return min(int(each["add"]) for each in run.data(Step.PLAN)["slices"])


def laid_out(run: Run) -> Whole | None:
    """The swap as recorded; None before it has begun."""
    found = noted(run, _NOTE)
    if not found:
        return None
    nodes = {str(name): (str(uid), str(machine)) for name, (uid, machine) in found["nodes"].items()}
    sizes = tuple(rules.Size(give=int(g), add=int(a), total=int(t)) for g, a, t in found["sizes"])
    return Whole(sizes=sizes, nodes=nodes)


def slices_of(run: Run) -> list[SliceRecord]:
    """Every slice that has begun, in order."""
    whole = laid_out(run)
    record = records.read(run.kube, run.name)
    notes = record.notes if record else {}
    wanted = (f"slice-{n}" for n in range(1, len(whole.sizes) + 1 if whole else 1))
    return [SliceRecord.from_dict(notes[key]) for key in wanted if key in notes]


def provision(run: Run) -> Pool:
    """The target pool without a node, then the canary slice. Nothing of the source goes before the pool stands.

    Raises:
        GateHeld, Unmeasured: the canary's nodes could not be emptied, or work has no place without them.
        NoCapacity: the reservation did not give the machines back in time, or somebody else took them.
        CloudError, Conflict: as `tasks.pools.provision`.

    """
    whole = _lay_out(run)
    empty = run.spec.target.model_copy(update={"nodes": 0})
    found = run.target_pool()
    if found is None or found.nodes == 0 or found.ours != run.name:
        pools.provision(run.target, empty, run.name, run.clock, run.say)
    reach("slice-1:pool")
    try:
        _advance(run, whole, 1, SliceStage.GROWN)
    except Stopped as stop:
        raise stop.as_error(run) from stop
    return target_of(run)


def go_on(run: Run, proof: Gate | None) -> None:
    """Open the canary, whose gate is `proof` (None: it was opened before), then slice after slice.

    Raises:
        Stopped: a slice was held. Source nodes that no slice has emptied are as they were.

    """
    whole = _lay_out(run)
    canary = _entry(run, whole, 1)
    if proof is not None and not canary.stage.reached(SliceStage.PROVEN):
        new = tuple(n.uid for n in _target_nodes(run))
        canary = _write(run, replace(canary, stage=SliceStage.PROVEN, new=new, gate=gate_dict(proof)))
    try:
        for number in range(1, len(whole.sizes) + 1):
            _advance(run, whole, number, SliceStage.OPEN)
    except (Stopped, PoolshiftError):
        if not leases.lost():  # else the source is another process' to close and open
            _open_source(run, whole)
        raise


def rest(run: Run) -> list[str]:
    """Source nodes that no slice takes: they leave at the end, all together."""
    whole = _lay_out(run)
    taken = {name for each in slices_of(run) for name in each.nodes}
    return sorted(set(whole.nodes) - taken)


def moved(run: Run) -> list[Mapping[str, Any]]:
    """How the drains of the slices went, as `MoveReport.to_dict`."""
    return [each.moved for each in slices_of(run) if each.moved]


def judge(run: Run) -> Gate:
    """One gate over all slices: each has passed its own, on nodes that are still there, and there is no other node."""
    whole, entries = _lay_out(run), slices_of(run)
    target = target_of(run)
    proven = {e.number: e for e in entries if e.stage.reached(SliceStage.PROVEN)}
    gates_ = {n: gate_in(e.gate, f"slice {n}") for n, e in proven.items()}
    found = rules.combine(
        gates_,
        {n: e.new for n, e in proven.items()},
        [n.uid for n in _target_nodes(run)],
        len(whole.sizes),
    )
    look = ready.look(run.kube, target, csi_of(run, target))
    others = tuple(v for v in found.verdicts if v.check != gates.READINESS)
    return replace(found, verdicts=(look, *others))


def _advance(run: Run, whole: Whole, number: int, until: SliceStage) -> None:
    """One slice from where it stands to `until`. Each stage looks before it acts, and is written when it is done."""
    entry = _entry(run, whole, number)
    for stage, work in (
        (SliceStage.DRAINED, _drain),
        (SliceStage.GIVING, _about_to_give),
        (SliceStage.GIVEN, _give),
        (SliceStage.FREE, _await_room),
        (SliceStage.GROWN, _grow),
        (SliceStage.PROVEN, _prove),
        (SliceStage.OPEN, _open),
    ):
        if leases.lost():
            raise Unmeasured(f"run {run.name}", leases.lost(), remedy="see who runs now: poolshift status")
        if not entry.stage.reached(stage):
            entry = _write(run, replace(work(run, whole, entry), stage=stage))
            reach(f"slice-{number}:{stage}")
        if stage is until:
            return


def _entry(run: Run, whole: Whole, number: int) -> SliceRecord:
    """The slice's note, or a new one: which nodes it takes is written before any of them is touched."""
    entries = {e.number: e for e in slices_of(run)}
    if number in entries:
        return entries[number]
    step = whole.sizes[number - 1]
    snapshot = read.snapshot(run.kube)
    taken = {name for e in entries.values() for name in e.nodes}
    left = {name: whole.nodes[name] for name in whole.nodes if name not in taken}
    _all_there(run, snapshot, left)
    gangs = find_gangs(snapshot, run.spec.drain, left)
    names = rules.order(snapshot, left, gangs)[: step.give]
    _room_for(run, whole, snapshot, number, names, sorted(left))
    entry = SliceRecord(
        number=number,
        stage=SliceStage.CHOSEN,
        nodes={name: left[name] for name in names},
        add=step.add,
        total=step.total,
    )
    run.say(
        f"slice {number} of {len(whole.sizes)}: {and_more(names, 4) if names else 'no source node'} for "
        f"{plural(step.add, 'target node')}"
    )
    _write(run, entry)
    reach(f"slice-{number}:chosen")
    return entry


def _all_there(run: Run, snapshot: Snapshot, left: Mapping[str, tuple[str, str]]) -> None:
    seen = {node.name: node.uid for node in snapshot.nodes}
    gone = sorted(name for name, (uid, _) in left.items() if seen.get(name) != uid)
    if gone:
        raise Unmeasured(
            pool_words(run.spec.source),
            f"{and_more(gone, 3)} went or were replaced since the swap began",
            expected="the nodes that it began with",
            remedy="poolshift rollback SPEC, then start again",
        )


def _room_for(
    run: Run, whole: Whole, snapshot: Snapshot, number: int, names: Sequence[str], left: Sequence[str]
) -> None:
    """Asked of the cluster as it is now, before the slice is touched: the plan may be days old."""
    if number == 1:
        found = rules.plan(snapshot, run.spec.drain, left, None, whole.sizes).findings
        reason = found[0].wording() if found else ""
        data = {"findings": [f.to_dict() for f in found]}
    else:
        gangs = [g for g in find_gangs(snapshot, run.spec.drain, names) if g.mode not in rules.STAYING]
        together = {p.uid: p for g in gangs for p in g.pods} | {p.uid: p for p in rules.leaving(snapshot, names)}
        homeless = without_room(list(together.values()), snapshot, [n.name for n in _opened(run)])
        reason = f"{and_more(sorted(p.key for p in homeless), 3)} find no room on the proven target nodes"
        data, reason = {}, reason if homeless else ""
    if reason:
        raise Stopped(number, Outcome.FAIL, reason, data)


def _drain(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    """Before there is a target, work goes to the source's other nodes; afterwards to proven target nodes only."""
    if not entry.nodes:
        return entry
    others: list[str] = []
    if entry.number > 1:
        fence.fence(run.kube, _untouched(run, whole, entry), run.name)
        others = [n.name for n in _opened(run)]
    found = drain.move(
        run.kube, run.spec, list(entry.nodes), others, run.name, run.clock, run.say,
        steer=wishes.steer(run),
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
    kept = [whole.nodes[name] for name in _untouched(run, whole, entry)]
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
        name=f"slice {entry.number}",
    )
    keep(run, gate.verdicts)
    run.say(f"slice {entry.number}: {gate_words(gate)}")
    if gate.outcome is not Outcome.PASS:
        raise Stopped(entry.number, gate.outcome, gate_words(gate), gate_dict(gate))
    return replace(entry, new=tuple(n.uid for n in fresh), gate=gate_dict(gate))


def _to_prove(run: Run, pool: Pool) -> tuple[list[Node], list[Node]]:
    """The nodes that no slice has proven yet, and one idle proven node, which shows that they reach the others."""
    proven = {uid for e in slices_of(run) for uid in e.new}
    fresh = [n for n in _target_nodes(run) if n.uid not in proven]
    partner = [n for n in validation.idle(run.kube, pool) if n.uid in proven][:1]
    return fresh, partner


def _open(run: Run, whole: Whole, entry: SliceRecord) -> SliceRecord:
    del whole
    names = [n.name for n in _target_nodes(run) if n.uid in entry.new]
    opening.open_nodes(run.kube, names)
    run.say(f"slice {entry.number}: {plural(len(names), 'proven node')} open to work")
    return entry


def _lay_out(run: Run) -> Whole:
    """The recorded swap, or a new one from what cluster and cloud say now, written before anything else."""
    found = laid_out(run)
    if found is not None:
        return found
    source = source_of(run)
    nodes = planning.nodes_of(read.snapshot(run.kube, owners=False, storage=False), source)
    if len(nodes) < source.nodes or source.state in (PoolState.DELETING, PoolState.DELETE_FAILED):
        raise Unmeasured(
            pool_words(run.spec.source),
            f"{len(nodes)} nodes in Kubernetes, {source.state.value}",
            expected=f"{source.nodes}, as the cloud says",
            remedy="put the pool's label back on its nodes",
        )
    reserved: Reservation | None = connect.slices(run.target).reservation(run.spec.target)
    wanted = int(run.spec.target.nodes)  # type: ignore[union-attr]  # the plan refuses external pools
    sizes = rules.sizes(wanted, reserved.free if reserved else 0, run.spec.swap.slice)
    note = {
        "nodes": {n.name: [n.uid, n.provider_id] for n in nodes},
        "sizes": [[s.give, s.add, s.total] for s in sizes],
    }
    records.write_note(run.kube, run.name, _NOTE, note)
    laid = laid_out(run)
    assert laid is not None
    return laid


def _untouched(run: Run, whole: Whole, entry: SliceRecord) -> list[str]:
    """Source nodes that neither this slice nor an earlier one takes."""
    taken = {name for e in slices_of(run) for name in e.nodes} | set(entry.nodes)
    return sorted(set(whole.nodes) - taken)


def _open_source(run: Run, whole: Whole) -> None:
    """What no slice has emptied goes back as it was; an error here must not hide the first one."""
    emptied = {n for e in slices_of(run) if e.stage.reached(SliceStage.DRAINED) for n in e.nodes}
    try:
        restored = fence.unfence(run.kube, run.name, sorted(set(whole.nodes) - emptied))
    except PoolshiftError as error:
        run.say(f"could not put all nodes back: {error.wording()}")
        return
    if restored:
        run.say(f"put back {plural(len(restored), 'source node')} as they were: {and_more(restored, 5)}")


def _target_nodes(run: Run) -> list[Node]:
    """Nodes of the target pool, by name."""
    pool = target_of(run)
    snapshot = read.snapshot(run.kube, pool.node_selector, owners=False, storage=False)
    return sorted(planning.nodes_of(snapshot, pool), key=lambda n: n.name)


def _opened(run: Run) -> list[Node]:
    """Target nodes that are proven and take work."""
    uids = {uid for e in slices_of(run) if e.stage is SliceStage.OPEN for uid in e.new}
    return [n for n in _target_nodes(run) if n.uid in uids]


def _write(run: Run, entry: SliceRecord) -> SliceRecord:
    records.write_note(run.kube, run.name, entry.note, entry.to_dict())
    return entry
