"""Register the four deployments and serve them from this process: the way in without a worker.

A module of its own: served flows are imported by name, never run as a script, or their pydantic parameters would be
undefined in the child that runs them.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flows import orchestrator
from infra.errors import BadSpec
from infra.model.spec import MigrationSpec, RevalidationSpec
from tasks.progress import say

_RESTORE = "git checkout prefect.yaml"
_ENDS = {signal.SIGINT, signal.SIGTERM}


def serve(spec: MigrationSpec | None, pools: RevalidationSpec | None, *, cron: str | None, limit: int) -> int:
    """Serve until SIGINT or SIGTERM. Uses PREFECT_API_URL, else a server of its own whose UI address is shown.

    `spec` prefills the form of the migration's deployments; `pools` gives the scheduled revalidation something to look
    at and switches its schedule on, at `cron` where one is given.
    """
    signal.signal(signal.SIGTERM, _as_interrupt)
    with orchestrator.prefect_api(shared=True) as url:
        return _serve(deployments(spec, pools, cron), limit, ui=url.removesuffix("/api"))


def _as_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def deployments(spec: MigrationSpec | None, pools: RevalidationSpec | None, cron: str | None) -> list[Any]:
    """The deployments of prefect.yaml, so that both ways of registering show the same names and schedules.

    An installed package has no prefect.yaml beside it: then the same four names, scheduled by `cron` alone.
    """
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
    made = []
    for entry in _declared() or _bare(flows, cron):
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


def _declared() -> list[dict[str, Any]]:
    """The entries of prefect.yaml, which lies beside the packages in a checkout; none where it does not exist."""
    import yaml

    path = Path(__file__).parent.parent / "prefect.yaml"
    try:
        return list(yaml.safe_load(path.read_text())["deployments"])
    except FileNotFoundError:
        return []
    except (OSError, yaml.YAMLError, KeyError, TypeError) as cause:
        raise BadSpec(
            f"{path}", f"cannot be read: {cause}", expected="a list of deployments", remedy=_RESTORE
        ) from cause


def _bare(names: Iterable[str], cron: str | None) -> list[dict[str, Any]]:
    schedules = {"revalidate-pools": [{"cron": cron, "active": False}]} if cron else {}
    if not cron:
        say("no prefect.yaml beside the package: nothing is scheduled; give --cron to revalidate pools regularly")
    return [{"name": name, "schedules": schedules.get(name)} for name in names]


def _schedules(entry: dict[str, Any], cron: str | None, *, on: bool) -> list[Any]:
    from prefect.schedules import Cron

    return [
        Cron(cron or s["cron"], timezone=s.get("timezone"), active=on or s.get("active", True))
        for s in entry.get("schedules") or ()
    ]


def _serve(deployments: list[Any], limit: int, ui: str) -> int:
    """Registered first, and said only then: until Prefect has them, nobody can start one."""
    from prefect.exceptions import TerminationSignal
    from prefect.runner import Runner

    try:
        runner = Runner(limit=limit)
        for deployment in deployments:
            runner.add_deployment(deployment)
        say(f"serving {', '.join(d.name for d in deployments)}; Ctrl-C ends it")
        say(f"Prefect UI: {ui}/deployments")
        say(f"for other shells: export PREFECT_API_URL={ui}/api")
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        asyncio.run(_until_told(runner))
    except (KeyboardInterrupt, asyncio.CancelledError, TerminationSignal):
        say("stopped")
    return 0


async def _until_told(runner: Any) -> None:
    """A signal comes between two steps of the loop: raised within one, or while it is made, it ends in disorder."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    await runner.start()
