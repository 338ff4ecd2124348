"""nccl-tests' text output, all column layouts from 2020 on, and tables that merely look like it.

Columns are taken from the caption row where one is there, else from the number of figures. A row counts only when it
is whole: text spliced into it, or a cut, makes it a torn row.
"""

from __future__ import annotations

import re

from infra.model.reading import BandwidthTest, DeviceLine, NcclTests, Row
from infra.probes.readers.nccl_prefix import HEAD
from infra.probes.readers.nccl_tests_rows import (
    ELEMENT_TYPE,
    ELEMENT_WORDS,
    FOOTERS,
    number,
    parse_lookalike,
    parse_row,
    said_below,
    short_host,
    unpacked_version,
)

EXCERPT = 1 << 18  # bytes; in whole blocks, so at least the first one
# What a line that says something has in it, and words of which one is in that: most blocks have none, which is seen
# sooner than that there is no mark.
_MARKS = tuple(
    (words, re.compile(mark))
    for words, mark in (
        ((b"#",), rb"#"),
        ((b"nThread ",), rb"nThread "),
        ((b"Pid ",), rb"[Rr]ank +\d+ +(?:Group +\d+ +)?Pid "),
        ((b"busbw",), rb"busbw"),
        ((b"Out of bounds values",), rb"Out of bounds values"),
        ((b"Avg bus bandwidth",), rb"Avg bus bandwidth"),
        ((b"_perf",), rb"_perf\b"),
        ((b" failure",), rb"Test (?:(?:NCCL|CUDA) )?failure"),
        ((b"Test timeout",), rb"Test timeout"),
        ((b"NCCL version ",), rb"NCCL version "),
        (ELEMENT_WORDS, rb"\d\s+\d+\s+" + ELEMENT_TYPE + rb"\s"),
    )
)
_FOREIGN = re.compile(rb"(?i)busbw[_ (]*gb")  # the caption of somebody's own table: the unit inside the word
_ROW = re.compile(rb"(?:^|[\s>|:\]\)])(\d+)\s+(\d+)\s+(" + ELEMENT_TYPE + rb")\s+(.*)$")
_LOOKALIKE_ROW = re.compile(r"(?:^|[\s>|:\])])(?P<size>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?i?B)?\s+(?P<rest>[\d.].*)$")
_OP = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\b"
)
_DEVICE = re.compile(
    r"#?\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+device\s+(?P<device>\d+)\s+\[(?P<bus>\S+)\]\s*"
    r"(?P<name>.*)$"
)
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(?P<count>\d+)\s*(?P<status>OK|FAILED)?")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(?P<value>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(?P<status>OK|FAILED)?\s*$")
_PARAMETER = re.compile(r"([A-Za-z][A-Za-z ]*?):? +(\d+(?:\(\w+\))?)")
_ERROR = re.compile(r"(\S*: )?Test (?:NCCL|CUDA) failure .*|\.\. \S+ pid \d+: Test failure.*|Test timeout.*")
_VERSION = re.compile(r"nccl-tests version (\S+)")
_NCCL_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)")
_PACKED = re.compile(r"nccl-library=(\d+)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+) due to memory")
# Comment lines whose "#" is gone: a web page takes it for a heading, and people paste from there.
_UNMARKED = re.compile(
    r"^(?:.*[\s>:|\])])?(?P<text>nThread \d+ nGpus \d|Rank +\d+ +(?:Group +\d+ +)?Pid +\d+ on |size +count +type )"
)
_WORLD = re.compile(r"#.*\b(?:world_size|nranks|ranks)\s*[=:]\s*(\d+)")
_UNITS_LINE = re.compile(r"\(B\)\s+\(elements\)")  # below the captions
_UNIT = re.compile(r"\(([^()\s]+)\)")
_UNITS = {"(B)", "(elements)", "(us)", "(GB/s)", "(%)"}
_MAX_ROWS = 20_000
_MAX_TESTS = 1_000


