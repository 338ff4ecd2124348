"""Will the plugins run on nodes that do not exist yet? Told from their DaemonSets and what the new nodes will carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from infra.fabrics import Minimum
from infra.model.cluster import Node
from infra.model.plugins import KNOWN_PLUGINS, DaemonSet, Expectation
from infra.model.verdict import Finding, Level
from tasks.rules.plugin_cover import admitting, needed, recognises, refusal
from tasks.rules.preflight_version import release


def excluded(daemonsets: Sequence[DaemonSet], node: Node, expected: Expectation) -> Iterable[Finding]:
    """Plugins that no DaemonSet would bring to such a node.

    `node` carries the labels that are known. Others may come with the node, so what asks for them is believed.
    """
    for plugin in needed(expected):
        sets = [d for d in daemonsets if recognises(plugin, d)]
        reasons = {d.object: refusal(d, _granted(d, node)) for d in sets}
        if not sets:
            yield Finding(
                level=Level.WARN,
                code="plugin-not-installed",
                object=f"pool {expected.pool}",
                observed=f"no DaemonSet like {plugin.names[0]} in the cluster",
                expected="one, before nodes of this type join",
                remedy=f"install {plugin.key}, unless it comes with the nodes",
            )
        elif all(reasons.values()):
            name, why = next(iter(reasons.items()))
            yield Finding(
                level=Level.WARN,
                code="plugin-will-exclude-nodes",
                object=name,
                observed=f"will not run on nodes of pool {expected.pool}: {why}",
                expected="a pod on every node of the pool, from its first minute",
                remedy=f"{admitting(sets[0], why or '')}; readiness is held until it does",
            )


def outdated(daemonsets: Sequence[DaemonSet], node: Node, minimums: Sequence[Minimum]) -> Iterable[Finding]:
    """Plugins and drivers that would run on such a node and are older than the first that knows its machine type.

    A driver that comes with the node's image has no DaemonSet, and nothing is said of it.
    """
    for minimum in minimums:
        for daemonset in (d for d in daemonsets if refusal(d, _granted(d, node)) is None):
            for image in (i for i in daemonset.images if _is_of(minimum.part, daemonset, i)):
                yield from _compare(minimum, daemonset, image)


def _compare(minimum: Minimum, daemonset: DaemonSet, image: str) -> Iterable[Finding]:
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    have, needed = release(tag), release(minimum.version)
    assert needed is not None, minimum
    if have is not None and have >= needed:
        return
    yield Finding(
        level=Level.WARN if have is None else Level.BLOCK,
        code="plugin-version-unread" if have is None else "plugin-too-old",
        object=daemonset.object,
        observed=f"runs {image}" + (", whose version cannot be read" if have is None else ""),
        expected=f"{minimum.part} {minimum.version} or later for this machine type ({minimum.source})",
        remedy=f"kubectl -n {daemonset.namespace} set image daemonset {daemonset.name} ..., or upgrade its chart",
    )


def _is_of(part: str, daemonset: DaemonSet, image: str) -> bool:
    """Is the image the part's own, and not that of a container beside it?"""
    base = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if part == "nvidia-driver":  # as the GPU Operator brings it
        return base == "driver" and "nvidia" in f"{daemonset.name} {image}"
    return any(base in plugin.images for plugin in KNOWN_PLUGINS if plugin.key == part)


def _granted(daemonset: DaemonSet, node: Node) -> Node:
    """The node with every label that is not known of it as the DaemonSet wants it."""
    labels = {key: value for key, value in daemonset.node_selector.items() if key not in node.labels}
    for requirement in (r for term in daemonset.affinity for r in term):
        if requirement.key not in node.labels and requirement.operator in ("In", "Exists"):
            labels.setdefault(requirement.key, next(iter(requirement.values), ""))
    return replace(node, labels={**labels, **node.labels})
