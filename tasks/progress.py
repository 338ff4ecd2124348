"""Progress on standard error, which leaves standard output to results: lines, and one line that is overwritten."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from time import monotonic

QUIET = 30.0  # wall-clock seconds between two passing lines where nothing can be overwritten

_reworded: list[Callable[[str], str]] = []

_lock = threading.Lock()
_open_line = False
_last = float("-inf")


def reword(by: Callable[[str], str] | None) -> None:
    """Have every text for a person pass through `by`, which completes the commands in it; None: as it is."""
    _reworded[:] = [by] if by else []


def complete(text: str) -> str:
    """The text with its commands as this command line needs them; as it is where nobody has said how."""
    return _reworded[0](text) if _reworded else text


def say(text: str) -> None:
    """Write one line with the local time, its commands complete. It stays."""
    with _lock:
        sys.stderr.write(f"{_clear()}{_stamp()}  {complete(text)}\n")
        sys.stderr.flush()


def passing(text: str) -> bool:
    """Show where something stands: on a terminal in one line that the next one overwrites, elsewhere now and then.

    Returns whether it was written as a line that stays.
    """
    global _open_line, _last
    if sys.stderr.isatty():
        with _lock:
            width = _width()
            sys.stderr.write(f"{_clear()}{f'{_stamp()}  {complete(text)}'[: width - 1]}")
            sys.stderr.flush()
            _open_line = True
        return False
    if monotonic() - _last < QUIET:
        return False
    _last = monotonic()
    say(text)
    return True


def _clear() -> str:
    """What takes an open line away."""
    global _open_line
    was, _open_line = _open_line, False
    return "\r\x1b[2K" if was else ""


def _stamp() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
