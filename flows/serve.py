"""Register the four deployments and serve them from this process: the way in without a worker.

A module of its own: served flows are imported by name, never run as a script, or their pydantic parameters would be
undefined in the child that runs them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from flows import orchestrator
from tasks.progress import say


def serve(*, kubeconfig: str | None, limit: int) -> int:
    """Serve until SIGINT or SIGTERM. Uses PREFECT_API_URL, else a server of its own whose UI address is shown."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    with orchestrator.prefect_api() as url:
        say(f"Prefect UI: {url.removesuffix('/api')}")
        return _serve(_deployments(kubeconfig), limit)


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _deployments(kubeconfig: str | None) -> list[Any]:
    """The deployments of prefect.yaml, so that both ways of registering show the same names and schedules."""
    import yaml
    from prefect.schedules import Cron

    from flows.migrate import migrate
    from flows.plan import plan
    from flows.revalidate import revalidate
    from flows.rollback import rollback

    flows: dict[str, Any] = {
        "migrate-node-pool": migrate,
        "plan-migration": plan,
        "revalidate-pools": revalidate,
        "rollback-migration": rollback,
    }
    if kubeconfig:
        os.environ["KUBECONFIG"] = str(Path(kubeconfig).resolve())
    declared = yaml.safe_load((Path(__file__).parent.parent / "prefect.yaml").read_text())
    made = []
    for entry in declared["deployments"]:
        schedules = [
            Cron(
                s["cron"],
                timezone=s.get("timezone"),
                active=s.get("active", True),
                parameters=s.get("parameters") or {},
            )
            for s in entry.get("schedules") or ()
        ]
        made.append(
            flows[entry["name"]].to_deployment(
                name=entry["name"],
                description=entry.get("description"),
                tags=entry.get("tags"),
                schedules=schedules or None,
                parameters=entry.get("parameters"),
            )
        )
    return made


def _serve(deployments: list[Any], limit: int) -> int:
    from prefect import serve as prefect_serve

    say(f"serving {', '.join(d.name for d in deployments)}; Ctrl-C ends it")
    try:
        prefect_serve(*deployments, limit=limit, print_starting_message=False)
    except KeyboardInterrupt:
        say("stopped")
    return 0
