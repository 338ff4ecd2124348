"""Where Kueue would put a gang that it admits again: judged before it is stopped, since only Kueue starts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from infra.model.cluster import Node, Taint
from infra.model.queues import Flavor, Queue
from infra.model.record import FENCE_TAINT
from infra.model.workload import Pod, Workload
from tasks.rules.placement import TargetShape, untolerated, wrong_label

# Quota that is spoken for: (cluster queue, flavour, resource) -> amount, as in `Node.allocatable`.
Taken = Mapping[tuple[str, str, str], int]
_FENCE = Taint(key=FENCE_TAINT, value="", effect="NoSchedule")


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


def why_not(
    pods: Sequence[Pod], workload: Workload, queue: Queue, target: TargetShape, taken: Taken, needed: Iterable[str] = ()
) -> str:
    """Why Kueue would not admit them to the target; "" when it would.

    `taken` is quota that others take before (see `quota_of`); `needed` are resources that the queue must cover.
    """
    if queue.stopped:
        return queue.stopped
    covered = {r for f in queue.flavors for r in f.covers}
    for resource in sorted(set(needed) - covered):
        return f"cluster queue {queue.cluster} covers no {resource}"
    for pod in pods:
        for group in sorted({f.group for f in queue.flavors if f.covers & pod.requests.keys()}):
            flavors = [f for f in queue.flavors if f.group == group]
            leading = [f for f in flavors if takes(f, pod, workload, target)]
            if not leading:
                names = ", ".join(f"{f.name} ({_leading(f)})" for f in flavors)
                return f"no flavour of cluster queue {queue.cluster} leads to the target: {names}"
            lacks = [_lacking(f, pods, queue, taken) for f in leading if f.name not in workload.assigned]
            if lacks and len(lacks) == len(leading) and all(lacks):
                return f"cluster queue {queue.cluster} has not the quota for it on the target: {lacks[0]}"
    return ""


def quota_of(pods: Sequence[Pod], workload: Workload, queue: Queue, target: TargetShape, taken: Taken) -> Taken:
    """What they take of the target's flavours when they are admitted: the first of each group that has it."""
    found: dict[tuple[str, str, str], int] = {}
    for group in sorted({f.group for f in queue.flavors}):
        leading = [
            f
            for f in queue.flavors
            if f.group == group and any(f.covers & p.requests.keys() and takes(f, p, workload, target) for p in pods)
        ]
        if not leading or any(f.name in workload.assigned for f in leading):
            continue  # what it uses there now is counted as used
        chosen = next((f for f in leading if not _lacking(f, pods, queue, taken)), leading[0])
        for resource in chosen.covers:
            found[queue.cluster, chosen.name, resource] = sum(p.requests.get(resource, 0) for p in pods)
    return found


def leads_to(queue: Queue, nodes: Iterable[Node]) -> tuple[Flavor, ...]:
    """Its flavours that name one of the nodes."""
    here = [node.labels for node in nodes]
    return tuple(f for f in queue.flavors if f.labels and any(f.labels.items() <= labels.items() for labels in here))


def only_there(
    queues: Iterable[Queue], nodes: Sequence[Node], source: Iterable[str], target: TargetShape
) -> tuple[str, ...]:
    """Names of flavours that lead to source nodes and to no others."""
    left = set(source)
    here, stay = [n for n in nodes if n.name in left], [n for n in nodes if n.name not in left]
    found: set[str] = set()
    for queue in queues:
        elsewhere = {f.name for f in leads_to(queue, stay)}
        found |= {f.name for f in leads_to(queue, here) if not leads(f, target)} - elsewhere
    return tuple(sorted(found))


def passes_our_fence(flavor: Flavor, pods: Iterable[Pod]) -> bool:
    """Would Kueue admit one of them to the flavour although our taint is on it?"""
    return any(
        untolerated(replace(pod, tolerations=pod.tolerations + flavor.tolerations), [_FENCE]) is None for pod in pods
    )


def takes(flavor: Flavor, pod: Pod, workload: Workload, target: TargetShape) -> bool:
    """May Kueue admit the pod to this flavour, and does it lead to the target?"""
    own = {k: v for k, v in pod.node_selector.items() if (k, v) in workload.own_labels}
    if wrong_label(replace(pod, node_selector=own), TargetShape(labels=flavor.labels)):
        return False
    # Our own taint is on none that leads to the target, so one that is on such a flavour is another run's.
    tolerant = replace(pod, tolerations=pod.tolerations + flavor.tolerations)
    return untolerated(tolerant, flavor.taints) is None and leads(flavor, target)


def leads(flavor: Flavor, target: TargetShape) -> bool:
    """Are the target's nodes among those that it names?"""
    return not wrong_label(Pod(namespace="", name="", uid="", node_selector=flavor.labels), target)


def _lacking(flavor: Flavor, pods: Sequence[Pod], queue: Queue, taken: Taken) -> str:
    for resource in sorted(flavor.covers & flavor.free.keys()):
        asked = sum(p.requests.get(resource, 0) for p in pods)
        before = taken.get((queue.cluster, flavor.name, resource), 0)
        if asked > flavor.free[resource] - before:
            others = f", of which others that move before take {before}" if before else ""
            return f"{flavor.name} has {flavor.free[resource]} {resource} free{others}, {asked} are needed"
    return ""


def _leading(flavor: Flavor) -> str:
    labels = ",".join(f"{k}={v}" for k, v in sorted(flavor.labels.items())) or "no node labels"
    return labels + "".join(f", taint {t.key}={t.value}" for t in flavor.taints)
