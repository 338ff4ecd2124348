"""The JSON lines that our own payloads print, between whatever else the job prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecoder
from typing import Any

from infra.model.reading import PayloadEvents
from infra.probes.readers.figures import number, whole

_LINE = re.compile(rb'\{"poolshift" ?: ?"[^\n]*')
_DECODER = JSONDecoder()
MAX_EVENTS = 100_000
VERSION = 1  # of the lines


class PayloadReader:
    """Feed it blocks of whole lines, then ask for the reading, which is None when no payload spoke."""

    def __init__(self) -> None:
        self.starts: dict[str, list[Mapping[str, Any]]] = {}
        self.ends: dict[str, list[Mapping[str, Any]]] = {}
        self.rows: list[Mapping[str, Any]] = []
        self.steps: list[tuple[int, float]] = []
        self.counters: list[Mapping[str, Any]] = []
        self.devices: list[Mapping[str, Any]] = []
        self.errors: list[Mapping[str, Any]] = []
        self.broken = 0
        self.seen = 0

    def feed(self, data: bytes) -> None:
        """Read one block."""
        if b"{" not in data or b'{"poolshift"' not in data:
            return
        for match in _LINE.finditer(data):
            self._event(match.group())

    def _event(self, text: bytes) -> None:
        self.seen += 1
        try:
            event, _ = _DECODER.raw_decode(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            self.broken += 1
            return
        if self.seen > MAX_EVENTS:
            self.broken += 1  # more than any payload prints: not ours, so not a measurement
            return
        payload, kind = str(event.get("poolshift")), event.get("event")
        self.broken += self._out_of_place(payload, kind) or event.get("v", VERSION) != VERSION
        if payload == "counters":
            self.counters.append(event)
        elif payload in {"device", "devices"}:
            self.devices.append(event)
        elif kind == "start":
            self.starts.setdefault(payload, []).append(event)
        elif kind == "end":
            self.ends.setdefault(payload, []).append(event)
        elif kind == "row":
            self.rows.append(event)
        elif kind == "step":
            self._step(event)
        elif kind == "error":
            self.errors.append(event)
        elif kind is not None:
            self.broken += 1  # a newer program's word, or a damaged one: whether it says something bad is not known

    def _out_of_place(self, payload: str, kind: object) -> bool:
        """Rank 0 prints these, and in this order: what stands elsewhere is another run's."""
        if kind == "start":
            return payload in self.ends or bool(self.rows if payload == "all-reduce" else self.steps)
        return kind in {"row", "step"} and payload in self.ends

    def _step(self, event: Mapping[str, Any]) -> None:
        step, seconds = whole(event.get("step")), number(event.get("seconds"))
        if step is None or seconds is None:
            self.broken += 1
        else:
            self.steps.append((step, float(seconds)))

    def reading(self) -> PayloadEvents | None:
        """What the payloads said, or None."""
        if not self.seen:
            return None
        return PayloadEvents(
            starts={name: tuple(events) for name, events in self.starts.items()},
            rows=tuple(self.rows),
            steps_seconds=tuple(seconds for _, seconds in self.steps),
            steps_seen=tuple(step for step, _ in self.steps),
            ends={name: tuple(events) for name, events in self.ends.items()},
            counters=tuple(self.counters),
            devices=tuple(self.devices),
            errors=tuple(self.errors),
            broken=self.broken,
        )
