"""The audit of a dump: which components are broken, in Kubernetes' own words, why, and since when.

A dump knows no pool and often holds only a few objects, so this judges what is there and claims nothing about the
rest: a component of which nothing is shown is not healthy, it is not judged. The live audit has a pool to compare
with and uses `tasks.rules.readiness` as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from infra.model.cluster import EMPTY, Node
from infra.model.plugins import DRA_DRIVERS, KNOWN_PLUGINS, Container, DaemonSet, PluginPod, stem
from infra.model.pools import MACHINE_LABEL
from infra.model.verdict import Finding, Outcome
from tasks.rules.causes import cause_of
from tasks.rules.plugin_cover import recognises, refusal
from tasks.rules.wording import plural

BROKEN_WAITS = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CrashLoopBackOff",
        "RunContainerError",
        "CreateContainerError",
        "CreateContainerConfigError",
        "ContainerCannotRun",
    }
)
# Causes that are computed from a DaemonSet's selectors and tolerations.
EXCLUDED = frozenset({"taint-not-tolerated", "node-not-selected"})
# Resources whose number is a configured maximum and not a count of hardware (k8s-rdma-shared-dev-plugin's rdmaHcaMax).
NOT_A_COUNT = ("rdma/",)
DEVICE_RESOURCE = re.compile(
    r"^(nvidia\.com/|amd\.com/gpu|vpc\.amazonaws\.com/efa|rdma/|mellanox\.com/|networking\.gke\.io\.networks/)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One DaemonSet, or one group of pods with a common owner, or the devices of one node."""

    name: str
    outcome: Outcome
    reason: str = ""
    cause: str = ""
    message: str = ""
    image: str = ""
    since: datetime | None = None
    restarts: int | None = None
    pods_ready: int | None = None
    pods_total: int | None = None
    resource: str = ""
    allocatable: int | None = None
    expected: int | None = None
    facts: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


def components(
    nodes: Sequence[Node],
    daemonsets: Sequence[DaemonSet],
    pods: Sequence[PluginPod],
    events: Iterable[Mapping[str, Any]] = (),
    *,
    missed: Collection[str] | None = None,
) -> list[Component]:
    """Everything that can be judged, worst first.

    `missed`: where the nodes' pools were judged, the DaemonSets that they miss, as `DaemonSet.object`. Every cluster
    has DaemonSets for machines that are not there (GKE's for other images and node sizes, Windows' on EKS): one that
    wants none of these nodes is broken only where a pool misses it, or mounts file systems.
    """
    seen = list(events)
    owned, loose = _by_daemonset(daemonsets, pods)
    short = {key for d in daemonsets if d.object in (missed or ()) for key in _kinds(d)}
    found = [
        _daemonset(d, mine, nodes, seen)
        for d in daemonsets
        if (mine := owned.get((d.namespace, d.name), []))
        or missed is None
        or short & _kinds(d)
        or not _elsewhere(d, nodes)
    ]
    found += [_pods(name, group, seen) for name, group in sorted(loose.items())]
    found += [device for node in nodes for device in _devices(node)]
    order = {Outcome.FAIL: 0, Outcome.UNMEASURED: 1, Outcome.PASS: 2}
    return sorted(found, key=lambda c: order[c.outcome])


def _kinds(daemonset: DaemonSet) -> set[str]:
    """Which of the known plugins this is."""
    return {plugin.key for plugin in KNOWN_PLUGINS if recognises(plugin, daemonset)}


def _elsewhere(daemonset: DaemonSet, nodes: Sequence[Node]) -> bool:
    mounts = any(plugin.csi and recognises(plugin, daemonset) for plugin in KNOWN_PLUGINS)
    return bool(nodes) and not mounts and all(refusal(daemonset, node) is not None for node in nodes)


def dra_drivers(daemonsets: Iterable[DaemonSet]) -> tuple[str, ...]:
    """The DRA drivers whose DaemonSets are there: without its ResourceSlices nobody knows what one offers."""
    return tuple(sorted({driver for d in daemonsets for word, driver in _DRA_DAEMONSETS.items() if word in d.name}))


