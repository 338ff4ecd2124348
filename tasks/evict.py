"""The engine: empty sets of nodes by eviction, as fast as the budgets and the server allow, and no faster.

One thread owns all state and waits in one place: for the shared watch and for the answers of its workers. Each budget
has one eviction in flight; budgets run in parallel; a budget's next eviction goes out when its status says so. A pod
has left when the watch, or the server, says that its UID is gone; nothing else counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Self

from infra.clock import Clock
from infra.kube.api import Kube
from infra.kube.lines import Lines
from infra.kube.pods import Reply, delete, evict
from infra.kube.view import View
from infra.model.workload import Pod
from tasks.emptying import Done, Emptying
from tasks.rules.lanes import Job, Queues
from tasks.rules.outcome import Limits, PodEnd, Progress, Sentence, Tally

WORKERS = 16
PARTING = 5.0  # wall-clock seconds that the workers together have to end; what they sent may have no answer for longer


class Evictor:
    """Empties nodes, any number of times, over one view. Use as a context: its workers end with it.

    A call of `empty` that raises is the last one: what was under way then may still be answered.
    """

    def __init__(
        self,
        kube: Kube,
        view: View,
        *,
        rate: float,
        clock: Clock,
        workers: int = WORKERS,
        past_budget: Callable[[str, str], None] = lambda pod, budget: None,
        rate_name: str = "drain.evictions_per_second",
    ) -> None:
        """`past_budget` is told NAMESPACE/NAME of a pod and its budget before its deletion past that budget is asked
        for. It may be taken back before it is sent: `Tally.forced` has those that were sent.

        `rate` is in evictions a second, `rate_name` what sets it, for people.
        """
        self.view, self.clock, self.workers, self.past_budget = view, clock, workers, past_budget
        self._barred, self._recalled, self._failed = kube.barred, False, False
        self._lines = Lines(kube)
        self.tally = Tally()
        self.queues = Queues(rate, rate_name)
        self._work: SimpleQueue[tuple[Job, bool, int | None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for _ in self._threads:
            self._work.put(None)
        end = monotonic() + PARTING
        for thread in self._threads:
            thread.join(timeout=max(0.0, end - monotonic()))

    def send(self, job: Job, *, past_budget: bool, grace: int | None) -> None:
        """Hand one eviction (or, past its budget, one delete) to a worker; its `Done` comes over the view."""
        self.tally.sent += 1
        self._work.put((job, past_budget, grace))

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            job, past_budget, grace = item
            reply: Reply | Exception | None = None
            try:
                # In this order: whether it is barred may take a while to be known, and all may be recalled meanwhile.
                if not self._barred() and not self._recalled:
                    reply = (delete if past_budget else evict)(self._lines, job.pod, grace=grace)
            except Exception as error:  # noqa: BLE001 - ours; without an answer, who waits for it would wait for ever
                reply = error
            self.view.post(Done(job, reply, past_budget))
        self._lines.close()

    def empty(
        self,
        nodes: Iterable[str],
        sentence: Callable[[Pod], Sentence],
        limits: Limits,
        *,
        last: Callable[[Pod], bool] = lambda _: False,
        on_progress: Callable[[Progress], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> tuple[PodEnd, ...]:
        """Evict until no pod that should leave is on the nodes, or a deadline passes.

        Past the wave's deadline nothing is sent that is not under way; that is waited for.
        Pods that arrive meanwhile are judged too. Returns those that did not leave; an empty answer still needs the
        proof of a fresh listing (`tasks.drain.verify_empty`).

        Args:
            nodes: cordoned before the call.
            sentence: leave, stay or held, for a pod as it is now.
            limits: deadlines.
            last: pods that go only when no other pod is left on their node (drivers).
            on_progress: called about once a second.
            cancelled: looked at between answers; once True, nothing is sent that is not under way.

        """
        if self._failed:
            raise RuntimeError("an emptying over this evictor has ended in an error: make another one")
        self._recalled = False
        try:
            return Emptying(self, frozenset(nodes), sentence, limits, last, on_progress, cancelled).run()
        except BaseException:
            self._failed = True
            self.recall()
            raise

    def recall(self) -> None:
        """Take back what no worker has begun: the nodes are put back next, and no pod may be sent off them then."""
        self._recalled = True
