"""What runs on the nodes, as far as moving it needs: pods, budgets, their owners, their volumes.

Frozen and slotted, with shared sub-objects, since a snapshot holds 100,000 pods. Filled by `infra.kube.read` from
plain JSON, so every rule works the same on a live cluster and on a kubectl dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from infra.model.cluster import EMPTY, Node, Owner, Toleration
from infra.model.queues import Queue

MIRROR = "kubernetes.io/config.mirror"
JOB_TRACKING = "batch.kubernetes.io/job-tracking"
# Finalizers that a controller of Kubernetes itself takes off a terminating pod: they are no sign of a stuck one.
OWN_FINALIZERS = frozenset({JOB_TRACKING, "foregroundDeletion", "orphan"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One expression of a selector: `key operator values`. Operators In, NotIn, Exists, DoesNotExist, Gt, Lt.

    `field` is True for a matchFields expression (metadata.name, the only one Kubernetes has).
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False

    def holds(self, value: str | None) -> bool:
        """Does it hold for the label's value (None: no such label)? An unknown operator never holds."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt" if value is not None and self.values:
                try:
                    left, right = int(value), int(self.values[0])
                except ValueError:
                    return False
                return left > right if self.operator == "Gt" else left < right
        return False

    def __str__(self) -> str:
        return f"{self.key} {self.operator} {','.join(self.values)}".rstrip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Selector:
    """A label selector. An empty one matches everything; where none was given, there is no Selector at all."""

    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """All labels equal and all expressions hold."""
        return all(labels.get(k) == v for k, v in self.labels.items()) and all(
            e.holds(labels.get(e.key)) for e in self.expressions
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """A pod. `requests` maps resources to numbers: CPU in millicores, memory in bytes, extended ones as counts.

    `affinity` is the required node affinity: one of the terms must hold, a term holds when all its requirements
    do. `grace` is spec.terminationGracePeriodSeconds (seconds), `deletion` the metadata.deletionTimestamp, which is
    the time at which the grace ends. `annotations` holds only those that matter to moving. `ready_since` is the
    last change of the Ready condition, whichever way. `host_paths` are directories of the node that may hold data.
    """

    namespace: str
    name: str
    uid: str
    node: str = ""
    phase: str = ""
    ready: bool = False
    ready_since: datetime | None = None
    created: datetime | None = None
    deletion: datetime | None = None
    grace: int = 30
    owner: Owner | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    finalizers: tuple[str, ...] = ()
    priority: int = 0
    node_selector: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    requests: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    empty_dirs: tuple[str, ...] = ()
    host_paths: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    csi_drivers: tuple[str, ...] = ()
    resource_claims: tuple[str, ...] = ()
    waiting: str = ""
    restarts: int = 0
    containers_ended: bool = False
    unschedulable: str = ""

    @property
    def key(self) -> str:
        """namespace/name, as kubectl prints it."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Succeeded or Failed: nothing of it runs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def terminating(self) -> bool:
        """Deletion has been asked for."""
        return self.deletion is not None

    @property
    def mirror(self) -> bool:
        """A static pod's shadow: the kubelet owns it, the API cannot end it."""
        by_source = self.annotations.get("kubernetes.io/config.source") in ("file", "http")
        return MIRROR in self.annotations or by_source or (self.owner is not None and self.owner.kind == "Node")

    @property
    def of_daemonset(self) -> bool:
        """One of a DaemonSet's, which may be gone itself."""
        return self.owner is not None and self.owner.kind == "DaemonSet"

    @property
    def foreign_finalizers(self) -> tuple[str, ...]:
        """Finalizers that no controller of Kubernetes itself will take off."""
        return tuple(f for f in self.finalizers if f not in OWN_FINALIZERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """A PodDisruptionBudget. Numbers of its status are None where the server has not written them.

    `observed` is status.observedGeneration; older than `generation` means that the counts are of another spec.
    `min_available` and `max_unavailable` are as written: "2" or "50%", "" when absent.
    """

    namespace: str
    name: str
    uid: str = ""
    generation: int = 0
    observed: int | None = None
    min_available: str = ""
    max_unavailable: str = ""
    selector: Selector | None = None
    unhealthy_policy: str = "IfHealthyBudget"
    allowed: int | None = None
    healthy: int | None = None
    desired: int | None = None
    expected: int | None = None
    disrupted: tuple[str, ...] = ()
    resource_version: str = ""

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def counted(self) -> bool:
        """The status speaks of this very spec."""
        return self.allowed is not None and (self.observed or 0) >= self.generation

    def covers(self, pod: Pod) -> bool:
        """Does it select the pod? An empty policy/v1 selector selects all pods of the namespace."""
        return pod.namespace == self.namespace and self.selector is not None and self.selector.matches(pod.labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """An owner of pods: Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, or a kind of a training operator.

    `replicas` is how many pods it wants (parallelism for a Job), `suspended` None where the kind cannot suspend.
    `restarts_left` is what remains of backoffLimit or maxRestarts; None when the kind has no such limit or the
    status does not say. `ignores_disruption`: an eviction does not spend that budget.
    Of Kueue's Workload only: its `queue`, the node labels that the pods' owner himself asks for (`own_labels`: Kueue
    adds its own to what it admits), and the flavours that it is admitted to (`assigned`).
    """

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = ""
    owner: Owner | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    annotations: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    replicas: int = 1
    ready: int = 0
    completions: int | None = None
    indexed: bool = False
    suspended: bool | None = None
    finished: bool = False
    restarts_left: int | None = None
    ignores_disruption: bool = False
    surge: bool = False
    resource_version: str = ""
    queue: str = ""
    own_labels: frozenset[tuple[str, str]] = frozenset()
    assigned: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def object(self) -> str:
        """As errors name it: "job train/llm"."""
        return f"{self.kind.lower()} {self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Volume:
    """A claim with the volume behind it. `affinity` as in `Pod`; `local` when the data is on one node."""

    namespace: str
    claim: str
    driver: str = ""
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    local: bool = False


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What was read of a cluster at one time.

    `kinds` are the kinds that were really read (an empty list of a kind in `kinds` means there are none; a kind
    not in it is unknown). `unread` says why the others were not. `queues` are Kueue's, by namespace and name.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    budgets: tuple[Budget, ...] = ()
    workloads: tuple[Workload, ...] = ()
    volumes: tuple[Volume, ...] = ()
    queues: Mapping[tuple[str, str], Queue] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    unread: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taken: datetime | None = None

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods by node name; pods without a node under ""."""
        grouped: dict[str, list[Pod]] = {}
        for pod in self.pods:
            grouped.setdefault(pod.node, []).append(pod)
        return {name: tuple(pods) for name, pods in grouped.items()}

    @cached_property
    def workload_by_uid(self) -> Mapping[str, Workload]:
        """Owners by UID."""
        return {w.uid: w for w in self.workloads}

    @cached_property
    def volume_by_claim(self) -> Mapping[tuple[str, str], Volume]:
        """Volumes by (namespace, claim)."""
        return {(v.namespace, v.claim): v for v in self.volumes}

    @cached_property
    def pods_by_owner(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods by the UID of their controller; bare pods are left out."""
        grouped: dict[str, list[Pod]] = {}
        for pod in self.pods:
            if pod.owner is not None:
                grouped.setdefault(pod.owner.uid, []).append(pod)
        return {uid: tuple(pods) for uid, pods in grouped.items()}

    def root(self, owner: Owner | None) -> Workload | None:
        """The topmost known owner: Pod -> Job -> JobSet -> TrainJob. None when not even the first is known."""
        found: Workload | None = None
        for _ in range(8):  # a chain of owners is short; a longer one is a cycle
            workload = self.workload_by_uid.get(owner.uid) if owner else None
            if workload is None:
                break
            found, owner = workload, workload.owner
        return found

    def on(self, nodes: Iterable[str]) -> tuple[Pod, ...]:
        """Pods on these nodes, in the order of the nodes."""
        return tuple(pod for name in nodes for pod in self.pods_by_node.get(name, ()))
