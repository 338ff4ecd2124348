"""Container logs: what was written so far, in the kubelet's terms (tail, timestamps, limit, previous, follow)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from infra.sandbox.fabric.transcript import Line

Writer = Callable[[float], Sequence[Line]]
"""From seconds since the start to the lines written by then: for programs that never end."""


@dataclass(kw_only=True)
class Log:
    """The log of one container's current run, and of the one before. `ended` cuts what was not written."""

    started: datetime
    lines: Sequence[Line] = ()
    writer: Writer | None = None
    ended: datetime | None = None
    previous: Log | None = None

    def read(self, now: datetime) -> list[tuple[datetime, str]]:
        """All that is written by `now`, with its time."""
        until = ((self.ended or now) - self.started).total_seconds()
        lines = self.writer(until) if self.writer else self.lines
        return [(self.started + timedelta(seconds=line.at), line.text) for line in lines if line.at <= until]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The query of containerLogs."""

    tail: int | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    since: datetime | None = None

    def show(self, entries: Sequence[tuple[datetime, str]]) -> str:
        """The text for these entries."""
        kept = [entry for entry in entries if self.since is None or entry[0] >= self.since]
        if self.tail is not None:
            kept = kept[-self.tail :] if self.tail else []
        text = "".join(self.lines(kept))
        return text if self.limit_bytes is None else text.encode()[: self.limit_bytes].decode(errors="ignore")

    def lines(self, entries: Sequence[tuple[datetime, str]]) -> Iterator[str]:
        """One text a line."""
        for moment, text in entries:
            stamp = f"{moment.strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z " if self.timestamps else ""
            yield f"{stamp}{text}\n"


class LogBook:
    """The logs of all containers on the simulated nodes."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], dict[str, Log]] = {}

    def find(self, namespace: str, pod: str, container: str) -> Log | None:
        """A container's current log, or None."""
        return self._pods.get((namespace, pod), {}).get(container)

    def begin(self, namespace: str, pod: str, container: str, log: Log) -> Log:
        """Start a container's log; what was there becomes the previous one (and only that is kept)."""
        logs = self._pods.setdefault((namespace, pod), {})
        old = logs.get(container)
        if old is not None:
            old.previous = None
            log.previous = old
        logs[container] = log
        return log

    def end(self, namespace: str, pod: str, now: datetime) -> None:
        """The containers of a pod were stopped."""
        for log in self._pods.get((namespace, pod), {}).values():
            log.ended = log.ended or now

    def forget(self, namespace: str, pod: str) -> None:
        """Drop the logs of a pod that is gone."""
        self._pods.pop((namespace, pod), None)
