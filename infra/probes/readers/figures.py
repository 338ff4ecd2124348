"""Numbers and JSON as they stand in an output: whatever is no plain finite figure is None, and nothing here raises."""

from __future__ import annotations

import json
import math
import re
from typing import Any

LARGEST = 1 << 64  # counters have 64 bits; no size, rate or time of a real tool is larger
_PLAIN = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,3})?")
_DECODER = json.JSONDecoder()


def number(value: object) -> int | float | None:
    """A figure from text ("12", "1.5") or from JSON. None: no number, damaged (1.2.3), not finite or out of range."""
    if isinstance(value, str):
        text = value.strip()
        if not _PLAIN.fullmatch(text):
            return None
        value = int(text) if text.lstrip("-").isdigit() else float(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An int is compared first: math.isfinite() of a very long one overflows.
    return value if -LARGEST <= value <= LARGEST and math.isfinite(value) else None


def whole(value: object) -> int | None:
    """The same for a count, which has no fraction."""
    found = number(value)
    return found if isinstance(found, int) else None


def json_objects(text: str) -> tuple[list[dict[str, Any]], bool]:
    """(The JSON objects of a text in order, whether all of them could be read). Text around them is passed over."""
    found: list[dict[str, Any]] = []
    at = text.find("{")
    while at >= 0:
        try:
            document, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):  # cut, damaged, or nested deeper than any tool prints
            return found, False
        found.append(document)
        at = text.find("{", end)
    return found, True
