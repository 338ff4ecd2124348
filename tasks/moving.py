"""Move the work of a pool, wave by wave: cordon, read back, gangs, evictions, proof, gate. See `move`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from infra.clock import Clock
from infra.errors import PoolshiftError, Refused
from infra.kube.api import Kube
from infra.kube.view import View
from infra.model.record import PRIOR
from infra.model.spec import Drain, MigrationSpec
from infra.model.workload import Snapshot
from tasks.emptiness import verify_empty
from tasks.evict import Evictor
from tasks.fence import cordon, fence, guard, mend, unfence
from tasks.gang_flavors import close_flavors
from tasks.gangs import restore
from tasks.move_check import note, settle, settle_last
from tasks.move_report import MoveReport, WaveReport
from tasks.move_state import MoveState
from tasks.move_turn import await_go
from tasks.move_whole import finish_gangs, move_first, move_gangs, surges
from tasks.orphans import with_new_daemonsets
from tasks.rules.decision import Context
from tasks.rules.drain import drains_last
from tasks.rules.fencing import prior_of
from tasks.rules.gangs import find_gangs
from tasks.rules.outcome import End, Fate, Progress, node_ends, worst_end
from tasks.rules.sentences import allowed_by, judge_with
from tasks.rules.settling import health
from tasks.rules.waves import PlannedWave, plan_move
from tasks.rules.wording import and_more, plural
from tasks.steering import FREE, Stand, Steer


def move(
    kube: Kube,
    spec: MigrationSpec | Drain,
    source_nodes: Iterable[str],
    target_nodes: Iterable[str],
    run: str,
    clock: Clock,
    say: Callable[[str], None],
    *,
    on_wave: Callable[[WaveReport], None] = lambda _: None,
    on_progress: Callable[[Stand], None] = lambda _: None,
    steer: Steer = FREE,
) -> MoveReport:
    """Move all work off the source nodes. Safe to call again after any kind of end: it goes on from the cluster.

    On a failed wave, on cancellation and on any error, nodes that are not proven empty are put back exactly as they
    were before the run; drained ones stay fenced and cordoned.

    Args:
        kube: the cluster.
        spec: the migration's spec, or its drain part.
        source_nodes: names of the nodes to empty.
        target_nodes: names of the nodes that take the work (for room and shape).
        run: the run's name; owns what is changed.
        clock: deadlines, windows and settling are measured on it.
        say: one line of progress.
        on_wave: called after each wave; may raise (a stop).
        on_progress: where the wave stands, about once a second of wall-clock time while pods leave.
        steer: who may hold or end it meanwhile: a pause before the next wave, a cancellation, a lost lease.

    Raises:
        Refused: a node is held by another run (nothing was changed), or the lease was lost before anything was begun.
        Forbidden, Unreachable, Conflict: the cluster cannot be read or a node cannot be changed.

    """
    drain = spec if isinstance(spec, Drain) else spec.drain
    source, target = tuple(dict.fromkeys(source_nodes)), tuple(dict.fromkeys(target_nodes))
    began, kube = clock.now(), kube.guarded(steer.barred)
    restored: tuple[str, ...] = ()
    rate = drain.evictions_per_second
    with View(kube) as view, Evictor(kube, view, rate=rate, clock=clock, past_budget=steer.past_budget) as evictor:
        work = MoveState(
            kube=kube,
            drain=drain,
            source=source,
            target=target,
            run=run,
            clock=clock,
            say=say,
            on_wave=on_wave,
            on_progress=on_progress,
            steer=steer,
            view=view,
            evictor=evictor,
            until=began + drain.deadline,
        )
        now = work.look()
        done = _emptied_before(work, now)
        work.ends.update(dict.fromkeys(done, End.DRAINED))  # whatever goes wrong, these stay as they are
        try:
            fence(kube, source, run)
            guard(kube, target, run)
            _all_waves(work, now, done)
        except BaseException as error:
            if not (isinstance(error, Refused) and steer.barred()):
                _restore(work)
                raise
            work.reason = steer.ended()
        finally:
            _open_room(work)
        if work.reason:
            restored = _restore(work)
    end = worst_end(work.ends.values())
    if not source:
        end, work.reason = End.UNKNOWN, "no source node was named, so nothing can be said to be empty"
    elif end is End.DRAINED and work.reason:
        end = End.FAILED
    return MoveReport(
        end=end,
        reason=work.reason,
        nodes=dict(work.ends),
        waves=tuple(work.reports),
        restored=restored,
        tally=evictor.tally,
        requests=kube.requests,
        seconds=(clock.now() - began).total_seconds(),
    )


def _all_waves(work: MoveState, now: Snapshot, done: set[str]) -> None:
    """Waves until all is done, or one goes wrong. Sets `reason` unless every node is empty."""
    if work.room.open_left():
        now = work.look()
    close_flavors(work, now)
    finish_gangs(work)
    if work.reason:
        return
    left = [n for n in work.source if n not in done and n in now.node_by_name]
    plan = plan_move(now, work.drain, left, work.shape(now), work.target, done=len(done), run=work.run)
    if done:
        work.say(f"{len(done)} of {len(work.source)} source nodes were emptied before; going on")
    settle_last(work, done)
    if work.reason:
        return
    work.room.keep(now, work.drain, left)
    move_first(work, now)
    for wave in plan.waves:
        if not await_go(work, wave, len(plan.waves)):
            return
        _mend(work)
        report = _one_wave(work, wave, len(plan.waves))
        work.reports.append(report)
        work.ends.update(report.nodes)
        work.on_wave(report)
        failed = sum(end is not End.DRAINED for end in work.ends.values())
        if work.steer.ended():
            work.reason = work.steer.ended()
        elif failed > work.drain.waves.failure_budget:
            who = f": {and_more(report.stuck, 2)}" if report.stuck else ""
            allowed = work.drain.waves.failure_budget
            work.reason = f"{plural(failed, 'node')} not emptied, waves.failure_budget is {allowed}{who}"
        elif report.harm:
            work.reason = f"wave {wave.number} did harm: {report.harm[0].wording()}"
        elif work.clock.now() > work.until:
            work.reason = f"the drain's deadline of {work.drain.deadline} has passed"
        if work.reason:
            return
    if stay := [n for n in work.source if work.ends.get(n) is not End.DRAINED]:
        stuck = [words for report in work.reports for words in report.stuck] or stay
        work.reason = f"{plural(len(stay), 'node')} of {len(work.source)} not emptied: {and_more(stuck, 2)}"


def _emptied_before(work: MoveState, now: Snapshot) -> set[str]:
    """Source nodes that this run cordoned before, or that are gone from the cluster, and that are proven empty."""
    mine = {}
    for name in work.source:
        node = now.node_by_name.get(name)
        if node is None:
            mine[name] = ""
        raw = {"metadata": {"name": name, "annotations": dict(node.annotations)}} if node else None
        prior = prior_of(raw, work.run) if raw and PRIOR in raw["metadata"]["annotations"] else None
        if node is not None and prior and prior.get("cordoned") and node.unschedulable:
            mine[name] = node.uid
    context = Context(snapshot=now, allowed=allowed_by(work.drain))
    judge = judge_with(context)
    candidates = {n: uid for n, uid in mine.items() if all(judge(p).fate is Fate.STAY for p in now.on([n]))}
    return set() if not candidates or verify_empty(work.kube, candidates) else set(candidates)


def _mend(work: MoveState) -> None:
    """Fence and cordons as we made them: whoever takes one off in between would let work come back."""
    empty = [n for n, end in work.ends.items() if end is End.DRAINED]
    mended = mend(work.kube, work.run, [n for n in work.source if n not in work.ends], empty)
    if mended:
        work.say(f"somebody had taken our fence or cordon off {and_more(list(mended), 5)}: put back")


def _one_wave(work: MoveState, wave: PlannedWave, of: int) -> WaveReport:
    """Cordon, gangs, evictions, proof, gate."""
    began = work.clock.now()
    work.say(f"wave {wave.number} of {of} ({plural(len(wave.nodes), 'node')}): cordoning")
    stored = cordon(work.kube, wave.nodes, work.run)
    uids = {n.name: n.uid for n in stored}
    now = work.look()
    if work.room.names and find_gangs(now, work.drain, uids):
        work.room.open()
        now = work.look()
    before = health(now, uids)
    note(work, before.to_dict())
    context = Context(snapshot=now, allowed=allowed_by(work.drain), target=work.shape(now), run=work.run)
    surges(work, now, context, uids)
    gang_ends, held = move_gangs(work, context, tuple(uids))
    ahead = [n for n in work.source if n not in work.ends and n not in uids]
    work.room.keep(work.look() if gang_ends else now, work.drain, ahead, uids)
    evicted = work.evictor.tally.gone
    left = work.evictor.empty(
        uids,
        with_new_daemonsets(
            work.kube,
            now,
            judge_with(context, held, past_budgets=work.drain.force.delete_after is not None),
        ),
        work.limits(),
        last=drains_last,
        on_progress=lambda p: _show(work, wave, of, p),
        cancelled=lambda: bool(work.steer.ended()),
    )
    uids |= dict.fromkeys(set(wave.nodes) - set(uids), "")  # nodes that went meanwhile: empty if no pod names them
    unproven = verify_empty(work.kube, uids)
    nodes = node_ends(uids, left, unproven)
    drained = {n for n, end in nodes.items() if end is End.DRAINED}
    harm = tuple(h for g in gang_ends if (h := g.harm) is not None)
    if drained and not harm and not work.steer.ended():
        harm = settle(work, before, drained, lambda words: _tell(work, wave, of, words))
        if not harm:
            note(work, {})
    return WaveReport(
        number=wave.number,
        of=of,
        nodes=nodes,
        left=left,
        gangs=tuple(gang_ends),
        harm=harm,
        unproven=tuple(unproven),
        moved=work.evictor.tally.gone - evicted,
        seconds=(work.clock.now() - began).total_seconds(),
    )


def _show(work: MoveState, wave: PlannedWave, of: int, now: Progress) -> None:
    """How far the wave is, for whoever shows it."""
    work.room.give_way(work.view.pods.values())
    _tell(work, wave, of, now.wording(), now)


def _tell(work: MoveState, wave: PlannedWave, of: int, words: str, now: Progress | None = None) -> None:
    nodes = len(wave.nodes)
    work.on_progress(Stand(wave=wave.number, of=of, nodes=nodes, done=work.emptied, words=words, progress=now))


def _open_room(work: MoveState) -> None:
    """Whatever happened: what was kept is open in the end, unless another process has taken over."""
    if work.steer.barred():
        return
    try:
        work.room.open()
    except PoolshiftError as error:
        work.say(f"could not open the nodes kept for gangs: {error.wording()}")


def _restore(work: MoveState) -> tuple[str, ...]:
    """Put back the source nodes that are not proven empty, and start gangs that we have stopped and not started.

    An error here must not hide the first one. Nothing is put back under the hands of a process that has taken over.
    """
    if work.steer.barred():
        return ()
    names = [n for n in work.source if work.ends.get(n) is not End.DRAINED]
    restored: tuple[str, ...] = ()
    try:
        if restored := unfence(work.kube, work.run, names):
            work.say(f"put back {plural(len(restored), 'node')} as they were: {and_more(list(restored), 5)}")
    except PoolshiftError as error:
        work.say(f"could not put all nodes back: {error.wording()}")
    try:
        if again := restore(work.kube, work.run, started=False):
            work.say(f"as they were before: {', '.join(again)}")
    except PoolshiftError as error:
        work.say(f"could not start all gangs again that were stopped: {error.wording()}")
    return restored
