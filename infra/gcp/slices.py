"""Single machines of a GKE node pool, through the managed instance groups behind it.

SetNodePoolSize with a smaller count lets GKE choose who goes; google-cloud-container has no call that names a node.
Compute Engine's `instanceGroupManagers.deleteInstances` has: it ends the named instances and takes targetSize down by
as many (Compute API reference), which is how GKE's own autoscaler removes a node. So machines go by that call, and
SetNodePoolSize is used to grow only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from infra.errors import NotFound, Refused
from infra.gcp import read
from infra.gcp.api import COMPUTE
from infra.gcp.pools import GkePools
from infra.model.slices import Instance, Prove
from infra.model.survey import Reservation

_GOING = ("DELETING", "ABANDONING")
_BATCH = 1000  # instances in one deleteInstances (Compute API reference)


@dataclass
class GkeSlices:
    """The machines of one cluster's node pools. Fulfils `infra.model.slices.Slices`."""

    pools: GkePools

    def instances(self, pool: Any) -> Mapping[str, Instance]:
        """Of every instance group of the pool."""
        return {i.id: i for url in self._groups(pool) for i in self._list(url, pool.name)}

    def give_up(self, pool: Any, ids: Iterable[str], prove: Prove) -> None:
        """Each group is told which of its own instances end."""
        wanted = set(ids)
        for url in self._groups(pool):
            here = sorted(i.id for i in self._list(url, pool.name) if i.id in wanted and not i.going)
            for start in range(0, len(here), _BATCH):
                asked = here[start : start + _BATCH]
                body = {
                    "instances": [_short(name) for name in asked],
                    "skipInstancesOnValidationError": True,  # one that has gone since is no error
                }
                what = f"instance group {url.rpartition('/')[2]} of {pool.name}"
                prove(asked)
                self.pools.gcp.post(f"{url}/deleteInstances", what, "compute.instanceGroupManagers.update", body)

    def grow(self, pool: Any, nodes: int) -> None:
        """SetNodePoolSize, which counts per zone."""
        what = f"node pool {self.pools.cluster}/{pool.name}"
        found = self.pools.find(pool)
        if found is None:
            raise NotFound(
                what, "does not exist", remedy="somebody deleted it: poolshift rollback SPEC, then start again"
            )
        if found.nodes > nodes or len(found.zones) != 1:
            raise Refused(
                what,
                f"has {found.nodes} machines in zones {', '.join(found.zones)}",
                expected=f"at most {nodes} in one zone: it is to grow, not to shrink",
            )
        if found.nodes < nodes:
            body = {"name": self.pools.path(pool.name), "node_count": nodes}
            self.pools.when_free(
                lambda: self.pools.gcp.call("set_node_pool_size", what, body),
                unless=lambda: (self.pools.find(pool) or found).nodes == nodes,
            )

    def reservation(self, target: Any) -> Reservation | None:
        """Compute Engine's reservation."""
        named = target.reservation
        if named is None:
            return None
        self.pools.describe_cluster()  # learns where the sandbox's Compute Engine is
        project = named.project or self.pools.gcp.project
        url = f"{COMPUTE}/projects/{project}/zones/{target.zone}/reservations/{named.name}"
        found = read.reservation(self.pools.gcp.get(url, f"reservation {named.name}", "compute.reservations.get"))
        if not named.block:
            return found
        what, right = f"reservation {named.name}, block {named.block}", "compute.reservationBlocks.get"
        return read.reservation_block(found, self.pools.gcp.get(f"{url}/reservationBlocks/{named.block}", what, right))

    def _groups(self, pool: Any) -> tuple[str, ...]:
        self.pools.describe_cluster()
        described = self.pools.describe(pool.name) or {}
        urls = tuple(str(url) for url in described.get("instance_group_urls") or ())
        if described and not urls:
            raise NotFound(f"node pool {self.pools.cluster}/{pool.name}", "names no instance group", remedy="run again")
        return urls

    def _list(self, url: str, pool: str) -> list[Instance]:
        what, permission = f"instances of {pool}", "compute.instanceGroupManagers.list"
        found: list[Instance] = []
        token = ""
        while True:
            page = self.pools.gcp.post(f"{url}/listManagedInstances{token}", what, permission, {})
            found += [
                Instance(id=_provider_id(each["instance"]), going=each.get("currentAction") in _GOING)
                for each in page.get("managedInstances") or ()
            ]
            if not page.get("nextPageToken"):
                return found
            token = f"?pageToken={page['nextPageToken']}"


def _provider_id(url: str) -> str:
    """…/projects/P/zones/Z/instances/NAME -> gce://P/Z/NAME."""
    parts = urlsplit(url).path.split("/")
    at = parts.index("projects")
    return f"gce://{parts[at + 1]}/{parts[at + 3]}/{parts[at + 5]}"


def _short(provider_id: str) -> str:
    """gce://P/Z/NAME -> zones/Z/instances/NAME."""
    _, zone, name = provider_id.removeprefix("gce://").split("/")
    return f"zones/{zone}/instances/{name}"
