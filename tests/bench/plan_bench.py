"""What a plan over a large cluster costs: seconds and memory of the whole command, and how both grow.

python -m tests.bench.plan_bench [NODES] [PODS]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.list_server import cluster

SECONDS, BYTES = 15.0, 1.5e9  # for 5,000 nodes and 100,000 pods
SPEC = {
    "name": "bench",
    "source": {"kind": "external", "name": "old", "selector": {"pool": "old"}},
    "target": {"kind": "external", "name": "new", "selector": {"pool": "new"}, "machine_type": "p5en.48xlarge"},
    "validation": {"train_step": False, "budget_gpu_minutes": 1e9},
    "gate": {"max_step_ratio": None},
    "retire": {"enabled": False},
}


@dataclass(frozen=True)
class Cost:
    seconds: float
    processor: float
    bytes: int
    pods: int


def plan(nodes: int, pods: int) -> Cost:
    """One `poolshift plan --json`, from its start to its end."""
    with cluster(nodes, pods) as (_, kubeconfig), TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(json.dumps(SPEC))
        command = [sys.executable, "-m", "flows.cli", "plan", str(spec), "--kubeconfig", kubeconfig, "--json"]
        before = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None
        found = json.loads(child.stdout.read())
        _, status, used = os.wait4(child.pid, 0)
        taken = time.perf_counter() - before
    assert os.waitstatus_to_exitcode(status) == 0, found.get("summary") or found
    moved = sum(len(wave["pods"]) for wave in found["moves"]["waves"])
    return Cost(taken, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, moved)


def main(nodes: int, pods: int) -> None:
    small, whole = plan(nodes // 4, pods // 4), plan(nodes, pods)
    print(f"plan over {nodes:,} nodes and {pods:,} pods, {whole.pods:,} of them moved: {whole.seconds:.1f} s"
          f" ({whole.processor:.1f} s of processor), {whole.bytes / 1e9:.2f} GB"
          f" (reach: {SECONDS:.0f} s, {BYTES / 1e9:.1f} GB for 5,000 and 100,000)")  # fmt: skip
    times, memory = whole.processor / small.processor, whole.bytes / small.bytes
    print(f"  {times:.1f} times the processor time and {memory:.1f} times the memory of a quarter of it (linear: 4)")


if __name__ == "__main__":
    size = [int(argument) for argument in sys.argv[1:]]
    main(*size) if size else main(5000, 100_000)
