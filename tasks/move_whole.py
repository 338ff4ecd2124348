"""What does not leave pod by pod: gangs, as one; a set's first replica, and the second of what has only one."""

from __future__ import annotations

from collections.abc import Iterable

from infra.kube.switches import memory
from infra.model.gangs import SURGE_KIND
from infra.model.workload import Pod, Snapshot
from tasks.gangs import GangEnd, Work, unfinished
from tasks.move_check import settle
from tasks.move_state import MoveState
from tasks.rules.decision import Context
from tasks.rules.drain import decide
from tasks.rules.drain_budgets import surging
from tasks.rules.gangs import as_moved, find_gangs, quota_taken
from tasks.rules.outcome import End, Fate, Limits, Sentence
from tasks.rules.queues import Taken
from tasks.rules.replicas import first_replicas
from tasks.rules.sentences import LEAVES, STAYS, allowed_by, judge_with, sentence_of
from tasks.rules.settling import health
from tasks.rules.waves import gang_block
from tasks.rules.wording import and_more
from tasks.surge import surge


def finish_gangs(work: MoveState) -> None:
    """Gangs that were stopped when the run was: first of all they must run again.

    Those that run on the source again need nothing now: each is moved in its wave, once there is room for it.
    """
    mover = work.mover()
    works = [
        surge(mover, raw["metadata"]["namespace"], raw["metadata"]["name"])
        if row is SURGE_KIND
        else mover.resume(row, raw, work.drain)
        for row, raw in unfinished(work.kube, work.run)
        if row is SURGE_KIND or not mover.is_back(memory(raw, work.run) or {})
    ]
    for end in mover.all(works):
        if end.end is not End.DRAINED:
            work.say(f"{end.workload}: {end.reason}")
        if end.harm is not None:
            work.reason = end.harm.wording()


def move_first(work: MoveState, now: Snapshot) -> None:
    """One replica of each set that is on the source as a whole: an operator fails over only to a free node."""
    chosen = {p.uid: p for p in first_replicas(now, work.source)}
    if not chosen or work.steer.ended():
        return
    names = [p.key for p in chosen.values()]
    work.say(f"first one replica of each set that is on the source alone: {and_more(names, 5)}")
    context = Context(snapshot=now, allowed=allowed_by(work.drain), target=work.shape(now), run=work.run)
    before = health(now, {p.node for p in chosen.values()})
    judge = judge_with(context)
    limit = min(work.drain.pod_deadline, work.drain.waves.settle * 5)
    work.evictor.empty(
        {p.node for p in chosen.values()},
        lambda pod: judge(pod) if pod.uid in chosen else STAYS,
        Limits(pod=limit, wave=limit, until=work.until),
        cancelled=lambda: bool(work.steer.ended()),
    )
    for found in settle(work, before, ()):
        work.say(f"after the first replica: {found.wording()}")


def surges(work: MoveState, now: Snapshot, context: Context, nodes: Iterable[str]) -> None:
    """Deployments of one replica: a second one first. What does not work out is evicted like the rest."""
    roots = {
        (root.namespace, root.name)
        for pod in now.on(nodes)
        if sentence_of(decide(pod, context)) is LEAVES and surging(pod, context)
        if not pod.finished and not pod.terminating and (root := now.root(pod.owner)) is not None
    }
    mover = work.mover()
    for end in mover.all([surge(mover, namespace, name) for namespace, name in sorted(roots)]):
        if end.end is not End.DRAINED:
            work.say(f"{end.workload}: {end.reason}")


def move_gangs(work: MoveState, context: Context, nodes: tuple[str, ...]) -> tuple[list[GangEnd], dict[str, Sentence]]:
    """Move every gang that has a member on the nodes. Members of one that did not move are held, not evicted."""
    mover, found = work.mover(), find_gangs(context.snapshot, work.drain, nodes, work.source)
    usable = work.room.usable(context.snapshot) or work.target
    placed: list[Pod] = []
    taken: Taken = {}
    ends: dict[str, GangEnd] = {}
    moving: dict[str, Work] = {}
    for gang in found:
        block = gang_block(gang, context, work.drain, usable, placed, taken)
        if block is not None:
            ends[gang.object] = GangEnd(workload=gang.object, end=End.FAILED, code=block.code, reason=block.observed)
        else:
            placed += as_moved(gang, context.target)
            taken = quota_taken(gang, context.target, taken)
            moving[gang.object] = mover.move(gang)
    ends.update({end.workload: end for end in mover.all(list(moving.values()))})
    held: dict[str, Sentence] = {}
    for gang in found:
        end = ends[gang.object]
        if end.end is not End.DRAINED:
            work.say(f"{gang.object}: {end.reason}")
            why = Sentence(fate=Fate.HELD, code=end.code, reason=end.reason)
            held.update({p.uid: why for p in gang.pods})
    return [ends[g.object] for g in found], held
