"""Sets of replicas that live on the source pool alone. Pure.

An operator that fails over (databases, queues) needs a replica on a node that is not cordoned before it gives the
primary up; with all of them on nodes that are cordoned together, its budget never opens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from infra.model.gangs import gang_kind
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot
from tasks.rules.wording import plural

# Replaced anywhere by their controller, or not replaced at all: no failover, so no order among them.
_OTHERS = ("ReplicaSet", "ReplicationController", "DaemonSet", "Job", "Node")
_LEADS = frozenset({"primary", "master", "leader"})  # values of the role labels of the usual operators


def on_source_alone(snapshot: Snapshot, source: Collection[str]) -> Iterator[list[Pod]]:
    """Pods of each StatefulSet or operator's set of two or more whose every replica is on the source."""
    nodes = set(source)
    for pods in snapshot.pods_by_owner.values():
        live = [p for p in pods if not p.finished]
        owner = live[0].owner if len(live) > 1 else None
        if owner is None or owner.kind in _OTHERS or not all(p.node in nodes for p in live):
            continue
        root = snapshot.root(owner)
        kinds = [(owner.api_version, owner.kind)] + ([(root.api_version, root.kind)] if root else [])
        if not any(gang_kind(version, kind) for version, kind in kinds):
            yield sorted(live, key=lambda p: p.name)


def first_replicas(snapshot: Snapshot, source: Collection[str]) -> list[Pod]:
    """One of each such set, to be moved before any node is cordoned: the last that does not lead."""
    found = []
    for pods in on_source_alone(snapshot, source):
        free = [p for p in pods if p.ready and not p.terminating and not _LEADS & set(p.labels.values())]
        if free and len(free) == len([p for p in pods if not _LEADS & set(p.labels.values())]):
            found.append(free[-1])
    return found


def replica_findings(snapshot: Snapshot, source: Collection[str]) -> list[Finding]:
    """Each such set, as the plan tells it."""
    return [
        Finding(
            level=Level.WARN,
            code="replicas-all-on-source",
            object=f"{pods[0].owner.kind.lower() if pods[0].owner else 'set'} {pods[0].namespace}/"
            f"{pods[0].owner.name if pods[0].owner else pods[0].name}",
            observed=f"all {plural(len(pods), 'replica')} are on the source pool",
            expected="one on the target before its nodes are cordoned, for operators that fail over",
            remedy="none needed: the move evicts one of them first, as its budget allows",
        )
        for pods in on_source_alone(snapshot, source)
    ]
