"""Kueue's queues and flavours: where they lead, and our fence on the flavours that lead to the pool that is left.

Kueue knows nothing of a fenced or cordoned node: what it admits again it may pin to the pool that is being left. A
flavour has taints of its own, which Kueue judges as the scheduler judges those of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.errors import Conflict, Forbidden, NotFound
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


def of(locals_: Iterable[Wire], clusters: Iterable[Wire], flavors: Iterable[Wire]) -> Queues:
    """The same from plain objects. A flavour that a queue names and that is not there is left out."""
    specs = {_name(raw): raw.get("spec") or {} for raw in flavors}
    known = {_name(raw): raw for raw in clusters}
    found = {}
    for raw in locals_:
        spec = raw.get("spec") or {}
        cluster = known.get(str(spec.get("clusterQueue", "")))
        queue = Queue(
            namespace=str(raw["metadata"].get("namespace", "")),
            name=_name(raw),
            cluster=str(spec.get("clusterQueue", "")),
            flavors=_flavors(cluster, specs) if cluster else (),
            stopped=_stopped("its queue", spec) or _stopped("its cluster queue", (cluster or {}).get("spec") or {}),
        )
        found[(queue.namespace, queue.name)] = queue
    return found


def _flavors(cluster: Wire, specs: Mapping[str, Wire]) -> tuple[Flavor, ...]:
    spec, status = cluster.get("spec") or {}, cluster.get("status") or {}
    usage = {u.get("name"): u.get("resources") or () for u in status.get("flavorsUsage") or ()}
    lent = bool(spec.get("cohort") or spec.get("cohortName"))
    found = []
    for number, group in enumerate(spec.get("resourceGroups") or ()):
        for flavor in group.get("flavors") or ():
            name = str(flavor.get("name", ""))
            if name not in specs:
                continue
            quota = amounts({str(r["name"]): r.get("nominalQuota") or 0 for r in flavor.get("resources") or ()})
            used = amounts({str(r["name"]): r.get("total") or 0 for r in usage.get(name, ())})
            found.append(
                Flavor(
                    name=name,
                    labels=dict(specs[name].get("nodeLabels") or {}),
                    taints=taints(specs[name].get("nodeTaints") or ()),
                    tolerations=tolerations(specs[name].get("tolerations") or ()),
                    group=number,
                    covers=frozenset(str(r) for r in group.get("coveredResources") or ()),
                    free={} if lent else {k: v - used.get(k, 0) for k, v in quota.items()},
                )
            )
    return tuple(found)


def _stopped(whose: str, spec: Wire) -> str:
    policy = str(spec.get("stopPolicy") or "None")
    return "" if policy == "None" else f"{whose} admits nothing (stopPolicy {policy})"


def _name(raw: Wire) -> str:
    return str(raw["metadata"]["name"])


def hold(kube: Kube, name: str, run: str) -> bool:
    """Keep Kueue from admitting to a flavour: our taint among its own. False: it was there already.

    Raises NotFound, Forbidden; Conflict when others kept changing it.
    """
    path = f"{_path(kube)}/{name}"
    for _ in range(8):
        raw = kube.request("GET", path)
        was = (raw.get("spec") or {}).get("nodeTaints") or []
        if any(t.get("key") == FENCE_TAINT for t in was):
            return False
        try:
            _write(kube, path, raw, [*was, {"key": FENCE_TAINT, "value": run, "effect": "NoSchedule"}])
            return True
        except Conflict:
            continue
    raise _kept_changing(name)


def release(kube: Kube, run: str) -> tuple[str, ...]:
    """Take this run's taint off all flavours. Idempotent. Returns their names. Raises Conflict."""
    path = _path(kube)
    if not path:
        return ()
    try:
        raws = list(kube.list(path))
    except (NotFound, Forbidden):
        return ()  # not served, or not for us: then we have not held one either
    return tuple(sorted(_name(raw) for raw in raws if _let_go(kube, path, raw, run)))


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
