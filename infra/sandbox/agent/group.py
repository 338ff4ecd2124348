"""Pods of one Job that run a collective program: nothing starts before all are there, and all go down together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from infra.sandbox.agent.program import Collective
from infra.sandbox.fabric.transcript import Transcript

if TYPE_CHECKING:
    from infra.sandbox.agent.pods import PodWorker

Compute = Callable[[dict[int, "PodWorker"], Collective], list[Transcript]]
Wait = Callable[[asyncio.Event, float], Awaitable[bool]]


class Group:
    """One attempt of a collective run. `over` once a member has finished, or left after the start.

    Args:
        compute: makes the transcripts when all members are there.
        wait: waits for an event for so many seconds of the sandbox; true if it came.

    """

    def __init__(self, compute: Compute, wait: Wait) -> None:
        self.members: dict[int, PodWorker] = {}
        self.over = False
        self._compute, self._wait = compute, wait
        self._result: asyncio.Future[list[Transcript]] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()

    def join(self, worker: PodWorker, program: Collective) -> None:
        """A pod is running. The last one starts the program."""
        self.members[program.index] = worker
        if len(self.members) == program.pods and not self._result.done():
            self._result.set_result(self._compute(dict(sorted(self.members.items())), program))

    def leave(self, worker: PodWorker) -> None:
        """A pod stopped before its end."""
        if worker not in self.members.values():
            return
        if self._result.done() and not self.over:
            self.over = True
            self._lost.set()
        self.members = {index: each for index, each in self.members.items() if each is not worker}

    def finish(self, worker: PodWorker) -> None:
        """A pod came to its end."""
        self.over = True
        self.members = {index: each for index, each in self.members.items() if each is not worker}

    async def result(self, index: int) -> Transcript:
        """The transcript of one member, when all have joined."""
        transcripts = await asyncio.shield(self._result)
        return transcripts[index]

    async def lost_within(self, seconds: float) -> bool:
        """Wait for so long; true as soon as another member is lost."""
        return await self._wait(self._lost, seconds)
