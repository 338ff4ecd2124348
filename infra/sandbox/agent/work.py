"""Puts the model of the fabric under the pods: which host a pod finds itself on, and what its program prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.sandbox.agent import container as read
from infra.sandbox.agent.logs import Writer
from infra.sandbox.agent.program import Collective, DeviceReport, Fio
from infra.sandbox.fabric import devices, physics
from infra.sandbox.fabric.collective import Setting
from infra.sandbox.fabric.generation import generation_of
from infra.sandbox.fabric.machine import Host, Loss, Machine, Transport, machine_of
from infra.sandbox.fabric.nccl_log import Job, Member
from infra.sandbox.fabric.storage import FileSystem, fio
from infra.sandbox.fabric.transcript import Line, Tape, Transcript

if TYPE_CHECKING:
    from infra.sandbox.agent.agent import Agent
    from infra.sandbox.agent.pods import PodWorker

ZONE = "topology.kubernetes.io/zone"
KEPT_STEPS = 2000  # of a training log that has been growing for months


def host_of(agent: Agent, worker: PodWorker, *, kernel: bool = False) -> Host | None:
    """The node as the pod sees it: only the devices that it was given. None for an unknown machine type.

    `kernel`: as the node's own kernel sees it (a Lustre client), whatever the pod was given.
    """
    node = agent.nodes[worker.node]
    machine = machine_of(node.machine_type)
    if machine is None:
        return None
    asked = sum(read.granted(worker.pod, resource) for resource in machine.fabric.rdma_resources)
    if kernel:
        asked = machine.fabric.nics
    position = agent.position(node)
    rates = agent.defects.nic_rates(node.pool, position, machine.fabric.nics)
    nics = rates[: min(asked, len(rates))] if node.hardware.get("rdma") else ()
    transport, loss = _transport(machine, worker.pod, nics, kernel=kernel)
    return Host(
        node=node.name,
        machine=machine,
        transport=transport,
        loss=loss,
        gdr=machine.fabric.gdr and agent.defects.gdr(node.pool, position),
        nics=nics,
    )


def _transport(
    machine: Machine, pod: Mapping[str, Any], nics: tuple[float, ...], *, kernel: bool
) -> tuple[Transport, Loss]:
    kind = machine.fabric.kind
    if kind not in ("efa", "roce", "tcpxo", "tcpx"):
        return "socket", ""
    if not any(rate > 0 for rate in nics):
        return "socket", "no-device"
    if kernel:
        return kind, ""  # type: ignore[return-value]  # checked against the same words above
    # EFA's plugin comes with the image, Google's from the node: it must be mounted.
    needed = {mount.host for mount in machine.fabric.host_mounts if "nvidia" not in mount.host}
    if not needed <= set(read.host_paths(pod)) or read.knob(pod, "network-plugin", "true") == "false":
        return "socket", "no-plugin"
    return kind, ""  # type: ignore[return-value]  # checked against the same words above


def run_together(agent: Agent, members: Mapping[int, PodWorker], program: Collective) -> list[Transcript]:
    """The transcripts of a collective run, in order of the members."""
    hosts = {index: host_of(agent, worker) for index, worker in members.items()}
    if any(host is None for host in hosts.values()):
        return [_unknown_machine() for _ in members]
    first = next(iter(members.values()))
    image = first.pod["spec"]["containers"][0]
    job = Job(
        members=[
            Member(
                host=host,
                hostname=read.hostname(members[index].pod),
                address=members[index].address,
                ranks=program.ranks,
                first_rank=place * program.ranks,
            )
            for place, (index, host) in enumerate(hosts.items())
            if host is not None
        ],
        generation=generation_of(image["image"], read.knob(first.pod, "nccl-version")),
        env=read.environment(first.pod, image),
        seed=_seed(agent, first),
        ofi_in_image=read.knob(first.pod, "network-plugin", "true") != "false",
    )
    counters = {worker.node: agent.nodes[worker.node].counters for worker in members.values()}
    return program.run(Setting(job=job, start=agent.clock.now(), counters=counters))


def _seed(agent: Agent, worker: PodWorker) -> str:
    """The same for a job of the same name on the same pool, whatever its nodes are called: no demo ends by chance."""
    job = worker.pod["metadata"].get("labels", {}).get("job-name", worker.name)
    return f"{agent.seed}/{agent.nodes[worker.node].pool}/{worker.namespace}/{job}"


def _unknown_machine() -> Transcript:
    tape = Tape()
    tape.say(1.0, "the sandbox does not know this machine type, so it cannot simulate a measurement on it")
    return tape.finish(2.0, exit_code=1)


def run_alone(agent: Agent, worker: PodWorker, program: DeviceReport | Fio) -> Transcript:
    """The transcript of a program that looks at its own node."""
    host = host_of(agent, worker, kernel=isinstance(program, Fio))
    if host is None:
        return _unknown_machine()
    spec = worker.pod["spec"]["containers"][0]
    if isinstance(program, DeviceReport):
        generation = generation_of(spec["image"], read.knob(worker.pod, "nccl-version"))
        if program.text:
            return devices.fi_info_text(host, generation)
        gpus = read.granted(worker.pod, host.machine.fabric.gpu_resource)
        env = read.environment(worker.pod, spec)
        return devices.report(host, hostname=read.hostname(worker.pod), gpus=gpus, generation=generation, env=env)
    zone = (agent.nodes[worker.node].obj["metadata"].get("labels") or {}).get(ZONE, "")
    system = FileSystem(
        capacity_tib=agent.lustre.capacity_tib,
        mb_s_per_tib=agent.lustre.mb_s_per_tib,
        same_zone=agent.lustre_zone in ("", zone),
    )
    job = agent.jobs.get(read.owner_uid(worker.pod, "Job"), {})
    clients = int((job.get("spec") or {}).get("parallelism") or 1)
    seed = f"{agent.seed}/{worker.namespace}/{worker.name}"
    return fio(host, system, program.jobs, clients=clients, start_unix=agent.clock.now().timestamp(), seed=seed)


def writer(agent: Agent, worker: PodWorker) -> Writer:
    """A log that grows while it is not read: training steps for a training Job, else a greeting."""
    greeting = Line(0.0, f"{worker.name}: started (simulated)")
    job = read.owner_uid(worker.pod, "Job")
    seconds = _step_seconds(agent, worker) if job else 0.0
    if not seconds:
        return lambda _: (greeting,)

    def steps(elapsed: float) -> list[Line]:
        last = int(elapsed / seconds)
        first = max(1, last - KEPT_STEPS)
        return [greeting] + [
            Line(step * seconds, f"step {step} seconds {seconds:.3f} (simulated)") for step in range(first, last + 1)
        ]

    return steps


def _step_seconds(agent: Agent, worker: PodWorker) -> float:
    """A training step of the Job on the hosts that its pods are on now."""
    job = read.owner_uid(worker.pod, "Job")
    peers = [
        each for each in agent.pods.values() if read.owner_uid(each.pod, "Job") == job and each.node in agent.nodes
    ]
    hosts = [host for host in (host_of(agent, each) for each in peers) if host is not None]
    gpus = sum(read.granted(each.pod, "nvidia.com/gpu") for each in peers)
    if not hosts or not gpus:
        return 0.0
    return physics.step_seconds(hosts, max(2, gpus), physics.QWEN_14B, 5)