# kubernetes-sigs/dranet and EKS' chart of it, GKE's managed one, NVIDIA's driver for GPUs: names as they ship them.
_DRA_DAEMONSETS = {
    "dranet": "dra.net",
    "networking-dra-driver": "dra.net",
    "nvidia-dra-driver-gpu": "gpu.nvidia.com",
}


def by_slices(finding: Finding, drivers: Collection[str]) -> bool:
    """Is this about devices of which the nodes show none, and that one of these drivers may offer?"""
    told = f"{finding.observed} {finding.expected}"
    names = [name for name, serving in DRA_DRIVERS.items() if set(serving) & set(drivers) and name in told]
    return bool(names) and (finding.code == "plugin-absent" or ": 0 allocatable" in finding.observed)


def is_accelerated(node: Node) -> bool:
    """Does anything say that this node has GPUs or a fabric: what it offers, a label, a taint, its machine's family."""
    return (
        any(DEVICE_RESOURCE.match(r) for r in {*node.capacity, *node.allocatable})
        or any(key in _GPU_LABELS for key in node.labels)
        or any(taint.key == "nvidia.com/gpu" for taint in node.taints)
        or _GPU_FAMILY.match(node.labels.get(MACHINE_LABEL, "")) is not None
    )


# Set by GKE, EKS' documentation, NVIDIA's feature discovery, Karpenter and EKS Auto Mode, on nodes with GPUs only.
_GPU_LABELS = frozenset(
    {
        "cloud.google.com/gke-accelerator",
        "k8s.amazonaws.com/accelerator",
        "nvidia.com/gpu.count",
        "karpenter.k8s.aws/instance-gpu-count",
        "eks.amazonaws.com/instance-gpu-count",
    }
)
# EC2's P and G families, also as HyperPod calls them; Google's A2 and later, and G2 and later.
_GPU_FAMILY = re.compile(r"(?:ml\.)?(p|gr?)\d\w*(-\w+)?\.|(a[2-9]x?|g\d)-")


def _by_daemonset(
    daemonsets: Sequence[DaemonSet], pods: Sequence[PluginPod]
) -> tuple[dict[tuple[str, str], list[PluginPod]], dict[str, list[PluginPod]]]:
    """Each DaemonSet's pods, by owner or, where the dump lacks it, by name; and the other pods by their stem."""
    by_uid = {d.uid: (d.namespace, d.name) for d in daemonsets if d.uid}
    names = {(d.namespace, d.name) for d in daemonsets}
    owned: dict[tuple[str, str], list[PluginPod]] = {}
    loose: dict[str, list[PluginPod]] = {}
    for pod in pods:
        key = by_uid.get(pod.daemonset_uid) or (pod.namespace, stem(pod.name))
        if key in names:
            owned.setdefault(key, []).append(pod)
        else:
            loose.setdefault(stem(pod.name), []).append(pod)
    return owned, loose


def _daemonset(
    daemonset: DaemonSet, pods: Sequence[PluginPod], nodes: Sequence[Node], events: Sequence[Mapping[str, Any]]
) -> Component:
    if pods:
        found = _pods(daemonset.name, pods, events)
        if found.outcome is not Outcome.PASS:
            return found
    reasons = [(n.name, why) for n in nodes if (why := refusal(daemonset, n)) is not None]
    if nodes and len(reasons) == len(nodes):
        name, why = reasons[0]
        # Computed: no event says so, and the node's label or taint may be younger than the DaemonSet.
        return Component(
            name=daemonset.name,
            outcome=Outcome.FAIL,
            cause="taint-not-tolerated" if "not tolerated" in why else "node-not-selected",
            message=f"{_excluding(why)} node {name}: {why}"
            + (f" (and {plural(len(reasons) - 1, 'other node')})" if len(reasons) > 1 else ""),
            facts={"namespace": daemonset.namespace},
            pods_ready=daemonset.ready,
            pods_total=daemonset.desired,
        )
    outcome = Outcome.PASS if daemonset.desired and daemonset.ready >= daemonset.desired else Outcome.FAIL
    if daemonset.desired == 0:
        outcome = Outcome.UNMEASURED
    return Component(
        name=daemonset.name,
        outcome=outcome,
        reason="" if outcome is Outcome.PASS else "NoNodeSelected" if not daemonset.desired else "PodsNotReady",
        image=daemonset.images[0] if daemonset.images else "",
        pods_ready=daemonset.ready,
        pods_total=daemonset.desired,
    )


