"""Gangs that a run has begun to move and not finished: which they are, and how they are put back as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from infra.errors import Conflict, PoolshiftError
from infra.kube import flavors, owners, switches, wire
from infra.kube.api import Kube
from infra.kube.refusals import ApiError
from infra.model.gangs import SURGE_KIND, GangKind, Means
from tasks.gang_templates import carry_over, home_of, is_template_refused
from tasks.rules.gang_notes import members, root_of
from tasks.rules.rehoming import apply, undone
from tasks.rules.wording import and_more

Raw = dict[str, Any]

MOVED = "moved"  # stage: it runs on the target, and its template is not as its owner wrote it
_LEAVING = timedelta(minutes=10)  # how long pods of a gang that is put back may take to go, on the run's clock
_LOOK_SECONDS = 2.0


def start_of(row: GangKind, raw: Mapping[str, Any], noted: Mapping[str, Any]) -> Raw | None:
    """The switch back to what it was; None where its owner has set it since, which is theirs."""
    return switches.start_patch(row, noted.get("before")) if row.is_stopped(raw) else None


def joined(one: Raw | None, other: Raw | None) -> Raw | None:
    """Two patches of different fields of spec in one request."""
    if one is None or other is None:
        return one or other
    return {"spec": {**one["spec"], **other["spec"]}}


def unfinished(kube: Kube, run: str) -> Sequence[tuple[GangKind, Raw]]:
    """Gangs that this run has marked and not finished. Raises Forbidden where we may not see all."""
    return [(row, raw) for row, raw in switches.marked(kube, run) if _noted(raw, run).get("stage") != MOVED]


def restore(kube: Kube, run: str, *, started: bool = True) -> tuple[str, ...]:
    """Start every gang that this run has stopped, and take our marks off. Idempotent. Returns their names.

    One whose template we have changed gets it back before it starts: if it does not run yet, it is stopped once more
    for that. One that runs on the target stays there and keeps its mark (see `forget_moved`).
    With `started` False those that run again already keep their mark, so that the next try still looks after them.

    All are tried; then the first error is raised, with what else stays stopped: Conflict when pods of a gang do not go,
    or others keep changing it.
    """
    from tasks.surge import lower  # which builds on this module

    names: list[str] = []
    stopped: list[tuple[GangKind, Raw]] = []
    failed: dict[str, PoolshiftError] = {}
    try:  # first Kueue's flavours: what is started again below may have to go back to where it was
        names += [f"resourceflavor {name}" for name in flavors.release(kube, run)]
    except PoolshiftError as error:
        failed["Kueue's flavours, which stay closed"] = error

    def first(row: GangKind, raw: Raw) -> None:
        if row is SURGE_KIND:
            lower(kube, raw, _noted(raw, run))
            names.append(_name(row, raw))
        elif started or _noted(raw, run).get("stage") not in ("started", MOVED):
            found = _stopped_again(kube, row, raw, run)
            stopped.extend([found] if found else [])

    def then(row: GangKind, raw: Raw) -> None:
        if home_of(_noted(raw, run)):
            _await_gone(kube, row, raw, run)
        names.append(_let_go(kube, row, raw, run))

    for work, each in ((first, switches.marked(kube, run)), (then, stopped)):
        try:
            for row, raw in each:
                try:
                    work(row, raw)
                except PoolshiftError as error:
                    failed[_name(row, raw)] = error
        except PoolshiftError as error:  # of the listing, after all that it could see
            failed["gangs whose marks cannot be seen"] = error
    if failed:
        raise _not_all(failed)
    return tuple(sorted(names))


def _not_all(failed: Mapping[str, PoolshiftError]) -> PoolshiftError:
    """The first error, which names the others too."""
    (_, error), *others = failed.items()
    if not others:
        return error
    more = and_more([name for name, _ in others], 5)
    found = type(error)(
        error.object, f"{error.observed}; not put back either: {more}", expected=error.expected, remedy=error.remedy
    )
    found.status = error.status
    return found


def forget_moved(kube: Kube, run: str) -> tuple[str, ...]:
    """The run has ended: what runs on the target keeps the template that we gave it, and we forget the old one.

    Kueue's flavours are open again. Returns for each what its owner should know. Idempotent.
    Raises Forbidden or Unmeasured, before anything is forgotten, where we cannot see all that it has marked.
    """
    marked = list(switches.marked(kube, run))
    words = [
        f"resourceflavor {name} is open again: where its nodes are gone, take it out of its cluster queues, "
        "or Kueue admits to it what then never runs"
        for name in flavors.release(kube, run)
    ]
    for row, raw in marked:
        noted = _noted(raw, run)
        if noted.get("stage") != MOVED:
            continue
        patch = json.dumps(apply(raw, undone(home_of(noted)))[0], separators=(",", ":"))
        meta = raw["metadata"]
        switches.forget(kube, row, raw)
        words.append(
            f"{_name(row, raw)} keeps the template that it got for the target; for another pool stop it, then: "
            f"kubectl -n {meta['namespace']} patch {row.plural}.{row.group} {meta['name']} --type merge -p '{patch}'"
        )
    return tuple(sorted(words))


def _stopped_again(kube: Kube, row: GangKind, raw: Raw, run: str) -> tuple[GangKind, Raw] | None:
    """The gang, stopped once more where its changed template has to go back; None where it runs and so stays."""
    for _ in range(8):
        noted = _noted(raw, run)
        stage = noted.get("stage")
        if stage not in ("started", MOVED) or not home_of(noted) or row.is_stopped(raw):
            return row, raw
        if stage == MOVED or owners.workload(raw).finished or _ranks_up(kube, noted) >= int(noted["ranks"]):
            if stage == MOVED:
                return None
            noted, patch = {**noted, "stage": MOVED}, None
        else:
            noted, patch = {**noted, "stage": "stopped", "before": row.read_switch(raw)}, switches.stop_patch(row)
        try:
            raw = {**switches.note(kube, row, raw, noted, patch), "apiVersion": raw["apiVersion"], "kind": raw["kind"]}
        except Conflict:
            found = _read(kube, row, raw)
            if found is None:
                return None
            raw = found
    raise _kept_changing(row, raw)


def _await_gone(kube: Kube, row: GangKind, raw: Raw, run: str) -> None:
    """Its pods must be gone before its template may change."""
    noted = _noted(raw, run)
    end = kube.clock.now() + _LEAVING
    while left := _members(kube, noted):
        if kube.clock.now() > end:
            raise Conflict(
                _name(row, raw),
                f"{len(left)} of its pods are still there after {_LEAVING}: {and_more([p.name for p in left], 3)}",
                expected="none, so that its template can be put back before it starts on the source",
                remedy="see why they do not end (kubectl describe pod), then run the same command again",
            )
        kube.clock.sleep(_LOOK_SECONDS)


def _let_go(kube: Kube, row: GangKind, raw: Raw, run: str) -> str:
    """Take our marks off, and in the same request start what we have stopped and its owner has not touched since.

    Returns its name, with what its owner should know.
    """
    for _ in range(8):
        noted = _noted(raw, run)
        if not noted:
            return _name(row, raw)
        stopped = noted.get("stage") == "stopped"
        if stopped and row.means is Means.COMMAND:
            switches.command(kube, raw, "ResumeJob", run)
        changes = undone(home_of(noted))
        home, foreign = apply(raw, changes) if row.is_stopped(raw) else (None, changes)
        try:
            if row.is_stopped(raw):
                carry_over(kube, row, raw, changes)
            start = start_of(row, raw, noted) if stopped else None
            switches.forget(kube, row, raw, joined(start, home), unchanged=True)
        except Conflict:
            pass
        except ApiError as error:
            if home is None or not is_template_refused(error) or not (raw.get("status") or {}).get("startTime"):
                raise
            switches.forget_start(kube, row, raw)
        else:
            theirs = f"was changed meanwhile and stays: {and_more([c.place for c in foreign], 3)}" if foreign else ""
            said = " and ".join(text for text in ("put back" if home else "", theirs) if text)
            return _name(row, raw) + (f" (its template: {said})" if said else "")
        found = _read(kube, row, raw)
        if found is None:
            return _name(row, raw)
        raw = found
    raise _kept_changing(row, raw)


def _read(kube: Kube, row: GangKind, raw: Raw) -> Raw | None:
    found = switches.read(kube, row, raw["metadata"]["namespace"], raw["metadata"]["name"])
    return found and {**found, "apiVersion": raw["apiVersion"], "kind": raw["kind"]}


def _kept_changing(row: GangKind, raw: Raw) -> Conflict:
    return Conflict(
        _name(row, raw),
        "others kept changing it while it was to be started again",
        expected="our marks taken off",
        remedy="run the same command again",
    )


def _members(kube: Kube, noted: Mapping[str, Any]) -> list[Any]:
    _, namespace, _ = root_of(noted)
    return members((wire.pod(p) for p in kube.list(f"/api/v1/namespaces/{namespace}/pods")), noted)


def _ranks_up(kube: Kube, noted: Mapping[str, Any]) -> int:
    return sum(p.phase == "Running" and not p.terminating for p in _members(kube, noted))


def _noted(raw: Mapping[str, Any], run: str) -> Raw:
    return switches.memory(raw, run) or {}


def _name(row: GangKind, raw: Mapping[str, Any]) -> str:
    return f"{row.kind.lower()} {raw['metadata']['namespace']}/{raw['metadata']['name']}"
