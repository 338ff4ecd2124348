"""One simulated node in the agent's memory: its hardware, its pool, and what its plugins advertise now."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from infra.sandbox.agent.plugins import Plugin
from infra.sandbox.fabric.collective import Counters
from infra.sandbox.nodes import HARDWARE

Object = dict[str, Any]
POOL_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "karpenter.sh/nodepool",
    "poolshift.dev/pool",
)
BASE = ("cpu", "memory", "pods", "ephemeral-storage")


@dataclass(kw_only=True)
class SimulatedNode:
    """A node: `plugins` are its running plugin pods by uid, `obj` its newest state seen, `joined`: was Ready once."""

    obj: Object
    hardware: Object
    plugins: dict[str, Plugin] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    drivers: set[str] = field(default_factory=set)
    counters: Counters = field(default_factory=Counters)
    joined: bool = False

    @classmethod
    def of(cls, obj: Object) -> SimulatedNode:
        """From the API object; a node that says nothing about hardware has none."""
        text = (obj["metadata"].get("annotations") or {}).get(HARDWARE, "{}")
        return cls(obj=obj, hardware=json.loads(text))

    @property
    def name(self) -> str:
        """Node name."""
        return str(self.obj["metadata"]["name"])

    @property
    def pool(self) -> str:
        """Name of its pool by the cloud's label, or ""."""
        labels = self.obj["metadata"].get("labels") or {}
        return next((str(labels[key]) for key in POOL_LABELS if key in labels), "")

    @property
    def machine_type(self) -> str:
        """The cloud's machine type."""
        return str(self.hardware.get("machine_type", ""))

    def base(self) -> dict[str, str]:
        """CPU, memory and pods as the node was registered with."""
        capacity = (self.obj.get("status") or {}).get("capacity") or {}
        return {name: str(capacity[name]) for name in BASE if name in capacity}
