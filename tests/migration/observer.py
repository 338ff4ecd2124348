"""Watches a cluster during a migration, and says afterwards what was done to the work that must not be.

It looks from outside, with watches of its own, while processes of poolshift come and die.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any, Self

from infra.kube.api import Kube
from infra.kube.watch import Changed, Synced, Watch
from infra.model.record import PROBE

Raw = dict[str, Any]
_PATHS = ("/api/v1/pods", "/apis/policy/v1/poddisruptionbudgets", "/apis/batch/v1/jobs")


class Observer:
    """Use as a context around everything that is done to the cluster; ask `broken` afterwards."""

    def __init__(self, kube: Kube) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._watches = [Watch(kube, path, lambda raw, _: dict(raw), self._queue) for path in _PATHS]
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._stop = threading.Event()
        self._pods: dict[str, Raw] = {}
        self._budgets: dict[str, Raw] = {}
        self._jobs: dict[str, bool] = {}
        self._left: Counter[str] = Counter()
        self._ours: Counter[str] = Counter()
        self._stops: Counter[str] = Counter()
        self._short: dict[str, str] = {}

    def __enter__(self) -> Self:
        for watch in self._watches:
            watch.start()
        synced = set()
        while len(synced) < len(self._watches):
            item = self._queue.get(timeout=30)
            self._take(item)
            synced |= {item.watch.path} if isinstance(item, Synced) else set()
        self._ours = Counter(_place(pod) for pod in self._pods.values())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self._watches:
            watch.stop()
        self._stop.set()
        self._thread.join(timeout=10)

    def broken(self) -> list[str]:
        """What must never happen and did; empty is well.

        Every pod that was there leaves once and no replacement ever; no ready pod is taken where its budget has fewer
        ready ones afterwards than it wants (that pods turn unready under a node that is silent is nobody's deed); no
        gang is stopped twice, or left stopped.
        """
        found = [f"budget {key}: {text}" for key, text in sorted(self._short.items())]
        found += [
            f"{place}: {left} pods left, {self._ours[place]} were there"
            for place, left in sorted(self._left.items())
            if left > self._ours[place]
        ]
        found += [f"job {key}: stopped {count} times" for key, count in sorted(self._stops.items()) if count > 1]
        found += [f"job {key}: left stopped" for key, stopped in sorted(self._jobs.items()) if stopped]
        return found

    def moved(self) -> int:
        """How many pods of workloads have left."""
        return sum(self._left.values())

    def _follow(self) -> None:
        while not self._stop.is_set() or not self._queue.empty():
            try:
                self._take(self._queue.get(timeout=0.2))
            except Empty:
                continue

    def _take(self, item: Any) -> None:
        before = dict(self._pods)
        if isinstance(item, Synced):
            known = {raw["metadata"]["uid"] for raw in item.objects}
            if item.watch.path == _PATHS[0]:
                for uid in set(self._pods) - known:
                    self._gone(self._pods.pop(uid))
            for raw in item.objects:  # all of them before anything is counted: halves of two states are none
                self._see(item.watch.path, raw, gone=False)
        elif isinstance(item, Changed):
            self._see(item.watch.path, item.object, gone=item.gone)
        for uid, pod in before.items():
            after = self._pods.get(uid)
            if after is not pod and _ready(pod) and (after is None or "deletionTimestamp" in after["metadata"]):
                self._count_budgets(pod)

    def _see(self, path: str, raw: Raw, *, gone: bool) -> None:
        meta = raw["metadata"]
        key = f"{meta['namespace']}/{meta['name']}"
        if path == _PATHS[1]:
            self._budgets[key] = raw
        elif path == _PATHS[2]:
            stopped = bool(raw["spec"].get("suspend")) and not gone
            if stopped and not self._jobs.get(key, False):
                self._stops[key] += 1
            self._jobs[key] = stopped
        elif PROBE not in (meta.get("labels") or {}) and meta["namespace"] not in ("kube-system", "poolshift"):
            if gone:
                self._gone(raw)
                self._pods.pop(meta["uid"], None)
            else:
                self._pods[meta["uid"]] = raw

    def _gone(self, raw: Raw) -> None:
        self._left[_place(raw)] += 1

    def _count_budgets(self, taken: Raw) -> None:
        """How many pods of each budget that selects the one that was taken are ready now."""
        namespace, labels = taken["metadata"]["namespace"], taken["metadata"].get("labels") or {}
        for key, budget in self._budgets.items():
            wanted = (budget["spec"].get("selector") or {}).get("matchLabels") or {}
            if not key.startswith(f"{namespace}/") or not wanted.items() <= labels.items():
                continue
            desired = int((budget.get("status") or {}).get("desiredHealthy") or 0)
            ready = sum(_ready(p) for p in self._pods.values() if _selected(p, namespace, wanted))
            if ready < desired:
                self._short[key] = f"{ready} ready pods, {desired} wanted, after {taken['metadata']['name']} was taken"


def _place(pod: Raw) -> str:
    """The pod's place in its workload: the same one again after it was replaced. A Deployment's pods share one."""
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    owner = (meta.get("ownerReferences") or [{}])[0]
    own = {"StatefulSet": meta["name"], "Job": labels.get("batch.kubernetes.io/job-completion-index", "")}
    return f"{meta['namespace']}/{owner.get('kind', 'Pod')}/{owner.get('name', meta['name'])}/" + own.get(
        owner.get("kind", ""), ""
    )


def _selected(pod: Raw, namespace: str, wanted: Mapping[str, str]) -> bool:
    return pod["metadata"]["namespace"] == namespace and wanted.items() <= (pod["metadata"].get("labels") or {}).items()


def _ready(pod: Raw) -> bool:
    """As the budget's controller counts it: a pod that is leaving is no longer there for it."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in pod["metadata"] and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )
