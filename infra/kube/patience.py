"""What is asked again of a server that gave no answer, and how long one that is away is waited for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from infra.clock import SystemClock
from infra.errors import Forbidden, PoolshiftError, Refused
from infra.kube.refusals import is_busy, is_passing, was_never_sent

Answer = TypeVar("Answer")
READ_TRIES = 5
OUTAGE_SECONDS = 120.0  # wall-clock: an API server that is replaced is away for less
QUIET_SECONDS = 30.0  # wall-clock, more than lies between two tries: what was away before that may have been back
RBAC_SECONDS = 10.0  # wall-clock: a server that has just started refuses whom it will know a moment later
RBAC_PAUSE = 0.5  # wall-clock seconds


@dataclass(kw_only=True)
class Patience:
    """With one server, over all its connections. Shared by threads.

    `seconds`: wall-clock, for which a server that has answered before may be away, over all requests together.
    """

    seconds: float = OUTAGE_SECONDS
    _answered: bool = False
    _away_since: float | None = None
    _away_seen: float = 0.0
    _back_since: float | None = None

    def insist(self, ask: Callable[[], Answer], *, again: bool) -> Answer:
        """Ask until there is an answer, or a refusal that will not pass. `again`: it may be sent twice in any case."""
        began, refusals = time.monotonic(), 0
        for attempt in itertools.count():
            asked = time.monotonic()
            try:
                return ask()
            except Refused:
                raise
            except PoolshiftError as failure:
                error = failure
            # Counted: where others' requests are cut again and again, the server is "just back" all the time.
            if isinstance(error, Forbidden) and self.is_just_back and refusals < RBAC_SECONDS / RBAC_PAUSE:
                refusals += 1
                SystemClock().sleep(RBAC_PAUSE)
                continue
            away = self._is_only_away(error, asked)
            busy = is_busy(error) and time.monotonic() - began < self.seconds
            if not (is_passing(error) and (again or busy or (away and was_never_sent(error)))):
                raise error
            if attempt + 1 >= READ_TRIES and not (away or busy):
                raise error
            status = error.status
            SystemClock().sleep(min(5.0, (status and status.retry_after) or 0.1 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable: the loop returns or raises")

    def _is_only_away(self, error: PoolshiftError, asked: float) -> bool:
        """No answer, to what was asked at `asked`, from a server that has answered before: not for longer than our
        patience. An outage is one as long as somebody asks: what was away long ago may have been back since.
        """
        if not self._answered or error.status is not None:
            return False
        return time.monotonic() - self.unanswered(asked) < self.seconds

    def unanswered(self, asked: float) -> float:
        """What was asked at `asked` got no answer, over whatever connection. Returns since when the server is away."""
        now, since = time.monotonic(), self._away_since  # which another thread's answer may end meanwhile
        if since is None or asked - self._away_seen > QUIET_SECONDS:
            since = now
        self._away_since, self._away_seen = since, now
        return since

    def answered(self) -> None:
        """The server is there: every answer counts, whatever it says and over whatever connection."""
        if self._away_since is not None:
            self._back_since = time.monotonic()
        self._answered, self._away_since = True, None

    @property
    def is_just_back(self) -> bool:
        """Answers again after it was away: what it refuses now it may grant in a moment."""
        return self._back_since is not None and time.monotonic() - self._back_since < RBAC_SECONDS
