"""The lines that our storage payload prints around fio, taken out of its output, so that fio's own stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(rb'^\{"poolshift":"lnet"[^\n]*\n?', re.M)


@dataclass(frozen=True, kw_only=True, slots=True)
class LnetSight:
    """LNet at one time. `nets` maps a network (tcp, efa, o2ib1) to what it counts (send, recv); None: not shown.

    They are as the line has them: whether they are numbers, and comparable, is for the rule to say.

    `connections` are the NIDs of the object servers, by which the client talks to them now. `mount` is what the kernel
    says of the directory that was written to: `directory`, the place `at` which its file system hangs, and its `type`.
    """

    when: str
    node: str
    nets: Mapping[str, Any] | None
    connections: tuple[str, ...]
    mount: Mapping[str, str] | None = None


def split_lnet(output: bytes) -> tuple[tuple[LnetSight, ...], bytes]:
    """(what was seen of LNet, the rest). A line that cannot be read is taken out and counts as not shown."""
    sights = tuple(_sight(match.group()) for match in _LINE.finditer(output))
    return sights, _LINE.sub(b"", output)


def _sight(line: bytes) -> LnetSight:
    try:
        raw: Any = json.loads(line)
    except (ValueError, RecursionError):
        raw = {}
    nets = raw.get("nets")
    connections = raw.get("connections")
    return LnetSight(
        when=str(raw.get("when", "")),
        node=str(raw.get("node", "")),
        nets=nets if isinstance(nets, dict) else None,
        connections=tuple(str(c) for c in connections) if isinstance(connections, list) else (),
        mount={str(k): str(v) for k, v in mount.items()} if isinstance(mount := raw.get("mount"), dict) else None,
    )
