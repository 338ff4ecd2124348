"""One emptying: the loop that owns the state, and what the server's answers mean. See `tasks.evict`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING

from infra.kube.pods import Answer, Reply
from infra.kube.view import News
from infra.model.workload import Pod
from tasks.departures import Departures
from tasks.rules.lanes import Job, Lane
from tasks.rules.outcome import End, Limits, PodEnd, Progress, Sentence
from tasks.rules.overdue import ACCEPTED_FOR, Step, late_end, next_step

if TYPE_CHECKING:
    from tasks.evict import Evictor

TICK = 0.2  # wall-clock seconds between two looks when nothing happens
LOOK = 1.0  # wall-clock seconds between two looks at all deadlines; less where they are short or the clock runs fast
RETRY = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # wall-clock seconds after an error that may pass
_FINAL = {  # answers that no retry will change: code, remedy
    Answer.TWO_BUDGETS: ("multiple-pdb", ""),
    Answer.DENIED: ("admission", "ask who runs that webhook or policy"),
    Answer.FORBIDDEN: ("forbidden", "grant create on pods/eviction"),
    Answer.INVALID: ("invalid", ""),
}
AHEAD = 8  # evictions handed out beyond the workers there are: one that has its answer goes on without waiting for us


@dataclass(frozen=True, slots=True)
class Done:
    """A worker's answer, the error of our own that it met, or None: it was stopped before it had sent anything.

    `deleted`: it was asked to delete past the budget.
    """

    job: Job
    reply: Reply | Exception | None
    deleted: bool


class Emptying:
    """One call of `Evictor.empty`."""

    def __init__(
        self,
        evictor: Evictor,
        nodes: frozenset[str],
        sentence: Callable[[Pod], Sentence],
        limits: Limits,
        last: Callable[[Pod], bool],
        on_progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.evictor, self.limits, self.on_progress, self.cancelled = evictor, limits, on_progress, cancelled
        self.view, self.clock, self.queues, self.tally = evictor.view, evictor.clock, evictor.queues, evictor.tally
        self.pods = Departures(nodes, sentence, last, self.view, self.clock, self.queues, self.tally)
        self.in_flight = 0
        self.began = self.clock.now()
        self.looked = self.judged = self.shown = self.relisted = monotonic()
        shortest = min(limits.pod, limits.wave, limits.delete_after or limits.pod).total_seconds()
        self.every = min(LOOK, max(TICK, self.clock.real_seconds(shortest) / 20))

    def run(self) -> tuple[PodEnd, ...]:
        """Until nothing is left to wait for."""
        self.queues.clear()
        self.pods.begin()
        wave_end = min(self.began + self.limits.wave, self.limits.until)
        over = ""
        while self.pods.jobs or self.pods.last or self.in_flight:
            if not over and (over := self._over(wave_end)):
                self.evictor.recall()
            if not self.pods.jobs and not self.in_flight:
                self.pods.keep_last()
            if not over:
                self._dispatch()
            self._take(self.view.pump(min(self.queues.limited_for or TICK, TICK)))
            if monotonic() - self.looked >= TICK:
                self.looked = monotonic()
                self.queues.touch()
                if over and not self.in_flight:
                    self._abandon(over)
                elif not over and self.looked - self.judged >= self.every:
                    self.judged = self.looked
                    self._overdue(self.clock.now())
                self._show()
        self.on_progress(self.pods.progress())
        return tuple(self.pods.ends.values())

    def _over(self, wave_end: datetime) -> str:
        """Why nothing more is sent, or "": what is under way is then waited for, and the rest is given up."""
        if self.cancelled():
            return "cancelled"
        return "wave-deadline" if self.clock.now() > wave_end else ""

    def _dispatch(self) -> None:
        most = self.evictor.workers + (AHEAD if self.queues.unbudgeted else 0)
        for job in self.queues.take(most - self.in_flight, monotonic(), self._usable):
            self._send(job, past_budget=False)

    def _usable(self, job: Job) -> bool:
        """Does it still want an eviction? One whose pod leaves by itself does not."""
        pod = self.view.pods.get(job.pod.uid)
        if pod is None or pod.uid not in self.pods.jobs or job.in_flight:
            return False
        job.pod = pod
        if pod.terminating:
            self.pods.leaves(job)
        return not pod.terminating

    def _send(self, job: Job, *, past_budget: bool) -> None:
        job.in_flight = True
        self.in_flight += 1
        self.evictor.send(job, past_budget=past_budget, grace=self.limits.grace)

    def _take(self, news: News) -> None:
        for budget in news.budgets:
            present = budget.key in self.view.budgets
            # Each event, not the last of several: the one that names a pod in disruptedPods may be overtaken.
            self.queues.see(budget.key, budget if present else None)
            if present and (budget.healthy or 0) >= (budget.desired or 0) > 0 == budget.allowed:
                self._free_unready(budget.key)
        for pod in news.gone:
            self.pods.left(pod.uid)
        for pod in news.pods:
            self.pods.see(pod)
        for item in news.posted:
            if isinstance(item, Done):
                self._answer(item)

    def _free_unready(self, key: str) -> None:
        """A closed budget whose healthy pods suffice lets its unready pods go without being charged."""
        for job in list(self.queues.waiting(key)):
            if not job.pod.ready and not job.in_flight:
                self.queues.waiting(key).remove(job)
                job.budget = ""
                self.queues.put(job)

    def _answer(self, done: Done) -> None:
        job, now = done.job, monotonic()
        job.in_flight = False
        self.in_flight -= 1
        if done.reply is None:
            self._unsent(done, now)
            return
        reply = done.reply if isinstance(done.reply, Reply) else Reply(answer=Answer.UNANSWERED)
        job.said = reply.message or job.said
        if job.budget and not done.deleted:
            charged = reply.answer in (Answer.ACCEPTED, Answer.UNANSWERED)
            self.queues.lane(job.budget).settle(now, charged=charged)
            self.queues.touch(job.budget)
        if job.pod.uid not in self.pods.jobs:
            return
        if isinstance(done.reply, Exception):
            self.tally.errors += 1
            said = f"nobody knows whether it was asked to leave: {type(done.reply).__name__}: {done.reply}"
            self.pods.end(job, End.UNKNOWN, "internal-error", said, "report it: this is a fault of poolshift")
            return
        if reply.answer in _FINAL:
            code, remedy = _FINAL[reply.answer]
            self.pods.end(job, End.FAILED, code, reply.message, remedy)
            return
        match reply.answer:
            case Answer.ACCEPTED:
                self._accepted(job, past_budget=done.deleted)
            case Answer.GONE:
                self.pods.left(job.pod.uid)
            case Answer.REFUSED | Answer.UNCOUNTED:
                self._refused(job, reply, now)
            case Answer.BUSY:
                self.queues.rate.slow_down(now, min(10.0, reply.retry_after or 0.5))
                self._again(job, now, 0.0)
            case Answer.NAMESPACE_ENDING:
                job.code = "namespace-ending"
                self._again(job, now, RETRY[-1])
            case _:
                job.code = "admission" if reply.answer is Answer.LATER else "server-error"
                self.tally.errors += job.code == "server-error"
                self._again(job, now, RETRY[min(job.tries, len(RETRY) - 1)])

    def _unsent(self, done: Done, now: float) -> None:
        """Taken back before it was sent: as if it had not been handed out."""
        job = done.job
        self.tally.sent -= 1
        if done.deleted:
            self.tally.forced.remove(job.pod.key)
            job.code = "waiting"
        elif job.budget:
            self.queues.lane(job.budget).settle(now, charged=False)
        if job.pod.uid in self.pods.jobs:
            self._again(job, now, RETRY[0])

    def _accepted(self, job: Job, *, past_budget: bool) -> None:
        self.tally.accepted += 1
        self.pods.leaves(job)
        if job.budget and not past_budget:
            self.queues.lane(job.budget).let_go(self.clock.now())

    def _refused(self, job: Job, reply: Reply, now: float) -> None:
        self.tally.refused += 1
        job.code = "pdb"
        if not job.budget:  # it seemed free of its budget, or the budget is new
            over = self.pods.budgets_over(job.pod)
            job.budget = over[0].key if over else ""
        budget = self.view.budgets.get(job.budget)
        if budget is None:
            self._again(job, now, float(reply.retry_after or RETRY[-2]))
            return
        lane = self.queues.lane(job.budget)
        lane.shut_since = lane.shut_since or self.clock.now()
        lane.refuse(now, budget.resource_version, float(reply.retry_after or RETRY[-1]))
        self._again(job, now, 0.0)

    def _again(self, job: Job, now: float, wait: float) -> None:
        job.tries += 1
        job.accepted = 0.0
        job.not_before = now + wait
        self.queues.put(job)

    def _overdue(self, now: datetime) -> None:
        """Pods past their time: the ladder that the spec opens, then the end."""
        real = monotonic()
        for lane in self.queues.lanes.values():
            if lane.shut:
                lane.shut_since = lane.shut_since or now
        for job in list(self.pods.jobs.values()):
            lane_behind = self.queues.lane(job.budget) if job.budget and not job.accepted else None
            step = next_step(
                job,
                lane_behind,
                self.view.budgets.get(job.budget),
                self.limits,
                now=now,
                real=real,
                grace=self.clock.real_seconds(float(job.pod.grace)),
                forced_is_here=bool(lane_behind and lane_behind.forced and lane_behind.forced.uid in self.pods.jobs),
            )
            if step is Step.FORCE and lane_behind:
                self._force(job, lane_behind, now)
            elif step is Step.GIVE_UP:
                self.pods.end(job, *late_end(job, self.limits, self.view.lost, self.pods.held_by(job)))
            elif step is Step.DOUBT:
                self._distrust(job, real)

    def _force(self, job: Job, lane: Lane, now: datetime) -> None:
        self.evictor.past_budget(job.pod.key, job.budget)  # into the ledger first: what cannot be told is not done
        lane.force(job.pod, self.view.budgets.get(job.budget), now)
        self.tally.forced.append(job.pod.key)
        self.pods.leaves(job)
        job.code = "forced"
        self._send(job, past_budget=True)

    def _distrust(self, job: Job, now: float) -> None:
        """Look at everything anew; when that has not helped, ask again."""
        if now - self.relisted > ACCEPTED_FOR:
            self.relisted = now
            self.view.relist()
        elif not job.pod.terminating:
            self._again(job, now, 0.0)

    def _abandon(self, code: str) -> None:
        """The wave is over: what is left has failed, or is unknown where nobody can see or we stopped ourselves."""
        self.pods.jobs.update(self.pods.last.give_up())
        unknown = code == "cancelled" or self.view.lost is not None
        for job in list(self.pods.jobs.values()):
            said = self.pods.held_by(job) or ("cancelled" if code == "cancelled" else "had not left when time was up")
            self.pods.end(job, End.UNKNOWN if unknown else End.FAILED, code, said)

    def _show(self) -> None:
        if monotonic() - self.shown >= 1.0:
            self.shown = monotonic()
            self.on_progress(self.pods.progress())
