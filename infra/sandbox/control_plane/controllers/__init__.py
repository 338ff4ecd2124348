"""The controllers of the embedded control plane: what kube-controller-manager and kube-scheduler do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from infra.sandbox.control_plane.controllers.cluster import Cluster
from infra.sandbox.control_plane.controllers.daemonset import DaemonSets
from infra.sandbox.control_plane.controllers.deployment import Deployments
from infra.sandbox.control_plane.controllers.disruption import Budgets
from infra.sandbox.control_plane.controllers.eviction import Evictions
from infra.sandbox.control_plane.controllers.garbage import GarbageCollector
from infra.sandbox.control_plane.controllers.job import Jobs
from infra.sandbox.control_plane.controllers.namespaces import Namespaces
from infra.sandbox.control_plane.controllers.nodelifecycle import NodeLifecycle
from infra.sandbox.control_plane.controllers.replicaset import ReplicaSets
from infra.sandbox.control_plane.controllers.scheduler.place import Scheduler
from infra.sandbox.control_plane.controllers.statefulset import StatefulSets
from infra.sandbox.control_plane.controllers.volumes import Volumes

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store


class Controllers:
    """All controllers over one store. They react to its writes; nothing polls."""

    def __init__(self, store: Store) -> None:
        self._cluster = Cluster(store)
        self._task: asyncio.Task[None] | None = None
        NodeLifecycle(self._cluster)
        Namespaces(self._cluster)
        Deployments(self._cluster)
        ReplicaSets(self._cluster)
        StatefulSets(self._cluster)
        DaemonSets(self._cluster)
        Jobs(self._cluster)
        Budgets(self._cluster)
        volumes = Volumes(self._cluster)
        Scheduler(self._cluster, volumes)
        Evictions(self._cluster)
        GarbageCollector(self._cluster)
        for kind in store.registry:
            if kind.key == (kind.group, kind.plural):
                for obj in store.list(kind):
                    self._cluster.dispatch("ADDED", kind, obj, None)
        store.subscribe(self._cluster.dispatch)

    def settle(self) -> int:
        """Reconcile until nothing is left to do now, in the caller's turn. Returns how many reconciles ran."""
        return self._cluster.work.settle()

    def run(self) -> None:
        """Reconcile in the running loop from now on."""
        self._task = asyncio.get_running_loop().create_task(self._cluster.work.run(), name="controllers")

    async def stop(self) -> None:
        """Stop; what is queued stays undone."""
        if self._task is not None:
            # Asked until it ends: wait_for of Python 3.11 loses a cancellation that comes as what it waits for happens.
            while not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=0.5)
            self._task = None


def start(store: Store) -> Controllers:
    """Start all controllers in the running loop."""
    controllers = Controllers(store)
    controllers.run()
    return controllers
