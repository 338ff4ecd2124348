"""Finds out what an output is, and reads it, in one pass over a stream of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import BinaryIO

from infra.model.reading import Kind, NcclLog, NcclTests, PayloadEvents, Reading, ToolReading
from infra.probes.readers.ends import EndsReader
from infra.probes.readers.lines import blocks
from infra.probes.readers.nccl_log import NcclLogReader
from infra.probes.readers.nccl_origin import OriginReader
from infra.probes.readers.nccl_tests import NcclTestsReader
from infra.probes.readers.nccl_tests_json import read_nccl_tests_json
from infra.probes.readers.payload import PayloadReader
from infra.probes.readers.tools import not_readable, read_tool

SMALL = 32 << 20  # bytes; the outputs of small tools fit, and beyond it nothing is kept


def read(stream: BinaryIO) -> Reading:
    """Read whatever it is. An output that nobody knows gives kind `unknown`, never an exception."""
    log, tests, payload, ends = NcclLogReader(), NcclTestsReader(), PayloadReader(), EndsReader()
    origin = OriginReader()
    kept: list[bytes] | None = []
    size, damage, torn = 0, "", False
    for block in blocks(stream):
        damage, torn = block.damage, torn or block.torn
        size += len(block.data)
        try:
            foreign = log.feed(block.data, torn=block.torn)
            tests.feed(block.data, foreign)
            ends.feed(foreign)
            payload.feed(block.data)
            origin.feed(block.data)
        except Exception as error:  # noqa: BLE001 - no part of what broke its reader counts, and the answer says so
            return Reading(kind=Kind.UNKNOWN, tool=not_readable("output", error), bytes=size, head=block.data[:4096])
        if kept is not None:
            kept.append(block.data)
            if size > SMALL:
                kept = None
    try:
        said = log.reading()
        found, events = tests.reading(), payload.reading()
    except Exception as error:  # noqa: BLE001 - as above
        return Reading(kind=Kind.UNKNOWN, tool=not_readable("output", error), bytes=size)
    nccl: NcclLog | None = replace(said, origin=origin.reading()) if said.lines else None
    kind = _kind(nccl, found, events)
    tool: ToolReading | None = None
    if kept is not None and kind in {Kind.UNKNOWN, Kind.NCCL_LOG}:
        text = b"".join(kept).decode("utf-8", "replace")
        # A document that tells of NCCL's errors is no log, though it is all that the log's reader understood of it.
        tool = read_nccl_tests_json(text) if text.lstrip().startswith("{") else None
        if tool is None:
            tool = _of_tool(text, log.prefixed + (sum(nccl.net_channels.values()) if nccl else 0), torn=torn)
        if tool is not None:
            nccl, kind = None, tool.kind
    if tool is not None and tool.tests is not None:
        found, tool = tool.tests, None
    elif tool is None and kept is not None and kind not in {Kind.UNKNOWN, Kind.NCCL_LOG}:
        found = _with_documents(found, b"".join(kept))
    return Reading(
        kind=kind,
        nccl=nccl,
        tests=found,
        payload=events,
        tool=tool,
        ended_badly=tuple(ends.found),
        bytes=size,
        damage=damage,
        head=kept[0][:4096] if kind is Kind.UNKNOWN and kept else b"",
    )


def _of_tool(text: str, nccl_lines: int, *, torn: bool) -> ToolReading | None:
    """A small tool's reading. Of a list whose last line has no end, that line says nothing, and more may have followed.

    What the whole lines show to be broken stays broken.
    """
    reading = read_tool(text, nccl_lines=nccl_lines)
    if reading is None or not torn or reading.kind is not Kind.FABRIC:
        return reading
    lines = read_tool(text[: text.rfind("\n") + 1], nccl_lines=nccl_lines)
    before = lines if lines is not None and lines.tool == reading.tool else None
    if before is not None and before.healthy is False:
        return replace(before, complete=False, figures={**before.figures, "torn": True})
    kept = before or reading
    return replace(kept, complete=False, healthy=None, cause=None, figures={**kept.figures, "torn": True})


def _with_documents(found: NcclTests | None, data: bytes) -> NcclTests | None:
    """The tables of a text, and nccl-tests' JSON documents that stand in the same output."""
    if b'"results"' not in data:
        return found
    start = data.rfind(b"\n{", 0, data.index(b'"results"')) + 1
    beside = read_nccl_tests_json(data[start:].decode("utf-8", "replace"))
    if beside is None or beside.tests is None:
        return found
    return NcclTests(tests=(found.tests if found else ()) + beside.tests.tests)


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
