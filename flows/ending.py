"""A flow run that is cancelled in Prefect while no runner watches over it: its process finds out by asking."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flows.submit import state_of
from infra.errors import PoolshiftError

EVERY = 3.0  # wall-clock seconds between two questions


@contextmanager
def heed_prefect() -> Iterator[None]:
    """End this process as a SIGTERM does when its flow run is being cancelled.

    A run of a deployment is left to the runner or worker that started it: it sends the signal, and a second one would
    cut short what the first has put back.
    """
    from prefect.runtime import deployment, flow_run

    url, run_id = os.environ.get("PREFECT_API_URL"), flow_run.id
    if not url or not run_id or deployment.id:
        yield
        return
    over = threading.Event()

    def follow() -> None:
        while not over.wait(EVERY):
            if _is_cancelling(url, run_id) and not over.is_set():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=follow, name="heed-prefect", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _is_cancelling(url: str, run_id: str) -> bool:
    try:
        return bool(state_of(url, run_id)["type"] == "CANCELLING")
    except PoolshiftError:
        return False  # Prefect is away for a moment: the next look tells
