"""Processes that tests start: they end with the test, also with one that is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):  # else it went before the kernel was told
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def leashed(command: Sequence[str]) -> list[str]:
    """The command, so that the kernel ends it when whoever starts it ends, a test that is killed too.

    Linux only; elsewhere the command as it is. The started process does it itself and then becomes the command: a
    `preexec_fn` would fork a test that talks gRPC, which gRPC does not like.
    """
    if sys.platform != "linux":
        return [*command]
    return [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *command]


@contextlib.contextmanager
def sandbox(kubeconfig: Path, *arguments: str, scenario: str = "healthy") -> Iterator[subprocess.Popen[str]]:
    """`python -m infra.sandbox` until the block ends; ready when it begins. What it complains of is beside the file."""
    command = [sys.executable, "-m", "infra.sandbox", "--scenario", scenario, "--kubeconfig", str(kubeconfig)]
    log = kubeconfig.with_suffix(".log")
    with (
        log.open("w") as complaints,
        subprocess.Popen(
            leashed([*command, *arguments]), stdout=subprocess.PIPE, stderr=complaints, text=True, cwd=ROOT
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready http"), log.read_text()[-3000:]
            yield process
        finally:
            process.terminate()
            process.wait(timeout=30)
