"""Node pools as both clouds share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from infra.model.cluster import EMPTY

# The labels by which each cloud and the usual provisioners mark the pool of a node, most specific first; a node that
# nobody marked goes by its machine type.
MACHINE_LABEL = "node.kubernetes.io/instance-type"
POOL_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "karpenter.sh/nodepool",
    "alpha.eksctl.io/nodegroup-name",
    MACHINE_LABEL,
)


def in_pool(labels: Mapping[str, str], name: str) -> bool:
    """Does a node with these labels belong to what people call by this name?

    A machine type names only nodes that nobody marked: the pools of a migration may well be of one type.
    """
    marks: set[str | None] = {labels[label] for label in POOL_LABELS if label != MACHINE_LABEL and labels.get(label)}
    return name in (marks or {labels.get(MACHINE_LABEL)})


def pool_names(labels: Iterable[Mapping[str, str]]) -> list[str]:
    """What the pools of nodes with these labels are called, each once."""
    names = (next((each[label] for label in POOL_LABELS if each.get(label)), "") for each in labels)
    return sorted({name for name in names if name})


class PoolState(StrEnum):
    """The clouds' own states, folded. `DEGRADED` and `FAILED` are read, never waited out."""

    CREATING = "creating"
    ACTIVE = "active"
    UPDATING = "updating"
    DEGRADED = "degraded"
    FAILED = "failed"
    DELETING = "deleting"
    DELETE_FAILED = "delete-failed"


class IssueClass(StrEnum):
    """What to do about a health code (facts: EKS health.issues, GKE conditions)."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    CONFIG = "config"
    TRANSIENT = "transient"
    JOIN = "join"
    DRAIN = "drain"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolIssue:
    """One health issue, with the cloud's own code and message."""

    code: str
    message: str
    issue_class: IssueClass
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A node pool as read from the cloud.

    `node_selector` are the node labels by which its nodes are found in Kubernetes; `identity` is the cloud's full
    name (ARN or projects/…); `ours` is the run name in its tags, or ""; `gpus` and `rdma` are what one node must
    offer: {"nvidia.com/gpu": 8}, {"vpc.amazonaws.com/efa": 16}, empty when the machine type has none. `made` are ids
    of which a pool that is made later under the same name has none: EKS' ARN, the ids of GKE's instance groups; empty
    when they are unknown.
    """

    kind: str
    name: str
    identity: str
    state: PoolState
    machine_type: str
    nodes: int
    zones: tuple[str, ...] = ()
    issues: tuple[PoolIssue, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    gpus: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    rdma: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    ours: str = ""
    reservation: str = ""
    bounds: tuple[int, int] | None = None  # min and max nodes of an autoscaler, None when the size is fixed
    made: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A mutating cloud call as a value: plan prints it, migrate sends exactly it.

    `verb` is the SDK's method ("eks.create_nodegroup"); `body` its arguments as plain JSON.
    """

    verb: str
    object: str
    body: Mapping[str, Any]
