"""Register the four deployments and serve them from this process: the way in without a worker.

A module of its own: served flows are imported by name, never run as a script, or their pydantic parameters would be
undefined in the child that runs them.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from flows import orchestrator
from infra.model.spec import MigrationSpec, RevalidationSpec
from tasks.progress import say


def serve(spec: MigrationSpec | None, pools: RevalidationSpec | None, *, cron: str | None, limit: int) -> int:
    """Serve until SIGINT or SIGTERM. Uses PREFECT_API_URL, else a server of its own whose UI address is shown.

    `spec` prefills the form of the migration's deployments; `pools` gives the scheduled revalidation something to look
    at and switches its schedule on, at `cron` where one is given.
    """
    signal.signal(signal.SIGTERM, _as_interrupt)
    with orchestrator.prefect_api() as url:
        say(f"Prefect UI: {url.removesuffix('/api')}")
        return _serve(deployments(spec, pools, cron), limit)


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def deployments(spec: MigrationSpec | None, pools: RevalidationSpec | None, cron: str | None) -> list[Any]:
    """The deployments of prefect.yaml, so that both ways of registering show the same names and schedules."""
    import yaml

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
    declared = yaml.safe_load((Path(__file__).parent.parent / "prefect.yaml").read_text())
    made = []
    for entry in declared["deployments"]:
        name = entry["name"]
        given = pools if name == "revalidate-pools" else spec
        parameters: dict[str, Any] = {"spec": given.model_dump(mode="json")} if given else {}
        if given and name == "revalidate-pools":
            parameters["fail_run"] = True
        made.append(
            flows[name].to_deployment(
                name=name,
                description=entry.get("description"),
                tags=entry.get("tags"),
                schedules=_schedules(entry, cron, on=pools is not None) or None,
                parameters=parameters,
            )
        )
    return made


def _schedules(entry: dict[str, Any], cron: str | None, *, on: bool) -> list[Any]:
    from prefect.schedules import Cron

    return [
        Cron(cron or s["cron"], timezone=s.get("timezone"), active=on or s.get("active", True))
        for s in entry.get("schedules") or ()
    ]


def _serve(deployments: list[Any], limit: int) -> int:
    from prefect import serve as prefect_serve

    say(f"serving {', '.join(d.name for d in deployments)}; Ctrl-C ends it")
    try:
        prefect_serve(*deployments, limit=limit, print_starting_message=False)
    except KeyboardInterrupt:
        say("stopped")
    return 0
