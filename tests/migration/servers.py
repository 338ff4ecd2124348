"""A Prefect server that outlives the runs that talk to it: a fresh home costs eight seconds of database migrations."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CODE = (
    "import signal, sys\n"
    "from flows.orchestrator import start_server, stop_server\n"
    "child, url = start_server()\n"
    "print(url, flush=True)\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    "try:\n    sys.stdin.read()\n"
    "finally:\n    stop_server(child)\n"
)


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Its API's URL, while the body runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE],
        env={**os.environ, "POOLSHIFT_HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http"), f"no Prefect server: {url!r}"
        yield url
    finally:
        process.stdin.close()
        process.wait(timeout=30)
        process.stdout.close()


@contextmanager
def shared_prefect_server(folder: Path) -> Iterator[str]:
    """The same of one server for all processes that name this folder: the first starts it, and outlives the others."""
    known = folder / "url"
    with (folder / "door").open("w") as door, (folder / "inside").open("w") as inside:
        fcntl.flock(door, fcntl.LOCK_EX)
        if known.exists():
            fcntl.flock(inside, fcntl.LOCK_SH)
            fcntl.flock(door, fcntl.LOCK_UN)
            yield known.read_text()
            return
        with prefect_server(folder) as url:
            known.write_text(url)
            fcntl.flock(door, fcntl.LOCK_UN)
            try:
                yield url
            finally:
                fcntl.flock(door, fcntl.LOCK_EX)  # who comes now starts another
                fcntl.flock(inside, fcntl.LOCK_EX)
                known.unlink()
