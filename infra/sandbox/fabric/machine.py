"""What a simulated node is made of: the machine facts of `infra.fabrics`, and what only a simulation needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infra.fabrics.fabric import Fabric
from infra.fabrics.loader import fabric_of

Transport = Literal["efa", "roce", "tcpxo", "tcpx", "socket"]
Loss = Literal["", "no-device", "no-plugin"]
"""Why a node that should use its RDMA network is on sockets: the container sees no device, or NCCL no plugin."""

GPU_BUSES = (0x53, 0x64, 0x75, 0x86, 0x97, 0xA8, 0xB9, 0xCA)  # p5's, as nccl-tests prints them


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU generation.

    `name` as nccl-tests prints it, dense bfloat16 FLOP/s, `nvls_gb_s`: algbw of an all-reduce within one node
    (single-node busbw 482 on H200 and 838 on B200 with NVLS, 228 on A100, times 8/14: validation facts, stas00 and
    AzNHC).
    """

    name: str
    flops: float
    nvls_gb_s: float
    nvls: bool


GPUS: Mapping[str, Gpu] = {
    "A100": Gpu(name="NVIDIA A100-SXM4-40GB", flops=312e12, nvls_gb_s=130.0, nvls=False),
    "H100": Gpu(name="NVIDIA H100 80GB HBM3", flops=989e12, nvls_gb_s=275.0, nvls=True),
    "H200": Gpu(name="NVIDIA H200", flops=989e12, nvls_gb_s=275.0, nvls=True),
    "B200": Gpu(name="NVIDIA B200", flops=2250e12, nvls_gb_s=479.0, nvls=True),
    "GB200": Gpu(name="NVIDIA GB200", flops=2500e12, nvls_gb_s=479.0, nvls=True),
    "B300": Gpu(name="NVIDIA B300 SXM6 AC", flops=2250e12, nvls_gb_s=479.0, nvls=True),
}

# GB/s of the one interface that sockets use: network card 0 of the instance type (DescribeInstanceTypes,
# NetworkCards), one gVNIC of the machine type.
ETHERNET_GB_S: Mapping[str, float] = {
    "p4d.24xlarge": 12.5,
    "p4de.24xlarge": 12.5,
    "p5.48xlarge": 12.5,
    "p5e.48xlarge": 12.5,
    "p5en.48xlarge": 25.0,
    "p6-b200.48xlarge": 25.0,
    "p6-b300.48xlarge": 37.5,
    "a2-highgpu-8g": 12.5,
}
DEFAULT_ETHERNET_GB_S = 25.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine type as the simulation sees it."""

    fabric: Fabric
    gpu: Gpu
    ethernet_gb_s: float

    @property
    def name(self) -> str:
        """The cloud's name of the type."""
        return self.fabric.machine_type

    def rdma_devices(self) -> list[str]:
        """RDMA device names in the order in which NCCL numbers them: EFA by PCI bus, RoCE by index."""
        if self.fabric.kind != "efa":
            return [f"mlx5_{index}" for index in range(self.fabric.nics)]
        if self.fabric.nic_buses:
            return [f"rdmap{int(bus, 16)}s0" for bus in self.fabric.nic_buses]
        per_gpu = max(1, self.fabric.nics // self.fabric.gpus)
        count = self.fabric.nics // per_gpu
        buses = [GPU_BUSES[gpu * 8 // count] - per_gpu + k for gpu in range(count) for k in range(per_gpu)]
        return [f"rdmap{bus}s0" for bus in buses]

    def bus_id(self, gpu: int) -> int:
        """PCI bus of a GPU."""
        buses = [int(bus, 16) for bus in self.fabric.gpu_buses] or GPU_BUSES
        return buses[gpu % len(buses)]


def machine_of(machine_type: str) -> Machine | None:
    """The machine, or None for a type that the fabric table does not know."""
    fabric = fabric_of(machine_type)
    if fabric is None:
        return None
    gpu = GPUS[fabric.gpu.split()[0]]
    return Machine(fabric=fabric, gpu=gpu, ethernet_gb_s=ETHERNET_GB_S.get(machine_type, DEFAULT_ETHERNET_GB_S))


@dataclass(frozen=True, kw_only=True)
class Host:
    """One node as a job on it finds it at one time.

    `nics` are the rates of the visible RDMA interfaces, as a share of their line rate; a NIC at 0 is down and NCCL
    leaves it out. `loss` says why `transport` is socket although the machine has RDMA.
    """

    node: str
    machine: Machine
    transport: Transport
    loss: Loss = ""
    gdr: bool = True
    nics: tuple[float, ...] = ()

    @property
    def live_nics(self) -> tuple[float, ...]:
        """Rates of the NICs that are up."""
        return tuple(rate for rate in self.nics if rate > 0)
