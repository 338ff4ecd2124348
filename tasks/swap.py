"""A swap: the pools change places in slices, for a reservation that cannot hold both.

A slice takes nodes of the source, proves them empty, has the cloud end exactly their machines, waits until the
reservation has them back, makes target nodes of them and proves these by the whole gate. The first slice is the
canary: the steps provision, readiness, validate and gate are about it, and no further node is given up before it has
passed. Each stage is in the run's record before the next begins, so a run that was killed goes on where it stood. A
slice that fails stops the run: what was given up is the target's, every other source node is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from infra.errors import PoolshiftError, Unmeasured
from infra.kube import leases, read
from infra.model.pools import Pool
from infra.model.record import SliceRecord, SliceStage
from infra.model.verdict import Gate, Outcome
from infra.model.workload import Snapshot
from tasks import fence, pools
from tasks import readiness as ready
from tasks.facts import csi_of, gate_dict, gate_in, target_of
from tasks.identity import pool_words
from tasks.rules import gate as gates
from tasks.rules import swap as rules
from tasks.rules.gangs import find_gangs
from tasks.rules.placement import without_room
from tasks.rules.waves import leaving
from tasks.rules.wording import and_more, plural
from tasks.run import Run, reach
from tasks.swap_record import Whole, lay_out, opened, slices_of, target_nodes, write
from tasks.swap_stages import STAGES, Stopped


def provision(run: Run) -> Pool:
    """The target pool without a node, then the canary slice. Nothing of the source goes before the pool stands.

    Raises:
        GateHeld, Unmeasured: the canary's nodes could not be emptied, or work has no place without them.
        NoCapacity: the reservation did not give the machines back in time, or somebody else took them.
        CloudError, Conflict: as `tasks.pools.provision`.

    """
    whole = lay_out(run)
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
    whole = lay_out(run)
    canary = _entry(run, whole, 1)
    if proof is not None and not canary.stage.reached(SliceStage.PROVEN):
        new = tuple(n.uid for n in target_nodes(run))
        canary = write(run, replace(canary, stage=SliceStage.PROVEN, new=new, gate=gate_dict(proof)))
    try:
        for number in range(1, len(whole.sizes) + 1):
            _advance(run, whole, number, SliceStage.OPEN)
    except BaseException:  # a signal too: nobody would look for a fence on nodes that no slice has come to
        if not leases.lost():  # else the source is another process' to close and open
            _open_source(run, whole)
        raise


def judge(run: Run) -> Gate:
    """One gate over all slices: each has passed its own, on nodes that are still there, and there is no other node."""
    whole, entries = lay_out(run), slices_of(run)
    target = target_of(run)
    proven = {e.number: e for e in entries if e.stage.reached(SliceStage.PROVEN)}
    gates_ = {n: gate_in(e.gate, f"slice {n}") for n, e in proven.items()}
    found = rules.combine(
        gates_,
        {n: e.new for n, e in proven.items()},
        [n.uid for n in target_nodes(run)],
        len(whole.sizes),
    )
    look = ready.look(run.kube, target, csi_of(run, target))
    others = tuple(v for v in found.verdicts if v.check != gates.READINESS)
    return replace(found, verdicts=(look, *others))


def _advance(run: Run, whole: Whole, number: int, until: SliceStage) -> None:
    """One slice from where it stands to `until`. Each stage looks before it acts, and is written when it is done."""
    entry = _entry(run, whole, number)
    for stage, work in STAGES:
        if leases.lost():
            raise Unmeasured(f"run {run.name}", leases.lost(), remedy="see who runs now: poolshift status")
        if not entry.stage.reached(stage):
            entry = write(run, replace(work(run, whole, entry), stage=stage))
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
    write(run, entry)
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
        together = {p.uid: p for g in gangs for p in g.pods} | {p.uid: p for p in leaving(snapshot, names)}
        homeless = without_room(list(together.values()), snapshot, [n.name for n in opened(run)])
        reason = f"{and_more(sorted(p.key for p in homeless), 3)} find no room on the proven target nodes"
        data, reason = {}, reason if homeless else ""
    if reason:
        raise Stopped(number, Outcome.FAIL, reason, data)


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
