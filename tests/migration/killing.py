"""Runs `poolshift migrate` as one machine after another would, each killed at a moment that a seed chooses."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.processes import leashed

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("unshare", "--uts", "sh", "-c", 'hostname "$1" && shift && exec "$@"', "sh")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended. `lines`: what it said before."""

    code: int
    lines: tuple[str, ...]

    @property
    def killed(self) -> bool:
        """By us."""
        return self.code == -signal.SIGKILL

    @property
    def tail(self) -> str:
        """Its last words."""
        return "\n".join(self.lines[-40:])


def may_rename_the_host() -> bool:
    """Whether a process can be given a host name of its own here, which needs root."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*ELSEWHERE, "elsewhere", "true"], capture_output=True, check=False)
    return tried.returncode == 0


def attempt(
    arguments: list[str],
    env: Mapping[str, str],
    *,
    host: str = "",
    strike: Callable[[str], float | None] = lambda _: None,
    timeout: float = 1800,
) -> Ended:
    """`poolshift ARGUMENTS` until it ends or is killed.

    `strike` sees every line that it says on standard error; the first answer that is not None is after how many
    seconds SIGKILL comes. Each line is printed with its second: what a test shows when it fails, or with -s.
    """
    command = [sys.executable, "-m", "flows.cli", *arguments]
    process = subprocess.Popen(
        leashed([*ELSEWHERE, host, *command] if host else command),
        env=dict(env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    lines: list[str] = []
    late = threading.Timer(timeout, process.kill)
    blow: threading.Timer | None = None
    late.daemon = True  # else Ctrl-C in a test would wait for it
    late.start()
    assert process.stderr is not None
    began = time.monotonic()
    for line in process.stderr:
        lines.append(line.rstrip())
        print(f"{time.monotonic() - began:7.1f} {lines[-1]}", flush=True)
        if blow is None and (seconds := strike(line)) is not None:
            blow = threading.Timer(seconds, process.kill)
            blow.daemon = True
            blow.start()
    process.wait()
    process.stderr.close()
    for timer in (late, blow):
        if timer is not None:
            timer.cancel()
    assert time.monotonic() - began < timeout, f"poolshift {' '.join(arguments)} did not end\n" + "\n".join(lines[-40:])
    return Ended(code=process.returncode, lines=tuple(lines))


def at_random(rng: random.Random, most: int, jitter: float) -> Callable[[str], float | None]:
    """Kill at most `jitter` seconds after some line of the next `most`. What was done before does not count."""
    left = rng.randint(1, most)
    seconds = rng.uniform(0, jitter)

    def strike(line: str) -> float | None:
        nonlocal left
        left -= "done before" not in line
        return seconds if left == 0 else None

    return strike


def after(words: str, seconds: float = 0.0) -> Callable[[str], float | None]:
    """Kill when a line says so."""
    return lambda line: seconds if words in line else None


def kills(seed: int, *, jitter: float) -> list[Callable[[str], float | None]]:
    """Where four processes of one run die: twice anywhere, then while pods move and while a gang does, if any do.

    `jitter`: seconds after the line at which each may die at the latest.
    """
    rng = random.Random(seed)
    moving = [after(f"wave {rng.randint(1, 3)} of", rng.uniform(0, jitter)), after("as one", rng.uniform(0, jitter))]
    rng.shuffle(moving)
    return [at_random(rng, 25, jitter), at_random(rng, 25, jitter), *moving]
