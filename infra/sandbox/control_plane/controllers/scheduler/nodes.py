"""What is taken and what is left on each node, kept current pod by pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.sandbox.control_plane.controllers.objects import Object, labels_of
from infra.sandbox.control_plane.controllers.scheduler.needs import Amounts, Needs, Port, amounts
from infra.sandbox.control_plane.controllers.selectors import (
    required_node_affinity_matches,
    tolerates,
    untolerated,
)

UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
WRONG_NODE = "node(s) didn't match Pod's node affinity/selector"
NO_PORT = "node(s) didn't have free ports for the requested pod ports"
_CORDON_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(slots=True, eq=False)
class NodeState:
    """A node as the scheduler sees it."""

    name: str
    version: int
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    unschedulable: bool
    allocatable: Amounts
    most_pods: int
    used: Amounts = field(default_factory=dict)
    soft_taints: tuple[Mapping[str, str], ...] = ()
    pods: int = 0
    changes: int = 0
    """How often what is on the node has changed."""
    ports: Counter[Port] = field(default_factory=Counter)
    owners: Counter[str] = field(default_factory=Counter)

    def take(self, needs: Needs) -> None:
        """A pod came."""
        self.changes += 1
        for name, value in needs.requests.items():
            self.used[name] = self.used.get(name, 0) + value
        self.pods += 1
        if needs.ports:
            self.ports.update(needs.ports)
        if needs.owner:
            self.owners[needs.owner] += 1

    def give(self, needs: Needs) -> None:
        """A pod went."""
        self.changes += 1
        for name, value in needs.requests.items():
            self.used[name] -= value
        self.pods -= 1
        if needs.ports:
            self.ports.subtract(needs.ports)
        if needs.owner:
            self.owners[needs.owner] -= 1
            if self.owners[needs.owner] <= 0:
                del self.owners[needs.owner]

    def fits(self, requests: Amounts) -> bool:
        """Whether the resources are left."""
        if self.pods >= self.most_pods:
            return False
        allocatable, used = self.allocatable, self.used
        return all(value <= allocatable.get(name, 0) - used.get(name, 0) for name, value in requests.items())

    def lacks(self, requests: Amounts) -> tuple[list[str], bool]:
        """The resources that are not left, in the scheduler's words, and whether emptying the node would help."""
        reasons = ["Too many pods"] if self.pods >= self.most_pods else []
        would_help = True
        for name, value in requests.items():
            if value > self.allocatable.get(name, 0) - self.used.get(name, 0):
                reasons.append(f"Insufficient {name}")
                would_help = would_help and value <= self.allocatable.get(name, 0)
        return reasons, would_help

    def has_ports(self, wanted: tuple[Port, ...]) -> bool:
        """Whether the host ports are free."""
        for protocol, address, number in wanted:
            for (other_protocol, other_address, other), count in self.ports.items():
                if count <= 0 or (protocol, number) != (other_protocol, other):
                    continue
                if address == other_address or "0.0.0.0" in (address, other_address):  # noqa: S104 (any address)
                    return False
        return True


def read_node(node: Object, version: int) -> NodeState:
    """A node with nothing on it."""
    spec = node.get("spec") or {}
    status = node.get("status") or {}
    allocatable = amounts(status.get("allocatable") or status.get("capacity"))
    taints = tuple(spec.get("taints") or ())
    return NodeState(
        name=node["metadata"]["name"],
        version=version,
        labels=labels_of(node),
        taints=taints,
        soft_taints=tuple(each for each in taints if each.get("effect") == "PreferNoSchedule"),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=allocatable,
        most_pods=allocatable.pop("pods", 0),
    )


def scheduling_part(node: Object) -> tuple[object, ...]:
    """What the scheduler reads of a node; a heartbeat leaves it equal."""
    spec = node.get("spec") or {}
    status = node.get("status") or {}
    return (
        node["metadata"].get("labels"),
        spec.get("taints"),
        bool(spec.get("unschedulable")),
        status.get("allocatable"),
        status.get("capacity"),
    )


def unsuitable(node: NodeState, spec: Object) -> str:
    """Why a node's own properties keep a pod off, in the scheduler's order of checks; "" when they do not."""
    tolerations = spec.get("tolerations") or ()
    if node.unschedulable and not any(tolerates(each, _CORDON_TAINT) for each in tolerations):
        return UNSCHEDULABLE
    if untolerated(node.taints, tolerations, ("NoSchedule", "NoExecute")) is not None:
        return UNTOLERATED
    if not required_node_affinity_matches(spec, node.labels, node.name):
        return WRONG_NODE
    return ""
