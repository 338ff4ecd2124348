"""Read what readiness is judged by: a pool's nodes, plugin DaemonSets and their pods, DRA slices, CSI drivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from infra.errors import Forbidden, NotFound
from infra.kube import device_slices, wire
from infra.kube.api import Kube
from infra.model.plugins import KNOWN_PLUGINS, Container, DaemonSet, PluginPod, PluginView, stem

Wire = Mapping[str, Any]
# Where clouds, NVIDIA's operators and SR-IOV's keep what makes a node's devices show.
_SYSTEM = ("kube-", "gke-", "gmp-", "amazon-", "nvidia", "gpu-operator", "network-operator", "sriov", "dranet")


def view(kube: Kube, node_selector: Mapping[str, str]) -> PluginView:
    """The pool's nodes and everything that should make their devices visible, read now.

    Pods are listed per plugin DaemonSet by its own selector, so a cluster of 1,000 nodes costs a handful of lists.
    """
    labels = ",".join(f"{key}={value}" for key, value in sorted(node_selector.items()))
    return survey(kube, list(kube.list("/api/v1/nodes", {"labelSelector": labels})))


def survey(kube: Kube, nodes: Sequence[Wire]) -> PluginView:
    """The same for nodes that were read before."""
    sets = [raw for raw in kube.list("/apis/apps/v1/daemonsets") if _known(raw)]
    pods = [pod for raw in sets for pod in _pods_of(kube, raw)]
    names = {raw["metadata"]["name"] for raw in nodes}
    return from_objects(
        nodes,
        sets,
        pods,
        taken=kube.clock.now(),
        slices=_slices(kube),
        csi=[
            raw for raw in _optional(kube, "/apis/storage.k8s.io/v1/csinodes") or () if raw["metadata"]["name"] in names
        ],
    )


def daemonsets(kube: Kube) -> list[DaemonSet]:
    """DaemonSets of the known plugins, and of NVIDIA's driver where the GPU Operator brings it."""
    listed = kube.list("/apis/apps/v1/daemonsets")
    return [daemonset(raw) for raw in listed if _known(raw) or NVIDIA_DRIVER in raw["metadata"]["name"]]


NVIDIA_DRIVER = "nvidia-driver-daemonset"  # NVIDIA GPU Operator 25.3; its image is nvcr.io/nvidia/driver


def is_component(pod: Wire) -> bool:
    """Does this pod belong to the machinery of its node? Told by its owner, its name and image, or its namespace."""
    meta = pod["metadata"]
    if wire.owner(meta) is not None and _is_of_its_node(pod):
        return True
    return str(meta.get("namespace", "")).startswith(_SYSTEM) or _recognised(meta["name"], pod.get("spec") or {})


def from_objects(
    nodes: Iterable[Wire],
    daemonsets: Iterable[Wire],
    pods: Iterable[Wire],
    *,
    taken: datetime,
    slices: Iterable[Wire] | None = None,
    csi: Iterable[Wire] | None = None,
) -> PluginView:
    """The same from plain objects, as a kubectl dump holds them."""
    return PluginView(
        taken=taken,
        nodes=tuple(wire.node(raw) for raw in nodes),
        daemonsets=tuple(daemonset(raw) for raw in daemonsets),
        pods=tuple(map(plugin_pod, _without_rests(pods))),
        slices=device_slices.count(slices) if slices is not None else None,
        csi={raw["metadata"]["name"]: _drivers(raw) for raw in csi} if csi is not None else None,
    )


