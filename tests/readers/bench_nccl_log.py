"""How fast an NCCL log is read: MB/s of CPU time on one core, and the ratio to `grep -c` on the same file.

    python tests/readers/bench_nccl_log.py [MB]

The logs are simulated, as jobs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET write them:

- 64 ranks on 8 nodes, 24 channels, rings and trees, communicator after communicator with threads and ids of its own;
  plain and behind the prefixes in which such logs arrive. A fifth of its lines are network channels, and each of them
  returns with the next communicator: set-up lines, which never do, decide the speed.
- 512 ranks on 64 nodes, all of them writing at the same time: one communicator of all, and for each GPU of a node one
  of its 64 peers (data parallel), whose channels are all network ones. A third of its lines are network channels that
  were not seen before, so that what counts there is how fast a line is read that no other line repeats.

Both are measured in CPU time, in turns; the best of three runs of each counts, and the slowest is named.
"""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from nccl_writer import Job, lines, write  # noqa: E402 - both need the path above

from infra.probes.readers.detect import read  # noqa: E402

JOB = Job(nodes=8, gpus=8, channels=24, rounds=6, trees=True, payload=False)
ALL = Job(nodes=64, gpus=8, channels=24, trees=True, payload=False)
PEERS = Job(nodes=64, gpus=1, channels=24, trees=True, payload=False)
LARGE = "512 ranks at the same time"
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
    part = write_large() if style == LARGE else write(JOB, STYLES[style])
    with path.open("wb") as file:
        for number in range(megabytes * 1_000_000 // len(part) + 1):
            fresh = re.sub(rb":2(\d{3,4} \[)", b":%d\\1" % (100 + number), part)
            file.write(fresh.replace(b"commId 0xab", b"commId 0x%xab" % number))
    return path.stat().st_size / 1e6


def write_large() -> bytes:
    """What 512 ranks write at the same time: each the lines of two communicators, in their order."""
    rng, spoken = random.Random(512), Counter[int]()
    timed: list[tuple[float, str]] = []
    for rank, line in (*lines(ALL), *(pair for gpu in range(ALL.gpus) for pair in _peers(gpu))):
        spoken[rank] += 1
        timed.append((spoken[rank] + 8 * rng.random(), line))
    return ("\n".join(line for _, line in sorted(timed)) + "\n").encode()


def _peers(gpu: int) -> Iterator[tuple[int, str]]:
    """The communicator of one GPU of each node, from the mouths of the processes that have these GPUs."""
    for node, line in lines(PEERS):
        rank = node * ALL.gpus + gpu
        process = f":{1000 + rank}:{20_000 + rank} [{gpu}]"
        yield rank, re.sub(r":1\d{3}:2\d{3} \[0\]", process, line, count=1).replace("commId 0x", f"commId 0xab{gpu}")


def _children() -> float:
    """CPU seconds of the processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(megabytes: int) -> None:
    """Write each style, read it, print one line for each and one for the slowest."""
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        for style in (*STYLES, LARGE):
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
