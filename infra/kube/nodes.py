"""Changes to nodes: each carries the resourceVersion it was judged on and is read back before it counts as done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from infra.errors import Conflict, NotFound
from infra.kube.api import MERGE_PATCH, Kube

NODES = "/api/v1/nodes"
TRIES = 8  # a node's status is written every few seconds by its kubelet, so a stale version is common
WRITERS = 16

Raw = dict[str, Any]
Edit = Callable[[Raw], Raw | None]
Patch = Callable[[Raw, str], Raw | None]  # (node, run) -> merge patch


def list_raw(kube: Kube, names: Iterable[str] | None = None, label: str = "") -> list[Raw]:
    """Node objects by name (those that exist) or by label selector, in one listing."""
    wanted = None if names is None else set(names)
    if wanted is not None and len(wanted) <= 2:
        found = (kube.get(f"{NODES}/{name}") for name in sorted(wanted))
        return [n for n in found if n is not None]
    listed = kube.list(NODES, {"labelSelector": label or None})
    return [n for n in listed if wanted is None or n["metadata"]["name"] in wanted]


def change(kube: Kube, raw: Mapping[str, Any], edit: Edit) -> Raw | None:
    """Apply `edit` (object -> merge patch, or None when it is already so) until the server's copy needs no more.

    Returns the object as the server has stored it; None when the node is gone (or another one has its name).

    Raises:
        Conflict: others kept changing the node, or the server answered with an object that lacks the change.

    """
    name, uid = raw["metadata"]["name"], raw["metadata"].get("uid")
    current: Raw | None = dict(raw)
    for _ in range(TRIES):
        if current is None or current["metadata"].get("uid") != uid:
            return None
        patch = edit(current)
        if patch is None:
            return current
        patch.setdefault("metadata", {})["resourceVersion"] = current["metadata"].get("resourceVersion")
        try:
            stored = kube.request("PATCH", f"{NODES}/{name}", body=patch, content_type=MERGE_PATCH, retry=True)
        except Conflict:
            current = kube.get(f"{NODES}/{name}")
            continue
        except NotFound:
            return None
        if edit(stored) is None:
            return stored
        current = stored
    raise Conflict(
        f"node {name}",
        f"changed by others {TRIES} times while we tried",
        expected="our change to be stored",
        remedy=f"kubectl get node {name} -o yaml --show-managed-fields",
    )


def change_all(kube: Kube, raws: Iterable[Mapping[str, Any]], edit: Edit) -> list[Raw]:
    """`change` on many nodes at once. All are tried; then the first error, if any, is raised."""
    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(change, kube, raw, edit) for raw in raws]
    return [stored for future in running if (stored := future.result()) is not None]
