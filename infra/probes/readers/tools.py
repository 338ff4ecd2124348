"""The small tools: which one wrote a text, asked in a fixed order, and its reading."""

from __future__ import annotations

from collections.abc import Callable

from infra.model.reading import ToolReading

Read = Callable[[str], ToolReading | None]
_READERS: tuple[Read, ...] = ()


def read_tool(text: str, *, nccl_lines: int = 0) -> ToolReading | None:
    """The first reader that knows the text. NCCL's own lines, where there are any, make it an NCCL log instead."""
    if nccl_lines:
        return None
    for reader in _READERS:
        reading = reader(text)
        if reading is not None:
            return reading
    return None
