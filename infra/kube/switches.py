"""The objects that start and stop gangs, with our memory on them: who stopped them, and what they were before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from infra.errors import Conflict, Forbidden, NotFound, PoolshiftError, Unmeasured
from infra.kube.api import MERGE_PATCH, Kube
from infra.model.gangs import GANG_KINDS, SURGE_KIND, GangKind, Means
from infra.model.record import PRIOR, RUN

Raw = dict[str, Any]
_COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands"


def read(kube: Kube, row: GangKind, namespace: str, name: str) -> Raw | None:
    """The object, or None where it is gone."""
    return kube.get(row.path(namespace, name))


def memory(raw: Mapping[str, Any], run: str) -> Raw | None:
    """What this run has noted on the object, or None."""
    text = ((raw.get("metadata") or {}).get("annotations") or {}).get(PRIOR)
    try:
        noted = json.loads(text) if text else None
    except ValueError:
        return None
    return noted if isinstance(noted, dict) and noted.get("run") == run else None


def note(kube: Kube, row: GangKind, raw: Mapping[str, Any], noted: Mapping[str, Any], patch: Raw | None = None) -> Raw:
    """Write our memory, and in the same request the change it speaks of. Raises Conflict when `raw` is stale."""
    meta = raw["metadata"]
    body = {**(patch or {})}
    body["metadata"] = {
        "resourceVersion": meta.get("resourceVersion"),
        "labels": {RUN: noted["run"]},
        "annotations": {PRIOR: json.dumps(noted, sort_keys=True, separators=(",", ":"))},
    }
    return kube.request("PATCH", row.path(meta["namespace"], meta["name"]), body=body, content_type=MERGE_PATCH)


def forget(
    kube: Kube, row: GangKind, raw: Mapping[str, Any], patch: Raw | None = None, *, unchanged: bool = False
) -> None:
    """Take our marks off, with a last change in the same request.

    With `unchanged` only from the object as it was read; raises Conflict when others have changed it since.
    """
    meta = raw["metadata"]
    marks: Raw = {"labels": {RUN: None}, "annotations": {PRIOR: None}}
    if unchanged:
        marks["resourceVersion"] = meta.get("resourceVersion")
    body = {**(patch or {}), "metadata": marks}
    try:
        kube.request(
            "PATCH", row.path(meta["namespace"], meta["name"]), body=body, content_type=MERGE_PATCH, retry=True
        )
    except NotFound:
        return


def forget_start(kube: Kube, row: GangKind, raw: Mapping[str, Any]) -> None:
    """Take the start time off a suspended workload's status. It is set again when it starts."""
    meta = raw["metadata"]
    path = f"{row.path(meta['namespace'], meta['name'])}/status"
    kube.request("PATCH", path, body={"status": {"startTime": None}}, content_type=MERGE_PATCH, retry=True)


def annotate(kube: Kube, row: GangKind, namespace: str, name: str, key: str, value: str) -> None:
    """Set one annotation of the workload."""
    body = {"metadata": {"annotations": {key: value}}}
    kube.request("PATCH", row.path(namespace, name), body=body, content_type=MERGE_PATCH, retry=True)


def stop_patch(row: GangKind) -> Raw | None:
    """The merge patch that stops it; None where a Command does."""
    match row.means:
        case Means.SUSPEND:
            return row.switch(True)
        case Means.ACTIVE:
            return row.switch(False)
        case Means.SCALE:
            return row.switch(0)
        case Means.COMMAND:
            return None


def start_patch(row: GangKind, before: object) -> Raw | None:
    """The merge patch that puts the switch back to what it was. Unset is written as the API's default of running."""
    match row.means:
        case Means.SUSPEND:
            return row.switch(bool(before))
        case Means.ACTIVE:
            return row.switch(before is not False)
        case Means.SCALE:
            return row.switch(1 if before is None else before)
        case Means.COMMAND:
            return None


def command(kube: Kube, raw: Mapping[str, Any], action: str, run: str) -> None:
    """Volcano's way: a Command that names its target. The same command of this run already there is success."""
    meta = raw["metadata"]
    body = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": f"{meta['name']}-{action.lower()}-{run}", "namespace": meta["namespace"]},
        "action": action,
        "target": {
            "apiVersion": raw.get("apiVersion", "batch.volcano.sh/v1alpha1"),
            "kind": "Job",
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
        },
    }
    try:
        kube.request("POST", _COMMANDS.format(meta["namespace"]), body=body)
    except Conflict:
        return


def served(groups: Mapping[str, list[str]], row: GangKind) -> GangKind | None:
    """The row in a version that the cluster serves: ours where it is there, else the preferred one; None without."""
    versions = groups.get(row.group)
    if not versions:
        return None
    return row if row.version in versions else replace(row, version=versions[0])


def groups(kube: Kube) -> dict[str, list[str]]:
    """API groups with their versions, the preferred one first. One request."""
    found = {}
    for group in kube.request("GET", "/apis").get("groups") or ():
        first = (group.get("preferredVersion") or {}).get("version")
        every = [str(v.get("version")) for v in group.get("versions") or ()]
        found[str(group.get("name"))] = sorted(every, key=lambda v: v != first)
    return found


def marked(kube: Kube, run: str) -> Iterator[tuple[GangKind, Raw]]:
    """Every switch that this run has its mark on. Kinds that the cluster does not serve are not asked for.

    Raises once all others are told: Forbidden where a kind is served that we may not list, which may bear our mark;
    Unmeasured where a mark cannot be read, since it may be of one that we have stopped.
    """
    known = groups(kube)
    hidden: PoolshiftError | None = None
    for each in (*GANG_KINDS, SURGE_KIND):
        row = served(known, each)
        if row is None:
            continue
        try:
            found = list(kube.list(row.path(), {"labelSelector": f"{RUN}={run}"}))
        except NotFound:
            continue  # the group is served without this kind
        except Forbidden as error:
            hidden = hidden or error
            continue
        for raw in found:
            if memory(raw, run) is not None:
                yield row, {**raw, "apiVersion": f"{row.group}/{row.version}", "kind": row.kind}
            elif text := (raw["metadata"].get("annotations") or {}).get(PRIOR):
                hidden = hidden or _unreadable(row, raw, text)
    if hidden:
        raise hidden


def _unreadable(row: GangKind, raw: Raw, text: str) -> Unmeasured:
    meta = raw["metadata"]
    what = f"{row.plural}.{row.group} {meta['name']}"
    return Unmeasured(
        f"{row.kind.lower()} {meta['namespace']}/{meta['name']}",
        f"annotation {PRIOR} is unreadable: {text[:80]!r}: whether we have stopped it is unknown",
        expected="JSON that poolshift wrote",
        remedy=f"start it if it is stopped; then: kubectl -n {meta['namespace']} annotate {what} {PRIOR}-; "
        f"kubectl -n {meta['namespace']} label {what} {RUN}-",
    )
