"""The managed instance groups behind simulated node pools: sizes, machines, and who goes when one becomes smaller.

`deleteInstances` ends the named machines and takes targetSize down by as many; a smaller size kills machines that
nobody named (here: the first ones, busy or not). GKE goes on showing a pool's first count.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from infra.sandbox.clouds.gke import NodePools

TERMINATE_SECONDS = 45.0
COMPUTE = "https://www.googleapis.com/compute/v1"


class InstanceGroups:
    """One group for each node pool. `size` is its targetSize; `going` the machines that end."""

    def __init__(self, pools: NodePools) -> None:
        self.pools = pools
        self.size: dict[str, int] = {}
        self.ids: dict[str, str] = {}  # one made later under the same name has another
        self.launched: dict[str, int] = {}
        self.going: set[str] = set()

    def adopt(self, pool: Any, size: int) -> None:
        """A node pool has come into being with its first size; it names its group from now on."""
        self.size[pool.name] = self.launched[pool.name] = size
        made = f"{pool.name}{self.pools.timeline.clock.now()}"
        self.ids[pool.name] = str(int(hashlib.sha256(made.encode()).hexdigest()[:15], 16))  # int64 is a string
        zone = f"{COMPUTE}/projects/{self.pools.config.place.project}/zones/{pool.locations[0]}"
        pool.instance_group_urls = [f"{zone}/instanceGroupManagers/{self._name(pool.name)}"]

    def grown(self, pool: str, more: int) -> int:
        """Count `more` machines; returns the number of the first of them."""
        first = self.launched[pool]
        self.launched[pool] += more
        self.size[pool] += more
        return first

    def shrink(self, pool: str, fewer: int) -> None:
        """Kill as many, whichever they are."""
        self._end(pool, [m for m in self.pools.machines[pool] if m not in self.going][:fewer])

    def get(self, group: str) -> dict[str, Any] | None:
        """InstanceGroupManagers.get."""
        with self.pools.lock:
            pool = self._pool(group)
            return None if pool is None else {"id": self.ids[pool], "name": group, "targetSize": self.size[pool]}

    def call(self, group: str, method: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """InstanceGroupManagers.listManagedInstances and .deleteInstances."""
        self.pools.timeline.run_due()
        with self.pools.lock:
            pool = self._pool(group)
            if pool is None:
                return None
            if method == "listManagedInstances":
                return {"managedInstances": [self._managed(pool, machine) for machine in self.pools.machines[pool]]}
            if method != "deleteInstances":
                return None
            named = {str(each).rpartition("/")[2] for each in body["instances"]}
            self._end(pool, [m for m in self.pools.machines[pool] if m in named and m not in self.going])
            return {"kind": "compute#operation", "operationType": "compute.instanceGroupManagers.deleteInstances"}

    def _managed(self, pool: str, machine: str) -> dict[str, Any]:
        place, zone = self.pools.config.place, self.pools.pools[pool].locations[0]
        return {
            "instance": f"{COMPUTE}/projects/{place.project}/zones/{zone}/instances/{machine}",
            "instanceStatus": "RUNNING",
            "currentAction": "DELETING" if machine in self.going else "NONE",
        }

    def _end(self, pool: str, machines: list[str]) -> None:
        self.size[pool] -= len(machines)
        self.going |= set(machines)
        for machine in machines:
            self.pools.timeline.after(TERMINATE_SECONDS, lambda machine=machine: self._gone(pool, machine))  # type: ignore[misc]

    def _gone(self, pool: str, machine: str) -> None:
        self.pools.nodes.leave(machine)
        with self.pools.lock:
            self.going.discard(machine)
            if machine in self.pools.machines.get(pool, ()):
                self.pools.machines[pool].remove(machine)
                self.pools.capacity.ended(pool, self.pools.timeline.after)

    def _name(self, pool: str) -> str:
        digest = hashlib.sha256(f"{self.pools.config.place.cluster}/{pool}".encode()).hexdigest()[:8]
        return f"gke-{f'{self.pools.config.place.cluster}-{pool}'[:32].rstrip('-')}-{digest}-grp"

    def _pool(self, group: str) -> str | None:
        return next((name for name in self.pools.pools if self._name(name) == group), None)
