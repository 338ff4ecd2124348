"""The node agent: one process that is the kubelet of every simulated node. A client of the Kubernetes API."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import aiohttp

from infra.clock import Clock, rfc3339, rfc3339_micro
from infra.model.record import SIMULATED
from infra.sandbox.access import Access, Answer
from infra.sandbox.agent import container as read
from infra.sandbox.agent import plugins, work
from infra.sandbox.agent.api import AsyncApi
from infra.sandbox.agent.checkpoints import Trainer, keeps_checkpoints
from infra.sandbox.agent.defects import Defects
from infra.sandbox.agent.group import Group
from infra.sandbox.agent.kubelet import Kubelet
from infra.sandbox.agent.logs import LogBook, Writer
from infra.sandbox.agent.node import SimulatedNode
from infra.sandbox.agent.pods import PodWorker
from infra.sandbox.agent.program import Collective, DeviceReport, Fio
from infra.sandbox.agent.status import node_status
from infra.sandbox.fabric.storage import FileSystem
from infra.sandbox.fabric.transcript import Transcript

Object = dict[str, Any]
T = TypeVar("T")
READY_SECONDS = 5.0  # from registration to Ready
HEARTBEAT_SECONDS = 10.0  # the kubelet's
HEARTBEATS_A_SECOND = 200.0  # wall-clock, all nodes together
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"


class Agent:
    """Acts only on nodes labelled poolshift.dev/simulated=true.

    Args:
        access: the API.
        clock: of the sandbox: all waits and time stamps.
        defects: what is wrong with which node.
        lustre: the file system, and the zone it is in ("" for the node's own).
        seed: makes measurements repeatable.
        speed: so many times faster than on their machines are programs done that come to an end.

    """

    def __init__(
        self,
        access: Access,
        clock: Clock,
        *,
        defects: Defects | None = None,
        lustre: FileSystem | None = None,
        lustre_zone: str = "",
        seed: str = "",
        speed: float = 1.0,
    ) -> None:
        self.clock, self.defects, self.seed, self.speed = clock, defects or Defects(), seed, speed
        self.lustre = lustre or FileSystem(capacity_tib=76.8, mb_s_per_tib=1000.0)
        self.lustre_zone = lustre_zone
        self.nodes: dict[str, SimulatedNode] = {}
        self.pods: dict[str, PodWorker] = {}
        self.jobs: dict[str, Object] = {}
        self.book = LogBook()
        self.failures: list[BaseException] = []
        self.access = access
        self._waiting: dict[str, dict[str, Object]] = {}
        self._trainers: dict[str, Trainer] = {}
        self._groups: dict[str, Group] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._addresses = itertools.count(2)
        self._kubelet = Kubelet(self.book, clock, self._alive, self._command)
        self.api: AsyncApi

    async def start(self) -> None:
        """Begin to watch. Returns when the agent listens; nodes become Ready a little later."""
        self.api = AsyncApi(self.access)
        await self._kubelet.start()
        self.spawn(self.api.watch("/api/v1/nodes", self._on_node, selector=f"{SIMULATED}=true"))
        self.spawn(self.api.watch("/api/v1/pods", self._on_pod))
        self.spawn(self.api.watch("/apis/batch/v1/jobs", self._on_job))
        self.spawn(self._heartbeats())

    async def stop(self) -> None:
        """End all tasks and close all connections. Nodes and pods stay as they are, as under a dead kubelet."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._kubelet.stop()
        await self.api.close()

    # Time and tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run in the background; what fails is kept in `failures`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, aiohttp.ClientError):  # that one: the server has gone
            self.failures.append(error)

    async def sleep(self, seconds: float) -> None:
        """Seconds of the sandbox."""
        await asyncio.sleep(max(0.0, self.clock.real_seconds(seconds)))

    async def within(self, work: Awaitable[T], seconds: float) -> T:
        """Raises TimeoutError after so many seconds of the sandbox."""
        async with asyncio.timeout(self.clock.real_seconds(seconds)):
            return await work

    async def wait_for(self, event: asyncio.Event, seconds: float) -> bool:
        """True as soon as the event is set; false after so many seconds of the sandbox."""
        # Not asyncio.wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
        try:
            async with asyncio.timeout(self.clock.real_seconds(seconds)):
                await event.wait()
        except TimeoutError:
            return False
        return True

    # Nodes

    def _on_node(self, event: str, obj: Object) -> None:
        name = obj["metadata"]["name"]
        known = self.nodes.get(name)
        if event == "DELETED":
            if known and known.obj["metadata"]["uid"] == obj["metadata"]["uid"]:
                self._forget(name)
            return
        if known and known.obj["metadata"]["uid"] != obj["metadata"]["uid"]:
            self._forget(name)
            known = None
        if known is None:
            self.nodes[name] = SimulatedNode.of(obj)
            self.spawn(self._join(name))
            for pod in self._waiting.pop(name, {}).values():
                self._on_pod("ADDED", pod)
            return
        joined = known.joined
        known.obj = obj
        if joined and not _ready(obj):
            self.spawn(self._write_node(name))

    def _forget(self, name: str) -> None:
        for worker in [each for each in self.pods.values() if each.node == name]:
            worker.gone()
            self.pods.pop(worker.uid, None)
        self.nodes.pop(name, None)

    async def _join(self, name: str) -> None:
        """Lease, CSINode, then Ready."""
        uid = self.nodes[name].obj["metadata"]["uid"]
        owner = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
        meta = {"name": name, "ownerReferences": owner}
        lease = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": rfc3339_micro(self.clock.now())}
        await self._ensure(
            LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": lease}
        )
        drivers = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": meta, "spec": {"drivers": []}}
        await self._ensure(CSI_NODES, drivers)
        if not _ready(self.nodes[name].obj):
            await self.sleep(READY_SECONDS)
        await self._write_node(name)

    async def _ensure(self, path: str, obj: Object) -> None:
        """Create; one that exists is of an earlier node of that name, and is taken over."""
        try:
            await self.api.request("POST", path, obj)
        except Answer as answer:
            if answer.status != 409:
                raise
            await self.api.patch(
                f"{path}/{obj['metadata']['name']}", {"metadata": obj["metadata"], "spec": obj["spec"]}
            )

    async def _write_node(self, name: str) -> None:
        async with self._locks.setdefault(name, asyncio.Lock()):
            node = self.nodes.get(name)
            if node is None:
                return
            position = self.position(node)
            advertised = plugins.extended(
                node.hardware,
                node.plugins.values(),
                lambda resource, count: self.defects.limit(node.pool, position, resource, count),
            )
            capacity, allocatable = plugins.split(node.base(), node.hardware, advertised, node.shown)
            node.shown |= set(advertised)
            patch = node_status(
                node.obj,
                now=rfc3339(self.clock.now()),
                port=self._kubelet.port,
                capacity=capacity,
                allocatable=allocatable,
            )
            node.joined = True
            written = await self.api.patch(f"/api/v1/nodes/{name}/status", patch)
            if written is not None and written["metadata"]["uid"] == node.obj["metadata"]["uid"]:
                node.obj = written
            await self._write_drivers(node)

    async def _write_drivers(self, node: SimulatedNode) -> None:
        drivers = {plugin.driver for plugin in node.plugins.values() if plugin.driver}
        if drivers != node.drivers:
            node.drivers = drivers
            entries = [{"name": driver, "nodeID": node.name, "topologyKeys": []} for driver in sorted(drivers)]
            await self.api.patch(f"{CSI_NODES}/{node.name}", {"spec": {"drivers": entries}})

    def position(self, node: SimulatedNode) -> int:
        """Place in its pool, by name."""
        return sorted(each.name for each in self.nodes.values() if each.pool == node.pool).index(node.name)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(max(self.clock.real_seconds(HEARTBEAT_SECONDS), len(self.nodes) / HEARTBEATS_A_SECOND))
            await self.beat()

    async def beat(self) -> None:
        """Renew the Lease of every node that has joined."""
        now = {"spec": {"renewTime": rfc3339_micro(self.clock.now())}}
        names = [name for name, node in self.nodes.items() if node.joined]
        await asyncio.gather(*(self.api.patch(f"{LEASES}/{name}", now) for name in names), return_exceptions=True)

    # Pods

    def _on_pod(self, event: str, pod: Object) -> None:
        name = pod["spec"].get("nodeName")
        if not name:
            return
        uid = pod["metadata"]["uid"]
        worker = self.pods.get(uid)
        if event == "DELETED":
            self._waiting.get(name, {}).pop(uid, None)
            if worker:
                worker.gone()
                del self.pods[uid]
                self.book.forget(worker.namespace, worker.name)
        elif worker:
            worker.update(pod)
        elif name in self.nodes:
            self.pods[uid] = PodWorker(self, pod)
            self.pods[uid].begin()
        else:
            self._waiting.setdefault(name, {})[uid] = pod

    def pod_started(self, worker: PodWorker) -> None:
        """A pod's containers run: what it advertises shows on its node."""
        if worker.plugin:
            self.nodes[worker.node].plugins[worker.uid] = worker.plugin
            self.spawn(self._write_node(worker.node))

    def pod_stopped(self, worker: PodWorker) -> None:
        """They no longer do."""
        node = self.nodes.get(worker.node)
        if worker.plugin and node and node.plugins.pop(worker.uid, None):
            self.spawn(self._write_node(worker.node))
        job = read.owner_uid(worker.pod, "Job")
        if job in self._groups:
            self._groups[job].leave(worker)

    def _alive(self, namespace: str, name: str) -> bool:
        return any(each.name == name and each.namespace == namespace for each in self.pods.values())

    def next_address(self) -> str:
        """A pod address."""
        number = next(self._addresses)
        return f"10.{64 + (number >> 16) % 64}.{(number >> 8) & 255}.{number & 255}"

    def image_missing(self, image: str, node: str) -> bool:
        """Whether a node cannot pull an image."""
        return node in self.nodes and self.defects.image_missing(image, self.nodes[node].pool)

    def running_pods(self, job: str) -> int:
        """Pods of a Job that run and are not being stopped."""
        running = (each for each in self.pods.values() if each.running and not each.terminating)
        return sum(read.owner_uid(each.pod, "Job") == job for each in running)

    def warn_event(self, pod: Object, reason: str, message: str) -> None:
        """Tell `kubectl describe`."""
        self.spawn(self._event(pod, reason, message))

    async def _event(self, pod: Object, reason: str, message: str) -> None:
        meta, now = pod["metadata"], rfc3339(self.clock.now())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **{k: meta[k] for k in ("name", "namespace", "uid")}},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
        }
        await self.api.request("POST", f"/api/v1/namespaces/{meta['namespace']}/events", event)

    # Jobs

    def _on_job(self, event: str, job: Object) -> None:
        uid = job["metadata"]["uid"]
        trainer = self._trainers.get(uid)
        if event == "DELETED":
            self.jobs.pop(uid, None)
            self._groups.pop(uid, None)
            if trainer:
                self._trainers.pop(uid).stop()
            return
        self.jobs[uid] = job
        if trainer:
            trainer.update(job)
        elif keeps_checkpoints(job):
            self._trainers[uid] = Trainer(self, job)

    # Programs

    async def _command(self, namespace: str, pod: str, command: list[str]) -> tuple[int, str]:
        """Exec: `checkpoint` in a pod of a training Job writes one and prints its time. Nothing else is installed."""
        worker = next(w for w in self.pods.values() if (w.namespace, w.name) == (namespace, pod))
        trainer = self._trainers.get(read.owner_uid(worker.pod, "Job") or "")
        if command[:1] != ["checkpoint"] or trainer is None:
            return 127, f"sh: {' '.join(command[:1])}: not found (simulated)\n"
        written = await trainer.checkpoint()
        return (0, f"{written}\n") if written else (1, "not all ranks run: no checkpoint written (simulated)\n")

    def join(self, worker: PodWorker, program: Collective) -> Group:
        """Meet the other pods of the Job. A run that is over is not joined: a new attempt begins."""
        job = read.owner_uid(worker.pod, "Job") or worker.uid
        group = self._groups.get(job)
        if group is None or group.over:
            group = self._groups[job] = Group(
                lambda members, last: [each.faster(self.speed) for each in work.run_together(self, members, last)],
                self.wait_for,
            )
        group.join(worker, program)
        return group

    def alone(self, worker: PodWorker, program: DeviceReport | Fio) -> Transcript:
        """A program that looks at its own node."""
        return work.run_alone(self, worker, program).faster(self.speed)

    def writer(self, worker: PodWorker) -> Writer:
        """The log of a program that never ends."""
        return work.writer(self, worker)


def _ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
