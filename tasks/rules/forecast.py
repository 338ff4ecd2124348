"""Will the plugins run on nodes that do not exist yet? Told from their DaemonSets and what the new nodes will carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from infra.model.cluster import Node
from infra.model.plugins import DaemonSet
from infra.model.verdict import Finding, Level
from tasks.rules.readiness import Expectation, needed, recognises, refusal


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
                remedy=f"kubectl -n {sets[0].namespace} edit daemonset {sets[0].name}; readiness is held until it does",
            )


def _granted(daemonset: DaemonSet, node: Node) -> Node:
    """The node with every label that is not known of it as the DaemonSet wants it."""
    labels = {key: value for key, value in daemonset.node_selector.items() if key not in node.labels}
    for requirement in (r for term in daemonset.affinity for r in term):
        if requirement.key not in node.labels and requirement.operator in ("In", "Exists"):
            labels.setdefault(requirement.key, next(iter(requirement.values), ""))
    return replace(node, labels={**labels, **node.labels})
