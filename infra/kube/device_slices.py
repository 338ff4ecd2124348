"""ResourceSlices of DRA drivers: how many devices of each node can be handed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Wire = Mapping[str, Any]
# What a driver's device must say of itself to be the whole device that a pool is expected to have. DRANET publishes
# every network interface, RDMA or not (its docs: "checking the attribute dra.net/rdma: true"); NVIDIA's driver a GPU's
# MIG partitions beside it.
_MUST_SAY: Mapping[str, tuple[str, str, object]] = {
    "dra.net": ("rdma", "bool", True),
    "gpu.nvidia.com": ("type", "string", "gpu"),
}


def count(slices: Iterable[Wire]) -> dict[str, dict[str, int]]:
    """Node -> driver -> devices that can be handed out, of each pool's newest generation.

    As the scheduler does: a pool of which slices are missing gives nothing, and neither does a tainted device. A slice
    that is listed twice counts once.
    """
    pools: dict[tuple[str, str, str], dict[int, list[Wire]]] = {}
    for raw in slices:
        spec = raw.get("spec") or {}
        pool = spec.get("pool") or {}
        key = (str(spec.get("nodeName") or ""), str(spec.get("driver") or ""), str(pool.get("name") or ""))
        pools.setdefault(key, {}).setdefault(int(pool.get("generation") or 0), []).append(raw)
    found: dict[str, dict[str, int]] = {}
    for (node, driver, _), generations in pools.items():
        newest = {str(raw["metadata"]["name"]): raw["spec"] for raw in generations[max(generations)]}
        per_driver = found.setdefault(node, {})
        per_driver[driver] = per_driver.get(driver, 0) + _usable(driver, list(newest.values()))
    return found


def _usable(driver: str, slices: list[Wire]) -> int:
    """Devices of one generation of a pool; none where some of its slices are not there, or nobody says how many."""
    wanted = max(int((spec.get("pool") or {}).get("resourceSliceCount") or 0) for spec in slices)
    if not 0 < wanted <= len(slices):
        return 0
    return len({str(d.get("name")) for spec in slices for d in spec.get("devices") or () if _is_whole(driver, d)})


def _is_whole(driver: str, device: Wire) -> bool:
    basic = device.get("basic") or device  # v1beta1 wraps what v1 says of the device itself
    if any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in basic.get("taints") or ()):
        return False
    if driver not in _MUST_SAY:
        return True
    name, kind, value = _MUST_SAY[driver]
    said = basic.get("attributes") or {}
    # An attribute without a domain is in the driver's own (API reference, QualifiedName).
    attribute = said.get(f"{driver}/{name}") or said.get(name) or {}
    return bool(attribute.get(kind) == value)
