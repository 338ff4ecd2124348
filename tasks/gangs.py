"""Move a gang as one: room, checkpoint seen, stop, start again, all ranks Running on the target.

Every stage is written on the object that is switched, together with the change itself, so a run that was killed goes
on where it stood, and `restore` can put every gang of a run back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from infra.clock import Clock, parse_time, rfc3339
from infra.errors import Conflict, NotFound, PoolshiftError, Unreachable
from infra.kube import flavors, switches
from infra.kube.api import Kube
from infra.kube.refusals import ApiError, was_never_sent
from infra.kube.view import View
from infra.model.gangs import GangKind, Means
from infra.model.spec import Drain, MoveMode, WorkloadRule
from infra.model.workload import Pod
from tasks.checkpoints import Question
from tasks.gang_ends import Failed, GangEnd, end_since
from tasks.gang_restore import MOVED, forget_moved, joined, restore, start_of, unfinished
from tasks.gang_templates import HOME, carry_over, home_of, is_template_refused
from tasks.rules.gang_notes import members, root_of, rule_of
from tasks.rules.gangs import Gang, held_flavors
from tasks.rules.outcome import End
from tasks.rules.placement import TargetShape
from tasks.rules.rehoming import Change, apply, rehome_changes
from tasks.rules.rehoming import joined as joined_changes
from tasks.rules.wording import and_more, plural, span

__all__ = ["Failed", "GangEnd", "Mover", "Work", "forget_moved", "restore", "unfinished"]

LOOK = timedelta(seconds=2)  # between two looks at a workload, on the run's clock


Raw = dict[str, Any]
Noting = tuple[dict[str, Any], Raw | None]  # what is noted, and the merge patch that goes with it
Work = Generator[None, None, GangEnd]  # yields while it waits


@dataclass(kw_only=True)
class Mover:
    """What moving a gang needs. `off` are the source nodes: no rank may run there afterwards. `onto` are the target's.

    `cancelled` ends moves that have not stopped anything yet: a gang that is down is brought up first. `barred` ends
    all at once: another process has taken over.
    """

    kube: Kube
    view: View
    clock: Clock
    run: str
    off: frozenset[str]
    onto: frozenset[str] = frozenset()
    limit: timedelta
    say: Callable[[str], None]
    target: TargetShape | None = None
    cancelled: Callable[[], bool] = lambda: False
    barred: Callable[[], bool] = lambda: False

    def all(self, works: Sequence[Work]) -> list[GangEnd]:
        """Run moves side by side, each as far as it can, until all have ended. In the order given."""
        ends: dict[int, GangEnd] = {}
        while len(ends) < len(works):
            for i, work in enumerate(works):
                if i not in ends:
                    try:
                        next(work)
                    except StopIteration as stop:
                        ends[i] = stop.value
            if len(ends) < len(works):
                self.view.rest(min(2.0, max(0.05, self.clock.real_seconds(LOOK.total_seconds()))))
        return [ends[i] for i in range(len(works))]

    def move(self, gang: Gang) -> Work:
        """One gang, from where it stands. Never raises: what went wrong is in the answer."""
        noted: dict[str, Any] = {"flavors": held} if (held := held_flavors(gang, self.target)) else {}
        noted |= {
            "run": self.run,
            "stage": "new",
            "root": [gang.kind.group, gang.kind.kind, gang.root.namespace, gang.root.name],
            "version": gang.kind.version,
            "ranks": len(gang.pods),
            "owners": sorted({p.owner.uid for p in gang.pods if p.owner}),
        }
        return self._go(gang.switch_kind, gang.switch.namespace, gang.switch.name, noted, gang.rule)

    def resume(self, row: GangKind, raw: Mapping[str, Any], drain: Drain) -> Work:
        """A gang that this run had begun to move before it was ended."""
        noted = switches.memory(raw, self.run) or {}
        rule = rule_of(drain, noted)
        return self._go(row, raw["metadata"]["namespace"], raw["metadata"]["name"], noted, rule)

    def _go(self, row: GangKind, namespace: str, name: str, noted: dict[str, Any], rule: WorkloadRule) -> Work:
        workload = f"{noted['root'][1].lower()} {noted['root'][2]}/{noted['root'][3]}"
        try:
            if rule.mode in (MoveMode.WAIT, MoveMode.LEAVE):
                yield from self._await_own_end(workload, noted, rule)
            else:
                yield from self._stages(row, namespace, name, noted, rule, workload)
            end, code, reason = End.DRAINED, "", ""
        except Failed as failure:
            end, code, reason = failure.end, failure.code, failure.reason
        except NotFound as error:
            end, code, reason = End.UNKNOWN, "gang-gone", f"its owner has deleted it: {error.observed}"
        except PoolshiftError as error:
            end, code, reason = End.UNKNOWN, "unreachable", error.wording()
        return GangEnd(
            workload=workload,
            end=end,
            code=code,
            reason=reason,
            ranks=int(noted.get("ranks", 0)),
            **{k: str(noted.get(k, "")) for k in ("asked", "checkpoint", "was", "stopped", "running", "ended")},
        )

    def _stages(
        self, row: GangKind, namespace: str, name: str, noted: dict[str, Any], rule: WorkloadRule, workload: str
    ) -> Generator[None]:
        raw = self._read(row, namespace, name, workload)
        known = switches.memory(raw, self.run) or {}
        if known.get("stage") in ("asked", MOVED) or self.is_back(known):
            # Asked before the run was ended: what was saved since may be old by now, ask again. Who and where it is
            # now was read for this move.
            known = {k: v for k, v in known.items() if k not in noted or k == "run"}
            noted["stage"] = "new"
        noted.update(known)
        if noted["stage"] == "new":
            _require_running(row, raw)
            if rule.mode is MoveMode.CHECKPOINT:
                yield from self._checkpoint(row, raw, noted, rule, workload)
                raw = self._read(row, namespace, name, workload)
            self._hold_flavors(noted, workload)
            self.say(f"{workload}: stopping {plural(noted['ranks'], 'pod')} as one")
            raw = self._write(row, raw, noted, lambda now: self._stop(row, now))
        if noted["stage"] == "stopped":
            if row.means is Means.COMMAND:
                switches.command(self.kube, raw, "AbortJob", self.run)
            yield from self.wait_for(
                lambda: not self._members(noted),
                self.limit,
                workload,
                "gang-not-stopped",
                "pods are still there",
                down=True,
            )
            self._hold_flavors(noted, workload)
            raw = self._start_again(row, self._read(row, namespace, name, workload), noted, rule, workload)
        if row.means is Means.COMMAND:
            switches.command(self.kube, raw, "ResumeJob", self.run)
        yield from self.wait_for(
            lambda: self._is_up(noted),
            self.limit,
            workload,
            "gang-not-running",
            lambda: self._why_not(noted),
            down=True,
        )
        if noted.get(HOME):
            self._write(row, raw, noted, lambda _: ({"stage": MOVED}, None))
        else:
            switches.forget(self.kube, row, raw)
        if noted.get("ended"):
            self.say(f"{workload}: came to its end ({noted['ended']}) after it was started again")
            return
        where = "on the target" if all(p.node in self.onto for p in self._members(noted)) else "off the source"
        self.say(f"{workload}: all {plural(noted['ranks'], 'rank')} run {where}")

    def _hold_flavors(self, noted: Mapping[str, Any], workload: str) -> None:
        """Kueue would admit it to the pool that it leaves, fenced or not: first its way there is closed."""
        for name in noted.get("flavors") or ():
            if flavors.hold(self.kube, name, self.run):
                self.say(f"{workload}: Kueue admits nothing more to flavour {name}, which leads to the source")

    def _stop(self, row: GangKind, raw: Raw) -> Noting:
        """Its owner may have stopped it, or scaled it, a moment ago: what it was is read from the object of now."""
        _require_running(row, raw)
        marks = {"stage": "stopped", "before": row.read_switch(raw), "stopped": self._now()}
        return marks, switches.stop_patch(row)

    def _start_again(self, row: GangKind, raw: Raw, noted: dict[str, Any], rule: WorkloadRule, workload: str) -> Raw:
        """Switched on, with the changed template in the same request and the old values in our memory."""
        target, was = self.target if rule.rehome else None, home_of(noted)

        def changed(now: Raw) -> tuple[Change, ...]:
            return joined_changes(was, rehome_changes(row, now, target)) if target else was

        def start(now: Raw) -> Noting:
            home = changed(now)
            marks = {"stage": "started", **({HOME: [c.to_dict() for c in home]} if home else {})}
            return marks, joined(start_of(row, now, noted), apply(now, home)[0])

        home = changed(raw)
        places = f", its template changed: {and_more([c.place for c in home], 5)}" if home else ""
        self.say(f"{workload}: starting again on the target{places}")
        if home and row.copies:
            raw = self._write(row, raw, noted, lambda now: ({HOME: [c.to_dict() for c in changed(now)]}, None))
            carry_over(self.kube, row, raw, home_of(noted))
        try:
            return self._write(row, raw, noted, start)
        except ApiError as error:
            if not home or not is_template_refused(error):
                raise
            # Kueue takes the start time off as well.
            meta = raw["metadata"]
            switches.forget_start(self.kube, row, raw)
            return self._write(row, self._read(row, meta["namespace"], meta["name"], str(meta["name"])), noted, start)

    def _read(self, row: GangKind, namespace: str, name: str, workload: str) -> dict[str, Any]:
        raw = switches.read(self.kube, row, namespace, name)
        if raw is None:
            raise Failed("gang-gone", f"{workload} is gone")
        return raw

    def _write(self, row: GangKind, raw: Raw, noted: dict[str, Any], change: Callable[[Raw], Noting]) -> Raw:
        """Note a stage with its change. After a conflict the change is worked out anew, from what others wrote."""
        meta = raw["metadata"]
        for _ in range(8):
            known = dict(noted)
            marks, patch = change(raw)
            noted.update(marks)  # before the request: one without an answer may have been carried out
            try:
                return switches.note(self.kube, row, raw, noted, patch)
            except PoolshiftError as error:
                if not isinstance(error, Unreachable) or was_never_sent(error):
                    noted.clear()  # refused: it is as it was
                    noted.update(known)
                if not isinstance(error, Conflict):
                    raise
                raw = self._read(row, meta["namespace"], meta["name"], str(meta["name"]))
        raise Failed("conflict", "others kept changing it while we tried")

    def _checkpoint(
        self, row: GangKind, raw: Raw, noted: dict[str, Any], rule: WorkloadRule, workload: str
    ) -> Generator[None]:
        """Ask for a checkpoint and see one that is newer than the question."""
        way = rule.checkpoint
        kind, namespace, name = root_of(noted)
        question = Question(
            kube=self.kube,
            clock=self.clock,
            way=way,
            kind=kind,
            namespace=namespace,
            name=name,
            members=lambda: self._members(noted),
            limit=rule.max_wait,
        )
        was = question.was = question.before()
        marks = {"stage": "asked", "asked": self._now(), "was": rfc3339(was) if was else ""}
        self._write(row, raw, noted, lambda _: (marks, None))
        self.say(f"{workload}: asking for a checkpoint (newest: {noted['was'] or 'none known'})")
        asked = question.asked = parse_time(noted["asked"])
        if way.via == "annotation":
            switches.annotate(self.kube, kind, namespace, name, way.annotation, noted["asked"])
        seen: list[datetime] = []

        def newer() -> bool:
            if question.forbidden:
                raise Failed("checkpoint-forbidden", question.trouble)
            newest = question.look()
            if newest is not None:
                seen.append(newest)
            return bool(seen)

        def why_not() -> str:
            text = f"no checkpoint newer than {noted['asked']} was seen within {span(rule.max_wait)}"
            return f"{text}; {question.trouble}" if question.trouble else text

        left = max(timedelta(0), rule.max_wait - (self.clock.now() - asked))
        yield from self.wait_for(newer, left, workload, "no-checkpoint", why_not)
        self.say(f"{workload}: checkpoint of {rfc3339(seen[-1])} seen")
        noted.update(checkpoint=rfc3339(seen[-1]))

    def is_back(self, noted: Mapping[str, Any]) -> bool:
        """It was started for the target and runs on the source: it needs a move of its own, from the start."""
        return noted.get("stage") == "started" and any(
            p.node in self.off and not p.terminating for p in self._members(noted)
        )

    def _members(self, noted: Mapping[str, Any]) -> list[Pod]:
        return members(self.view.pods.values(), noted)

    def _is_up(self, noted: dict[str, Any]) -> bool:
        """All ranks run off the source; or all that it still needs, or it has ended meanwhile: both are noted."""
        members = self._members(noted)
        up = [p for p in members if p.phase == "Running" and not p.terminating and p.node not in self.off]
        if len(up) < int(noted["ranks"]):
            ended = end_since(self.kube, noted, len(up)) if len(up) == len(members) else None
            if ended is None:
                return False
            noted.update({"ended": ended} if ended else {"ranks": len(up)})
        if not noted.get("ended"):
            noted.update(running=self._now())
        return True

    def _why_not(self, noted: Mapping[str, Any]) -> str:
        members = self._members(noted)
        up = [p for p in members if p.phase == "Running" and p.node not in self.off]
        text = f"{len(up)} of {plural(noted['ranks'], 'rank')} run off the source pool"
        stuck = next((p for p in members if p.phase == "Pending"), None)
        return text + (f"; {stuck.key}: {stuck.unschedulable or stuck.waiting or 'Pending'}" if stuck else "")

    def _await_own_end(self, workload: str, noted: Mapping[str, Any], rule: WorkloadRule) -> Generator[None]:
        limit = span(rule.max_wait)
        self.say(f"{workload}: waiting at most {limit} for it to leave by itself")
        yield from self.wait_for(
            lambda: not any(p.node in self.off for p in self._members(noted)),
            rule.max_wait,
            workload,
            "gang-still-there",
            f"has not left the source pool by itself within {limit}, and was not touched: run again when it has",
        )

    def wait_for(
        self,
        done: Callable[[], bool],
        limit: timedelta,
        workload: str,
        code: str,
        reason: str | Callable[[], str],
        *,
        down: bool = False,
    ) -> Generator[None]:
        """Yield until `done`. Raises Failed (`code`, `reason`) at the limit, or when the run is cancelled.

        `down`: we have stopped the workload, so a cancellation waits until it is up again.
        """
        end = self.clock.now() + limit
        while not done():
            if self.barred() or (self.cancelled() and not down):
                raise Failed("cancelled", f"{workload} was left as it is", End.UNKNOWN)
            if self.clock.now() > end:
                if self.view.lost is not None:
                    raise Failed("unreachable", self.view.lost.observed, End.UNKNOWN)
                raise Failed(code, reason if isinstance(reason, str) else reason())
            yield

    def _now(self) -> str:
        return rfc3339(self.clock.now())


def _require_running(row: GangKind, raw: Mapping[str, Any]) -> None:
    if row.is_stopped(raw):
        raise Failed("gang-stopped", "was already suspended by somebody else")
