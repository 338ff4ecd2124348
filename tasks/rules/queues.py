"""Where Kueue would put a gang that it admits again: judged before it is stopped, since only Kueue starts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from infra.model.cluster import Node
from infra.model.queues import Flavor, Queue
from infra.model.record import FENCE_TAINT
from infra.model.workload import Pod, Workload
from tasks.rules.placement import TargetShape, untolerated, wrong_label


def admitted_pod(pod: Pod, workload: Workload, queue: Queue, target: TargetShape) -> Pod:
    """The pod as Kueue will make it when it is admitted to the target: its owner's labels, and the flavours'."""
    chosen = [f for f in queue.flavors if f.covers & pod.requests.keys() and takes(f, pod, workload, target)]
    first = {f.group: f for f in reversed(chosen)}
    labels = {k: v for k, v in pod.node_selector.items() if (k, v) in workload.own_labels}
    tolerations = pod.tolerations
    for flavor in first.values():
        labels |= flavor.labels
        tolerations += flavor.tolerations
    return replace(pod, node_selector=labels, tolerations=tolerations)


def why_not(pods: Sequence[Pod], workload: Workload, queue: Queue, target: TargetShape) -> str:
    """Why Kueue would not admit them to the target; "" when it would."""
    if queue.stopped:
        return queue.stopped
    for pod in pods:
        for group in sorted({f.group for f in queue.flavors if f.covers & pod.requests.keys()}):
            flavors = [f for f in queue.flavors if f.group == group]
            leading = [f for f in flavors if takes(f, pod, workload, target)]
            if not leading:
                names = ", ".join(f"{f.name} ({_labels(f.labels)})" for f in flavors)
                return f"no flavour of cluster queue {queue.cluster} leads to the target: {names}"
            lacks = [_lacking(f, pods) for f in leading if f.name not in workload.assigned]
            if lacks and len(lacks) == len(leading) and all(lacks):
                return f"cluster queue {queue.cluster} has not the quota for it on the target: {lacks[0]}"
    return ""


def leads_to(queue: Queue, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> tuple[Flavor, ...]:
    """Its flavours that name the nodes where the pods run."""
    here = [nodes[p.node].labels for p in pods if p.node in nodes]
    return tuple(f for f in queue.flavors if f.labels and any(f.labels.items() <= labels.items() for labels in here))


def takes(flavor: Flavor, pod: Pod, workload: Workload, target: TargetShape) -> bool:
    """May Kueue admit the pod to this flavour, and does it lead to the target?"""
    own = {k: v for k, v in pod.node_selector.items() if (k, v) in workload.own_labels}
    if wrong_label(replace(pod, node_selector=own), TargetShape(labels=flavor.labels)):
        return False
    theirs = [t for t in flavor.taints if t.key != FENCE_TAINT]
    tolerant = replace(pod, tolerations=pod.tolerations + flavor.tolerations)
    return untolerated(tolerant, theirs) is None and leads(flavor, target)


def leads(flavor: Flavor, target: TargetShape) -> bool:
    """Are the target's nodes among those that it names?"""
    return not wrong_label(Pod(namespace="", name="", uid="", node_selector=flavor.labels), target)


def _lacking(flavor: Flavor, pods: Sequence[Pod]) -> str:
    for resource in sorted(flavor.covers & flavor.free.keys()):
        asked = sum(p.requests.get(resource, 0) for p in pods)
        if asked > flavor.free[resource]:
            return f"{flavor.name} has {flavor.free[resource]} {resource} free, {asked} are needed"
    return ""


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(labels.items())) or "no node labels"
