"""One run loop for all controllers: keys that wait for a reconcile, and keys that wait for a time.

A key is held once per queue however often it is added, so a burst of events costs one reconcile. Times are those
of the store's clock, which may run faster than the wall clock and may jump.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from infra.clock import Clock

Key = tuple[str, str]
"""Namespace ("" for cluster-wide objects) and name."""

Reconcile = Callable[[Key], None]

_SLICE_SECONDS = 0.005
"""How long controllers run before the API's own work gets its turn (wall clock)."""

_LONGEST_NAP_SECONDS = 0.25
"""Wall-clock bound on a wait for a timer, so that a jump of the clock is seen soon."""

_SHORTEST_NAP_SECONDS = 0.01
_FIRST_BACKOFF_SECONDS = 0.05
_LONGEST_BACKOFF_SECONDS = 30.0
_JUMP_SECONDS = 30.0
"""A clock that moved this much further than the wall clock explains was set, not slept."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Queue:
    """The keys of one controller."""

    name: str
    reconcile: Reconcile
    loop: WorkLoop
    waiting: set[Key] = field(default_factory=set)
    due: dict[Key, datetime] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)

    def add(self, key: Key) -> None:
        """Reconcile `key` soon."""
        if key not in self.waiting:
            self.waiting.add(key)
            self.loop.push(self, key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Reconcile `key` when `seconds` of the store's clock have passed; an earlier appointment stands."""
        if seconds <= 0:
            self.add(key)
            return
        moment = self.loop.clock.now() + timedelta(seconds=seconds)
        if key not in self.due or moment < self.due[key]:
            self.due[key] = moment
            self.loop.schedule(self, key, moment)


class WorkLoop:
    """Runs the reconciles of all queues in order of arrival, a few milliseconds at a time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ready: deque[tuple[Queue, Key]] = deque()
        self._timers: list[tuple[datetime, int, Queue, Key]] = []
        self._sequence = 0
        self._wake = asyncio.Event()
        self._seen = (clock.now(), time.monotonic())
        self.jump_hooks: list[Callable[[], None]] = []

    def queue(self, name: str, reconcile: Reconcile) -> Queue:
        """A new queue whose keys go to `reconcile`."""
        return Queue(name, reconcile, self)

    def push(self, queue: Queue, key: Key) -> None:
        """Called by queues only: put a key at the end of the line."""
        self._ready.append((queue, key))
        self._wake.set()

    def schedule(self, queue: Queue, key: Key, moment: datetime) -> None:
        """Called by queues only: remember an appointment."""
        self._sequence += 1
        heapq.heappush(self._timers, (moment, self._sequence, queue, key))
        self._wake.set()

    def settle(self, limit: int = 1_000_000) -> int:
        """Reconcile until nothing is ready, without waiting for anything. Returns how many reconciles ran."""
        done = 0
        self._fire_due()
        while self._ready:
            self._run_one()
            done += 1
            if done >= limit:
                queue, key = self._ready[0] if self._ready else (None, None)
                msg = f"controllers do not come to rest: {queue.name if queue else ''} {key}"
                raise RuntimeError(msg)
        return done

    async def run(self) -> None:
        """Reconcile for ever."""
        while True:
            self._fire_due()
            if self._ready:
                until = time.perf_counter() + _SLICE_SECONDS
                while self._ready and time.perf_counter() < until:
                    self._run_one()
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(self._nap()):
                    await self._wake.wait()
            except TimeoutError:
                pass  # a timer may be due

    def _nap(self) -> float | None:
        if not self._timers:
            return None
        seconds = (self._timers[0][0] - self.clock.now()).total_seconds()
        return min(max(self.clock.real_seconds(seconds), _SHORTEST_NAP_SECONDS), _LONGEST_NAP_SECONDS)

    def _fire_due(self) -> None:
        if not self._timers:
            return
        now = self.clock.now()
        self._notice_jump(now)
        while self._timers and self._timers[0][0] <= now:
            moment, _, queue, key = heapq.heappop(self._timers)
            if queue.due.get(key) == moment:
                del queue.due[key]
                queue.add(key)

    def _notice_jump(self, now: datetime) -> None:
        wall = time.monotonic()
        then, wall_then = self._seen
        self._seen = (now, wall)
        real_second = self.clock.real_seconds(1.0)
        if real_second <= 0:
            return  # a clock that is moved by hand: every step of it is meant
        explained = (wall - wall_then) / real_second
        if (now - then).total_seconds() - explained > _JUMP_SECONDS:
            for hook in self.jump_hooks:
                hook()

    def _run_one(self) -> None:
        queue, key = self._ready.popleft()
        queue.waiting.discard(key)
        try:
            queue.reconcile(key)
        except Exception:  # noqa: BLE001 - one bad object must not stop every controller
            count = queue.failures[key] = queue.failures.get(key, 0) + 1
            level = logging.DEBUG if count == 1 else logging.WARNING
            _log.log(level, "%s: reconcile of %s failed (%d times)", queue.name, "/".join(key), count, exc_info=True)
            queue.add_after(key, min(_FIRST_BACKOFF_SECONDS * 2**count, _LONGEST_BACKOFF_SECONDS))
        else:
            queue.failures.pop(key, None)