class _Test:
    """One test while it is being read."""

    def __init__(self, op: str | None = None) -> None:
        self.op = op
        self.format = "nccl-tests"
        self.rows: list[Row] = []
        self.torn_rows = 0
        self.headers = 0
        self.devices: list[DeviceLine] = []
        self.parameters: dict[str, str] = {}
        self.bounds: list[int] = []
        self.bounds_status: list[str] = []
        self.averages: list[float] = []
        self.average_status: list[str] = []
        self.concluded = 0
        self.errors: list[str] = []
        self.reduced: int | None = None
        self.conflicts: dict[str, None] = {}
        self.captions: tuple[str, ...] = ()
        self.world: int | None = None
        self.ended = False

    @property
    def closed(self) -> bool:
        return bool(self.averages or self.bounds or self.concluded)

    def freeze(self, version: str | None, nccl_version: str | None) -> BandwidthTest:
        ranks = {device.rank for device in self.devices}
        contiguous = ranks == set(range(len(ranks))) and bool(ranks)
        return BandwidthTest(
            format=self.format,
            op=self.op,
            rows=tuple(self.rows),
            torn_rows=self.torn_rows,
            headers=self.headers,
            devices=tuple(self.devices),
            ranks=len(ranks) if contiguous else self.world,
            parameters=self.parameters,
            out_of_bounds=tuple(self.bounds),
            out_of_bounds_status=tuple(self.bounds_status),
            averages_gb_s=tuple(self.averages),
            average_status=tuple(self.average_status),
            concluded=self.concluded,
            errors=tuple(self.errors),
            reduced_max_bytes=self.reduced,
            conflicts=tuple(self.conflicts),
            version=version,
            nccl_version=nccl_version,
            complete=bool(self.averages or self.concluded),
        )


def _is_foreign(data: bytes) -> bool:
    return b"busbw" in data.lower() and _FOREIGN.search(data) is not None


def _marked(data: bytes) -> list[int]:
    """Where the marks begin, in order."""
    marks = (mark for words, mark in _MARKS if any(word in data for word in words))
    return sorted(found.start() for mark in marks for found in mark.finditer(data))


