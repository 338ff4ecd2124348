"""A move in a process of its own, to be killed: prints each line of progress and `wave N` after each wave."""

from __future__ import annotations

import sys

from kubernetes import client as k8s

from infra.clock import ScaledClock, parse_time
from infra.kube.api import Kube
from infra.model.spec import Drain
from tasks.drain import move


def main(url: str, origin: str, started: str) -> None:
    configuration = k8s.Configuration()
    configuration.host, configuration.retries, configuration.connection_pool_maxsize = url, False, 40
    clock = ScaledClock(origin=parse_time(origin), started=float(started), rate=60.0)
    kube = Kube(client=k8s.ApiClient(configuration), server=url, context="", namespace="poolshift", clock=clock)
    move(
        kube,
        Drain.model_validate({"waves": {"size": 1}}),
        [f"old-{i}" for i in range(3)],
        [f"new-{i}" for i in range(3)],
        "r1",
        clock,
        lambda line: print(line, flush=True),
        on_wave=lambda wave: print(f"wave {wave.number} done", flush=True),
    )
    print("moved", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
