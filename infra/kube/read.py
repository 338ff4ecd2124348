"""Snapshots: of a live cluster, page by page, and of a kubectl dump, item by item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from infra.errors import BadFile, BadSpec, Forbidden, NotFound
from infra.kube import flavors
from infra.kube.api import Kube
from infra.kube.dump import MAKE, items
from infra.kube.owners import volumes, workload
from infra.kube.switches import groups, served
from infra.kube.wire import Shared, Wire, budget, moment, node, pod
from infra.model.gangs import GANG_KINDS, gang_kind
from infra.model.workload import Budget, Pod, Snapshot, Workload

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
# Owners that every cluster serves. ReplicaSets scaled to 0 are old revisions: they are dropped while reading.
OWNERS: Mapping[str, str] = {
    "ReplicaSet": "/apis/apps/v1/replicasets",
    "Deployment": "/apis/apps/v1/deployments",
    "StatefulSet": "/apis/apps/v1/statefulsets",
    "DaemonSet": "/apis/apps/v1/daemonsets",
    "Job": "/apis/batch/v1/jobs",
}
_ODD = (AttributeError, TypeError, ValueError, KeyError)  # what reading an object raises that is not as the API's
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"


def snapshot(
    kube: Kube,
    node_selector: Mapping[str, str] | None = None,
    *,
    owners: bool = True,
    storage: bool = True,
    live: tuple[Iterable[Pod], Iterable[Budget]] | None = None,
) -> Snapshot:
    """Read what moving needs. Pods and budgets of all namespaces, since a budget counts pods on every node.

    Args:
        kube: the cluster.
        node_selector: read only the nodes with these labels (all pods are read in any case).
        owners: read the pods' owners, and of custom kinds those that an owner reference names.
        storage: read claims and volumes.
        live: pods and budgets that a view has already, so that they are not listed again.

    Raises:
        Forbidden, Unreachable: nodes, pods or budgets cannot be read. An owner or volume list that is refused is
            noted in `unread` and is unknown to the rules.

    """
    reader = _Reader(kube)
    labels = ",".join(f"{k}={v}" for k, v in (node_selector or {}).items())
    shared = reader.shared
    nodes = tuple(node(n, shared) for n in kube.list(NODES, {"labelSelector": labels or None}))
    pods = tuple(live[0] if live else _typed(kube.list(PODS), pod, shared))
    budgets = tuple(live[1] if live else _typed(kube.list(BUDGETS), budget, shared))
    workloads: list[Workload] = []
    if owners:
        for kind, path in OWNERS.items():
            workloads += reader.owners(kind, path)
        workloads += reader.custom(pods, workloads)
    found = (
        volumes(reader.raw("PersistentVolumeClaim", CLAIMS), reader.raw("PersistentVolume", VOLUMES)) if storage else ()
    )
    return Snapshot(
        nodes=nodes,
        pods=pods,
        budgets=budgets,
        workloads=tuple(workloads),
        volumes=found,
        queues=reader.queues,
        kinds=frozenset({"Node", "Pod", "PodDisruptionBudget"} | reader.kinds),
        unread=reader.unread,
        taken=kube.clock.now(),
    )


class _Reader:
    """Lists that may be refused: what was read, what was not and why."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.shared = Shared()
        self.kinds: set[str] = set()
        self.unread: dict[str, str] = {}
        self.queues: flavors.Queues = {}

    def raw(self, kind: str, path: str) -> list[Wire]:
        """All objects of a kind; none where the list was refused."""
        try:
            found: list[Wire] = list(self.kube.list(path))
        except (Forbidden, NotFound) as error:
            self.unread[kind] = error.observed
            return []
        self.kinds.add(kind)
        return found

    def owners(self, kind: str, path: str) -> list[Workload]:
        """Owners; the items of a list carry neither kind nor apiVersion, so both are put back."""
        version = path.split("/")[2] + "/" + path.split("/")[3]
        return [
            workload({**raw, "kind": kind, "apiVersion": version}, self.shared)
            for raw in self.raw(kind, path)
            if kind != "ReplicaSet" or (raw.get("spec") or {}).get("replicas") != 0
        ]

    def custom(self, pods: Iterable[Pod], known: Iterable[Workload]) -> list[Workload]:
        """Owners of custom kinds: of pods, then of what was found, up to the top. Unknown kinds stay unknown."""
        found: list[Workload] = []
        wanted = {(o.api_version, o.kind) for p in pods if (o := p.owner)}
        wanted |= {(w.owner.api_version, w.owner.kind) for w in known if w.owner}
        asked: set[tuple[str, str]] = set()
        while fresh := {w for w in wanted - asked if w[1] not in OWNERS or w[0].startswith("batch.volcano")}:
            for api_version, kind in sorted(fresh):
                asked.add((api_version, kind))
                row = gang_kind(api_version, kind)
                if row is not None:
                    found += self.owners(kind, f"/apis/{api_version}/{row.plural}")
            wanted |= {(w.owner.api_version, w.owner.kind) for w in found if w.owner}
        if any("kueue.x-k8s.io/queue-name" in w.labels for w in (*known, *found)):
            row = served(groups(self.kube), next(k for k in GANG_KINDS if k.kind == "Workload"))
            if row is not None:
                found += self.owners("Workload", row.path())
                self._read_queues(row.version)
        return found

    def _read_queues(self, version: str) -> None:
        try:
            self.queues = flavors.read(self.kube, version)
        except (Forbidden, NotFound) as error:
            self.unread["ResourceFlavor"] = error.observed
            return
        self.kinds.add("ResourceFlavor")


