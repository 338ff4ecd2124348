"""Did a wave do harm? Replacements must be Ready, and nothing of what was moved may hang in Pending. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot
from tasks.rules.wording import plural

# Kinds whose pods are replaced one for one, so that as many must be Ready after as before.
_REPLACED = ("Deployment", "ReplicaSet", "StatefulSet")


@dataclass(frozen=True, kw_only=True)
class Health:
    """Ready pods of each workload that has pods on the wave's nodes, and the pods that were Pending already."""

    ready: Mapping[str, int]
    names: Mapping[str, str]
    pending: frozenset[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, for the run record."""
        return {"ready": dict(self.ready), "names": dict(self.names), "pending": sorted(self.pending)}

    @classmethod
    def from_dict(cls, noted: Mapping[str, Any]) -> Health:
        """As `to_dict` wrote it."""
        return cls(ready=noted["ready"], names=noted["names"], pending=frozenset(noted["pending"]))


def health(snapshot: Snapshot, nodes: Iterable[str]) -> Health:
    """As it is before the wave."""
    affected: dict[str, str] = {}
    for pod in snapshot.on(nodes):
        root = snapshot.root(pod.owner)
        if root is not None and root.kind in _REPLACED and not pod.finished:
            affected[root.uid] = root.object
    ready: Counter[str] = Counter()
    for pod in snapshot.pods:
        uid = _root(pod, snapshot)
        if uid in affected and pod.ready and not pod.terminating:
            ready[uid] += 1
    return Health(
        ready={uid: ready[uid] for uid in affected},
        names=affected,
        pending=frozenset(p.uid for p in snapshot.pods if p.phase == "Pending" and _root(p, snapshot) in affected),
    )


def _root(pod: Pod, snapshot: Snapshot) -> str:
    root = snapshot.root(pod.owner)
    return root.uid if root else ""


def unsettled(before: Health, now: Snapshot, off: Collection[str]) -> list[Finding]:
    """What is worse than before the wave. A workload that wants fewer pods by now is measured by what it wants."""
    ready: Counter[str] = Counter()
    found = []
    for pod in now.pods:
        uid = _root(pod, now)
        if uid not in before.names:
            continue
        if pod.ready and not pod.terminating and pod.node not in off:
            ready[uid] += 1
        elif pod.phase == "Pending" and pod.uid not in before.pending and not pod.terminating:
            found.append(
                Finding(
                    level=Level.BLOCK,
                    code="newly-pending",
                    object=f"pod {pod.key}",
                    observed=pod.unschedulable or pod.waiting or "is Pending since the wave",
                    expected="a replacement that runs on the target",
                    remedy=f"kubectl describe pod -n {pod.namespace} {pod.name}",
                )
            )
    for uid, was in before.ready.items():
        workload = now.workload_by_uid.get(uid)
        if workload is None:
            continue  # deleted meanwhile: nothing is missing
        needed = min(was, workload.replicas)
        if ready[uid] < needed:
            found.append(
                Finding(
                    level=Level.BLOCK,
                    code="replacements-not-ready",
                    object=before.names[uid],
                    observed=f"{plural(ready[uid], 'pod')} Ready after the wave",
                    expected=f"{needed}, as before it",
                    remedy=f"kubectl get pods -n {workload.namespace} -o wide",
                )
            )
    return sorted(found, key=lambda f: (f.code, f.object))
