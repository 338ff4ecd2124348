"""A swap that is killed at every stage of a slice goes on, gives up nothing twice and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.sandbox import run as sandboxes
from tests.migration.swapping import load, pool_nodes, slices, workloads

ROOT = Path(__file__).parents[2]
POINTS = [
    "slice-1:pool",
    *(
        f"slice-{number}:{stage}"
        for number in (1, 2)
        for stage in ("chosen", "drained", "giving", "asked", "given", "free", "growing", "grown")
    ),
    "slice-2:proven",
    "slice-2:open",
]


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_swap_killed_at_every_stage_in_turn_ends_as_one_never_disturbed(tmp_path: Path, cloud: str) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with sandboxes.start("reservation-shared", cloud, kubeconfig=kubeconfig, rate=240.0):  # type: ignore[arg-type]
        spec = load(cloud, str(kubeconfig), f"killed-{cloud}")
        path = tmp_path / "spec.json"
        path.write_text(spec.model_dump_json())
        before = workloads(spec)
        old = {n["metadata"]["name"] for n in pool_nodes(spec, "gpu-old")}
        for point in POINTS:
            ended = walk_as_process(path, point)
            assert ended.returncode == -signal.SIGKILL, f"at {point}\n{ended.stdout[-3000:]}"
        ended = walk_as_process(path)

        assert ended.returncode == 0, ended.stdout[-3000:]
        found = slices(spec)
        assert [(n, s["stage"], s["total"]) for n, s in sorted(found.items())] == [(1, "open", 2), (2, "open", 4)]
        assert sorted(name for s in found.values() for name in s["nodes"]) == sorted(old)
        assert len(pool_nodes(spec, "gpu-rdma")) == 4
        assert pool_nodes(spec, "gpu-old") == []
        assert workloads(spec) == before


def walk_as_process(spec: Path, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """The story in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "POOLSHIFT_HOME": str(spec.parent / "home")}
    env.pop("POOLSHIFT_FAILPOINT", None)
    if failpoint:
        env["POOLSHIFT_FAILPOINT"] = failpoint
    return subprocess.run(
        [sys.executable, "-m", "tests.migration.swapping", str(spec)],
        env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip
