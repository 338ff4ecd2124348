"""The life of one pod on a simulated node: image, start, program, restart, end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from infra.clock import parse_time, rfc3339
from infra.sandbox.access import Answer
from infra.sandbox.agent import container as read
from infra.sandbox.agent.logs import Log
from infra.sandbox.agent.mpi import launch
from infra.sandbox.agent.plugins import Plugin, plugin_of
from infra.sandbox.agent.program import Collective, DeviceReport, Ends, Fio, Forever, Launched, program_of
from infra.sandbox.agent.status import Container, pod_status
from infra.sandbox.fabric.transcript import Line, Transcript

if TYPE_CHECKING:
    from infra.sandbox.agent.agent import Agent

Object = dict[str, Any]
START_SECONDS = 2.0  # sandbox and container creation
CRASH_SECONDS = 3.0  # a plugin without its device ends this soon
FIRST_BACKOFF, LAST_BACKOFF = 10.0, 300.0  # the kubelet's, for images and for containers
RENDEZVOUS_SECONDS = 900.0  # torchrun gives up on missing nodes
PEER_LOSS_SECONDS = 20.0  # until torchrun notices that another node has gone
SIGTERM_CODE = 143
EXIT_SECONDS = 1.0


class PodWorker:
    """Keeps one pod's status true. `running` is whether its containers run now."""

    def __init__(self, agent: Agent, pod: Object) -> None:
        self.agent = agent
        self.pod = pod
        self.uid = str(pod["metadata"]["uid"])
        self.plugin: Plugin | None = plugin_of(pod)
        self.running = False
        self.terminating = False
        self.restarts = 0
        self.last: Object | None = None
        self.started: datetime | None = None
        self.address = (pod.get("status") or {}).get("podIP") or agent.next_address()
        self._task: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()  # of the writes of its status: the last one is what is true

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return str(self.pod["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def node(self) -> str:
        """Where it is bound."""
        return str(self.pod["spec"]["nodeName"])

    @property
    def path(self) -> str:
        """In the API."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def ended(self) -> bool:
        """Succeeded or Failed."""
        return (self.pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    def begin(self) -> None:
        """Start living, or dying if it is to be deleted."""
        if self.pod["metadata"].get("deletionTimestamp"):
            self.update(self.pod)
        else:
            self._task = self.agent.spawn(self._live())

    def update(self, pod: Object) -> None:
        """The pod changed."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and not self.terminating:
            self.terminating = True
            self._cancel()
            self._task = self.agent.spawn(self._terminate())
        elif self.running and _marked_not_ready(pod):
            self.agent.spawn(self._say_again())

    def gone(self) -> None:
        """The object, or its node, is no more."""
        self._cancel()
        self._stopped()

    def _cancel(self) -> None:
        if self._task:
            self._task.cancel()

    def _stopped(self) -> None:
        if self.running:
            self.running = False
            self.agent.pod_stopped(self)

    # Living

    async def _live(self) -> None:
        if self.ended:
            return
        known = ((self.pod.get("status") or {}).get("containerStatuses") or [{}])[0]
        since = ((known.get("state") or {}).get("running") or {}).get("startedAt")
        self.restarts = int(known.get("restartCount") or 0)
        if since:
            self.started = parse_time(since)
        else:
            await self.agent.sleep(START_SECONDS)
            await self._pull()
        while await self._once():
            pass

    async def _pull(self) -> None:
        """Return when all images are there. Until then say what the kubelet says."""
        inits = self.pod["spec"].get("initContainers") or []
        for position, spec in enumerate(inits):
            await self._await_image(spec["image"], inits, position)
        for spec in self.pod["spec"]["containers"]:
            await self._await_image(spec["image"], inits, None)

    async def _await_image(self, image: str, inits: Sequence[Object], position: int | None) -> None:
        wait, reason = FIRST_BACKOFF, "ErrImagePull"
        while self.agent.image_missing(image, self.node):
            cause = (
                f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve'
                f' reference "{image}": {image}: not found'
            )
            message = cause if reason == "ErrImagePull" else f'Back-off pulling image "{image}": ErrImagePull: {cause}'
            stuck = Container(kind="waiting", reason=reason, message=message)
            await self._write(phase="Pending", stuck=stuck, image=image, init=position)
            self.agent.warn_event(self.pod, "Failed" if reason == "ErrImagePull" else "BackOff", message)
            await self.agent.sleep(wait)
            wait = min(LAST_BACKOFF, wait * 2)
            if reason == "ErrImagePull":
                reason = "ImagePullBackOff"
            else:
                await self._until_image(image, wait)

    async def _until_image(self, image: str, wait: float) -> None:
        """Further tries change nothing that anybody can see, so they write nothing."""
        while self.agent.image_missing(image, self.node):
            await self.agent.sleep(wait)
            wait = min(LAST_BACKOFF, wait * 2)

    async def _once(self) -> bool:
        """One run of the containers. True if they are to be started again."""
        resumed, self.started = self.started is not None, self.started or self.agent.clock.now()
        if not resumed:
            await self._write(phase="Running", each=Container(kind="running", started=rfc3339(self.started)))
        self.running = True
        log = self._open_log(self.started)
        self.agent.pod_started(self)
        exit_code = await self._program(log)
        self._stopped()
        log.ended = self.agent.clock.now()
        return await self._exited(exit_code)

    def _open_log(self, started: datetime) -> Log:
        opened = [
            self.agent.book.begin(
                self.namespace,
                self.name,
                spec["name"],
                Log(started=started, lines=(Line(0.0, f"{spec['name']}: started (simulated)"),)),
            )
            for spec in (self.pod["spec"].get("initContainers") or []) + self.pod["spec"]["containers"]
        ]
        return opened[len(opened) - len(self.pod["spec"]["containers"])]

    async def _program(self, log: Log) -> int:
        """Run until the end; the exit code."""
        node = self.agent.nodes[self.node]
        if self.plugin and self.plugin.crashes_without and not node.hardware.get(self.plugin.part or ""):
            log.lines = (Line(0.0, "E main.go:66] no devices found on this node (simulated)"),)
            await self.agent.sleep(CRASH_SECONDS)
            return 1
        program = program_of(self.pod)
        if isinstance(program, Forever):
            log.writer = self.agent.writer(self)
            await asyncio.Event().wait()
        if isinstance(program, Ends):
            await self.agent.sleep(program.seconds)
            return program.exit_code
        if isinstance(program, Collective):
            return await self._collective(program, log)
        if isinstance(program, Launched):
            return await launch(self, program, log)
        assert isinstance(program, DeviceReport | Fio)
        transcript = self.agent.alone(self, program)
        log.lines = transcript.lines
        await self.agent.sleep(transcript.seconds)
        return transcript.exit_code

    async def _collective(self, program: Collective, log: Log) -> int:
        log.lines = ()
        assert self.started is not None
        group = self.agent.join(self, program)
        try:
            transcript: Transcript = await self.agent.within(group.result(program.index), RENDEZVOUS_SECONDS)
        except TimeoutError:
            log.lines = (Line(RENDEZVOUS_SECONDS, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),)
            return 1
        offset = (self.agent.clock.now() - self.started).total_seconds()
        log.lines = tuple(Line(line.at + offset, line.text) for line in transcript.lines)
        if await group.lost_within(transcript.seconds):
            # The others wait in a collective until torchrun tears them down: the log ends where it was.
            await self.agent.sleep(PEER_LOSS_SECONDS)
            return 1
        self.agent.nodes[self.node].counters.add(transcript.traffic)
        group.finish(self)
        return transcript.exit_code

    async def _exited(self, exit_code: int) -> bool:
        """Write what the end of the containers means. True: start them again, now."""
        now = rfc3339(self.agent.clock.now())
        assert self.started is not None
        ended = Container(kind="terminated", exit_code=exit_code, started=rfc3339(self.started), finished=now)
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if policy == "Never" or (policy == "OnFailure" and exit_code == 0):
            await self._write(phase="Failed" if exit_code else "Succeeded", each=ended)
            return False
        wait = min(LAST_BACKOFF, FIRST_BACKOFF * 2 ** min(self.restarts, 5))
        self.last, self.started = ended.state(), None
        reason = (
            f"back-off {int(wait)}s restarting failed container={self.pod['spec']['containers'][0]['name']}"
            f" pod={self.name}_{self.namespace}({self.uid})"
        )
        await self._write(phase="Running", each=Container(kind="waiting", reason="CrashLoopBackOff", message=reason))
        await self.agent.sleep(wait)
        self.restarts += 1
        return True

    async def _say_again(self) -> None:
        """That it runs; unless it has ended by the time that this can be said."""
        async with self._order:
            if self.running and self.started:
                await self._put(phase="Running", each=Container(kind="running", started=rfc3339(self.started)))

    # Dying

    async def _terminate(self) -> None:
        meta = self.pod["metadata"]
        left = (parse_time(meta["deletionTimestamp"]) - self.agent.clock.now()).total_seconds()
        wanted = float(read.knob(self.pod, "exit-seconds", str(EXIT_SECONDS)))
        if self.running:
            await self.agent.sleep(max(0.0, min(wanted, left)))
        self._stopped()
        self.agent.book.end(self.namespace, self.name, self.agent.clock.now())
        if not self.ended and (meta.get("finalizers") or read.owner_uid(self.pod, "Job")):
            # A Job counts its pods only in a final phase, and lets go of its finalizer then.
            now = rfc3339(self.agent.clock.now())
            begun = rfc3339(self.started) if self.started else now
            each = Container(kind="terminated", exit_code=SIGTERM_CODE, started=begun, finished=now)
            await self._write(phase="Failed", each=each)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
        try:
            await self.agent.api.request("DELETE", self.path, body)
        except Answer as answer:
            if answer.status not in (404, 409):
                raise

    async def _write(self, **what: Any) -> None:
        """`_put`, after the writes before it."""
        async with self._order:
            await self._put(**what)

    async def _put(
        self,
        *,
        phase: str,
        each: Container | None = None,
        stuck: Container | None = None,
        image: str = "",
        init: int | None = None,
    ) -> None:
        """Patch the status: all containers alike (`each`), or stuck on an image."""
        spec = self.pod["spec"]
        inits: Sequence[Object] = spec.get("initContainers") or []
        now = rfc3339(self.agent.clock.now())
        if each is not None:
            main = [self._counted(each) for _ in spec["containers"]]
            done = Container(kind="terminated", started=now, finished=now)
            before = [self._counted(each) if one.get("restartPolicy") == "Always" else done for one in inits]
        else:
            assert stuck is not None
            idle = Container(kind="waiting", reason="PodInitializing" if inits else "ContainerCreating")
            done = Container(kind="terminated", started=now, finished=now)
            before = [
                stuck if position == init else done if init is None or position < init else idle
                for position in range(len(inits))
            ]
            main = [stuck if init is None and one["image"] == image else idle for one in spec["containers"]]
        patch = pod_status(self.pod, phase=phase, now=now, address=self.address, containers=main, inits=before)
        written = await self.agent.api.patch(f"{self.path}/status", patch)
        if written is not None and written["metadata"]["uid"] == self.uid:
            self.pod = written

    def _counted(self, each: Container) -> Container:
        return Container(
            kind=each.kind,
            reason=each.reason,
            message=each.message,
            started=each.started,
            finished=each.finished,
            exit_code=each.exit_code,
            restarts=self.restarts,
            last=self.last,
        )


def _marked_not_ready(pod: Object) -> bool:
    """Somebody else wrote Ready=False: the node lifecycle controller, while the node was silent. A kubelet that is
    alive says again how it is.
    """
    status = pod.get("status") or {}
    ready = (each for each in status.get("conditions") or () if each.get("type") == "Ready")
    return status.get("phase") == "Running" and any(each.get("status") == "False" for each in ready)
