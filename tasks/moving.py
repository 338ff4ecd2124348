"""Move the work of a pool, wave by wave: cordon, read back, gangs, evictions, proof, gate. See `move`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from infra.clock import Clock, rfc3339
from infra.errors import NotFound, PoolshiftError
from infra.kube import records
from infra.kube.api import Kube
from infra.kube.read import snapshot
from infra.kube.view import View
from infra.model.gangs import SURGE_KIND
from infra.model.record import PRIOR
from infra.model.spec import Drain, MigrationSpec
from infra.model.verdict import Finding
from infra.model.workload import Pod, Snapshot
from tasks.emptiness import verify_empty
from tasks.evict import Evictor
from tasks.fence import cordon, fence, guard, mend, unfence
from tasks.gangs import GangEnd, Mover, Work, restore, unfinished
from tasks.keeping import KeptRoom
from tasks.move_report import MoveReport, WaveReport
from tasks.orphans import with_new_daemonsets
from tasks.rules.decision import Context
from tasks.rules.drain import decide, drains_last, surging
from tasks.rules.fencing import prior_of
from tasks.rules.gangs import as_moved, find_gangs
from tasks.rules.outcome import End, Fate, Limits, Progress, Sentence, node_end, worst_end
from tasks.rules.placement import shape_of
from tasks.rules.replicas import first_replicas
from tasks.rules.sentences import LEAVES, STAYS, allowed_by, judge_with, sentence_of
from tasks.rules.settling import Health, health, unsettled
from tasks.rules.waves import PlannedWave, gang_block, is_open, next_opening, plan_move
from tasks.rules.wording import and_more
from tasks.steering import FREE, Stand, Steer
from tasks.surge import surge

_WAVE = "wave"  # note in the run record
_LOOK = timedelta(seconds=5)  # between two looks at replacements or at a window, on the run's clock


@dataclass(kw_only=True)
class _Move:
    """The state of one `move`."""

    kube: Kube
    drain: Drain
    source: tuple[str, ...]
    target: tuple[str, ...]
    run: str
    clock: Clock
    say: Callable[[str], None]
    on_wave: Callable[[WaveReport], None]
    on_progress: Callable[[Stand], None]
    steer: Steer
    view: View
    evictor: Evictor
    until: datetime
    ends: dict[str, End] = field(default_factory=dict)
    reports: list[WaveReport] = field(default_factory=list)
    reason: str = ""

    @cached_property
    def room(self) -> KeptRoom:
        """What is kept on the target for gangs."""
        return KeptRoom(kube=self.kube, run=self.run, target=self.target, say=self.say)

    def open_room(self) -> None:
        """Whatever happened: what was kept is open in the end, unless another process has taken over."""
        if self.steer.barred():
            return
        try:
            self.room.open()
        except PoolshiftError as error:
            self.say(f"could not open the nodes kept for gangs: {error.wording()}")

    def look(self) -> Snapshot:
        """Owners and nodes anew; pods and budgets from the view."""
        self.view.pump(0)
        live = (tuple(self.view.pods.values()), tuple(self.view.budgets.values()))
        return snapshot(self.kube, live=live)

    def all_waves(self) -> None:
        """Waves until all is done, or one goes wrong. Sets `reason` when it stopped early."""
        self.room.open_left()
        now = self.look()
        self.finish_gangs()
        if self.reason:
            return
        done = self.emptied_before(now)
        self.ends.update(dict.fromkeys(done, End.DRAINED))
        left = [n for n in self.source if n not in done and n in now.node_by_name]
        plan = plan_move(now, self.drain, left, self._shape(now), self.target, done=len(done))
        if done:
            self.say(f"{len(done)} of {len(self.source)} source nodes were emptied before; going on")
        self.settle_last(done)
        if self.reason:
            return
        self.room.keep(now, self.drain, left)
        self.move_first(now)
        for wave in plan.waves:
            if not self.await_go(wave, len(plan.waves)):
                return
            self.mend()
            report = self.one_wave(wave, len(plan.waves))
            self.reports.append(report)
            self.ends.update(report.nodes)
            self.on_wave(report)
            failed = sum(end is not End.DRAINED for end in self.ends.values())
            if self.steer.ended():
                self.reason = self.steer.ended()
            elif failed > self.drain.waves.failure_budget:
                self.reason = f"{failed} nodes did not drain; the budget is {self.drain.waves.failure_budget}"
            elif report.harm:
                self.reason = f"wave {wave.number} did harm: {report.harm[0].wording()}"
            elif self.clock.now() > self.until:
                self.reason = f"the drain's deadline of {self.drain.deadline} has passed"
            if self.reason:
                return

    def emptied_before(self, now: Snapshot) -> set[str]:
        """Source nodes that this run cordoned before, or that are gone from the cluster, and that are proven empty."""
        mine = {}
        for name in self.source:
            node = now.node_by_name.get(name)
            if node is None:
                mine[name] = ""
            raw = {"metadata": {"name": name, "annotations": dict(node.annotations)}} if node else None
            prior = prior_of(raw, self.run) if raw and PRIOR in raw["metadata"]["annotations"] else None
            if node is not None and prior and prior.get("cordoned") and node.unschedulable:
                mine[name] = node.uid
        context = Context(snapshot=now, allowed=allowed_by(self.drain))
        judge = judge_with(context)
        candidates = {n: uid for n, uid in mine.items() if all(judge(p).fate is Fate.STAY for p in now.on([n]))}
        return set() if not candidates or verify_empty(self.kube, candidates) else set(candidates)

    def _shape(self, now: Snapshot) -> Any:
        return shape_of([now.node_by_name[n] for n in self.target if n in now.node_by_name])

    def mover(self) -> Mover:
        """Moves gangs off the whole source pool."""
        return Mover(
            kube=self.kube,
            view=self.view,
            clock=self.clock,
            run=self.run,
            off=frozenset(self.source),
            limit=self.drain.pod_deadline,
            say=self.say,
            target=self._shape(self.look()),
            cancelled=lambda: bool(self.steer.ended()),
            barred=self.steer.barred,
        )

    def finish_gangs(self) -> None:
        """Gangs that were stopped when the run was: first of all they must run again."""
        mover = self.mover()
        works = [
            surge(mover, raw["metadata"]["namespace"], raw["metadata"]["name"])
            if row is SURGE_KIND
            else mover.resume(row, raw, self.drain)
            for row, raw in unfinished(self.kube, self.run)
        ]
        for end in mover.all(works):
            if end.end is not End.DRAINED:
                self.say(f"{end.workload}: {end.reason}")
            if end.harm is not None:
                self.reason = end.harm.wording()

    def await_go(self, wave: PlannedWave, of: int) -> bool:
        """Wait while the run is paused or no window is open. False when it was cancelled or out of time meanwhile."""
        windows = self.drain.waves.windows
        said = ""
        while not self.steer.ended():
            now, paused = self.clock.now(), self.steer.paused()
            opening = next_opening(windows, now) if not paused and not is_open(windows, now) else None
            if paused:
                words, wait = f"wave {wave.number} of {of} waits: {paused}", 60.0
                self.until += timedelta(seconds=wait)  # a person's pause does not use up the deadline
            elif opening is None:
                if windows and not is_open(windows, now):
                    self.reason = "no window ever opens"
                return not self.reason
            elif opening > self.until:
                self.reason = f"no window opens before {rfc3339(self.until)}"
                return False
            else:
                words, wait = (
                    f"waiting for the window that opens at {rfc3339(opening)}",
                    min(300.0, (opening - now).total_seconds()),
                )
            if words != said:
                self.say(said := words)
                self.on_progress(Stand(wave=wave.number, of=of, nodes=len(wave.nodes), done=self.emptied, words=words))
            self.rest(wait)
        self.reason = self.steer.ended()
        return False

    def rest(self, seconds: float) -> None:
        """Seconds of the run's clock, in pieces, so that a cancellation is seen within some wall-clock seconds."""
        end = self.clock.now() + timedelta(seconds=seconds)
        while self.clock.now() < end and not self.steer.ended():
            self.view.rest(min(1.0, max(0.01, self.clock.real_seconds((end - self.clock.now()).total_seconds()))))

    @property
    def emptied(self) -> int:
        """Source nodes proven empty so far."""
        return sum(end is End.DRAINED for end in self.ends.values())

    def mend(self) -> None:
        """Fence and cordons as we made them: whoever takes one off in between would let work come back."""
        empty = [n for n, end in self.ends.items() if end is End.DRAINED]
        mended = mend(self.kube, self.run, [n for n in self.source if n not in self.ends], empty)
        if mended:
            self.say(f"somebody had taken our fence or cordon off {and_more(list(mended), 5)}: put back")

    def move_first(self, now: Snapshot) -> None:
        """One replica of each set that is on the source as a whole: an operator fails over only to a free node."""
        chosen = {p.uid: p for p in first_replicas(now, self.source)}
        if not chosen or self.steer.ended():
            return
        names = [p.key for p in chosen.values()]
        self.say(f"first one replica of each set that is on the source alone: {and_more(names, 5)}")
        context = Context(snapshot=now, allowed=allowed_by(self.drain), target=self._shape(now))
        before = health(now, {p.node for p in chosen.values()})
        judge = judge_with(context)
        limit = min(self.drain.pod_deadline, self.drain.waves.settle * 5)
        self.evictor.empty(
            {p.node for p in chosen.values()},
            lambda pod: judge(pod) if pod.uid in chosen else STAYS,
            Limits(pod=limit, wave=limit, until=self.until),
            cancelled=lambda: bool(self.steer.ended()),
        )
        for found in self.settle(before, ()):
            self.say(f"after the first replica: {found.wording()}")

    def one_wave(self, wave: PlannedWave, of: int) -> WaveReport:
        """Cordon, gangs, evictions, proof, gate."""
        began = self.clock.now()
        title = f"wave {wave.number} of {of} ({len(wave.nodes)} nodes)"
        self.say(f"{title}: cordoning")
        stored = cordon(self.kube, wave.nodes, self.run)
        uids = {n.name: n.uid for n in stored}
        now = self.look()
        if self.room.names and find_gangs(now, self.drain, uids):
            self.room.open()
            now = self.look()
        before = health(now, uids)
        self.note(before.to_dict())
        context = Context(snapshot=now, allowed=allowed_by(self.drain), target=self._shape(now))
        self.surges(now, context, uids)
        gang_ends, held = self.gangs(context, tuple(uids))
        ahead = [n for n in self.source if n not in self.ends and n not in uids]
        self.room.keep(self.look() if gang_ends else now, self.drain, ahead, uids)
        evicted = self.evictor.tally.gone
        left = self.evictor.empty(
            uids,
            with_new_daemonsets(
                self.kube,
                now,
                judge_with(context, held, past_budgets=self.drain.force.delete_after is not None),
            ),
            self.limits(),
            last=drains_last,
            on_progress=lambda p: self.show(wave, of, p),
            cancelled=lambda: bool(self.steer.ended()),
        )
        uids |= dict.fromkeys(set(wave.nodes) - set(uids), "")  # nodes that went meanwhile: empty if no pod names them
        unproven = verify_empty(self.kube, uids)
        bad = {f.object for f in unproven}
        whole = any(f.code == "emptiness-unverified" for f in unproven)
        nodes = {
            name: End.UNKNOWN
            if whole
            else node_end((p for p in left if p.pod.node == name), proven=f"node {name}" not in bad)
            for name in uids
        }
        drained = {n for n, end in nodes.items() if end is End.DRAINED}
        harm = tuple(h for g in gang_ends if (h := g.harm) is not None)
        if drained and not harm and not self.steer.ended():
            harm = self.settle(before, drained)
            if not harm:
                self.note({})
        return WaveReport(
            number=wave.number,
            of=of,
            nodes=nodes,
            left=left,
            gangs=tuple(gang_ends),
            harm=harm,
            unproven=tuple(unproven),
            moved=self.evictor.tally.gone - evicted,
            seconds=(self.clock.now() - began).total_seconds(),
        )

    def show(self, wave: PlannedWave, of: int, now: Progress) -> None:
        """How far the wave is, for whoever shows it."""
        self.room.give_way(self.view.pods.values())
        self.on_progress(
            Stand(wave=wave.number, of=of, nodes=len(wave.nodes), done=self.emptied, words=now.wording(), progress=now)
        )

    def surges(self, now: Snapshot, context: Context, nodes: Iterable[str]) -> None:
        """Deployments of one replica: a second one first. What does not work out is evicted like the rest."""
        roots = {
            (root.namespace, root.name)
            for pod in now.on(nodes)
            if sentence_of(decide(pod, context)) is LEAVES and surging(pod, context)
            if not pod.finished and not pod.terminating and (root := now.root(pod.owner)) is not None
        }
        mover = self.mover()
        for end in mover.all([surge(mover, namespace, name) for namespace, name in sorted(roots)]):
            if end.end is not End.DRAINED:
                self.say(f"{end.workload}: {end.reason}")

    def gangs(self, context: Context, nodes: tuple[str, ...]) -> tuple[list[GangEnd], dict[str, Sentence]]:
        """Move every gang that has a member on the nodes. Members of one that did not move are held, not evicted."""
        mover, found = self.mover(), find_gangs(context.snapshot, self.drain, nodes)
        usable = self.room.usable(context.snapshot) or self.target
        placed: list[Pod] = []
        ends: dict[str, GangEnd] = {}
        moving: dict[str, Work] = {}
        for gang in found:
            block = gang_block(gang, context, self.drain, usable, placed)
            if block is not None:
                ends[gang.object] = GangEnd(
                    workload=gang.object, end=End.FAILED, code=block.code, reason=block.observed
                )
            else:
                placed += as_moved(gang, context.target)
                moving[gang.object] = mover.move(gang)
        ends.update({end.workload: end for end in mover.all(list(moving.values()))})
        held: dict[str, Sentence] = {}
        for gang in found:
            end = ends[gang.object]
            if end.end is not End.DRAINED:
                self.say(f"{gang.object}: {end.reason}")
                why = Sentence(fate=Fate.HELD, code=end.code, reason=end.reason)
                held.update({p.uid: why for p in gang.pods})
        return [ends[g.object] for g in found], held

    def limits(self) -> Limits:
        """Deadlines of one wave."""
        return Limits(
            pod=self.drain.pod_deadline,
            wave=self.drain.wave_deadline,
            until=self.until,
            delete_after=self.drain.force.delete_after,
        )

    def settle_last(self, done: Iterable[str]) -> None:
        """The wave that ended with the run before: what it moved must be as ready as it was before that wave."""
        record = records.read(self.kube, self.run)
        noted = record.notes.get(_WAVE) if record else None
        harm = self.settle(Health.from_dict(noted), done) if isinstance(noted, dict) and noted else ()
        if harm:
            self.reason = f"the wave before this start did harm: {harm[0].wording()}"

    def note(self, health: Mapping[str, Any]) -> None:
        """Keep it in the run record: a restart in the middle of a wave cannot see what it was like before."""
        try:
            records.write_note(self.kube, self.run, _WAVE, health)
        except NotFound:
            pass  # a move without a record, which nobody resumes

    def settle(self, before: Health, off: Iterable[str]) -> tuple[Finding, ...]:
        """Wait until what moved is as ready as it was; what is still worse at the end is harm."""
        end = self.clock.now() + self.drain.waves.settle
        gone = frozenset(off)
        while True:
            now = self.look()
            found = unsettled(before, now, gone)
            if found and self.room.give_way(now.pods):
                end = self.clock.now() + self.drain.waves.settle
            if not found or self.clock.now() >= end or self.steer.ended():
                return tuple(found)
            self.view.rest(min(2.0, max(0.05, self.clock.real_seconds(_LOOK.total_seconds()))))


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
        Refused: a node is held by another run (nothing was changed).
        Forbidden, Unreachable, Conflict: the cluster cannot be read or a node cannot be changed.

    """
    drain = spec if isinstance(spec, Drain) else spec.drain
    source, target = tuple(dict.fromkeys(source_nodes)), tuple(dict.fromkeys(target_nodes))
    began, asked = clock.now(), kube.requests
    fence(kube, source, run)
    guard(kube, target, run)
    restored: tuple[str, ...] = ()
    rate = drain.evictions_per_second
    with View(kube) as view, Evictor(kube, view, rate=rate, clock=clock, past_budget=steer.past_budget) as evictor:
        work = _Move(
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
        try:
            work.all_waves()
        except BaseException:
            _restore(kube, run, work, say)
            raise
        finally:
            work.open_room()
        if work.reason:
            restored = _restore(kube, run, work, say)
    end = worst_end(work.ends.values())
    if not source:
        end, work.reason = End.UNKNOWN, "no source node was named, so nothing can be said to be empty"
    elif end is End.DRAINED and (work.reason or set(work.ends) != set(source)):
        end = End.FAILED
    return MoveReport(
        end=end,
        reason=work.reason,
        nodes=dict(work.ends),
        waves=tuple(work.reports),
        restored=restored,
        tally=evictor.tally,
        requests=kube.requests - asked,
        seconds=(clock.now() - began).total_seconds(),
    )


def _restore(kube: Kube, run: str, work: _Move, say: Callable[[str], None]) -> tuple[str, ...]:
    """Put back the source nodes that are not proven empty, and start gangs that we have stopped and not started.

    An error here must not hide the first one. Nothing is put back under the hands of a process that has taken over.
    """
    if work.steer.barred():
        return ()
    names = [n for n in work.source if work.ends.get(n) is not End.DRAINED]
    try:
        restored = unfence(kube, run, names)
        if again := restore(kube, run, started=False):
            say(f"as they were before: {', '.join(again)}")
    except PoolshiftError as error:
        say(f"could not put all nodes back: {error.wording()}")
        return ()
    if restored:
        say(
            f"put back {len(restored)} nodes as they were: {', '.join(restored[:5])}{' …' if len(restored) > 5 else ''}"
        )
    return restored
