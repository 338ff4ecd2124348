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
    return [first for pods in on_source_alone(snapshot, source) if (first := _first(pods))]


def _first(pods: Collection[Pod]) -> Pod | None:
    """None where one of those that do not lead is not well itself: what moves then is left to the waves."""
    followers = [p for p in pods if not _LEADS & set(p.labels.values())]
    return followers[-1] if followers and all(p.ready and not p.terminating for p in followers) else None


def replica_findings(snapshot: Snapshot, source: Collection[str]) -> list[Finding]:
    """Each such set, as the plan tells it: the move sees to it, unless one of them is not well."""
    found = []
    for pods in on_source_alone(snapshot, source):
        kind, name = (pods[0].owner.kind.lower(), pods[0].owner.name) if pods[0].owner else ("set", pods[0].name)
        all_there = f"all {plural(len(pods), 'replica')} are on the source pool"
        first = _first(pods)
        found.append(
            Finding(
                level=Level.WARN,
                code="replicas-all-on-source",
                object=f"{kind} {pods[0].namespace}/{name}",
                observed=f"{all_there}: the move evicts {first.name} first, as its budget allows"
                if first
                else f"{all_there}, and not all that could go first are Ready",
                expected="one on the target before its nodes are cordoned, for operators that fail over",
                remedy=""
                if first
                else f"let them become Ready before the move: kubectl get pods -n {pods[0].namespace}",
            )
        )
    return found
