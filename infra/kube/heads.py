"""Where each ledger ended, kept in the cluster: a ledger that lost its newest entries still looks whole by itself.

One ConfigMap; a key for each ledger that ever wrote about this cluster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infra.errors import Conflict, NotFound
from infra.kube.api import MERGE_PATCH, Kube
from infra.kube.records import ensure_namespace
from infra.model.record import MANAGED_BY

NAME = "poolshift-ledger-heads"


def write(kube: Kube, key: str, head: Mapping[str, Any]) -> None:
    """Keep a head under its key; other keys are not touched."""
    data = {"data": {key: json.dumps(dict(head), separators=(",", ":"))}}
    try:
        kube.request("PATCH", _path(kube, NAME), body=data, content_type=MERGE_PATCH, retry=True)
    except NotFound:
        ensure_namespace(kube)
        meta = {"name": NAME, "labels": {MANAGED_BY: "poolshift"}}
        try:
            kube.request("POST", _path(kube), body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **data})
        except Conflict:  # somebody else made it first
            kube.request("PATCH", _path(kube, NAME), body=data, content_type=MERGE_PATCH, retry=True)


def read(kube: Kube) -> list[dict[str, Any]]:
    """Every head that the cluster keeps; one that cannot be read is left out."""
    found = []
    for text in ((kube.get(_path(kube, NAME)) or {}).get("data") or {}).values():
        try:
            head = json.loads(text)
        except ValueError:
            continue
        if isinstance(head, dict):
            found.append(head)
    return found


def _path(kube: Kube, name: str = "") -> str:
    base = f"/api/v1/namespaces/{kube.namespace}/configmaps"
    return f"{base}/{name}" if name else base