def _excluding(why: str) -> str:
    """Which part of the DaemonSet keeps it away, as a subject and its verb."""
    if "not tolerated" in why:
        return "its tolerations exclude"
    return "its node affinity excludes" if why.startswith("node affinity") else "its nodeSelector excludes"


def _pods(name: str, pods: Sequence[PluginPod], events: Sequence[Mapping[str, Any]]) -> Component:
    broken = [p for p in pods if not p.ready and p.phase != "Succeeded"]
    common: dict[str, Any] = {
        "name": name,
        "pods_ready": sum(p.ready for p in pods),
        "pods_total": len(pods),
        "restarts": max((c.restarts for p in pods for c in p.containers), default=0),
    }
    if not broken:
        return Component(outcome=Outcome.PASS, image=_image(pods[0]), **common)
    pod = min(broken, key=lambda p: (p.not_ready_since is None, p.not_ready_since))
    culprit = _culprit(pod)
    said = [str(e.get("message", "")) for e in events if (e.get("involvedObject") or {}).get("name") == pod.name]
    reason = culprit.waiting or culprit.terminated if culprit else ""
    return Component(
        outcome=Outcome.FAIL,
        reason=reason or ("Unschedulable" if pod.unscheduled else pod.phase or "NotReady"),
        cause=cause_of(culprit.message if culprit else "", culprit.terminated if culprit else "", *said)
        or _cause_of_reason(culprit, pod),
        message=(culprit.message if culprit else "") or pod.unscheduled or (said[-1] if said else ""),
        image=culprit.image if culprit else _image(pod),
        since=pod.not_ready_since,
        facts={"pod": f"{pod.namespace}/{pod.name}", "node": pod.node},
        **common,
    )


def _culprit(pod: PluginPod) -> Container | None:
    """The container that keeps the pod from being Ready: init containers first, broken waits before plain ones."""
    waiting = [c for c in pod.containers if c.waiting in BROKEN_WAITS]
    ended = [c for c in pod.containers if c.terminated and not (c.init and c.terminated == "Completed")]
    others = [c for c in pod.containers if not c.ready and c.waiting]
    return next(iter(waiting or ended or others), None)


def _cause_of_reason(culprit: Container | None, pod: PluginPod) -> str:
    if culprit is None:
        return "unschedulable" if pod.unscheduled else ""
    if culprit.waiting in ("ImagePullBackOff", "ErrImagePull"):
        return "image-pull"
    if culprit.waiting == "CrashLoopBackOff":
        return "crash-loop"
    if culprit.terminated == "Completed" and not culprit.init:
        return "container-exited"
    return ""


def _image(pod: PluginPod) -> str:
    return pod.containers[0].image if pod.containers else ""


def _devices(node: Node) -> Iterable[Component]:
    """Each device resource of a node. A positive number is presence; for shared RDMA it says nothing about hardware."""
    for resource in sorted(r for r in {*node.capacity, *node.allocatable} if DEVICE_RESOURCE.match(r)):
        have, whole = node.allocatable.get(resource, 0), node.capacity.get(resource, 0)
        lost = have < whole
        yield Component(
            name=f"node {node.name}",
            outcome=Outcome.PASS if have and not lost else Outcome.FAIL,
            reason="" if have and not lost else "DevicesUnhealthy" if lost else "NoDevices",
            cause="" if have and not lost else "devices-unhealthy" if lost else "no-devices",
            resource=resource,
            allocatable=have,
            expected=whole if lost else None,
            facts={"hca_count_known": False} if resource.startswith(NOT_A_COUNT) else {},
        )
