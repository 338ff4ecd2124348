"""How a flow run ends: by an error whose commands can be typed as they are, or because it is cancelled in Prefect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flows.submit import state_of
from infra.errors import PoolshiftError
from tasks.progress import complete

EVERY = 3.0  # wall-clock seconds between two questions


@contextmanager
def in_full() -> Iterator[None]:
    """An error leaves with the cluster and the spec in its commands: Prefect shows it to people who know neither."""
    try:
        yield
    except PoolshiftError as error:
        error.observed, error.remedy = complete(error.observed), complete(error.remedy)
        error.args = (error.wording(),)
        raise


@contextmanager
def heed_prefect() -> Iterator[None]:
    """End this process as a SIGTERM does when its flow run is being cancelled while no runner watches over it.

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
