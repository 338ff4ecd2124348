"""The story of `poolshift judge`: open what is named, show how far the reading is, print verdict, reasons, remedies."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from flows.console import standard_input
from infra.errors import BadFile

_EVERY = 0.5  # seconds between two looks at how far it is
_QUIET = 64 << 20  # bytes; smaller inputs are read before anybody asks


def judge(file: str, machine: str | None, nodes: int | None, *, as_json: bool) -> int:
    """Judge FILE ('-': standard input) and print the answer. Raises BadSpec when it cannot be read."""
    from tasks import judge as judging

    with _opened(file) as stream:
        watched = _Watched(stream, _size(stream))
        try:
            result = judging.judge(io.BufferedReader(watched, 1 << 20), machine_type=machine, nodes=nodes)
        except OSError as cause:
            raise _unreadable(file, cause) from cause
    watched.done()
    if as_json:
        from flows import console

        console.show_json(result.to_json())
    else:
        sys.stdout.write("\n".join(result.lines()) + "\n")
    return int(result.exit_code)


def _opened(file: str) -> BinaryIO:
    if file != "-":
        try:
            return Path(file).open("rb", buffering=0)
        except OSError as cause:
            raise _unreadable(file, cause) from cause
    given = standard_input()
    if given.isatty():
        sys.stderr.write("reading standard input; end it with Ctrl-D\n")
    return os.fdopen(os.dup(given.fileno()), "rb", buffering=0)


def _unreadable(file: str, cause: OSError) -> BadFile:
    remedy = "poolshift judge FILE, with the file that holds a tool's output; or TOOL 2>&1 | poolshift judge -"
    if isinstance(cause, IsADirectoryError):
        remedy = f"the ranks' logs together are one input: cat {file.rstrip('/')}/* | poolshift judge -"
    return BadFile(
        f"file {file}",
        f"cannot be read: {cause.strerror or cause}",
        expected="a readable file",
        remedy=remedy,
    )


def _size(stream: BinaryIO) -> int:
    """Bytes of a plain file, 0 of a pipe."""
    found = os.fstat(stream.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


class _Watched(io.RawIOBase):
    """A stream that says now and then how much of it was read."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self.stream, self.size, self.read_bytes = stream, size, 0
        self.began = self.shown = monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        count = self.stream.readinto(buffer)  # type: ignore[attr-defined]
        self.read_bytes += count or 0
        if self.read_bytes > _QUIET and monotonic() - self.shown > _EVERY:
            self._show()
        return int(count or 0)

    def _show(self) -> None:
        from tasks.progress import passing

        self.shown = monotonic()
        speed = self.read_bytes / 1e6 / max(self.shown - self.began, 1e-3)
        share = f" of {self.size / 1e6:.0f} MB" if self.size else ""
        passing(f"read {self.read_bytes / 1e6:.0f} MB{share}, {speed:.0f} MB/s")

    def done(self) -> None:
        """Say what was read, where it took long enough to be watched."""
        from tasks.progress import say

        if self.shown != self.began:
            say(f"read {self.read_bytes / 1e6:.0f} MB in {monotonic() - self.began:.0f} s")
