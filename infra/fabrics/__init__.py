"""What a machine type should reach: GPUs, NICs, line rate, RDMA resources and expected bandwidth curves.

One YAML file per machine type, every figure with its source and date; a figure that nobody published is marked
derived. Bandwidths are GB/s (10^9 bytes a second) as nccl-tests prints them, sizes are bytes (1Gi = 2^30).
"""

from __future__ import annotations

from infra.fabrics.fabric import Curve, Expectation, Fabric, HostMount, Minimum, Sidecar, ceiling
from infra.fabrics.loader import fabric_of, load

__all__ = ["Curve", "Expectation", "Fabric", "HostMount", "Minimum", "Sidecar", "ceiling", "fabric_of", "load"]
