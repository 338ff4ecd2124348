"""How fast an NCCL log is read: MB/s of CPU time on one core, and the ratio to `grep -c` on the same file.

    python tests/readers/bench_nccl_log.py [MB]

The log is simulated: 64 ranks on 8 nodes, 24 channels, rings and trees, as a job with NCCL_DEBUG=INFO and
NCCL_DEBUG_SUBSYS=INIT,NET writes it, communicator after communicator with threads and ids of its own; plain and behind
the prefixes in which such logs arrive. Both are measured in CPU time, in turns; the best of three runs of each counts,
and the slowest style is named.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from nccl_writer import Job, write  # noqa: E402 - both need the path above

from infra.probes.readers.detect import read  # noqa: E402

JOB = Job(nodes=8, gpus=8, channels=24, rounds=6, trees=True, payload=False)
_tick = count()


def stamp() -> str:
    """A time stamp that no other line has."""
    seconds, nanoseconds = divmod(next(_tick) * 9_973_001, 10**9)
    return f"2026-03-13T22:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{nanoseconds:09d}Z"


STYLES: dict[str, Callable[[int, str], str] | None] = {
    "plain": None,
    "kubectl --timestamps": lambda _rank, line: f"{stamp()} {line}",
    "CloudWatch": lambda _rank, line: f"  | {stamp()} | {line}",
    "torchrun": lambda rank, line: f"[rank{rank}]: {line}",
    "mpirun --tag-output": lambda rank, line: f"[1,{rank}]<stdout>:{line}",
}


def write_log(path: Path, style: str, megabytes: int) -> float:
    """Write a log of at least that size; returns its size in MB."""
    part = write(JOB, STYLES[style])
    with path.open("wb") as file:
        for number in range(megabytes * 1_000_000 // len(part) + 1):
            fresh = re.sub(rb":2(\d{3} \[)", b":%d\\1" % (100 + number), part)
            file.write(fresh.replace(b"commId 0xab", b"commId 0x%xab" % number))
    return path.stat().st_size / 1e6


def _children() -> float:
    """CPU seconds of the processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(megabytes: int) -> None:
    """Write each style, read it, print one line for each and one for the slowest."""
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        for style in STYLES:
            path = Path(folder) / "log"
            size = write_log(path, style, megabytes)
            best = grep = float("inf")
            for _ in range(3):
                began = time.process_time()
                with path.open("rb") as stream:
                    read(stream)
                best = min(best, time.process_time() - began)
                began = _children()
                # Its output is taken: with /dev/null behind it, GNU grep stops at the first match.
                subprocess.run(["grep", "-c", "via NET", str(path)], stdout=subprocess.PIPE, check=True)
                grep = min(grep, _children() - began)
            speeds[style] = size / best
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            sys.stdout.write(
                f"reading NCCL logs, {style}: {size / best:.0f} MB/s, {best / grep:.1f} times grep -c, "
                f"{memory:.0f} MB of memory, {size:.0f} MB\n"
            )
    slowest = min(speeds, key=lambda style: speeds[style])
    sys.stdout.write(f"reading NCCL logs: at least {speeds[slowest]:.0f} MB/s ({slowest})\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
