"""The pods of nodes that are being emptied: who has to leave, who has left, and who will not."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

from infra.clock import Clock
from infra.kube.view import View
from infra.model.workload import Budget, Pod
from tasks.rules.budgets import Coverage, room, spends
from tasks.rules.lanes import Job, Queues
from tasks.rules.last import Last
from tasks.rules.outcome import End, Fate, PodEnd, Progress, Sentence, Tally
from tasks.rules.standing import standing, waits_for
from tasks.rules.wording import plural

RETURNS = 3  # replacements that land on a node being emptied, before we call it a loop


class Departures:
    """Who is on the way (`jobs`), who waits for the others of its node (`last`), who did not leave (`ends`)."""

    def __init__(
        self,
        nodes: frozenset[str],
        sentence: Callable[[Pod], Sentence],
        goes_last: Callable[[Pod], bool],
        view: View,
        clock: Clock,
        queues: Queues,
        tally: Tally,
    ) -> None:
        self._nodes, self._sentence, self._goes_last = nodes, sentence, goes_last
        self._view, self._clock, self._queues, self._tally = view, clock, queues, tally
        self.jobs: dict[str, Job] = {}
        self.last = Last()
        self.ends: dict[str, PodEnd] = {}
        self._departed: set[str] = set()  # a watch that lags may still tell of those that the server says are gone
        self._returned: Counter[tuple[str, str]] = Counter()
        self._coverage = Coverage(view.budgets.values())
        self._covered = self._coverage.pods(view.pods.values()) if view.budgets else {}
        self.total = self.gone = 0
        self._pace: deque[float] = deque(maxlen=400)

    def begin(self) -> None:
        """All that are on the nodes now, the least important first."""
        pods = [self._view.pods[uid] for name in self._nodes for uid in self._view.on_node.get(name, ())]
        for pod in sorted(pods, key=lambda p: (p.priority, p.key)):
            self.admit(pod)
        for name in self.last.nodes():
            self._release(self.last.free(name))

    def admit(self, pod: Pod) -> None:
        """A pod on one of the nodes that we have not met."""
        verdict = self._sentence(pod)
        if verdict.fate is Fate.STAY:
            return
        if verdict.fate is Fate.HELD:
            self.ends[pod.uid] = PodEnd(
                pod=pod, end=End.FAILED, code=verdict.code, reason=verdict.reason, remedy=verdict.remedy
            )
            self.last.came(pod.node)
            return
        job = Job(pod=pod, started=self._clock.now())
        self.total += 1
        if not pod.terminating and self._goes_last(pod):
            self.last.put(job)
            return
        self._take_on(job)

    def _take_on(self, job: Job) -> None:
        self.jobs[job.pod.uid] = job
        job.started = self._clock.now()
        self.last.came(job.pod.node)
        if job.pod.terminating:
            job.accepted = monotonic()
            return
        over = self._coverage.of(job.pod)
        if len(over) > 1:
            names = ", ".join(b.key for b in over)
            self.end(job, End.FAILED, "multiple-pdb", f"{plural(len(over), 'budget')} select it: {names}")
            return
        if over and spends(job.pod, room(over[0], self._covered.get(over[0].key, ()))) is not False:
            job.budget = over[0].key
            self._queues.put(job, over[0])
        else:
            self._queues.put(job)

    def see(self, pod: Pod) -> None:
        """A pod as the watch shows it now, on any node."""
        job = self.jobs.get(pod.uid)
        if job is not None:
            job.pod = pod
            if pod.terminating:
                self.leaves(job)
        elif pod.node in self._nodes and self._is_new(pod):
            self._meet(pod)

    def _is_new(self, pod: Pod) -> bool:
        return pod.uid in self._view.pods and pod.uid not in self.ends and pod.uid not in self._departed

    def _meet(self, pod: Pod) -> None:
        """A pod that came to a node after we began: judged like the others, unless it keeps coming back."""
        if pod.uid in self.last:
            return
        known = self.total
        self._cover()
        self.admit(pod)
        if self.total == known:
            return
        who = (pod.node, pod.owner.uid if pod.owner else pod.key)
        self._returned[who] += 1
        job = self.jobs.get(pod.uid)
        if job is not None and self._returned[who] > RETURNS:
            count = self._returned[who]
            self.end(
                job,
                End.FAILED,
                "comes-back",
                f"its owner put {plural(count, 'pod')} on {pod.node} although it is cordoned",
            )
        if job is None:
            self._release(self.last.free(pod.node))

    def budgets_over(self, pod: Pod) -> tuple[Budget, ...]:
        """The budgets that select it, as they are now."""
        self._cover()
        return tuple(self._coverage.of(pod))

    def _cover(self) -> None:
        self._coverage = Coverage(self._view.budgets.values())

    def leaves(self, job: Job) -> None:
        """It ends: from now on its deadline is for that."""
        if not job.accepted:
            job.accepted, job.started = monotonic(), self._clock.now()

    def left(self, uid: str) -> None:
        """It is gone, by the watch or by the server's word."""
        ended = self.ends.pop(uid, None)
        self._departed.add(uid)
        job = self._drop(uid)
        if ended is not None:
            self._release(self.last.went(ended.pod.node))
        if job is not None:
            self.gone += 1
            self._tally.gone += 1
            self._pace.append(monotonic())

    def _drop(self, uid: str) -> Job | None:
        job = self.jobs.pop(uid, None)
        if job is None:
            return self.last.drop(uid)
        self._release(self.last.went(job.pod.node))
        return job

    def _release(self, free: list[Job]) -> None:
        for job in free:
            self._take_on(job)

    def end(self, job: Job, end: End, code: str, reason: str, remedy: str = "") -> None:
        """It has not left: its node's drivers stay with it."""
        self.ends[job.pod.uid] = PodEnd(pod=job.pod, end=end, code=code, reason=reason, remedy=remedy)
        self.jobs.pop(job.pod.uid, None)

    def keep_last(self) -> None:
        """Those for whom they wait do not leave: a driver that went before would leave mounts that nobody can undo."""
        for job in self.last.give_up().values():
            self.end(job, End.FAILED, "waits-for-others", f"leaves last, and other pods are left on {job.pod.node}")

    def progress(self) -> Progress:
        """Where it stands now."""
        span = monotonic() - self._pace[0] if self._pace else 0.0
        rate = len(self._pace) / span if span > 0.5 else 0.0
        return standing(
            self.jobs.values(),
            self._view.budgets,
            total=self.total,
            gone=self.gone,
            per_second=rate,
            rate=self._queues.limited_by,
            at_most=self._queues.rate.current,
            refused=self._queues.refused,
            unseen=self._view.lost.observed if self._view.lost else "",
        )

    def held_by(self, job: Job) -> str:
        """What it waits for, in words."""
        return waits_for(job, self._view.budgets, self._queues.limited_by, self._queues.refused)
