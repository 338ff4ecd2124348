"""Training Jobs that keep a checkpoint, and write one when asked.

A Job with annotation `sandbox.poolshift.dev/checkpoint-seconds` reports the time of its newest checkpoint in
`poolshift.dev/checkpointed-at`, every so many seconds while all its pods run. A new value in
`poolshift.dev/checkpoint-requested`, or the command `checkpoint` in one of its pods, makes it write one at once, which
takes a while.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from infra.clock import rfc3339
from infra.sandbox.access import Answer
from infra.sandbox.agent.container import KNOB

if TYPE_CHECKING:
    from infra.sandbox.agent.agent import Agent

Object = dict[str, Any]
EVERY = f"{KNOB}checkpoint-seconds"
REQUESTED = "poolshift.dev/checkpoint-requested"
WRITTEN = "poolshift.dev/checkpointed-at"
WRITE_SECONDS = 20.0  # 14 billion parameters and their optimizer to a parallel file system
FIRST_SECONDS = 30.0  # of training, before the first checkpoint


class Trainer:
    """One such Job."""

    def __init__(self, agent: Agent, job: Object) -> None:
        self.agent, self.job = agent, job
        self._asked = asyncio.Event()
        self._newest = _annotation(job, WRITTEN)
        self._answered = _annotation(job, REQUESTED) if _annotation(job, WRITTEN) else ""
        self._task: asyncio.Task[None] = agent.spawn(self._keep())

    def update(self, job: Object) -> None:
        """The Job changed: was a checkpoint asked for?"""
        self.job = job
        if _annotation(job, REQUESTED) not in ("", self._answered):
            self._asked.set()

    def stop(self) -> None:
        """The Job is gone."""
        self._task.cancel()

    @property
    def training(self) -> bool:
        """All pods of the Job run."""
        wanted = int(self.job["spec"].get("parallelism") or 1)
        if self.job["spec"].get("suspend"):
            return False
        return self.agent.running_pods(str(self.job["metadata"]["uid"])) >= wanted

    async def _keep(self) -> None:
        self.update(self.job)
        wait = FIRST_SECONDS
        while True:
            asked = await self.agent.wait_for(self._asked, wait)
            if not self.training:
                wait = FIRST_SECONDS
                if asked:  # answered when it trains again, not before
                    await self.agent.sleep(1.0)
                continue
            if asked:
                await self.agent.sleep(WRITE_SECONDS / self.agent.speed)
            if self.training:
                await self._write()
            wait = float(_annotation(self.job, EVERY))

    async def checkpoint(self) -> str:
        """Write one now and return its time; "" when not all ranks train, before or after."""
        if self.training:
            await self.agent.sleep(WRITE_SECONDS / self.agent.speed)
        if not self.training:
            return ""
        await self._write()
        return self._newest

    async def _write(self) -> None:
        request = _annotation(self.job, REQUESTED)
        meta = self.job["metadata"]
        path = f"/apis/batch/v1/namespaces/{meta['namespace']}/jobs/{meta['name']}"
        self._newest = rfc3339(self.agent.clock.now())
        body = {"metadata": {"uid": meta["uid"], "annotations": {WRITTEN: self._newest}}}
        try:
            await self.agent.api.patch(path, body)
        except Answer as answer:
            if answer.status != 409:  # another Job of that name
                raise
        self._answered = request
        if _annotation(self.job, REQUESTED) == request:
            self._asked.clear()


def keeps_checkpoints(job: Object) -> bool:
    """Whether the Job is one of these."""
    return bool(_annotation(job, EVERY))


def _annotation(job: Object, name: str) -> str:
    return str((job["metadata"].get("annotations") or {}).get(name, ""))
