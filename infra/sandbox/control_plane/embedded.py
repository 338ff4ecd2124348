"""The embedded control plane as a whole: a store, its API on loopback, its controllers, in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from aiohttp import web

from infra.clock import Clock, SystemClock
from infra.sandbox.control_plane import foundation
from infra.sandbox.control_plane.server import Server, roomy_request
from infra.sandbox.control_plane.store import Store

if TYPE_CHECKING:
    from infra.sandbox.control_plane.controllers import Controllers

HOST = "127.0.0.1"
STOP_SECONDS = 5.0


class ControlPlane:
    """A Kubernetes API on loopback, over plain HTTP, for everybody.

    `controllers` False leaves out Deployment, Job, scheduler and the other controllers: the API alone.
    """

    def __init__(self, clock: Clock | None = None, *, controllers: bool = True, seed: int | None = None) -> None:
        self.store = Store(clock or SystemClock(), seed=seed)
        self._with_controllers = controllers
        self._controllers: Controllers | None = None
        self._server = Server(self.store)
        foundation.lay(self.store)
        self._runner: web.ServerRunner | None = None
        self.url = ""

    async def start(self, port: int = 0) -> str:
        """Serve on loopback (port 0: any free one) and return the URL. OSError if the port is taken."""
        if self._with_controllers:
            from infra.sandbox.control_plane import controllers

            self._controllers = controllers.start(self.store)
        server = web.Server(self._server.handle, request_factory=roomy_request, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port, backlog=512)
        await site.start()
        bound = self._runner.addresses[0][1]
        self.url = f"http://{HOST}:{bound}"
        return self.url

    async def stop(self) -> None:
        """Stop to serve, and the controllers. Each part has `STOP_SECONDS`: what does not end is left behind."""
        await _bounded(self._server.close())
        if self._controllers is not None:
            await _bounded(self._controllers.stop())
        if self._runner is not None:
            await _bounded(self._runner.cleanup())


async def _bounded(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the work, but not for ever: a task that swallows its cancellation must not keep a process alive."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=STOP_SECONDS)
    if task.done():
        task.result()
    else:
        task.cancel()


def run_in_thread(
    clock: Clock | None = None, port: int = 0, *, controllers: bool = True, seed: int | None = None
) -> tuple[str, Callable[[], None]]:
    """Run a control plane in a thread of its own: its URL, and the function that stops it.

    OSError if the port is taken.
    """
    started: threading.Event = threading.Event()
    outcome: list[str | BaseException] = []
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        plane = ControlPlane(clock, controllers=controllers, seed=seed)
        try:
            outcome.append(await plane.start(port))
        except BaseException as problem:  # noqa: BLE001 (handed to the caller's thread)
            outcome.append(problem)
            await plane.stop()
            return
        finally:
            started.set()
        await done.wait()
        await plane.stop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="embedded-control-plane", daemon=True)
    thread.start()
    started.wait()
    url = outcome[0]
    if isinstance(url, BaseException):
        thread.join()
        raise url

    def stop() -> None:
        loop.call_soon_threadsafe(done.set)
        thread.join(timeout=4 * STOP_SECONDS)

    return url, stop
