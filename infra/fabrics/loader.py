"""Reads the fabric table from the YAML files beside it. Strict: an unknown key is an error, not a silent loss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from infra.errors import BadSpec
from infra.fabrics.fabric import RING_SHARE_OF_LINE, Curve, Fabric, HostMount, Minimum, Sidecar

_SIZE = re.compile(r"^(\d+)(Ki|Mi|Gi)?$")
_UNIT = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
PUBLISHED_FLOOR = 0.7  # NCCL 2.18 reads 0.72 of today's figure on a healthy p5, a path without GPUDirect 0.45-0.55
WARN = 0.85
_CURVE_KEYS = {"collective", "nodes", "busbw_gb_s", "from_line_rate", "source", "date", "derived", "floor", "warn"}
_MEND = "correct it in infra/fabrics, then: make test ARGS=tests/evidence"
_TUPLES = ("nccl_net", "capabilities", "plugins", "gpu_buses", "nic_buses")


@cache
def load() -> Mapping[str, Fabric]:
    """Every machine type of the table, by its cloud's own name."""
    import yaml

    fabrics: dict[str, Fabric] = {}
    for entry in sorted(resources.files(__package__).iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".yaml"):
            for fabric in _read_file(entry.name, yaml.safe_load(entry.read_text(encoding="utf-8"))):
                fabrics[fabric.machine_type] = fabric
    return MappingProxyType(fabrics)


def fabric_of(machine_type: str) -> Fabric | None:
    """The entry of a machine type, or None: an unknown type is measured, not judged.

    SageMaker HyperPod labels its nodes with "ml." in front of EC2's name.
    """
    return load().get(machine_type.removeprefix("ml."))


def parse_size(text: object) -> int:
    """Bytes of `256Mi` or of a plain number. Raises ValueError."""
    match = _SIZE.match(str(text))
    if not match:
        msg = f"{text!r} is not a size; write bytes, or Ki, Mi, Gi"
        raise ValueError(msg)
    return int(match[1]) * _UNIT[match[2]]


def _read_file(name: str, document: Any) -> list[Fabric]:
    """One file: fields, or fields plus `also`, a list of further machine types that differ in the fields given."""
    if not isinstance(document, dict):
        raise BadSpec(f"fabric file {name}", "is not a mapping", remedy=_MEND)
    variants = document.pop("also", [])
    return [_fabric(name, document)] + [_fabric(name, {**document, **variant}) for variant in variants]


def _fabric(name: str, raw: Mapping[str, Any]) -> Fabric:
    fields = dict(raw)
    try:
        line = float(fields["line_rate_gb_s"])
        tuples: dict[str, Any] = {k: tuple(fields.pop(k)) for k in _TUPLES if k in fields}
        curves = tuple(_curve(c, line) for c in fields.pop("curves", ()))
        sidecar = fields.pop("sidecar", None)
        return Fabric(
            curves=curves,
            host_mounts=tuple(HostMount(**m) for m in fields.pop("host_mounts", ())),
            minimums=tuple(Minimum(**{k: str(v) for k, v in m.items()}) for m in fields.pop("minimums", ())),
            sidecar=_sidecar(sidecar) if sidecar else None,
            date=str(fields.pop("date")),
            **tuples,
            **fields,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise BadSpec(f"fabric file {name}", f"{raw.get('machine_type')}: {error}", remedy=_MEND) from error


def _curve(raw: Mapping[str, Any], line: float) -> Curve:
    unknown = set(raw) - _CURVE_KEYS
    if unknown:
        msg = f"unknown curve keys {sorted(unknown)}"
        raise ValueError(msg)
    low, high = raw["nodes"]
    if raw.get("from_line_rate"):
        points = {size: round(share * line, 1) for size, share in RING_SHARE_OF_LINE.items()}
    else:
        points = {parse_size(size): float(value) for size, value in raw["busbw_gb_s"].items()}
    return Curve(
        collective=raw["collective"],
        nodes_min=low,
        nodes_max=high,
        busbw_gb_s=MappingProxyType(dict(sorted(points.items()))),
        source=raw["source"],
        date=str(raw["date"]),
        derived=bool(raw.get("derived", raw.get("from_line_rate", False))),
        floor=float(raw.get("floor", PUBLISHED_FLOOR)),
        warn=float(raw.get("warn", WARN)),
    )


def _sidecar(raw: Mapping[str, Any]) -> Sidecar:
    fields = dict(raw)
    return Sidecar(
        command=tuple(fields.pop("command")),
        mounts=tuple(HostMount(**m) for m in fields.pop("mounts", ())),
        capabilities=tuple(fields.pop("capabilities", ())),
        devices=tuple(fields.pop("devices", ())),
        **fields,
    )
