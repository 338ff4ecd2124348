"""Ask a gang for a checkpoint, and see one that is newer than the question, before anything is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from infra.clock import Clock, parse_time
from infra.errors import Forbidden, PoolshiftError
from infra.kube import switches
from infra.kube.api import Kube
from infra.kube.inside import post_to, run_in
from infra.model.gangs import GangKind
from infra.model.spec import Checkpoint
from infra.model.workload import Pod

AGAIN = timedelta(seconds=10)  # between two questions by exec or HTTP, on the run's clock
AHEAD = timedelta(seconds=60)  # a checkpoint further in the future than this is no time of ours


@dataclass(kw_only=True)
class Question:
    """One gang's checkpoint, asked for at `asked`. `was` is the newest before, where that could be known.

    `look` never blocks: a command that takes its time runs in a thread of its own.
    """

    kube: Kube
    clock: Clock
    way: Checkpoint
    kind: GangKind
    namespace: str
    name: str
    members: Callable[[], Sequence[Pod]]
    asked: datetime | None = None
    was: datetime | None = None
    limit: timedelta = timedelta(hours=1)
    trouble: str = ""
    forbidden: bool = False
    _thread: threading.Thread | None = None
    _answers: list[str] = field(default_factory=list)
    _next: datetime | None = None

    def before(self) -> datetime | None:
        """The newest checkpoint so far; None where only a new one could tell."""
        return self._read(self._annotation()) if self.way.via == "annotation" else None

    def look(self) -> datetime | None:
        """The checkpoint that answers the question, or None as yet. `trouble` says what stands in the way."""
        if self.way.via == "annotation":
            return self._judge(self._annotation())
        if self._thread is None and (self._next is None or self.clock.now() >= self._next):
            up = sorted(p.name for p in self.members() if p.phase == "Running" and not p.terminating)
            if not up:
                self.trouble = "none of its pods runs, so none can be asked"
                return None
            self._thread = threading.Thread(target=self._ask, args=(up[0],), daemon=True)
            self._thread.start()
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._next = self.clock.now() + AGAIN
        return self._judge(self._answers.pop()) if self._answers else None

    def _judge(self, text: str) -> datetime | None:
        """Newer than the question and than the one before; not from a clock that is ahead of ours."""
        newest, now = self._read(text), self.clock.now()
        if newest is None or self.asked is None or newest < self.asked:
            return None
        if self.was is not None and newest <= self.was:
            return None
        if newest > now + AHEAD:
            self.trouble = (
                f"it says {text.strip()[-40:]}, which is in the future: its clock cannot be compared with ours"
            )
            return None
        return newest

    def _read(self, text: str) -> datetime | None:
        try:
            return parse_time(text.strip().splitlines()[-1].strip()) if text.strip() else None
        except ValueError:
            self.trouble = f"it says {text.strip()[-40:]!r}, which is no RFC 3339 time"
            return None

    def _annotation(self) -> str:
        raw = switches.read(self.kube, self.kind, self.namespace, self.name) or {}
        return str(((raw.get("metadata") or {}).get("annotations") or {}).get(self.way.seen_annotation, ""))

    def _ask(self, pod: str) -> None:
        way, limit = self.way, self.clock.real_seconds(self.limit.total_seconds())
        try:
            if way.via == "exec":
                said = run_in(self.kube, self.namespace, pod, way.command, way.container, limit)
            else:
                said = post_to(self.kube, self.namespace, pod, way.port, way.path, limit)
        except PoolshiftError as error:
            self.trouble, self.forbidden = error.wording(), isinstance(error, Forbidden)
            return
        self._answers.append(said)
