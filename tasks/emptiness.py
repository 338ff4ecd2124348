"""Proof that nodes are empty: a fresh listing, by UID. What cannot be seen is not empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from infra.errors import PoolshiftError
from infra.kube.api import PAGE, Kube
from infra.kube.read import NODES, OWNERS, PODS
from infra.kube.wire import Shared
from infra.kube.wire import pod as read_pod
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod

READERS = 16


def verify_empty(kube: Kube, nodes: Mapping[str, str] | Iterable[str]) -> list[Finding]:
    """List the nodes' pods anew. No finding means: proven empty.

    DaemonSet pods (whose DaemonSet exists), static pods and finished pods do not count. A node that is gone is empty
    when no pod is bound to its name any more; with UIDs given, another node under the same name is a finding.

    Args:
        kube: the cluster.
        nodes: node names, or names with the UIDs that are meant.

    """
    uids = dict(nodes) if isinstance(nodes, Mapping) else dict.fromkeys(nodes, "")
    try:
        found = _replaced(kube, uids)
        left = [p for p in pods_on(kube, uids) if not p.mirror and not p.finished]
        daemons = _daemonsets(kube) if any(p.of_daemonset for p in left) else frozenset()
    except PoolshiftError as error:
        names = ", ".join(sorted(uids)[:3]) + (f" and {len(uids) - 3} more" if len(uids) > 3 else "")
        return [
            Finding(
                level=Level.BLOCK,
                code="emptiness-unverified",
                object=f"nodes {names}",
                observed=f"could not be listed: {error.observed}",
                expected="a full listing of their pods",
                remedy=error.remedy or "run again when the API answers",
            )
        ]
    for pod in left:
        if not (pod.of_daemonset and pod.owner and pod.owner.uid in daemons):
            found.append(_occupied(pod))
    return sorted(found, key=lambda f: (f.code, f.object))


def _occupied(pod: Pod) -> Finding:
    state = "terminating" if pod.terminating else pod.phase or "in an unknown phase"
    owner = f", of {pod.owner.kind} {pod.owner.name}" if pod.owner else ", of no controller"
    return Finding(
        level=Level.BLOCK,
        code="pod-still-there",
        object=f"node {pod.node}",
        observed=f"pod {pod.key} (uid {pod.uid}) is {state}{owner}",
        expected="no pod but those of DaemonSets and the node's own",
        remedy=f"kubectl describe pod -n {pod.namespace} {pod.name}",
    )


def _daemonsets(kube: Kube) -> frozenset[str]:
    return frozenset(str(d["metadata"].get("uid")) for d in kube.list(OWNERS["DaemonSet"]))


def _replaced(kube: Kube, uids: Mapping[str, str]) -> list[Finding]:
    """Nodes whose name now belongs to another machine."""
    if not any(uids.values()):
        return []
    found = []
    for raw in kube.list(NODES):
        name, uid = str(raw["metadata"]["name"]), str(raw["metadata"].get("uid"))
        if uids.get(name) and uids[name] != uid:
            found.append(
                Finding(
                    level=Level.BLOCK,
                    code="node-replaced",
                    object=f"node {name}",
                    observed=f"is another node now (uid {uid})",
                    expected=f"uid {uids[name]}, or no such node",
                    remedy="plan again: the pool has changed",
                )
            )
    return found


def pods_on(kube: Kube, names: Iterable[str]) -> list[Pod]:
    """Pods bound to the nodes, freshly listed: node by node, or all at once where that is fewer requests."""
    wanted = set(names)
    shared = Shared()
    first = kube.request("GET", PODS, params={"limit": PAGE})
    meta = first.get("metadata") or {}
    remaining = int(meta.get("remainingItemCount") or 0)
    if remaining > PAGE * len(wanted):
        with ThreadPoolExecutor(READERS) as pool:
            listed = pool.map(lambda n: list(kube.list(PODS, {"fieldSelector": f"spec.nodeName={n}"})), sorted(wanted))
            return [read_pod(raw, shared) for page in listed for raw in page]
    items = list(first.get("items") or ())
    token = meta.get("continue")
    while token:
        page = kube.request("GET", PODS, params={"limit": PAGE, "continue": token})
        items += [raw for raw in page.get("items") or () if (raw.get("spec") or {}).get("nodeName") in wanted]
        token = (page.get("metadata") or {}).get("continue")
    return [read_pod(raw, shared) for raw in items if (raw.get("spec") or {}).get("nodeName") in wanted]