def _typed(raw: Iterable[Wire], convert: Callable[[Wire, Shared], Any], shared: Shared) -> Iterator[Any]:
    for item in raw:
        yield convert(item, shared)


def read_dump(path: Path) -> Snapshot:
    """A dump as `kubectl get nodes,pods,pdb,… -A -o json` prints it (a List, several in a row, or YAML).

    Memory is that of the model, not of the file. `taken` is the latest time that the objects mention.

    Raises:
        BadSpec: the file cannot be read, is no JSON or YAML, holds no Kubernetes object, or one that cannot be read.

    """
    return of_objects(items(path), f"file {path}")


def of_objects(objects: Iterable[Wire], source: str = "objects") -> Snapshot:
    """A snapshot of plain objects. Kinds that moving does not need are skipped. Raises BadSpec when there are none."""
    shared = Shared()
    nodes, pods, budgets, workloads = [], [], [], []
    claims: list[Wire] = []
    persistent: list[Wire] = []
    kueue: dict[str, list[Wire]] = {"LocalQueue": [], "ClusterQueue": [], "ResourceFlavor": []}
    kinds: set[str] = set()
    latest: datetime | None = None
    for raw in objects:
        kind = str(raw.get("kind", ""))
        kinds.add(kind)
        try:
            if kind == "Pod":
                pods.append(pod(raw, shared))
            elif kind == "Node":
                nodes.append(node(raw, shared))
            elif kind == "PodDisruptionBudget":
                budgets.append(budget(raw, shared))
            elif kind == "PersistentVolumeClaim":
                claims.append(raw)
            elif kind == "PersistentVolume":
                persistent.append(raw)
            elif kind in kueue:
                kueue[kind].append(raw)
            elif kind in OWNERS or gang_kind(str(raw.get("apiVersion", "")), kind):
                workloads.append(workload(raw, shared))
            latest = _later(latest, _latest(raw))
        except _ODD as cause:
            raise _odd(raw, source, cause) from cause
    if not kinds:
        raise BadSpec(
            source,
            "holds no Kubernetes object",
            expected="a List of nodes, pods, poddisruptionbudgets and their owners",
            remedy=MAKE,
        )
    try:
        stored, queues = volumes(claims, persistent), flavors.of(*kueue.values())
    except _ODD as cause:
        raise _odd({"kind": "a volume, claim or queue"}, source, cause) from cause
    return Snapshot(
        nodes=tuple(nodes),
        pods=tuple(pods),
        budgets=tuple(budgets),
        workloads=tuple(workloads),
        volumes=stored,
        queues=queues,
        kinds=frozenset(kinds),
        taken=latest,
    )


def _odd(raw: Wire, source: str, cause: Exception) -> BadFile:
    """An object that no API server has written."""
    meta = raw.get("metadata")
    name = (
        f"{meta.get('namespace') or ''}/{meta.get('name')}".lstrip("/") if isinstance(meta, dict) else "without a name"
    )
    return BadFile(
        f"{raw.get('kind', 'an object')} {name} in {source}",
        f"cannot be read: {cause}",
        expected="objects as kubectl get -o json prints them",
        remedy=f"dump it again: {MAKE}",
    )


def _latest(raw: Wire) -> datetime | None:
    """The latest time that a node, a pod or an event mentions of its past: a dump has no clock of its own."""
    meta, status = raw.get("metadata") or {}, raw.get("status") or {}
    times = [meta.get("creationTimestamp")]
    match raw.get("kind"):
        case "Node":
            times += [c.get("lastHeartbeatTime") for c in status.get("conditions") or ()]
        case "Pod":
            times += [c.get("lastTransitionTime") for c in status.get("conditions") or ()]
        case "Event":
            times += [raw.get("lastTimestamp"), raw.get("eventTime")]
    # In one format the latest is the largest text; parsing all would cost more than all the rest.
    return moment(max((t for t in times if isinstance(t, str)), default=None))


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((t for t in (one, other) if t), default=None)
