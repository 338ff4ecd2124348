"""Ages and selectors in the words of kubectl's columns."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from infra.clock import parse_time

Object = dict[str, Any]

NONE = "<none>"
UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """A duration as kubectl shows ages: 45s, 5m30s, 3h, 2d4h, 271d, 2y10d."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(total, 0)
    if total < 120:
        return f"{total}s"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 2920:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def since(moment: str | None, now: datetime) -> str:
    """How long ago a time stamp was."""
    return duration((now - parse_time(moment)).total_seconds()) if moment else UNKNOWN


def age(obj: Object, now: datetime) -> str:
    """How old an object is."""
    return since(obj["metadata"].get("creationTimestamp"), now)


def selector_text(selector: Object | None) -> str:
    """A selector as one line."""
    if not selector:
        return NONE
    labels = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    terms = [f"{key}={value}" for key, value in sorted(labels.items())]
    for each in selector.get("matchExpressions", ()) if "matchExpressions" in selector else ():
        operator, values = each["operator"], ",".join(each.get("values", ()))
        terms.append({"Exists": each["key"], "DoesNotExist": f"!{each['key']}"}.get(operator, "")
                     or f"{each['key']} {operator.lower()} ({values})")  # fmt: skip
    return ",".join(terms) or NONE
