"""The JSON lines that our own payloads print, between whatever else the job prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from json import JSONDecoder
from typing import Any

from infra.model.reading import PayloadEvents
from infra.probes.readers.figures import number, whole

_START = re.compile(rb'\{"poolshift" ?: ?"')
_DECODER = JSONDecoder()
_OF = {"row": "all-reduce", "step": "train-step"}  # the program that prints such lines
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
        starts = [match.start() for match in _START.finditer(data)]
        for start, following in pairwise([*starts, len(data)]):
            end = data.find(b"\n", start, following)  # a line that lost its end has the next one behind it
            self._event(data[start : following if end < 0 else end])

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
        self.broken += (
            self._out_of_place(payload, kind)
            or event.get("v", None if kind == "start" else VERSION) != VERSION
            or (kind == "start" and not _spread_as_told(event))
        )
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
        if payload != _OF.get(str(kind), payload):
            return True
        if kind == "start":
            return payload in self.ends or bool(self.rows if payload == "all-reduce" else self.steps)
        return kind in {"row", "step"} and payload in self.ends

    def _step(self, event: Mapping[str, Any]) -> None:
        step, seconds = whole(event.get("step")), number(event.get("seconds"))
        if step is None or seconds is None or self._otherwise(event, step):
            self.broken += 1
        else:
            self.steps.append((step, float(seconds)))

    def _otherwise(self, event: Mapping[str, Any], step: int) -> bool:
        """A step whose loss is no number computed nothing; one of other warm-up is of another run."""
        if "loss" in event and number(event["loss"]) is None:
            return True
        announced = [whole(start.get("warmup")) for start in self.starts.get("train-step", ())]
        return any(
            warmup is not None and event.get("warmup", step < warmup) is not (step < warmup) for warmup in announced
        )

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


def _spread_as_told(start: Mapping[str, Any]) -> bool:
    """Do its ranks, its count of hosts and the names of its nodes fit together, as far as it tells them?"""
    nodes, hosts, ranks = start.get("nodes"), whole(start.get("hosts")), whole(start.get("ranks"))
    if isinstance(nodes, list) and hosts is not None and len({str(node) for node in nodes}) != hosts:
        return False
    return not hosts or not ranks or ranks % hosts == 0
