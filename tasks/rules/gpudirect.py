"""GPUDirect RDMA: used by every channel, by some or by none, on a machine that has it or has not. Pure."""

from __future__ import annotations

import re

from infra.fabrics.fabric import Fabric
from infra.model.reading import NcclLog
from infra.model.verdict import Finding, Level

# EC2 machines with EFA and without GPUDirect RDMA, by name and by GPU (V100, T4, A10G, L4, L40S).
_WITHOUT_GDR = re.compile(r"(?:p3dn|g4dn|g5|g6e?)\.|p5\.4xlarge", re.IGNORECASE)
_GPU_WITHOUT_GDR = re.compile(r"\b(?:V100|T4|A10G?|L4|L40S?)\b")


# DGX Spark: GPU and CPU share their memory, and NVIDIA offers no GPUDirect RDMA there. Its NIC's halves are named so.
_SPARK_GPU, _SPARK_NIC, _SPARK_BUS = "GB10", "roceP2p1s0f", 0xF01


def _has_gpudirect(log: NcclLog, name: str, gpus: frozenset[str]) -> bool | None:
    """Can the machine of this log do GPUDirect RDMA? None where nothing tells.

    Of EFA by the plugin's own table (aws-ofi-nccl 1.21.1, gdr_required): not p3dn, g4dn, g5, g6 and the small p5. All
    of them have one EFA interface; machines with GPUDirect have four and more, of which a pod may have been given one.
    """
    if name != "efa":
        twins = any(hca.text.startswith(_SPARK_NIC) for hca in log.hcas)
        return not (twins or log.origin.gpu_buses == {_SPARK_BUS} or any(_SPARK_GPU in gpu for gpu in gpus))
    if log.platform:
        return _WITHOUT_GDR.match(log.platform) is None
    if gpus:
        return not any(_GPU_WITHOUT_GDR.search(gpu) for gpu in gpus)
    if log.origin.gpu_buses == {0}:
        return False  # GPUs on the root bus: the machines before p4d
    return None if set(log.nics) == {1} else True


def gpudirect(
    log: NcclLog, name: str | None, gdr: str | None, *, single: bool, fabric: Fabric | None, gpus: frozenset[str]
) -> tuple[list[Finding], str | None]:
    """What is to be found about it, and the verdict that this forces."""
    if "collnet-plain" in log.hints and (fabric is None or fabric.gdr):
        found = Finding(
            level=Level.BLOCK,
            code="no-gpudirect",
            object="in-network reduction",
            observed=f"{log.hints['collnet-plain']}: through host memory",
            expected="/GDRDMA behind it",
            remedy="Load nvidia_peermem or enable DMA-BUF on every node, or leave NCCL_COLLNET_ENABLE unset",
        )
        return [found], "degraded"
    if single or gdr in {None, "all"} or name in {None, "socket", "libfabric-tcp", "mixed"}:
        return [], None
    if fabric is not None and not fabric.gdr:
        return [], None
    if "efa-without-rdma" in log.hints:
        return [
            Finding(
                level=Level.BLOCK,
                code="efa-without-rdma",
                object="log line",
                observed=f"{log.hints['efa-without-rdma']} (RDMA read is meant: the job still runs over EFA, through "
                "host memory)",
                remedy="Use an instance type whose EFA device supports RDMA read",
            )
        ], "degraded"
    if fabric is None and gdr == "none" and (has := _has_gpudirect(log, name or "", gpus)) is not True:
        if has is None:
            said = (
                "no channel uses it, over one EFA interface: a machine that has none, or a pod that was given too few"
            )
            return [_no_gpudirect(Level.WARN, "no-gpudirect", said)], "suspicious"
        said = "no channel uses it, as this kind of machine has none between its GPUs and its NICs"
        return [_no_gpudirect(Level.INFO, "no-gpudirect-here", said)], None
    observed = {
        "none": "the network is right, but no channel uses GPUDirect RDMA",
        "partial": "some channels use GPUDirect RDMA, others do not",
        "receive-only": "GPUDirect RDMA serves receives, not sends (read 0)",
    }[gdr]
    found = Finding(
        level=Level.BLOCK,
        code="wrong-path" if gdr == "receive-only" else "no-gpudirect",
        object="network",
        observed=observed,
        expected="/GDRDMA on every inter-node channel",
        remedy="Load nvidia_peermem or enable DMA-BUF on every node; check driver and PCIe settings",
    )
    return [found], "degraded"


def _no_gpudirect(level: Level, code: str, observed: str) -> Finding:
    return Finding(
        level=level,
        code=code,
        object="GPUDirect RDMA",
        observed=observed,
        remedy="Name the machine type (--machine)" if level is Level.WARN else "",
    )
