"""The command line's entry point. Next to nothing is imported here: a Ctrl-C must not meet a half-loaded program.

Exit codes: 0 done or pass, 1 error, 2 usage or bad spec, 3 gate held (fail), 4 unmeasured, 5 refused by the plan,
130 interrupted. The commands are in `flows/commands`.
"""

from __future__ import annotations

# `signal` itself loads enum, and a Ctrl-C may come meanwhile.
import _signal as signal  # type: ignore[import-not-found]
import os
import sys

INTERRUPTED = 130  # as shells say of a process that SIGINT ended
_WORDS = "\ninterrupted; run the same command again to continue\n"


def main() -> None:
    """Entry point of the process: loads the commands, runs one, and exits with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell has had it ignored
        # An exception in the middle of an import may come out as another one, with a traceback; nothing is begun yet.
        signal.signal(signal.SIGINT, _end_at_once)
        import flows.commands  # noqa: F401

        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(_once(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line in a process that goes on after it. Returns its exit code; signals are handled as before."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _once(arguments)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _once(arguments: list[str]) -> int:
    """The exit code of one command line: our errors and a Ctrl-C as words, never as a traceback."""
    try:
        from flows.commands import invoke

        return invoke(arguments)
    except (KeyboardInterrupt, Exception) as error:
        if not _is_interrupt(error):
            raise
        sys.stderr.write(_WORDS)
        return INTERRUPTED


def _is_interrupt(error: BaseException | None) -> bool:
    """A Ctrl-C, or what Python 3.11 makes of one that comes while a class is built: an error caused by it."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or _is_interrupt(error.__cause__))


def _end_at_once(*_: object) -> None:
    os.write(2, _WORDS.encode())
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
