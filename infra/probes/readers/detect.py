"""Finds out what an output is, and reads it, in one pass over a stream of any size."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO

from infra.model.reading import Kind, NcclLog, NcclTests, PayloadEvents, Reading, ToolReading
from infra.probes.readers.ends import EndsReader
from infra.probes.readers.lines import blocks
from infra.probes.readers.nccl_log import NcclLogReader
from infra.probes.readers.nccl_origin import OriginReader
from infra.probes.readers.nccl_tests import NcclTestsReader
from infra.probes.readers.nccl_tests_json import read_nccl_tests_json
from infra.probes.readers.nccl_tests_rows import ELEMENT_TYPE
from infra.probes.readers.payload import PayloadReader
from infra.probes.readers.tools import not_readable, read_tools

# Lines of nccl-tests and of our payloads: between those of a list they begin no other one.
_NO_TOOLS = re.compile(
    rb"(?m)^(?:#(?: *(?:nccl-tests version|Collective test|nThread|Using devices|Rank +\d|out-of-place|size +count|"
    rb"\(B\) +\(elements\)|Out of bounds values|Avg bus bandwidth).*| *)| +\d+ +\d+ +" + ELEMENT_TYPE + rb" +\S.*|"
    rb'\{"poolshift":.*)$\n?'
)
# Bytes of a program's own words, in a log or around a table; behind more of them no small tool's output is looked for.
BESIDE = 4 << 20
SMALL = 32 << 20  # bytes; the outputs of small tools fit, and beyond it nothing is kept


class _Kept:
    """Text that small tools may have written, until it is too large for one of them."""

    def __init__(self) -> None:
        self.parts: list[bytes] | None = []
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > SMALL:
            self.parts = None
        elif self.parts is not None:
            self.parts.append(data)

    def text(self) -> str:
        return b"".join(self.parts or ()).decode("utf-8", "replace")


def read(stream: BinaryIO) -> Reading:
    """Read whatever it is. An output that nobody knows gives kind `unknown`, never an exception."""
    log, tests, payload, ends = NcclLogReader(), NcclTestsReader(), PayloadReader(), EndsReader()
    origin, whole, others = OriginReader(), _Kept(), _Kept()
    damage, torn = "", False
    for block in blocks(stream):
        damage, torn = block.damage, torn or block.torn
        whole.add(block.data)
        try:
            foreign = log.feed(block.data, torn=block.torn)
            tests.feed(block.data, foreign)
            ends.feed(foreign)
            payload.feed(block.data)
            origin.feed(block.data)
        except Exception as error:  # noqa: BLE001 - no part of what broke its reader counts, and the answer says so
            return Reading(kind=Kind.UNKNOWN, tool=not_readable("output", error), bytes=whole.size)
        foreign = _NO_TOOLS.sub(b"", foreign)
        if others.size + len(foreign) <= BESIDE:
            others.add(foreign)
    try:
        said = log.reading()
        found, events = tests.reading(), payload.reading()
    except Exception as error:  # noqa: BLE001 - as above
        return Reading(kind=Kind.UNKNOWN, tool=not_readable("output", error), bytes=whole.size)
    nccl: NcclLog | None = replace(said, origin=origin.reading()) if said.lines else None
    text, alone = whole.text(), found is None and events is None
    documents = read_nccl_tests_json(text) is not None
    certain = log.prefixed > 0 or sum(said.net_channels.values()) > 0
    # Lines that only look like NCCL's are a tool's, and those in a document tell of a run.
    tools = _of_tools(text if documents or (alone and not certain) else others.text(), torn=torn)
    if alone and tools and (not certain or (documents and text.lstrip().startswith("{"))):
        nccl = None
    listed = tuple(test for tool in tools if tool.tests is not None for test in tool.tests.tests)
    if listed:
        found = NcclTests(tests=(found.tests if found else ()) + listed)
    tools = [tool for tool in tools if tool.tests is None]
    kind = _kind(nccl, found, events)
    main = tools.pop(0) if kind is Kind.UNKNOWN and tools else None
    return Reading(
        kind=main.kind if main else kind,
        nccl=nccl,
        tests=found,
        payload=events,
        tool=main,
        beside=tuple(tools),
        ended_badly=tuple(ends.found),
        bytes=whole.size,
        damage=damage,
        head=whole.parts[0][:4096] if kind is Kind.UNKNOWN and main is None and whole.parts else b"",
    )


def _of_tools(text: str, *, torn: bool) -> list[ToolReading]:
    """Small tools' readings. A list's last line without an end says nothing, and more may have followed."""
    found = list(read_tools(text))
    if not torn or not any(reading.kind is Kind.FABRIC for reading in found):
        return found
    lines = {reading.tool: reading for reading in read_tools(text[: text.rfind("\n") + 1])}
    return [_torn(reading, lines.get(reading.tool)) if reading.kind is Kind.FABRIC else reading for reading in found]


def _torn(reading: ToolReading, before: ToolReading | None) -> ToolReading:
    """What the whole lines (`before`) show to be broken stays broken; whatever else they show is not all."""
    if before is not None and before.healthy is False:
        return replace(before, complete=False, figures={**before.figures, "torn": True})
    kept = before or reading
    return replace(kept, complete=False, healthy=None, cause=None, figures={**kept.figures, "torn": True})


def _kind(nccl: NcclLog | None, tests: NcclTests | None, payload: PayloadEvents | None) -> Kind:
    if payload is not None:
        names = set(payload.starts) | set(payload.ends)
        if "all-reduce" in names or payload.rows:
            return Kind.ALL_REDUCE
        if "train-step" in names or payload.steps_seconds:
            return Kind.TRAIN_STEP
        if payload.devices:
            return Kind.DEVICES
        if payload.counters and nccl is None and tests is None:
            return Kind.ALL_REDUCE
    if tests is not None:
        return Kind.NCCL_TESTS
    return Kind.NCCL_LOG if nccl is not None else Kind.UNKNOWN