def daemonset(raw: Wire) -> DaemonSet:
    """Tolerant reader of one DaemonSet."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    shape = wire.pod({"metadata": {"name": "", "namespace": ""}, "spec": template})
    return DaemonSet(
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        uid=meta.get("uid") or _in_place_of_uid(meta, meta["name"]),
        images=tuple(c.get("image", "") for part in ("initContainers", "containers") for c in template.get(part) or ()),
        labels=meta.get("labels") or {},
        node_selector=shape.node_selector,
        affinity=shape.affinity,
        tolerations=shape.tolerations,
        created=wire.moment(meta.get("creationTimestamp")),
        desired=int(status.get("desiredNumberScheduled") or 0),
        ready=int(status.get("numberReady") or 0),
    )


def plugin_pod(raw: Wire) -> PluginPod:
    """Tolerant reader of one DaemonSet pod. An unscheduled one is placed by the affinity its controller gave it.

    Ready is what its condition says and none of its containers denies.
    """
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    scheduled = conditions.get("PodScheduled") or {}
    denied = any(c.get("ready") is not True for c in status.get("containerStatuses") or ())
    return PluginPod(
        namespace=meta.get("namespace", "default"),
        name=meta["name"],
        node=spec.get("nodeName") or _wanted_node(raw),
        daemonset_uid=_maker(meta),
        phase=status.get("phase", ""),
        ready=ready.get("status") == "True" and not denied,
        not_ready_since=wire.moment(ready.get("lastTransitionTime")) or wire.moment(meta.get("creationTimestamp")),
        leaving=wire.moment(meta.get("deletionTimestamp")),
        unscheduled=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        containers=tuple(_containers(spec, status)),
        labels=meta.get("labels") or {},
    )


def _maker(meta: Wire) -> str:
    owner = wire.owner(meta)
    return (owner.uid if owner else "") or _in_place_of_uid(meta, owner.name if owner else stem(meta["name"]))


def _in_place_of_uid(meta: Wire, name: str) -> str:
    """What ties a pod to its DaemonSet in a dump that somebody has stripped of UIDs: "" would tie all to all."""
    return f"{meta.get('namespace', 'default')}/{name}"


def _without_rests(pods: Iterable[Wire]) -> list[Wire]:
    """Without pods that have ended (evicted, preempted, tried in vain) and that their owner has made another of.

    A DaemonSet's next one is on the same node, any other owner's is anywhere, and a Job's may have succeeded.
    """
    ranked = [(pod, _place(pod), _rank(pod)) for pod in pods]
    best: dict[tuple[str, str], int] = {}
    for _, place, rank in ranked:
        best[place] = max(rank, best.get(place, rank))
    return [pod for pod, place, rank in ranked if rank == _LIVES or rank == best[place]]


_LIVES = 2


def _place(pod: Wire) -> tuple[str, str]:
    """Who made a pod, and on which node another would be its successor; "" for any."""
    maker = _maker(pod["metadata"])
    return maker, ((pod.get("spec") or {}).get("nodeName") or _wanted_node(pod)) if _is_of_its_node(pod) else ""


def _rank(pod: Wire) -> int:
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        return 0 if _is_of_its_node(pod) else 1
    return 0 if phase == "Failed" else _LIVES


def _is_of_its_node(pod: Wire) -> bool:
    owner = wire.owner(pod["metadata"])
    return owner is None or owner.kind in ("DaemonSet", "Node")


def _containers(spec: Wire, status: Wire) -> Iterable[Container]:
    for part, statuses, init in (
        ("initContainers", "initContainerStatuses", True),
        ("containers", "containerStatuses", False),
    ):
        found = {c.get("name"): c for c in status.get(statuses) or ()}
        for declared in spec.get(part) or ():
            yield _container(declared, found.get(declared.get("name")) or {}, init)


def _container(declared: Wire, status: Wire, init: bool) -> Container:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    previous = last.get("terminated") or {}
    return Container(
        name=declared.get("name", ""),
        image=declared.get("image") or status.get("image", ""),
        init=init,
        ready=bool(status.get("ready")),
        restarts=int(status.get("restartCount") or 0),
        waiting=waiting.get("reason", ""),
        message=" ".join(m for m in (waiting.get("message"), ended.get("message"), previous.get("message")) if m),
        terminated=ended.get("reason", ""),
        exit_code=(ended or previous).get("exitCode"),
        started=wire.moment((state.get("running") or {}).get("startedAt")),
        ended=wire.moment((ended or previous).get("finishedAt")),
    )


def _wanted_node(raw: Wire) -> str:
    """The node that the DaemonSet controller pinned an unscheduled pod to (matchFields metadata.name)."""
    for term in wire.pod(raw).affinity:
        for requirement in term:
            if requirement.field and requirement.key == "metadata.name" and requirement.values:
                return requirement.values[0]
    return ""


def _known(raw: Wire) -> bool:
    return _recognised(raw["metadata"]["name"], ((raw.get("spec") or {}).get("template") or {}).get("spec") or {})


def _recognised(name: str, spec: Wire) -> bool:
    images = " ".join(c.get("image", "") for c in spec.get("containers") or ())
    return any(
        any(word in name for word in plugin.names) or any(word in images for word in plugin.images)
        for plugin in KNOWN_PLUGINS
    )


def _pods_of(kube: Kube, raw: Wire) -> list[dict[str, Any]]:
    labels = ((raw.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    path = f"/api/v1/namespaces/{raw['metadata']['namespace']}/pods"
    return list(kube.list(path, {"labelSelector": selector or None}))


def _slices(kube: Kube) -> list[dict[str, Any]] | None:
    """ResourceSlices by the newest version that the cluster serves: NVIDIA's driver runs on those of 1.32 as well."""
    paths = (f"/apis/resource.k8s.io/{version}/resourceslices" for version in ("v1", "v1beta2", "v1beta1"))
    return next((found for path in paths if (found := _optional(kube, path)) is not None), None)


def _optional(kube: Kube, path: str) -> list[dict[str, Any]] | None:
    """A list that not every cluster serves or lets us read; None says so."""
    try:
        return list(kube.list(path))
    except (NotFound, Forbidden):
        return None


def _drivers(raw: Wire) -> tuple[str, ...]:
    return tuple(d.get("name", "") for d in (raw.get("spec") or {}).get("drivers") or ())
