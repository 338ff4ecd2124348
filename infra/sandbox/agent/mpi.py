"""What mpirun does in the launcher of an MPIJob: its ranks run in the workers, and all they print comes out here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.sandbox.agent import container as read
from infra.sandbox.agent import work
from infra.sandbox.agent.logs import Log
from infra.sandbox.agent.program import Collective, Launched
from infra.sandbox.fabric.transcript import Line

if TYPE_CHECKING:
    from infra.sandbox.agent.pods import PodWorker

JOB, ROLE = "training.kubeflow.org/job-name", "training.kubeflow.org/job-role"
CONNECT_SECONDS = 300.0  # until ssh has given up on workers that do not come


async def launch(launcher: PodWorker, program: Launched, log: Log) -> int:
    """Run until the end; the exit code."""
    agent, waited = launcher.agent, 0.0
    workers = _workers(launcher)
    while sum(_slots(worker) for worker in workers) < program.ranks:
        if waited >= CONNECT_SECONDS:
            log.lines = (Line(waited, f"ssh: no {program.ranks} slots on {len(workers)} hosts (simulated)"),)
            return 1
        await agent.sleep(1.0)
        waited += 1.0
        workers = _workers(launcher)
    each = Collective(pods=len(workers), ranks=_slots(workers[0]), index=0, run=program.run)
    whole = [t.faster(agent.speed) for t in work.run_together(agent, dict(enumerate(workers)), each)]
    offset = waited if launcher.started is None else (agent.clock.now() - launcher.started).total_seconds()
    lines = sorted((line for transcript in whole for line in transcript.lines), key=lambda line: line.at)
    log.lines = tuple(Line(line.at + offset, line.text) for line in lines)
    await agent.sleep(max(transcript.seconds for transcript in whole))
    gone = [worker.node for worker in workers if not worker.running]
    if gone:
        log.lines = (Line(offset, f"mpirun noticed that a process on node {gone[0]} exited on signal 9 (simulated)"),)
        return 137
    for worker, transcript in zip(workers, whole, strict=True):
        agent.nodes[worker.node].counters.add(transcript.traffic)
    return max(transcript.exit_code for transcript in whole)


def _workers(launcher: PodWorker) -> list[PodWorker]:
    """Running workers of the same MPIJob, in the order of its host file."""
    name = (launcher.pod["metadata"].get("labels") or {}).get(JOB)
    found = []
    for worker in launcher.agent.pods.values():
        labels = worker.pod["metadata"].get("labels") or {}
        mine = labels.get(JOB) == name and labels.get(ROLE) == "worker"
        if name and mine and worker.namespace == launcher.namespace and worker.running:
            found.append(worker)
    return sorted(found, key=lambda worker: (len(worker.name), worker.name))


def _slots(worker: PodWorker) -> int:
    return max(1, read.granted(worker.pod, "nvidia.com/gpu"))