class NcclTestsReader:
    """Feed it blocks of whole lines, then ask for the reading, which is None when there is no test."""

    def __init__(self) -> None:
        self.seen = 0
        self.tests: list[_Test] = [_Test()]
        self.pending_op: str | None = None
        self.version: str | None = None
        self.nccl_version: str | None = None
        self.packed_version: str | None = None

    def feed(self, data: bytes, foreign: bytes) -> None:
        """Read one block; `foreign` are its lines that are not NCCL's own.

        Past the first megabytes a block without a `#` has rows only while a table is open.
        """
        excerpt = self.seen < EXCERPT
        self.seen += len(data)
        current = self.tests[-1]
        table_open = bool(current.headers or current.rows) and not current.ended
        said = any(word in foreign for word in (b" failure", b"Out of bounds"))
        if not (excerpt or table_open or b"#" in data or said):
            return
        if current.format == "not-nccl-tests" or (excerpt and _is_foreign(data)):
            for line in data.split(b"\n"):
                if len(line) < 4096:
                    self._line(line)
            return
        last = -1
        for place in _marked(data):
            if place < last:
                continue
            start = data.rfind(b"\n", 0, place) + 1
            end = data.find(b"\n", place)
            last = len(data) if end < 0 else end
            if last - start < 4096:
                self._line(data[start:last])

    def _line(self, line: bytes) -> None:
        if b"NCCL INFO" in line or b"NCCL WARN" in line:
            self._spliced(line)
            return
        row = _ROW.search(line)
        text = line.decode("utf-8", "replace").rstrip()
        if row:
            self._row(row)
        elif "#" in text:
            self._comment(text[text.index("#") :])
        elif unmarked := _UNMARKED.search(text):
            self._comment(text[unmarked.start("text") :])
        elif "Out of bounds values" in text or "Avg bus bandwidth" in text:
            self._footer(text)
        elif self.tests[-1].format == "not-nccl-tests":
            self._lookalike(text)
        self._anywhere(text)

    def _spliced(self, line: bytes) -> None:
        """NCCL's own line, perhaps in the middle of a row: shared stdout. The row is lost, and counted as such."""
        version = _NCCL_VERSION.search(line.decode("utf-8", "replace"))
        if version:
            self.nccl_version = self.nccl_version or version[1]
        head = HEAD.search(line)
        before = line[: head.start()] if head else line[: line.index(b"NCCL ")]
        if _ROW.search(before + b" "):
            self.tests[-1].torn_rows += 1

    def _anywhere(self, text: str) -> None:
        """What may stand in any line."""
        error = _ERROR.search(text)
        if error and len(self.tests[-1].errors) < 32:
            self.tests[-1].errors.append(error.group()[:300])
        version = _NCCL_VERSION.search(text)
        if version:
            self.nccl_version = self.nccl_version or version[1]
        op = _OP.search(text)
        if op and not _ROW.search(text.encode()):
            current = self.tests[-1]
            if "Collective test concluded" in text:
                current.op = current.op or op[1]
                if current.op != op[1]:
                    current.conflicts[f"{current.op}_perf begins and {op[1]}_perf ends"] = None
            elif current.rows or current.closed:
                self.pending_op = op[1]
            else:
                current.op = op[1]

    def _comment(self, text: str) -> None:
        current = self.tests[-1]
        device = _DEVICE.match(text)
        if device:
            self._device(device)
        elif "nThread" in text:
            self._header(text)
        elif "Collective test starting" in text or "nccl-tests version" in text:
            if current.rows or current.closed:
                self._next()
            version = _VERSION.search(text)
            self.version = self.version or (version[1] if version else None)
            packed = _PACKED.search(text)
            if packed:
                self.packed_version = unpacked_version(int(packed[1]))
        elif "Collective test concluded" in text:
            current.concluded += 1
            current.ended = True
        elif any(word in text for word in FOOTERS):
            self._footer(text)
        elif "busbw" in text.lower():
            self._captions(text)
        elif _UNITS_LINE.search(text):
            strange = sorted({f"({unit})" for unit in _UNIT.findall(text)} - _UNITS)
            if strange:
                current.conflicts[f"figures in {' '.join(strange)}"] = None
        else:
            reduced = _REDUCED.search(text)
            if reduced:
                current.reduced = int(reduced[1])
            world = _WORLD.match(text)
            if world:
                current.world = int(world[1])

    def _device(self, match: re.Match[str]) -> None:
        current = self.tests[-1]
        if (current.rows or current.closed) and match["rank"] == "0":
            self._next()
            current = self.tests[-1]
        if len(current.devices) < 65_536:
            current.devices.append(
                DeviceLine(
                    rank=int(match["rank"]),
                    host=short_host(match["host"]),
                    pid=match["pid"],
                    device=match["device"],
                    name=match["name"].strip(),
                    bus=match["bus"],
                    group=match["group"] or "",
                )
            )

    def _header(self, text: str) -> None:
        if self.tests[-1].rows or self.tests[-1].closed:
            self._next()
        current = self.tests[-1]
        current.headers += 1
        for match in _PARAMETER.finditer(text.lstrip("# ")):
            current.parameters.setdefault(match[1].strip(), match[2])

    def _next(self) -> None:
        if len(self.tests) < _MAX_TESTS:
            self.tests.append(_Test(self.pending_op))
            self.pending_op = None

    def _captions(self, text: str) -> None:
        words = tuple(text.lstrip("# ").lower().split())
        current = self.tests[-1]
        if "size" not in words:
            return
        if (current.rows or current.closed) and not current.headers and current.closed:
            self._next()
            current = self.tests[-1]
        current.captions = words
        if "algbw" not in words:
            current.format = "not-nccl-tests"

    def _footer(self, text: str) -> None:
        current = self.tests[-1]
        bounds = _BOUNDS.search(text)
        if bounds:
            current.bounds.append(int(bounds["count"]))
            if bounds["status"]:
                current.bounds_status.append(bounds["status"])
        error, doubt = said_below(text)
        current.errors += [error] if error else []
        current.conflicts |= {doubt: None} if doubt else {}
        average = _AVERAGE.search(text)
        value = number(average["value"]) if average else None
        if "Avg bus bandwidth" in text and value is None:
            current.torn_rows += 1  # as a row that cannot be read: something cut into this output
        if average and value is not None:
            current.averages.append(value)
            if average["status"]:
                current.average_status.append(average["status"])
            current.ended = True

    def _row(self, match: re.Match[bytes]) -> None:
        current = self.tests[-1]
        if current.format == "not-nccl-tests":
            return
        row = parse_row(match, current.captions)
        if row is None:
            current.torn_rows += 1
            return
        if current.concluded:
            self._next()
            current = self.tests[-1]
        if len(current.rows) < _MAX_ROWS:
            current.rows.append(row)
        else:
            current.torn_rows += 1

    def _lookalike(self, text: str) -> None:
        current = self.tests[-1]
        match = _LOOKALIKE_ROW.search(text)
        if not match:
            return
        row = parse_lookalike(match, current.captions)
        if row is None:
            current.torn_rows += 1
        else:
            current.rows.append(row)

    def reading(self) -> NcclTests | None:
        """The tests found, or None. A device list alone (an NCCL log may carry one) is no test."""
        tests = [t for t in self.tests if t.rows or t.closed or t.headers or t.errors or t.captions or t.torn_rows]
        if not tests:
            return None
        nccl = self.nccl_version or self.packed_version
        return NcclTests(tests=tuple(t.freeze(self.version, nccl) for t in tests))
