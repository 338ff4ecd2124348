"""The DaemonSets that make accelerators and fabrics visible to Kubernetes, and what was read of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from infra.model.cluster import EMPTY, Node, Toleration
from infra.model.workload import Requirement


@dataclass(frozen=True, kw_only=True, slots=True)
class Container:
    """One container of a plugin pod. `waiting` and `terminated` are Kubernetes' reasons, or "".

    `started` is when its present run began, `ended` when its last one did end.
    """

    name: str
    image: str
    init: bool = False
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    message: str = ""
    terminated: str = ""
    exit_code: int | None = None
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginPod:
    """A pod of a DaemonSet.

    `not_ready_since` is when Ready last turned false, else creation; `leaving` when it was told to go.
    """

    namespace: str
    name: str
    node: str
    daemonset_uid: str
    phase: str
    ready: bool
    not_ready_since: datetime | None = None
    leaving: datetime | None = None
    unscheduled: str = ""
    containers: tuple[Container, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)


def stem(pod: str) -> str:
    """A pod's name without the suffixes that controllers add: "aws-efa-k8s-device-plugin-x7k2p" -> the DaemonSet's."""
    return re.sub(r"(-[a-f0-9]{8,10})?-[a-z0-9]{5}$", "", pod)


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonSet:
    """A DaemonSet with what decides on which nodes it runs; `affinity` as in `Pod`: one of the terms must hold."""

    namespace: str
    name: str
    uid: str
    images: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    created: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    desired: int = 0
    ready: int = 0

    @property
    def object(self) -> str:
        """As kubectl names it."""
        return f"daemonset {self.namespace}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginView:
    """Everything that the readiness rules look at, read at one time.

    `slices` maps node -> DRA driver -> number of devices; `csi` maps node -> registered CSI drivers. None means that
    it could not be read, which is not the same as empty.
    """

    taken: datetime
    nodes: tuple[Node, ...] = ()
    daemonsets: tuple[DaemonSet, ...] = ()
    pods: tuple[PluginPod, ...] = ()
    slices: Mapping[str, Mapping[str, int]] | None = None
    csi: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What one node of the pool must offer, from the machine type.

    `gpus` and `rdma` map resource names to counts per node; `nodes` is how many nodes the cloud says there are.
    """

    pool: str
    machine_type: str
    nodes: int
    gpus: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    rdma: Mapping[str, int] = field(default_factory=lambda: EMPTY)
    csi: str = ""
    counted: bool = False
    """The GPUs are what most of these very nodes report: nobody else has stated a number."""

    @property
    def resources(self) -> dict[str, int]:
        """GPUs and RDMA together."""
        return {**self.gpus, **self.rdma}


# DRA drivers that hand out what an extended resource did before (AWS and GKE DRANET, NVIDIA's GPU driver).
DRA_DRIVERS: Mapping[str, tuple[str, ...]] = {
    "nvidia.com/gpu": ("gpu.nvidia.com",),
    "vpc.amazonaws.com/efa": ("efa.networking.k8s.aws", "dra.net"),
    "rdma/": ("roce.networking.k8s.aws", "dra.net"),
    "networking.gke.io.networks/rdma-": ("mrdma.google.com", "dra.net"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """A known plugin: how to recognise its DaemonSet and what a node lacks without it.

    `resources` are prefixes of extended resource names; `csi` is a CSI driver name; `machines` are prefixes of machine
    types that need it (empty: every machine that expects one of its resources). `apart` are parts of names of
    DaemonSets that are shipped with it, of its image or under its name, and register nothing.
    """

    key: str
    names: tuple[str, ...]
    images: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    csi: str = ""
    machines: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()


# Sources: facts on EKS charts (aws-efa-k8s-device-plugin 0.5.30), NVIDIA k8s-device-plugin, GKE's managed DaemonSets
# and container-engine-accelerators' installers, both Lustre CSI drivers; names as their manifests ship them.
KNOWN_PLUGINS: tuple[Plugin, ...] = (
    Plugin(
        key="nvidia-device-plugin",
        names=("nvidia-device-plugin", "nvidia-gpu-device-plugin"),
        images=("k8s-device-plugin", "nvidia-gpu-device-plugin"),
        resources=("nvidia.com/",),
        apart=("feature-discovery", "mps-control-daemon"),
    ),
    Plugin(
        key="efa-device-plugin",
        names=("efa-k8s-device-plugin", "efa-device-plugin"),
        images=("aws-efa-k8s-device-plugin",),
        resources=("vpc.amazonaws.com/efa",),
    ),
    Plugin(
        key="rdma-shared-device-plugin",
        names=("rdma-shared", "rdma-device-plugin"),
        images=("k8s-rdma-shared-dev-plugin",),
        resources=("rdma/",),
    ),
    Plugin(
        key="sriov-device-plugin",
        names=("sriov-device-plugin", "sriov-network-device-plugin"),
        images=("sriov-network-device-plugin",),
        resources=("nvidia.com/mlnxnics", "mellanox.com/"),
    ),
    Plugin(
        key="nccl-rdma-installer",
        names=("nccl-rdma-installer",),
        images=("nccl-plugin-gib",),
        resources=("networking.gke.io.networks/rdma-",),
        machines=("a3-ultragpu", "a4-", "a4x-"),
    ),
    Plugin(
        key="nccl-tcpxo-installer",
        names=("nccl-tcpxo-installer",),
        images=("nccl-plugin-gpudirecttcpx-dev",),
        machines=("a3-megagpu",),
    ),
    Plugin(
        key="nccl-tcpx-installer",
        names=("nccl-tcpx-installer",),
        images=("nccl-plugin-gpudirecttcpx",),
        machines=("a3-highgpu",),
    ),
    Plugin(key="fsx-csi-node", names=("fsx-csi-node",), images=("aws-fsx-csi-driver",), csi="fsx.csi.aws.com"),
    Plugin(key="lustre-csi-node", names=("lustre-csi-node",), images=("lustre-csi",), csi="lustre.csi.storage.gke.io"),
)
