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
    number = written.rstrip("numkKMGTPEi")
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


BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")


@lru_cache(maxsize=4096)
def canonical(text: str | int | float) -> str:
    """A quantity as the server writes it back: "1000m" is "1", "1024Mi" is "1Gi", 8 is "8"."""
    if isinstance(text, bool):
        raise ValueError(f"{text!r} is no quantity")
    written = str(text)
    value = parse(written)
    if not value:
        return "0"
    suffix = written[len(written.rstrip("numkKMGTPEi")) :]
    if suffix in BINARY:
        fitting = [each for each in BINARY if _whole(value / SUFFIXES[each])]
        if fitting:
            return f"{int(value / SUFFIXES[fitting[-1]])}{fitting[-1]}"
        if value == value.to_integral_value():
            return str(int(value))
    if "e" in written or ("E" in written and suffix != "E"):
        return _exponent(value)
    fitting = [each for each in DECIMAL if _whole(value / SUFFIXES[each])]
    if not fitting:  # finer than nano: the server rounds up
        return f"{int((value / SUFFIXES['n']).to_integral_value(rounding='ROUND_CEILING'))}n"
    return f"{int(value / SUFFIXES[fitting[-1]])}{fitting[-1]}"


def _whole(value: Decimal) -> bool:
    return value == value.to_integral_value()


def _exponent(value: Decimal) -> str:
    exponent = 0
    while _whole(value / 1000):
        value, exponent = value / 1000, exponent + 3
    return f"{int(value)}e{exponent}" if exponent else str(int(value))
