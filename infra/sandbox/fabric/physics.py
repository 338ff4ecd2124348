"""How fast a collective and a training step are on given hosts. No outcome is stored: all is computed.

One latency term and one bandwidth term (Hockney): seconds = latency + bytes / bandwidth. The bandwidth is the
least of what NVLink within a node and the network between nodes give; every ring and tree waits for its slowest
channel, so one slow NIC slows all. Constants are fitted to the healthy curves of the validation facts: p5 on two
nodes (289 at 128 MiB, 487 at 16 GiB), A3 Mega (337 at 16 GiB), p5en on four nodes (382), A3 Ultra all-gather (336).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.sandbox.fabric.machine import Host, Transport

# Share of the line rate that the protocol leaves to data.
PROTOCOL: Mapping[Transport, float] = {"efa": 0.96, "roce": 0.96, "tcpxo": 0.95, "tcpx": 0.47, "socket": 0.508}
SENDRECV = 0.88  # EFA without RDMA write, as on p4d: 78 at 2 GiB
# Of a ring through the GPUs of a node, measured on all-gather: 336 of 400 on A3 Ultra. Sockets hide it behind TCP.
RING: Mapping[Transport, float] = {"efa": 0.875, "roce": 0.875, "tcpxo": 0.95, "tcpx": 0.9, "socket": 1.0}
TREE = 0.945  # of the slower of the two stages, NVLink and network, that a pipelined tree runs at
NO_GDR = 0.5  # through host memory: 25 of 56 on Azure GB300, 6.0 of 11.4 on p4d
NODE_LATENCY = 280e-6
HOP_LATENCY: Mapping[Transport, float] = {"efa": 60e-6, "roce": 45e-6, "tcpxo": 80e-6, "tcpx": 100e-6, "socket": 250e-6}
NVLINK_RING_GB_S = 367.0  # busbw of a ring within one 8-GPU node (stas00)
NOISE = 0.008  # relative spread of one measurement


def wire_gb_s(host: Host) -> float:
    """GB/s per direction that a host's collectives can move over the network."""
    if host.transport == "socket":
        return host.machine.ethernet_gb_s * PROTOCOL["socket"]
    nics = host.live_nics
    if not nics:
        return 0.0
    share = SENDRECV if host.machine.name.startswith("p4d") else PROTOCOL[host.transport]
    rate = len(nics) * min(nics) * host.machine.fabric.nic_gb_s * share
    return rate if host.gdr else rate * NO_GDR


def all_reduce_gb_s(hosts: Sequence[Host], ranks: int) -> float:
    """Algorithm bandwidth for messages so large that latency vanishes."""
    inside = min(host.machine.gpu.nvls_gb_s for host in hosts)
    if len(hosts) == 1:
        return inside
    wire = min(wire_gb_s(host) for host in hosts)
    if len(hosts) == 2:
        # A tree over two nodes sends each byte across once per direction.
        return TREE * min(inside, wire)
    return min(TREE * inside, wire * ranks / (2 * (ranks - 1)))


def latency(hosts: Sequence[Host]) -> float:
    """Seconds before the first byte of the result, over a tree of the nodes."""
    if len(hosts) == 1:
        return NODE_LATENCY / 8
    hop = max(HOP_LATENCY[host.transport] for host in hosts)
    return NODE_LATENCY + 2 * hop * math.ceil(math.log2(len(hosts)))


def all_reduce_seconds(hosts: Sequence[Host], ranks: int, size: int) -> float:
    """One all-reduce of `size` bytes per rank."""
    return latency(hosts) + size / (all_reduce_gb_s(hosts, ranks) * 1e9)


def bus_factor(ranks: int) -> float:
    """What busbw is of algbw in an all-reduce."""
    return 2 * (ranks - 1) / ranks


def ring_gb_s(hosts: Sequence[Host]) -> float:
    """Bus bandwidth of a ring (all-gather, reduce-scatter)."""
    if len(hosts) == 1:
        return NVLINK_RING_GB_S
    return min(wire_gb_s(host) * RING[host.transport] for host in hosts)


def wire_bytes(hosts: int, ranks: int, size: int) -> float:
    """Bytes that each node sends, and receives, during one all-reduce of `size` bytes."""
    if hosts == 1:
        return 0.0
    return float(size) if hosts == 2 else size * bus_factor(ranks)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder trained under FSDP: sizes as its payload states them.

    `gathered` is bytes per parameter on the wire in one step: bfloat16 weights gathered forward and backward, and
    float32 gradients scattered.
    """

    parameters: float
    sequence: int
    gathered: float = 2 + 2 + 4


QWEN_14B = Model(parameters=14.77e9, sequence=4096)
FLOPS_PER_TOKEN = 8  # per parameter: forward 2, backward 4, and the forward again where activations are recomputed
UTILISATION = 0.403  # of dense peak; fits 6.07 s at 5 sequences per GPU on 16 H200
OVERLAP = 0.40  # share of the compute behind which prefetching hides communication; fits 12.36 s on sockets


def compute_seconds(hosts: Sequence[Host], model: Model, batch: int) -> float:
    """Arithmetic of one step; every rank has `batch` sequences, so the number of ranks does not matter."""
    flops = FLOPS_PER_TOKEN * model.parameters * model.sequence * batch
    return flops / (min(host.machine.gpu.flops for host in hosts) * UTILISATION)


def gather_seconds(hosts: Sequence[Host], ranks: int, model: Model) -> float:
    """Communication of one step, were nothing hidden."""
    moved = model.parameters * model.gathered * (ranks - 1) / ranks
    return moved / (ring_gb_s(hosts) * 1e9)


def step_seconds(hosts: Sequence[Host], ranks: int, model: Model, batch: int) -> float:
    """One training step: compute, and the communication that compute does not hide."""
    compute = compute_seconds(hosts, model, batch)
    return compute + max(0.0, gather_seconds(hosts, ranks, model) - OVERLAP * compute)


def noisy(value: float, rng: random.Random, spread: float = NOISE) -> float:
    """A measurement of `value`: never negative, repeatable by the generator's seed."""
    return value * math.exp(rng.gauss(0.0, spread))
