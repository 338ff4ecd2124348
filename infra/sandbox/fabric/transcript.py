"""What a simulated program prints, and when: lines with their offset in seconds from the container's start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Line:
    """One line, `at` seconds after the start."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that one node sent (and received as many) during a program, per RDMA device and on eth0."""

    rdma: Mapping[str, int] = field(default_factory=dict)
    ethernet: int = 0


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """One container's run: it ends after `seconds` with `exit_code`."""

    lines: tuple[Line, ...]
    seconds: float
    exit_code: int = 0
    traffic: Traffic = Traffic()

    def faster(self, times: float) -> Transcript:
        """The same run, over in a part of its time: what it measured stays."""
        lines = tuple(Line(line.at / times, line.text) for line in self.lines)
        return replace(self, lines=lines, seconds=self.seconds / times)


class Tape:
    """Collects the lines of one container in order of time."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def say(self, at: float, *texts: str) -> None:
        """Add lines at one moment."""
        self.lines += [Line(at, text) for text in texts]

    def spread(self, start: float, seconds: float, texts: Iterable[str]) -> None:
        """Add lines evenly over a span."""
        shown = list(texts)
        self.lines += [Line(start + seconds * index / len(shown), text) for index, text in enumerate(shown)]

    def finish(self, seconds: float, exit_code: int = 0, traffic: Traffic | None = None) -> Transcript:
        """The run, its lines sorted by time (lines of one moment keep their order)."""
        lines = tuple(sorted(self.lines, key=lambda line: line.at))
        return Transcript(lines=lines, seconds=seconds, exit_code=exit_code, traffic=traffic or Traffic())
