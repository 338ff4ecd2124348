"""Types of the fabric table, the expectation at a size, and the physical ceiling. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.model.cluster import EMPTY

GIB = 1 << 30
MIB = 1 << 20

# Share of the node's line rate that a healthy ring all-reduce reaches, where nobody published a curve for the type.
# Taken below every published healthy curve: p6-b200 on 4 nodes reads 0.81 at 256 MiB, 0.92 at 1 GiB, 0.94 at 4 GiB
# (AWS PCS compute-test notes); p5 with NCCL 2.18 reads 0.78 at 1 GiB (awsome-distributed-ai); p6-b300 0.82 at 16 GiB.
RING_SHARE_OF_LINE: Mapping[int, float] = {
    256 * MIB: 0.60,
    512 * MIB: 0.68,
    1 * GIB: 0.74,
    2 * GIB: 0.78,
    4 * GIB: 0.80,
    8 * GIB: 0.81,
    16 * GIB: 0.82,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Expected out-of-place busbw (GB/s) by message size (bytes), for one collective and a range of node counts.

    `floor` and `warn` are shares of the expected value: below the floor is a failure, below warn a finding.
    """

    collective: str
    nodes_min: int
    nodes_max: int
    busbw_gb_s: Mapping[int, float]
    source: str
    date: str
    derived: bool
    floor: float
    warn: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What one size should reach: the expected busbw, the two limits, and where the figure is from. All GB/s."""

    busbw_gb_s: float
    floor_gb_s: float
    warn_gb_s: float
    source: str
    derived: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMount:
    """A host path that the network plugin of this machine type needs in the pod."""

    host: str
    mount: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sidecar:
    """A daemon that must run in the pod beside the ranks (the receive-path manager of TCPX and TCPXO).

    `devices` are device files that a node agent injects into it, asked for by an annotation of the pod.
    """

    name: str
    image: str
    command: tuple[str, ...]
    mounts: tuple[HostMount, ...] = ()
    capabilities: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Minimum:
    """The oldest version of a part that knows this machine type: a plugin's key, `nvidia-driver` or `kubernetes`."""

    part: str
    version: str
    source: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """One machine type.

    `line_rate_gb_s` is per node and direction; `nics` are physical interfaces that carry the fabric and `net_devices`
    what NCCL shows after grouping them (p5: 32 interfaces in 8 groups). `nccl_net` lists the accepted network names,
    `pin` the one to put in NCCL_NET. `rdma` false marks a type where sockets are the design (a negative control).
    `interfaces` maps pod interface to GKE network for the multi-network annotation. `env` is what any pod needs to find
    the plugin, `pinned_env` the vendor's tuning for the reference run, `env_script` a file on the node that sets it.
    `ofi_protocol` is what aws-ofi-nccl takes there by itself (SENDRECV, RDMA); `mnnvl` says that NVLink spans nodes.
    `cuda` is the oldest CUDA driver version that knows its GPU; `gpu_buses` and `nic_buses` are the PCI buses (hex) on
    which each of its machines has its GPUs and its NICs, where somebody published them.
    `storage_client_gb_s` maps the client's path to the Lustre server (tcp, efa) to the most that one client can move.
    """

    machine_type: str
    cloud: str
    kind: str
    gpu: str
    gpus: int
    gpu_resource: str
    nics: int
    net_devices: int
    nic_gb_s: float
    line_rate_gb_s: float
    rdma: bool
    gdr: bool
    provider: str | None
    nccl_net: tuple[str, ...]
    pin: str | None
    rdma_resources: Mapping[str, int]
    source: str
    date: str
    curves: tuple[Curve, ...] = ()
    interfaces: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    pinned_env: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    env_script: str = ""
    host_mounts: tuple[HostMount, ...] = ()
    sidecar: Sidecar | None = None
    capabilities: tuple[str, ...] = ("IPC_LOCK",)
    plugins: tuple[str, ...] = ()
    ofi_protocol: str | None = None
    mnnvl: bool = False
    storage_client_gb_s: Mapping[str, float] = field(default_factory=lambda: EMPTY)
    minimums: tuple[Minimum, ...] = ()
    cuda: str = ""
    gpu_buses: tuple[str, ...] = ()
    nic_buses: tuple[str, ...] = ()

    @property
    def cuda_driver(self) -> int:
        """`cuda` as drivers count: 12090 for 12.9, 0 where it is not known."""
        major, _, minor = self.cuda.partition(".")
        return int(major) * 1000 + int(minor) * 10 if minor else 0

    def has_gpu(self, name: str) -> bool:
        """Is that (as a driver names it, "NVIDIA H100 80GB HBM3") the GPU of this machine type?

        Cards ("NVIDIA H100 PCIe", "NVIDIA H200 NVL") are in none of the table's machines, and a part of a GPU ("NVIDIA
        H100 80GB HBM3 MIG 1g.10gb") is none.
        """
        of_model = re.search(rf"\b{re.escape(self.gpu.split()[0])}\b", name) is not None
        return of_model and not re.search(r"\b(?:PCIe|NVL|MIG)\b", name, re.IGNORECASE)

    def expectation(self, collective: str, nodes: int, size_bytes: int) -> Expectation | None:
        """The figure for exactly this size, or None: nothing is interpolated.

        A published curve goes before a derived one, the one for the narrowest range of nodes before a wider one.
        """
        fits = [
            c
            for c in self.curves
            if c.collective == collective and c.nodes_min <= nodes <= c.nodes_max and size_bytes in c.busbw_gb_s
        ]
        if not fits:
            return None
        curve = min(fits, key=lambda c: (c.derived, c.nodes_max - c.nodes_min))
        busbw = curve.busbw_gb_s[size_bytes]
        return Expectation(
            busbw_gb_s=busbw,
            floor_gb_s=round(busbw * curve.floor, 1),
            warn_gb_s=round(busbw * curve.warn, 1),
            source=f"{curve.source} ({curve.date})",
            derived=curve.derived,
        )


def ceiling(fabric: Fabric, collective: str, nodes: int) -> float | None:
    """The most busbw (GB/s) that can cross the NICs of this type; above it, the run did not measure the network.

    Two nodes may use a tree, so each byte crosses the wire once per direction: algbw <= line, hence an all-reduce
    may show 2(n-1)/n times the line. More nodes run rings: busbw <= 1.05 line. All-to-all keeps traffic inside a
    node off the wire: (line/g)(n-1)/(n-g). None for one node: no NIC is involved.
    """
    ranks = nodes * fabric.gpus
    if nodes < 2:
        return None
    if collective == "alltoall":
        return fabric.line_rate_gb_s / fabric.gpus * (ranks - 1) / (ranks - fabric.gpus)
    if collective == "all-reduce" and nodes == 2:
        return fabric.line_rate_gb_s * 2 * (ranks - 1) / ranks
    return 1.05 * fabric.line_rate_gb_s
