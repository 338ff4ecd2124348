"""What was read of a cluster, as far as judgement needs it. Frozen, small, no SDK objects.

Filled by `infra.kube.read` from plain JSON (a live list or a kubectl dump), so every rule works offline too.
Quantities are numbers: CPU in millicores, memory in bytes, extended resources as counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """A controlling owner reference."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Taint:
    """A node taint in Kubernetes' spelling (effect NoSchedule, PreferNoSchedule or NoExecute)."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toleration:
    """A pod's toleration. An empty key with Exists tolerates every taint; an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Kubernetes' own rule (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """A status condition; `since` is lastTransitionTime."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node. `allocatable` maps a resource name to a number."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    conditions: tuple[Condition, ...] = ()
    allocatable: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    capacity: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    provider_id: str = ""
    created: datetime | None = None
    deletion: datetime | None = None
    resource_version: str = ""

    @property
    def ready(self) -> bool:
        """True only for Ready=True: Unknown (a dead kubelet) is not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.conditions)

    @property
    def zone(self) -> str:
        """topology.kubernetes.io/zone, or ""."""
        return self.labels.get("topology.kubernetes.io/zone", "")
