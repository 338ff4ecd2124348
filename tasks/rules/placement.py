"""Would a pod fit the target pool? Labels, taints, resources, zones of volumes; and room for a gang as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from infra.model.cluster import EMPTY, Node, Taint
from infra.model.record import HELD, UNPROVEN_TAINT
from infra.model.workload import Pod, Requirement, Snapshot, Volume

_HOSTNAME = "kubernetes.io/hostname"
# Taints that go away by themselves, or that we take off before work moves.
_PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", UNPROVEN_TAINT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetShape:
    """One node of the target pool, and how many there are. Known before the pool exists (from the spec).

    `labels` are those known; with `open_labels` the cloud will add more (hostname, image, …), so a label that is
    absent here is unknown rather than missing. Amounts as in `Node.allocatable`.
    """

    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    nodes: int = 0
    open_labels: bool = True


def shape_of(nodes: Sequence[Node]) -> TargetShape | None:
    """The shape of a pool that exists: labels that all nodes share, the least that every node offers."""
    if not nodes:
        return None
    first = nodes[0]
    return TargetShape(
        labels={k: v for k, v in first.labels.items() if all(n.labels.get(k) == v for n in nodes)},
        taints=tuple(t for t in first.taints if all(t in n.taints for n in nodes) and not t.key.startswith(_PASSING)),
        allocatable={k: min(n.allocatable.get(k, 0) for n in nodes) for k in first.allocatable},
        nodes=len(nodes),
        open_labels=False,
    )


def wrong_label(pod: Pod, shape: TargetShape) -> str:
    """The part of the pod's nodeSelector or required affinity that the target fails; "" when it fits or may fit."""
    for key, value in pod.node_selector.items():
        if not _may_hold(Requirement(key=key, operator="In", values=(value,)), shape):
            return f"nodeSelector {key}={value}"
    if pod.affinity and not terms_may_hold(pod.affinity, shape):
        return "required node affinity " + " or ".join(" and ".join(str(r) for r in term) for term in pod.affinity)
    return ""


def only_on(pod: Pod, node: str) -> bool:
    """Does its nodeSelector or required affinity name this one node?"""
    if not node:
        return False
    if pod.node_selector.get(_HOSTNAME) == node:
        return True
    return bool(pod.affinity) and all(
        any(r.operator == "In" and r.values == (node,) and (r.field or r.key == _HOSTNAME) for r in term)
        for term in pod.affinity
    )


def terms_may_hold(terms: Iterable[tuple[Requirement, ...]], shape: TargetShape) -> bool:
    """One term must hold; an empty term holds for no node, as in Kubernetes."""
    return any(term and all(_may_hold(r, shape) for r in term) for term in terms)


def _may_hold(requirement: Requirement, shape: TargetShape) -> bool:
    """A pool's name, zone or type known here decides; a label not known here may still come."""
    if requirement.field:
        return requirement.operator == "NotIn"  # metadata.name: pinned to nodes that are not of the target
    if requirement.key == _HOSTNAME:
        return requirement.operator in ("NotIn", "Exists")
    value = shape.labels.get(requirement.key)
    if value is None and shape.open_labels:
        return True
    return requirement.holds(value)


def untolerated(pod: Pod, taints: Iterable[Taint]) -> Taint | None:
    """The first taint that keeps the pod away, PreferNoSchedule aside."""
    for taint in taints:
        if taint.effect != "PreferNoSchedule" and not any(t.tolerates(taint) for t in pod.tolerations):
            return taint
    return None


def tolerates_everything(pod: Pod) -> bool:
    """Would it come back to a fenced and cordoned node?"""
    return any(not t.key and t.operator == "Exists" and t.effect in ("", "NoSchedule") for t in pod.tolerations)


def lacking(pod: Pod, shape: TargetShape) -> tuple[str, int, int] | None:
    """(resource, asked, offered) of the first one that a whole target node does not offer."""
    if not shape.allocatable:
        return None
    for resource, asked in pod.requests.items():
        offered = shape.allocatable.get(resource, 0)
        if asked > offered and (resource in shape.allocatable or "/" in resource):
            return resource, asked, offered
    return None


def bound_elsewhere(pod: Pod, volumes: Mapping[tuple[str, str], Volume], shape: TargetShape) -> Volume | None:
    """A volume of the pod that no target node can reach (its zone, or its one node)."""
    for claim in pod.claims:
        volume = volumes.get((pod.namespace, claim))
        if volume is not None and volume.affinity and not terms_may_hold(volume.affinity, shape):
            return volume
    return None


def bound_to(volume: Volume, node: str) -> bool:
    """Is it kept on this one node, whichever label its driver tells nodes by?"""
    one = tuple(r for term in volume.affinity for r in term if r.operator == "In" and r.values == (node,))
    return volume.local or (bool(one) and len(one) == len(volume.affinity))


