"""Resource quantities: reading them, and the quality-of-service class that follows from them."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}


@lru_cache(maxsize=4096)
def parse(text: str | int | float) -> Decimal:
    """The value of a quantity ("500m", "16Gi", "1e3", 8). ValueError if it is none."""
    written = str(text).strip()
    number = written.rstrip("numkMGTPEi")
    suffix = written[len(number) :]
    if suffix not in SUFFIXES or not number:
        raise ValueError(f"{text!r} is no quantity")
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None
    if not value.is_finite():
        raise ValueError(f"{text!r} is no quantity")
    return value * SUFFIXES[suffix]


def qos_class(spec: dict[str, Any]) -> str:
    """Guaranteed, Burstable or BestEffort, from the cpu and memory of all containers."""
    containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
    any_set, all_equal = False, True
    for container in containers:
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in ("cpu", "memory"):
            limit, request = limits.get(name), requests.get(name)
            any_set = any_set or limit is not None or request is not None
            all_equal = all_equal and limit is not None and (request is None or parse(request) == parse(limit))
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if all_equal else "Burstable"
