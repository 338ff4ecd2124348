"""The machines behind a simulated pool: they join the cluster as nodes, and are killed without asking anybody."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.sandbox.access import Api
from infra.sandbox.nodes import add_node, remove_node

FROM_CLOUD = {"NO_SCHEDULE": "NoSchedule", "PREFER_NO_SCHEDULE": "PreferNoSchedule", "NO_EXECUTE": "NoExecute"}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine as the cloud launches it. `taints` in Kubernetes' spelling."""

    name: str
    labels: Mapping[str, str]
    machine_type: str
    zone: str
    rdma: bool
    taints: tuple[Mapping[str, str], ...]
    provider_id: str


class Nodes(Protocol):
    """Where machines show up. `ClusterNodes` in the sandbox, a list in a test."""

    def join(self, machine: Machine) -> None:
        """The machine registers. Idempotent."""
        ...

    def leave(self, name: str) -> None:
        """The machine is gone. Idempotent."""
        ...


class ClusterNodes:
    """Nodes of a Kubernetes cluster, embedded or real."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def join(self, machine: Machine) -> None:
        """Register the node; the agent makes it Ready."""
        add_node(
            self.api,
            name=machine.name,
            pool_labels=machine.labels,
            machine_type=machine.machine_type,
            zone=machine.zone,
            rdma=machine.rdma,
            taints=machine.taints,
            provider_id=machine.provider_id,
        )

    def leave(self, name: str) -> None:
        """Delete the node object, whatever runs there: as the clouds do."""
        remove_node(self.api, name)


def kubernetes_taints(taints: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], ...]:
    """From the clouds' spelling of the effect to Kubernetes' own."""
    return tuple(
        {
            "key": taint["key"],
            "value": taint.get("value", ""),
            "effect": FROM_CLOUD.get(taint.get("effect", ""), "NoSchedule"),
        }
        for taint in taints
    )


def eks_name(region: str, pool: str, index: int) -> str:
    """As EC2 names hosts by address. The address is made up from pool and index, so it does not change."""
    digest = hashlib.sha256(f"{pool}/{index}".encode()).digest()
    return f"ip-10-0-{64 + digest[0] % 64}-{digest[1]}.{region}.compute.internal"


def ec2_id(name: str) -> str:
    """The instance behind an EKS node, made up from the node's name."""
    return f"i-{hashlib.sha256(name.encode()).hexdigest()[:17]}"


def gke_name(cluster: str, pool: str, index: int) -> str:
    """As GKE names instances: cluster and pool cut to 32 characters together, a group's hash, a machine's."""
    group = hashlib.sha256(f"{cluster}/{pool}".encode()).hexdigest()[:8]
    one = hashlib.sha256(f"{cluster}/{pool}/{index}".encode()).hexdigest()[:4]
    return f"gke-{f'{cluster}-{pool}'[:32].rstrip('-')}-{group}-{one}"
