"""What one budget allows at this moment, counting what we have spent and cannot see in its status yet. Pure.

The server charges an accepted eviction to the budget before it deletes the pod, and names the pod in disruptedPods;
the controller later counts anew. Between our answer and the watch event that shows it, the status overstates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from infra.model.workload import Budget, Pod

UNSEEN_FOR = 2.0  # wall-clock seconds after which a charge that never showed is taken to be counted (or never made)
REFUSED_FOR = 10.0  # wall-clock seconds after a refusal that a status contradicts, before we ask again unprompted


@dataclass(kw_only=True, slots=True)
class Lane:
    """One budget's queue discipline: a single eviction in flight, and never more than the budget has left.

    Times on the run's clock: `moved` when it last let a pod go, `shut_since` since when it has let none go, refused
    or shut by its own status, `forced_at` when a pod was last deleted past it, with what the budget said then.
    """

    key: str
    allowed: int = 0
    in_flight: str = ""
    charged_early: bool = False
    unseen: dict[str, float] = field(default_factory=dict)
    not_before: float = 0.0
    refused_at_version: str = ""
    moved: datetime | None = None
    shut_since: datetime | None = None
    forced_at: datetime | None = None
    forced: Pod | None = None
    forced_at_version: str = ""
    forced_at_healthy: int = 0

    def see(self, budget: Budget) -> None:
        """The watch shows a status. An uncounted one allows nothing, as the server itself would answer."""
        self.allowed = (budget.allowed or 0) if budget.counted else 0
        for name in budget.disrupted:
            self.unseen.pop(name, None)
            if name == self.in_flight:
                self.charged_early = True
        if budget.resource_version != self.refused_at_version:
            self.refused_at_version, self.not_before = "", 0.0

    def left(self, now: float) -> int:
        """Evictions that the budget has left, as far as we can know."""
        for name in [n for n, at in self.unseen.items() if now - at > UNSEEN_FOR]:
            del self.unseen[name]
        return self.allowed - len(self.unseen)

    def ready(self, now: float) -> bool:
        """May one be sent now?"""
        return not self.in_flight and now >= self.not_before and self.left(now) > 0

    def send(self, name: str) -> None:
        """One is on its way."""
        self.in_flight, self.charged_early = name, False

    def settle(self, now: float, *, charged: bool) -> None:
        """Its answer is there; `charged` when the budget has paid for it, or may have."""
        if charged and self.in_flight and not self.charged_early:
            self.unseen[self.in_flight] = now
        self.in_flight = ""

    def refuse(self, now: float, version: str, wait: float = REFUSED_FOR) -> None:
        """The server said no: wait for a new status, or ask again after `wait` seconds."""
        self.refused_at_version, self.not_before = version, now + wait

    @property
    def shut(self) -> bool:
        """Does it let nothing go as far as we know: by its status, or because the server said so?"""
        return self.allowed <= 0 or bool(self.refused_at_version)

    def let_go(self, now: datetime) -> None:
        """It let a pod go, so nothing has been refused for long."""
        self.moved, self.shut_since = now, None

    def refused_for(self, since: datetime, now: datetime) -> timedelta:
        """How long it has refused a pod that waits since then."""
        if self.shut_since is None or not self.shut:
            return timedelta(0)
        return now - max(since, self.shut_since)

    def idle_since(self, started: datetime) -> datetime:
        """Since when a pod that waits since `started` is not getting nearer to its turn."""
        return max(started, self.moved or started, self.shut_since or started)

    def force(self, pod: Pod, budget: Budget | None, now: datetime) -> None:
        """A pod is deleted past it."""
        self.forced, self.forced_at, self.moved = pod, now, now
        self.forced_at_version = budget.resource_version if budget else ""
        self.forced_at_healthy = (budget.healthy or 0) if budget else 0

    def over_it(self, budget: Budget | None, now: datetime, again: timedelta) -> bool:
        """Is the pod that was deleted past it, and is gone, replaced? Where no replacement comes: after `again`."""
        if self.forced is None or self.forced_at is None or not self.forced.ready or budget is None:
            return True
        if now - self.forced_at >= again:
            return True
        return budget.resource_version != self.forced_at_version and (budget.healthy or 0) >= self.forced_at_healthy


@dataclass(kw_only=True, slots=True)
class Rate:
    """A token bucket that halves when the server protects itself and grows back by a tenth each quiet second."""

    limit: float
    tokens: float = 1.0
    current: float = 0.0
    at: float = 0.0
    paused_until: float = 0.0

    def take(self, now: float) -> bool:
        """One request, if the rate allows it now."""
        if not self.current:
            self.current, self.at = self.limit, now
        passed, self.at = max(0.0, now - self.at), now
        self.current = min(self.limit, self.current + passed * self.limit / 10)
        self.tokens = min(max(1.0, self.current / 10), self.tokens + passed * self.current)
        if now < self.paused_until or self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Seconds until it allows one, as far as is known at `now`."""
        return max(self.paused_until - now, (1 - self.tokens) / (self.current or self.limit), 0.0)

    def slow_down(self, now: float, retry_after: float) -> None:
        """A 429 of the server's own: half the rate, and a pause."""
        self.current = max(1.0, (self.current or self.limit) / 2)
        self.paused_until = max(self.paused_until, now + retry_after)


