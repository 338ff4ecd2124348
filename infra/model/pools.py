"""Node pools as both clouds share them, and the narrow contract that each cloud adapter fulfils."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from infra.model.cluster import EMPTY
from infra.model.survey import Survey

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


ProvePool = Callable[[Pool], None]
"""Told the pool as it is right before the request to delete it is sent; what it raises stops it there."""


def unproven(pool: Pool) -> None:
    """For a caller that asks for nothing before a deletion."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A mutating cloud call as a value: plan prints it, migrate sends exactly it.

    `verb` is the SDK's method ("eks.create_nodegroup"); `body` its arguments as plain JSON.
    """

    verb: str
    object: str
    body: Mapping[str, Any]


class Pools(Protocol):
    """One cloud's node pools. Every verb is idempotent and bounded in time.

    Errors: `NotFound`, `Forbidden`, `NoCapacity`, `Conflict`, `Unreachable`, `CloudError`. No SDK class leaves an
    implementation. Implemented by `infra.aws.pools.EksPools`, `infra.gcp.pools.GkePools` and
    `infra.kube.external.ExternalPools`.
    """

    def find(self, pool: Any) -> Pool | None:
        """The pool that the spec part (`EksPool`, `GkeTarget`, …) names, or None."""
        ...

    def survey(self, source: Any, target: Any, run: str) -> Survey:
        """Read everything that the cloud-side preflight judges, before anything is created. Reads only.

        What cannot be read is listed in `Survey.unread` with its reason; only an unknown cluster, an unreachable
        cloud or missing credentials raise.
        """
        ...

    def render(self, target: Any, run: str) -> list[Request]:
        """The requests that would create the target, in order. Reads only (EFA layout, image)."""
        ...

    def create(self, target: Any, run: str) -> Pool:
        """Send what `render` shows. A pool of the same name and run is adopted; of another owner: `Conflict`."""
        ...

    def fence_for_run(self, pool: Any, run: str) -> Mapping[str, Any]:
        """Keep the cloud from working against the run (autoscaler bounds, node repair). Returns the prior state.

        The prior state is also written to the pool's tags before anything changes, so a second call (after a kill,
        or by another process) returns the first state and not our own.
        """
        ...

    def release(self, pool: Any) -> None:
        """Drop our unproven taint from the pool's own configuration, so that later nodes come without it."""
        ...

    def unfence(self, pool: Any, prior: Mapping[str, Any]) -> None:
        """Put the prior state back, exactly."""
        ...

    def delete(self, pool: Any, prove: ProvePool = unproven) -> None:
        """Ask for deletion; absent is success. Follow with `find`.

        A cloud that is busy may take half an hour before it accepts the request: `prove` is asked right before each.
        Once the pool is gone, calling again removes what was made beside it (an EC2 launch template).
        """
        ...
