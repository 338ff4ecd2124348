"""Which DaemonSets give a node what. An extended resource shows only while its plugin runs on the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["gpus", "rdma"]


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What a running pod of a DaemonSet adds: a part of the node's hardware, or a CSI driver.

    `crashes_without` is a plugin that ends when the node has nothing for it to advertise (EFA: eks-charts#1239).
    """

    daemonset: str
    part: Part | None = None
    driver: str = ""
    crashes_without: bool = False


PLUGINS = (
    Plugin(daemonset="nvidia-device-plugin-daemonset", part="gpus"),
    Plugin(daemonset="nvidia-gpu-device-plugin", part="gpus"),
    Plugin(daemonset="aws-efa-k8s-device-plugin", part="rdma", crashes_without=True),
    Plugin(daemonset="nccl-rdma-installer", part="rdma"),
    Plugin(daemonset="fsx-csi-node", driver="fsx.csi.aws.com"),
    Plugin(daemonset="lustre-csi-node", driver="lustre.csi.storage.gke.io"),
)


def plugin_of(pod: Mapping[str, Any]) -> Plugin | None:
    """The plugin that a pod runs, by the name of its DaemonSet (GKE adds a size and an image to some names)."""
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner["kind"] == "DaemonSet":
            return next((plugin for plugin in PLUGINS if owner["name"].startswith(plugin.daemonset)), None)
    return None


def extended(
    hardware: Mapping[str, Any], running: Iterable[Plugin], limit: Callable[[str, int], int]
) -> dict[str, int]:
    """Extended resources that the running plugins advertise. `limit` may lower a count (a defect)."""
    found: dict[str, int] = {}
    for plugin in running:
        if plugin.part:
            found |= {name: limit(name, count) for name, count in hardware.get(plugin.part, {}).items()}
    return found


def split(
    base: Mapping[str, str], hardware: Mapping[str, Any], advertised: Mapping[str, int], before: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Capacity and allocatable. A resource whose plugin has gone stays in capacity and is 0 in allocatable."""
    gone = {
        name: str(count)
        for part in ("gpus", "rdma")
        for name, count in hardware.get(part, {}).items()
        if name in before and name not in advertised
    }
    shown = {name: str(count) for name, count in advertised.items()}
    return {**base, **gone, **shown}, {**base, **dict.fromkeys(gone, "0"), **shown}
