"""Kueue's queues and flavours: where they lead, and our fence on the flavours that lead to the pool that is left.

Kueue knows nothing of a fenced or cordoned node: what it admits again it may pin to the pool that is being left. A
flavour has taints of its own, which Kueue judges as the scheduler judges those of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.errors import Conflict, NotFound, PoolshiftError
from infra.kube.api import MERGE_PATCH, Kube
from infra.kube.switches import groups
from infra.kube.wire import Wire, amounts, taints, tolerations
from infra.model.queues import Flavor, Queue
from infra.model.record import FENCE_TAINT

GROUP = "kueue.x-k8s.io"
Queues = Mapping[tuple[str, str], Queue]


def read(kube: Kube, version: str) -> Queues:
    """Queues by (namespace, name). Raises Forbidden or NotFound: a queue of which this is not known leads nowhere."""
    base = f"/apis/{GROUP}/{version}"
    return of(*(list(kube.list(f"{base}/{kind}")) for kind in ("localqueues", "clusterqueues", "resourceflavors")))


def read_served(kube: Kube) -> Queues:
    """The same; none where Kueue is not served."""
    versions = groups(kube).get(GROUP)
    return read(kube, versions[0]) if versions else {}


def of(locals_: Iterable[Wire], clusters: Iterable[Wire], flavors: Iterable[Wire]) -> Queues:
    """The same from plain objects. A flavour that a queue names and that is not there is left out."""
    specs = {_name(raw): raw.get("spec") or {} for raw in flavors}
    known = {_name(raw): raw for raw in clusters}
    found = {}
    for raw in locals_:
        of_cluster = str((raw.get("spec") or {}).get("clusterQueue", ""))
        cluster = known.get(of_cluster)
        queue = Queue(
            namespace=str(raw["metadata"].get("namespace", "")),
            name=_name(raw),
            cluster=of_cluster,
            flavors=_flavors(cluster, specs) if cluster else (),
            stopped=_stopped("its queue", raw) or _stopped("its cluster queue", cluster or {}),
            missing=_missing(cluster, specs) if cluster else (f"clusterqueue {of_cluster}",),
        )
        found[(queue.namespace, queue.name)] = queue
    return found


def _flavors(cluster: Wire, specs: Mapping[str, Wire]) -> tuple[Flavor, ...]:
    spec, status = cluster.get("spec") or {}, cluster.get("status") or {}
    # Reserved is what counts against the quota: of what is admitted, and of what still waits for other checks.
    taken = [
        {u.get("name"): u.get("resources") or () for u in status.get(field) or ()}
        for field in ("flavorsReservation", "flavorsUsage")
    ]
    lent = bool(spec.get("cohort") or spec.get("cohortName"))
    found = []
    for number, group in enumerate(spec.get("resourceGroups") or ()):
        for flavor in group.get("flavors") or ():
            name = str(flavor.get("name", ""))
            if name not in specs:
                continue
            quota = amounts({str(r["name"]): r.get("nominalQuota") or 0 for r in flavor.get("resources") or ()})
            used = [amounts({str(r["name"]): r.get("total") or 0 for r in each.get(name, ())}) for each in taken]
            found.append(
                Flavor(
                    name=name,
                    labels=dict(specs[name].get("nodeLabels") or {}),
                    taints=taints(specs[name].get("nodeTaints") or ()),
                    tolerations=tolerations(specs[name].get("tolerations") or ()),
                    group=number,
                    covers=frozenset(str(r) for r in group.get("coveredResources") or ()),
                    free={} if lent else {k: v - max(u.get(k, 0) for u in used) for k, v in quota.items()},
                )
            )
    return tuple(found)


def _missing(cluster: Wire, specs: Mapping[str, Wire]) -> tuple[str, ...]:
    groups = (cluster.get("spec") or {}).get("resourceGroups") or ()
    named = {str(f.get("name", "")) for group in groups for f in group.get("flavors") or ()}
    return tuple(f"resourceflavor {name}" for name in sorted(named - specs.keys()))


def _stopped(whose: str, raw: Wire) -> str:
    policy = str((raw.get("spec") or {}).get("stopPolicy") or "None")
    if policy != "None":
        return f"{whose} admits nothing (stopPolicy {policy})"
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Active" and condition.get("status") != "True":
            why = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
            return f"{whose} admits nothing, it is not active" + (f" ({why})" if why else "")
    return ""


def _name(raw: Wire) -> str:
    return str(raw["metadata"]["name"])


def hold(kube: Kube, name: str, run: str) -> bool:
    """Keep Kueue from admitting to a flavour: our taint among its own. False: it was there already, or it is gone.

    Raises Forbidden; Conflict when another run holds it, which would open it at its own end (Kueue takes no second
    taint of that key), or others kept changing it.
    """
    path = f"{_path(kube)}/{name}"
    for _ in range(8):
        raw = kube.get(path)
        if raw is None:
            return False
        was = (raw.get("spec") or {}).get("nodeTaints") or []
        holder = next((t.get("value") for t in was if t.get("key") == FENCE_TAINT), None)
        if holder == run:
            return False
        if holder is not None:
            raise Conflict(
                f"resourceflavor {name}",
                f"is held by run {holder}, and is open again when that one ends",
                expected="one run at a time to leave the nodes of a flavour",
                remedy=f"wait for it; or, if it will not go on: poolshift rollback {holder}",
            )
        try:
            _write(kube, path, raw, [*was, {"key": FENCE_TAINT, "value": run, "effect": "NoSchedule"}])
            return True
        except Conflict:
            continue
    raise _kept_changing(name)


def release(kube: Kube, run: str) -> tuple[str, ...]:
    """Take this run's taint off all flavours. Idempotent. Returns their names.

    All are tried; then the first error is raised. Raises Forbidden, where Kueue is served and we may not see whether
    one is held; Conflict when others kept changing one.
    """
    path = _path(kube)
    if not path:
        return ()
    try:
        raws = list(kube.list(path))
    except NotFound:
        return ()  # the group is served without them
    freed: list[str] = []
    failed: list[PoolshiftError] = []
    for raw in raws:
        try:
            if _let_go(kube, path, raw, run):
                freed.append(_name(raw))
        except PoolshiftError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return tuple(sorted(freed))


def _let_go(kube: Kube, base: str, raw: Wire, run: str) -> bool:
    path = f"{base}/{_name(raw)}"
    for _ in range(8):
        was = (raw.get("spec") or {}).get("nodeTaints") or []
        kept = [t for t in was if (t.get("key"), t.get("value")) != (FENCE_TAINT, run)]
        if kept == was:
            return False
        try:
            _write(kube, path, raw, kept)
            return True
        except Conflict:
            found = kube.get(path)
            if found is None:
                return False
            raw = found
    raise _kept_changing(_name(raw))


def _write(kube: Kube, path: str, raw: Wire, nodes: list[Any]) -> None:
    meta = {"resourceVersion": raw["metadata"].get("resourceVersion")}
    body = {"metadata": meta, "spec": {"nodeTaints": nodes or None}}
    kube.request("PATCH", path, body=body, content_type=MERGE_PATCH)


def _path(kube: Kube) -> str:
    versions = groups(kube).get(GROUP)
    return f"/apis/{GROUP}/{versions[0]}/resourceflavors" if versions else ""


def _kept_changing(name: str) -> Conflict:
    return Conflict(
        f"resourceflavor {name}",
        "others kept changing it while its taints were to be changed",
        remedy="run the same command again",
    )
