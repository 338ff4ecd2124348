"""Which nodes a DaemonSet's pods belong on, and how such a pod is tied to its node. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.objects import Object, labels_of
from infra.sandbox.control_plane.controllers.selectors import required_node_affinity_matches, untolerated
from infra.sandbox.control_plane.controllers.view import PodFacts

_AUTOMATIC = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_ON_HOST_NETWORK = ("node.kubernetes.io/network-unavailable", "NoSchedule")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a node should get a pod, and whether one that runs there may stay."""

    run: bool
    stay: bool


def daemon_spec(spec: Object) -> Object:
    """The pod spec with the tolerations that every daemon pod gets."""
    tolerations = list(spec.get("tolerations") or ())
    for key, effect in (*_AUTOMATIC, *((_ON_HOST_NETWORK,) if spec.get("hostNetwork") else ())):
        wanted = {"key": key, "operator": "Exists", "effect": effect}
        tolerations = [
            each
            for each in tolerations
            if (each.get("key"), each.get("effect"), each.get("operator"), each.get("value"))
            != (key, effect, "Exists", None)
        ]
        tolerations.append(wanted)
    return {**spec, "tolerations": tolerations}


def judge_node(spec: Object, node: Object) -> Fit:
    """The node against a spec that has its automatic tolerations already."""
    name = node["metadata"]["name"]
    if spec.get("nodeName") not in (None, "", name):
        return Fit(run=False, stay=False)
    if not required_node_affinity_matches(spec, labels_of(node), name):
        return Fit(run=False, stay=False)
    taints = (node.get("spec") or {}).get("taints") or ()
    tolerations = spec["tolerations"]
    if untolerated(taints, tolerations, ("NoExecute", "NoSchedule")) is None:
        return Fit(run=True, stay=True)
    return Fit(run=False, stay=untolerated(taints, tolerations, ("NoExecute",)) is None)


def target_node(pod: PodFacts) -> str:
    """The node of a daemon pod: bound, or the one its affinity names."""
    if pod.node:
        return pod.node
    affinity = (pod.obj["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or ()
    for term in terms:
        for each in term.get("matchFields") or ():
            if each["key"] == "metadata.name" and each["operator"] == "In" and len(each["values"]) == 1:
                name: str = each["values"][0]
                return name
    return ""


def pinned(spec: Object, node: str) -> Object:
    """The spec with a node affinity to one node in the place of the required one (which was judged already)."""
    affinity = dict(spec.get("affinity") or {})
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity["nodeAffinity"] = {
        **(affinity.get("nodeAffinity") or {}),
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
    }
    return {**spec, "affinity": affinity}