def free_on(node: Node, pods: Iterable[Pod]) -> dict[str, int]:
    """What a node still offers: allocatable less the requests of pods that are not finished."""
    free = dict(node.allocatable)
    for pod in pods:
        if not pod.finished:
            for resource, asked in pod.requests.items():
                if resource in free:
                    free[resource] -= asked
            if "pods" in free:
                free["pods"] -= 1
    return free


def place(
    pods: Sequence[Pod], free: Sequence[dict[str, int]], taints: Sequence[tuple[Taint, ...]] = ()
) -> tuple[Pod, ...]:
    """Pods that find no room when all are placed, largest first, each on the first node that takes it.

    `free` is used up; `taints` are those of the same nodes, in the same order. First-fit decreasing: exact for gangs
    of equal pods, and at worst says "no room" for a mix that a cleverer packing would fit; it never says "room"
    wrongly.
    """
    homeless = []
    nodes = list(zip(free, taints or [()] * len(free), strict=True))
    for pod in sorted(pods, key=lambda p: sorted(p.requests.values(), reverse=True), reverse=True):
        home = next((f for f, t in nodes if _takes(f, pod) and untolerated(pod, t) is None), None)
        if home is None:
            homeless.append(pod)
            continue
        for resource, asked in pod.requests.items():
            home[resource] = home.get(resource, 0) - asked
        if "pods" in home:
            home["pods"] -= 1
    return tuple(homeless)


def _takes(free: Mapping[str, int], pod: Pod) -> bool:
    if free.get("pods", 1) < 1:
        return False
    return all(free.get(resource, 0) >= asked for resource, asked in pod.requests.items() if asked)


def without_room(gang: Sequence[Pod], snapshot: Snapshot, targets: Iterable[str]) -> tuple[Pod, ...]:
    """Members of a gang that the target nodes cannot take as things stand, the whole gang placed at once.

    A node that somebody has cordoned, or that is leaving, takes nothing. One that we keep closed is opened before.
    """
    nodes = [n for name in targets if (n := snapshot.node_by_name.get(name)) is not None and _will_take(n)]
    members = {p.uid for p in gang}
    free = [free_on(n, (p for p in snapshot.pods_by_node.get(n.name, ()) if p.uid not in members)) for n in nodes]
    return place(gang, free, [_lasting(n.taints) for n in nodes])


def _will_take(node: Node) -> bool:
    return node.ready and node.deletion is None and (not node.unschedulable or bool(node.annotations.get(HELD)))


def room_to_keep(
    gangs: Sequence[Pod], loose: Sequence[Pod], snapshot: Snapshot, targets: Iterable[str]
) -> tuple[str, ...]:
    """Target nodes to keep free for gangs while loose pods move; none where not all of both finds room that way."""
    nodes = [n for name in targets if (n := snapshot.node_by_name.get(name)) is not None and _will_take(n)]
    asked = {resource for pod in gangs for resource, count in pod.requests.items() if count}
    here = [(free_on(n, snapshot.pods_by_node.get(n.name, ())), n) for n in nodes]
    here.sort(key=lambda each: (-sum(each[0].get(r, 0) for r in asked if "/" in r), each[1].name))
    taints = [_lasting(n.taints) for _, n in here]
    return tuple(here[i][1].name for i in _apart(gangs, loose, [free for free, _ in here], taints))


def room_is_safe(
    gangs: Sequence[Pod], loose: Sequence[Pod], snapshot: Snapshot, shape: TargetShape, targets: Sequence[str] = ()
) -> bool:
    """Do gangs find their room although loose pods leave first: wherever these land, or since room is kept for them?

    `targets` are the target's nodes where it exists; without them it is as its shape says.
    """
    if targets:
        if room_to_keep(gangs, loose, snapshot, targets):
            return True
        nodes = [n for name in targets if (n := snapshot.node_by_name.get(name)) is not None and _will_take(n)]
        free = [free_on(n, snapshot.pods_by_node.get(n.name, ())) for n in nodes]
        taints = [_lasting(n.taints) for n in nodes]
    else:
        free = [dict(shape.allocatable) for _ in range(shape.nodes)]
        taints = [shape.taints] * shape.nodes
        if _apart(gangs, loose, free, taints):
            return True
    # At worst all of them land on the one node that a gang needs.
    for node in free:
        for pod in loose:
            for resource, count in pod.requests.items():
                if resource in node:
                    node[resource] -= count
        if "pods" in node:
            node["pods"] -= len(loose)
    return not place(gangs, free, taints)


def _apart(
    gangs: Sequence[Pod],
    loose: Sequence[Pod],
    free: Sequence[Mapping[str, int]],
    taints: Sequence[tuple[Taint, ...]],
) -> list[int]:
    """Which nodes gangs take, if all of them find room there and all loose pods on the others; else none."""
    after = [dict(each) for each in free]
    if place(gangs, after, taints):
        return []
    kept = [i for i, each in enumerate(free) if after[i] != each]
    others = [i for i in range(len(free)) if i not in set(kept)]
    if not others or place(loose, [dict(free[i]) for i in others], [taints[i] for i in others]):
        return []
    return kept


def _lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(t for t in taints if not t.key.startswith(_PASSING))