@dataclass(kw_only=True, slots=True)
class Job:
    """One pod on its way out. Times without zone are wall-clock seconds of `time.monotonic`, 0 when not so.

    `started`: since when, on the run's clock, it waits for what it waits for now: its turn, then its end.
    """

    pod: Pod
    started: datetime
    budget: str = ""
    in_flight: bool = False
    accepted: float = 0.0
    tries: int = 0
    not_before: float = 0.0
    said: str = ""
    code: str = "waiting"


class Queues:
    """Jobs by budget, and which of them may be sent now. One thread."""

    def __init__(self, limit: float, limit_name: str = "drain.evictions_per_second") -> None:
        """`limit` in evictions a second; `limit_name`: what sets it, for people."""
        self.rate, self.limit_name = Rate(limit=limit), limit_name
        self.lanes: dict[str, Lane] = {}
        self._waiting: dict[str, deque[Job]] = {}
        self._touched: dict[str, None] = {}
        self.limited_for = 0.0

    def put(self, job: Job, budget: Budget | None = None) -> None:
        """Queue a job behind its budget (`job.budget`), or behind none."""
        if budget is not None:
            self.lane(budget.key).see(budget)
        self._waiting.setdefault(job.budget, deque()).append(job)
        self._touched[job.budget] = None

    def lane(self, key: str) -> Lane:
        """The lane of a budget."""
        return self.lanes.setdefault(key, Lane(key=key))

    def see(self, key: str, budget: Budget | None) -> None:
        """A budget's status changed; None: the budget is gone, and nothing holds its pods any more."""
        lane = self.lanes.get(key)
        if lane is None:
            return
        if budget is None:
            lane.allowed = 1 << 30
        else:
            lane.see(budget)
        self._touched[key] = None

    def touch(self, key: str | None = None) -> None:
        """Look at a budget again on the next `take`; None: at all of them."""
        self._touched.update(dict.fromkeys(self._waiting) if key is None else {key: None})

    def waiting(self, key: str) -> deque[Job]:
        """The jobs behind a budget."""
        return self._waiting.get(key, deque())

    @property
    def unbudgeted(self) -> bool:
        """Does nothing wait behind a budget?"""
        return not any(self._waiting)

    def clear(self) -> None:
        """Forget all jobs and how long they waited; what is known of budgets stays."""
        self._waiting.clear()
        for lane in self.lanes.values():
            lane.moved = lane.shut_since = lane.forced_at = lane.forced = None

    def take(self, room: int, now: float, usable: Callable[[Job], bool]) -> list[Job]:
        """Up to `room` jobs to send now. `usable` says whether a job still wants to be sent; others are dropped.

        `limited_for` says afterwards for how many seconds the rate alone holds back a job, 0 when it holds none.
        """
        taken: list[Job] = []
        self.limited_for = 0.0
        for key in sorted(self._touched, key=self._turns_left, reverse=True):
            lane = self.lanes.get(key) if key else None
            while len(taken) < room and (lane is None or lane.ready(now)):
                job = self._next(key, now, usable)
                if job is None:
                    self._touched.pop(key, None)
                    break
                if not self.rate.take(now):
                    self._waiting.setdefault(key, deque()).appendleft(job)
                    self.limited_for = self.rate.wait(now)
                    return taken
                if lane is not None:
                    lane.send(job.pod.name)
                taken.append(job)
            else:
                if lane is not None and not lane.ready(now):
                    self._touched.pop(key, None)
        return taken

    @property
    def refused(self) -> set[str]:
        """Budgets whose status, as it is now, the server has refused an eviction on."""
        return {key for key, lane in self.lanes.items() if lane.refused_at_version}

    @property
    def limited_by(self) -> str:
        """What held jobs back on the last `take`, in words: our own limit, or a server that is busy; "" for neither."""
        if not self.limited_for:
            return ""
        if self.rate.current < self.rate.limit:
            return f"held by the server, which asked for fewer requests: {self.rate.current:.3g} evictions a second"
        return f"held by {self.limit_name} {self.rate.limit:g}"

    def _turns_left(self, key: str) -> float:
        """The longest first: its replacements come one after another, and where the rate is short it would end last.

        Pods without a budget come after all: they would fill every place, where a budget takes one.
        """
        lane = self.lanes.get(key)
        return -1.0 if lane is None else len(self._waiting.get(key, ())) / max(1, lane.allowed)

    def _next(self, key: str, now: float, usable: Callable[[Job], bool]) -> Job | None:
        queue = self._waiting.get(key)
        found: Job | None = None
        for _ in range(len(queue or ())):
            assert queue is not None
            job = queue.popleft()
            if not usable(job):
                continue
            if now >= job.not_before:
                found = job
                break
            queue.append(job)
        if not queue:
            self._waiting.pop(key, None)
        return found
