"""How fast an NCCL log is read: MB/s of CPU time on one core, and the ratio to `grep -c` on the same file.

    python tests/readers/bench_nccl_log.py [MB]

The log is simulated: 64 ranks on 8 nodes, 24 channels, rings and trees, communicator after communicator, as a job
with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET writes it. The best of three runs counts.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from nccl_writer import Job, write  # noqa: E402 - both need the path above

from infra.probes.readers.detect import read  # noqa: E402


def main(megabytes: int) -> None:
    """Write the log, read it, print one line."""
    part = write(Job(nodes=8, gpus=8, channels=24, rounds=6, trees=True, payload=False))
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(megabytes * 1_000_000 // len(part) + 1):
            file.write(part)
        file.flush()
        size = Path(file.name).stat().st_size / 1e6
        best = grep = float("inf")
        for _ in range(3):
            began = time.process_time()
            with Path(file.name).open("rb") as stream:
                read(stream)
            best = min(best, time.process_time() - began)
            began = time.perf_counter()
            # Its output is taken: with /dev/null behind it, GNU grep stops at the first match.
            subprocess.run(["grep", "-c", "via NET", file.name], stdout=subprocess.PIPE, check=True)
            grep = min(grep, time.perf_counter() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"reading NCCL logs: {size / best:.0f} MB/s, {best / grep:.1f} times grep -c, {memory:.0f} MB of memory, "
        f"{size:.0f} MB\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
