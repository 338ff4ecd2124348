"""The kubeconfig of a sandbox: one that kubectl and every client can use, with what poolshift needs beside it."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.clock import ScaledClock, rfc3339_micro

NAME = "poolshift-sandbox"
EXTENSION = "poolshift.dev/sandbox"


def build(
    cluster: Mapping[str, Any],
    user: Mapping[str, Any],
    *,
    scenario: str,
    control_plane: str,
    clock: ScaledClock,
    aws_endpoint: str = "",
    gke_endpoint: str = "",
) -> dict[str, Any]:
    """The document. `cluster` and `user` are the inner parts: {"server": …} and {"token": …} or {}."""
    extension: dict[str, Any] = {
        "scenario": scenario,
        "control_plane": control_plane,
        "clock": {"origin": rfc3339_micro(clock.origin), "started": clock.started, "rate": clock.rate},
    }
    if aws_endpoint:
        extension["aws"] = {"endpoint": aws_endpoint}
    if gke_endpoint:
        extension["gke"] = {"endpoint": gke_endpoint}
    inner = copy.deepcopy(dict(cluster))
    inner["extensions"] = [{"name": EXTENSION, "extension": extension}]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": inner}],
        "users": [{"name": NAME, "user": dict(user)}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write it readable by its owner only, in one step."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.touch(mode=0o600)
    partial.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    partial.replace(path)
