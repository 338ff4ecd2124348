"""Preemption: pods of lower priority make room, on the node where that hurts least.

Only room counts here (resources, number of pods, host ports); a pod that is kept off by affinity or spread waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.cluster import BUDGET, POD, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, condition, labels_of, with_condition
from infra.sandbox.control_plane.controllers.scheduler.needs import Needs, ports_of, requests_of
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.selectors import label_matcher
from infra.sandbox.control_plane.controllers.view import PodFacts

SOURCE = "default-scheduler"
REASON = "PreemptionByScheduler"


@dataclass(frozen=True)
class Choice:
    """A node and the pods that have to leave it."""

    node: NodeState
    victims: tuple[PodFacts, ...]
    violations: int
    """Victims whose budget does not allow it."""

    def cost(self) -> tuple[int, int, int, int]:
        """What is weighed, most important first: budgets, the highest priority lost, the sum of them, the number."""
        lost = [priority_of(pod.obj) for pod in self.victims]
        return self.violations, max(lost), sum(value + 2**31 for value in lost), len(lost)


def priority_of(pod: Object) -> int:
    """spec.priority, 0 when it is missing."""
    value: int = pod["spec"].get("priority") or 0
    return value


def waits_for_victims(cluster: Cluster, pod: Object) -> bool:
    """The pod has preempted already, and a victim on its nominated node is still terminating."""
    node: str = (pod.get("status") or {}).get("nominatedNodeName") or ""
    return any(
        each.deleting
        and priority_of(each.obj) < priority_of(pod)
        and (condition(each.obj, "DisruptionTarget") or {}).get("reason") == REASON
        for each in cluster.view.pods_on(node)
    )


def choose(cluster: Cluster, pod: Object, needs: Needs, candidates: list[NodeState]) -> tuple[Choice | None, set[str]]:
    """The cheapest choice over nodes that only lack room, and the names of the nodes that hold any victim at all."""
    budgets = _Budgets(cluster)
    best: Choice | None = None
    with_victims: set[str] = set()
    for node in candidates:
        lower = [
            each
            for each in cluster.view.pods_on(node.name)
            if not each.finished and priority_of(each.obj) < priority_of(pod)
        ]
        if not lower:
            continue
        with_victims.add(node.name)
        choice = _on_node(node, needs, lower, budgets)
        if choice is not None and (best is None or choice.cost() < best.cost()):
            best = choice
    return best, with_victims


def _on_node(node: NodeState, needs: Needs, lower: list[PodFacts], budgets: _Budgets) -> Choice | None:
    """The fewest pods whose removal lets the pod in: all go, then the more important ones come back if they can."""
    room = _Room(node)
    for pod in lower:
        room.remove(pod.obj)
    if not room.fits(needs):
        return None
    ordered = sorted(lower, key=lambda each: (-priority_of(each.obj), each.obj["status"].get("startTime") or ""))
    violating, others = budgets.split(ordered)
    victims: list[PodFacts] = []
    violations = 0
    for pod in [*violating, *others]:
        room.add(pod.obj)
        if not room.fits(needs):
            room.remove(pod.obj)
            victims.append(pod)
            violations += pod in violating
    return Choice(node, tuple(victims), violations) if victims else None


def act(cluster: Cluster, preemptor: Object, choice: Choice) -> None:
    """Delete the victims, each with a condition and an event that say why."""
    for pod in choice.victims:
        if pod.deleting:
            continue
        target = {
            "type": "DisruptionTarget",
            "observedGeneration": pod.obj["metadata"].get("generation", 1),
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": cluster.stamp(),
            "reason": REASON,
            "message": f"{SOURCE}: preempting to accommodate a higher priority pod",
        }
        conditions = with_condition(pod.obj["status"].get("conditions"), target)
        marked = cluster.write_status(POD, pod.obj, {**pod.obj["status"], "conditions": conditions})
        cluster.delete(POD, marked)
        text = f"Preempted by pod {preemptor['metadata']['uid']} on node {choice.node.name}"
        cluster.events.emit(marked, POD, "Normal", "Preempted", text, SOURCE, action="Preempting")


class _Room:
    """A node's room while pods are taken off and put back in thought."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._used = dict(node.used)
        self._pods = node.pods
        self._ports = node.ports.copy()

    def remove(self, pod: Object) -> None:
        self._change(pod, -1)

    def add(self, pod: Object) -> None:
        self._change(pod, 1)

    def _change(self, pod: Object, sign: int) -> None:
        for name, value in requests_of(pod["spec"]).items():
            self._used[name] = self._used.get(name, 0) + sign * value
        for port in ports_of(pod["spec"]):
            self._ports[port] += sign
        self._pods += sign

    def fits(self, needs: Needs) -> bool:
        allocatable = self._node.allocatable
        return (
            self._pods < self._node.most_pods
            and all(
                value <= allocatable.get(name, 0) - self._used.get(name, 0) for name, value in needs.requests.items()
            )
            and all(self._ports[port] <= 0 for port in needs.ports)
        )


class _Budgets:
    """Which pods a budget guards, with what it still allows."""

    def __init__(self, cluster: Cluster) -> None:
        self._budgets = [
            (budget["metadata"]["namespace"], label_matcher(budget["spec"].get("selector")), budget["status"])
            for budget in cluster.store.list(BUDGET)
        ]

    def split(self, pods: list[PodFacts]) -> tuple[list[PodFacts], list[PodFacts]]:
        """Pods whose removal would break a budget, and the others."""
        left = [status.get("disruptionsAllowed", 0) for _, _, status in self._budgets]
        violating: list[PodFacts] = []
        others: list[PodFacts] = []
        for pod in pods:
            broken = False
            for number, (namespace, matches, status) in enumerate(self._budgets):
                if namespace != pod.key[0] or not matches(labels_of(pod.obj)):
                    continue
                if pod.key[1] in (status.get("disruptedPods") or {}):
                    continue
                left[number] -= 1
                broken = broken or left[number] < 0
            (violating if broken else others).append(pod)
        return violating, others
