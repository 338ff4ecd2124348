"""Which plugins a pool needs, and which of its nodes their DaemonSets want. Computed, never believed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from infra.model.cluster import Node, Taint, Toleration
from infra.model.plugins import KNOWN_PLUGINS, DaemonSet, Expectation, Plugin, PluginView
from infra.model.verdict import Finding
from infra.model.workload import Requirement
from tasks.rules.wording import and_more

# What the DaemonSet controller adds to every pod's tolerations (kubernetes.io docs, DaemonSet taints).
AUTOMATIC_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists")
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)


def needed(expected: Expectation) -> tuple[Plugin, ...]:
    """The known plugins without which this machine type's devices do not show."""
    return tuple(p for p in KNOWN_PLUGINS if _needs(p, expected))


def _needs(plugin: Plugin, expected: Expectation) -> bool:
    if plugin.csi:
        return plugin.csi == expected.csi
    if plugin.machines and not expected.machine_type.startswith(plugin.machines):
        return False
    if plugin.resources:
        return any(name.startswith(plugin.resources) for name in expected.resources)
    return bool(plugin.machines)


def recognises(plugin: Plugin, daemonset: DaemonSet) -> bool:
    """By the DaemonSet's name or by an image's name without registry and tag."""
    if any(name in daemonset.name for name in plugin.apart):
        return False
    if any(name in daemonset.name for name in plugin.names):
        return True
    bases = {image.split("@")[0].rsplit("/", 1)[-1].split(":")[0] for image in daemonset.images}
    return bool(bases & set(plugin.images))


def refusal(daemonset: DaemonSet, node: Node) -> str | None:
    """Why the DaemonSet does not want this node, in the words of the object to change; None when it does."""
    for key, value in daemonset.node_selector.items():
        if node.labels.get(key) != value:
            return f"nodeSelector {key}={value}, the node has {key}={node.labels.get(key, '(none)')}"
    terms = [term for term in daemonset.affinity if term]
    failing = [_failing(term, node) for term in terms]
    if daemonset.affinity and not terms:
        return "node affinity has only empty terms, and those match no node"
    if failing and all(failing):
        wanted = min(failing, key=len)[0]
        return f"node affinity {wanted}, the node has {wanted.key}={node.labels.get(wanted.key, '(none)')}"
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerated(daemonset, taint):
            return f"taint {taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect} is not tolerated"
    return None


def admitting(daemonset: DaemonSet, why: str) -> str:
    """The command that lets a DaemonSet onto a node, and what to change in it; `why` is what `refusal` said."""
    part, _, rest = why.partition(" ")
    forbids = " NotIn " in rest or " DoesNotExist" in rest
    change = {
        "taint": f"in tolerations, add one of {rest.removesuffix(' is not tolerated')}",
        "nodeSelector": "change that line of nodeSelector to what the nodes have",
        "node": "in nodeAffinity, take that requirement out, or that label from the nodes"
        if forbids
        else "in nodeAffinity, add what the nodes have",
    }.get(part, "let it onto these nodes")
    return f"kubectl -n {daemonset.namespace} edit daemonset {daemonset.name} ({change})"


def _failing(term: tuple[Requirement, ...], node: Node) -> list[Requirement]:
    """The requirements of a term that the node fails; the term admits the node when there are none."""
    fields = {"metadata.name": node.name}
    return [r for r in term if not r.holds((fields if r.field else node.labels).get(r.key))]


def _tolerated(daemonset: DaemonSet, taint: Taint) -> bool:
    return any(t.tolerates(taint) for t in (*daemonset.tolerations, *AUTOMATIC_TOLERATIONS))


def uncovered(sets: Sequence[DaemonSet], view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """Pool nodes that none of a plugin's DaemonSets wants, in the words of the one that comes closest."""
    closest = sets[0]
    reasons: dict[str, list[str]] = {}
    for node in view.nodes:
        if all(refusal(daemonset, node) is not None for daemonset in sets):
            reasons.setdefault(refusal(closest, node) or "", []).append(node.name)
    for why, names in reasons.items():
        yield Finding.block(
            "plugin-excludes-nodes",
            closest.object,
            f"does not run on {and_more(sorted(names), 3)} of pool {expected.pool}: {why}"
            f" (its own status says {closest.ready} of {closest.desired} ready)",
            "a pod on every node of the pool",
            admitting(closest, why),
        )
