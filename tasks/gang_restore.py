"""Gangs that a run has begun to move and not finished: which they are, and how they are put back as they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra.errors import Conflict
from infra.kube import switches
from infra.kube.api import Kube
from infra.model.gangs import SURGE_KIND, GangKind, Means

Raw = dict[str, Any]


def start_of(row: GangKind, raw: Mapping[str, Any], noted: Mapping[str, Any]) -> Raw | None:
    """The switch back to what it was; None where its owner has set it since, which is theirs."""
    return switches.start_patch(row, noted.get("before")) if row.is_stopped(raw) else None


def unfinished(kube: Kube, run: str) -> Sequence[tuple[GangKind, Raw]]:
    """Gangs that this run has marked and not finished."""
    return list(switches.marked(kube, run))


def restore(kube: Kube, run: str, *, started: bool = True) -> tuple[str, ...]:
    """Start every gang that this run has stopped, and take our marks off. Idempotent. Returns their names.

    With `started` False those that run again already keep their mark, so that the next try still looks after them.
    """
    from tasks.surge import lower  # which builds on this module

    names = []
    for row, raw in switches.marked(kube, run):
        noted = switches.memory(raw, run) or {}
        if row is SURGE_KIND:
            lower(kube, raw, noted)
            names.append(f"deployment {raw['metadata']['namespace']}/{raw['metadata']['name']}")
            continue
        if noted.get("stage") == "started" and not started:
            continue
        _let_go(kube, row, raw, run)
        names.append(f"{row.kind.lower()} {raw['metadata']['namespace']}/{raw['metadata']['name']}")
    return tuple(sorted(names))


def _let_go(kube: Kube, row: GangKind, raw: Raw, run: str) -> None:
    """Take our marks off, and in the same request start what we have stopped and its owner has not touched since."""
    meta = raw["metadata"]
    for _ in range(8):
        noted = switches.memory(raw, run)
        if noted is None:
            return
        stopped = noted.get("stage") == "stopped"
        if stopped and row.means is Means.COMMAND:
            switches.command(kube, raw, "ResumeJob", run)
        try:
            return switches.forget(kube, row, raw, start_of(row, raw, noted) if stopped else None, unchanged=True)
        except Conflict:
            found = switches.read(kube, row, meta["namespace"], meta["name"])
            if found is None:
                return
            raw = {**found, "apiVersion": raw["apiVersion"], "kind": raw["kind"]}
    raise Conflict(
        f"{row.kind.lower()} {meta['namespace']}/{meta['name']}",
        "others kept changing it while it was to be started again",
        expected="our marks taken off",
        remedy="run the same command again",
    )
