"""What counters show between two readings. Pure.

Two readings are evidence only of the same counters, none of which went back: after a reset, a wrap or on another device
the difference says nothing about what moved, however plausible it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.rules.wording import and_more


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Increases by device and counter; None where no reading shows any. `wrong`: why they are no evidence, or ""."""

    moved: Mapping[str, Mapping[str, int]] | None = None
    wrong: str = ""

    def total(self, ending: str = "") -> int | None:
        """The sum over all devices of the counters with that ending; None where there is none."""
        found = [n for counters in (self.moved or {}).values() for name, n in counters.items() if name.endswith(ending)]
        return sum(found) if found else None


def count(before: object, after: object) -> Counted:
    """Compare two readings, each a mapping of devices to their counters; anything else shows nothing."""
    first, last = _readable(before), _readable(after)
    if first is None and last is None:
        return Counted()
    if first is None or last is None:
        return Counted(wrong=f"they are shown only {'after' if first is None else 'before'}")
    if strange := sorted(first.keys() ^ last.keys()):
        return Counted(wrong=f"{and_more(strange, 3)} was there only at one end")
    moved: dict[str, dict[str, int]] = {}
    for device, earlier in first.items():
        later = last[device]
        for name in sorted(earlier.keys() | later.keys()):
            start, end = _number(earlier.get(name)), _number(later.get(name))
            if start is None or end is None:
                return Counted(wrong=f"{name} of {device} cannot be read at both ends")
            if end < start:
                return Counted(wrong=f"{name} of {device} went back from {start} to {end}")
            moved.setdefault(device, {})[name] = end - start
    return Counted(moved=moved)


def _readable(reading: object) -> dict[str, Mapping[str, object]] | None:
    """Devices that show a counter; None where none does."""
    if not isinstance(reading, Mapping):
        return None
    found = {
        str(device): counters for device, counters in reading.items() if isinstance(counters, Mapping) and counters
    }
    return found or None


def _number(value: object) -> int | None:
    """A counter of 64 bits; what is larger was damaged."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64 else None
