"""Is the pool what it claims to be? Answered from objects alone: no GPU-minute is used.

Which nodes a plugin must cover is computed from the pool. A DaemonSet's own desiredNumberScheduled is never
believed: a wrong selector or a missing toleration makes it small, and "3 of 3 ready" is then green while ten nodes
have no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from infra.model.cluster import Node
from infra.model.plugins import DRA_DRIVERS, KNOWN_PLUGINS, Expectation, Plugin, PluginView
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.plugin_cover import needed, recognises, refusal, uncovered
from tasks.rules.plugin_pods import unhealthy
from tasks.rules.wording import and_more, plural, since_words

Check = Callable[[PluginView, Expectation], Iterable[Finding]]


def judge(view: PluginView, expected: Expectation) -> Verdict:
    """All checks, all findings at once. A block fails; a pool that cannot be seen is unmeasured."""
    findings = tuple(finding for check in CHECKS for finding in check(view, expected))
    blocks = [f for f in findings if f.level is Level.BLOCK]
    unseen = [f for f in blocks if f.code in UNSEEN]
    outcome = Outcome.PASS
    if blocks:
        outcome = Outcome.UNMEASURED if len(unseen) == len(blocks) else Outcome.FAIL
    return Verdict(
        check="readiness",
        outcome=outcome,
        observed=_standing(view, expected),
        limit=f"{plural(expected.nodes, 'node')}, each with {_counts(expected.resources)}",
        statistic="per node",
        reason=blocks[0].fact() if blocks else "every node offers what its machine type has",
        findings=findings,
    )


def _standing(view: PluginView, expected: Expectation) -> str:
    """What is there and what is not: Ready alone says nothing of devices."""
    of = f"of {plural(expected.nodes, 'node')}"
    parts = [f"{sum(n.ready for n in view.nodes)} {of} Ready"]
    for name, resources in (("GPUs", expected.gpus), ("RDMA devices", expected.rdma)):
        if resources:
            whole = sum(
                all(
                    n.allocatable.get(r, 0) >= count or _served_by_dra(view, n.name, r, count, expected)
                    for r, count in resources.items()
                )
                for n in view.nodes
            )
            parts.append(f"{whole} of {expected.nodes} with all {name}")
    return ", ".join(parts)


UNSEEN = frozenset({"no-nodes", "machine-type-unknown", "devices-beyond"})


def nodes_present(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """As many nodes as the cloud says, and at least one."""
    found = len(view.nodes)
    if found == 0:
        yield Finding.block(
            "no-nodes",
            f"pool {expected.pool}",
            "no node with the pool's label in Kubernetes",
            f"{plural(expected.nodes, 'node')}",
            "look at the instances' console output: nodes that never join fail in user data, role or security group",
        )
    elif found < expected.nodes:
        yield Finding.block(
            "nodes-missing", f"pool {expected.pool}", f"{plural(found, 'node')} joined", f"{expected.nodes}"
        )


def nodes_ready(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """Ready must be True: Unknown is a dead kubelet."""
    for node in view.nodes:
        if node.ready:
            continue
        ready = next((c for c in node.conditions if c.type == "Ready"), None)
        yield Finding(
            level=Level.BLOCK,
            code="node-not-ready",
            object=f"node {node.name}",
            observed=f"Ready={ready.status if ready else 'absent'} {ready.reason if ready else ''}".strip(),
            expected="Ready=True",
            since=since_words(ready.since if ready else node.created, view.taken),
            remedy=f"kubectl describe node {node.name}",
        )


def nodes_well(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """No condition of a node says that its hardware, network or disk is broken, and no cloud wants it replaced."""
    for node in view.nodes:
        for condition in node.conditions:
            good = _GOOD.get(condition.type, condition.status)
            told = condition.status == "Unknown" and not node.ready  # a dead kubelet's are all unknown
            if condition.status != good and not told:
                yield Finding(
                    level=Level.BLOCK,
                    code="node-unhealthy",
                    object=f"node {node.name}",
                    observed=f"{condition.type}={condition.status} {condition.reason} {condition.message}".strip(),
                    expected=f"{condition.type}={good}",
                    since=since_words(condition.since, view.taken),
                    remedy=f"kubectl describe node {node.name}",
                )
        health = node.labels.get(_HYPERPOD, _SCHEDULABLE)
        if health != _SCHEDULABLE:
            yield Finding.block(
                "node-unhealthy",
                f"node {node.name}",
                f"{_HYPERPOD}={health}",
                _SCHEDULABLE,
                f"kubectl describe node {node.name}",
            )


# Kubernetes' own conditions (kubernetes.io, node status), node-problem-detector's of its default kernel monitor, which
# GKE runs, and those of EKS' node monitoring agent (its README).
_GOOD: Mapping[str, str] = {
    **dict.fromkeys(("NetworkUnavailable", "DiskPressure", "MemoryPressure", "PIDPressure"), "False"),
    **dict.fromkeys(("KernelDeadlock", "ReadonlyFilesystem"), "False"),
    **dict.fromkeys(("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady"), "True"),
    **dict.fromkeys(("NetworkingReady", "StorageReady"), "True"),
}
# SageMaker HyperPod's on EKS: anything else is under repair or to be replaced.
_HYPERPOD, _SCHEDULABLE = "sagemaker.amazonaws.com/node-health-status", "Schedulable"


def machine_known(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """Without a figure for the machine type nothing can be compared."""
    if not expected.resources:
        yield Finding.block(
            "machine-type-unknown",
            f"pool {expected.pool}",
            f"no figures for machine type {expected.machine_type or '(none)'}",
            "an entry in infra/fabrics",
            "add the machine type to infra/fabrics with the source of each number",
        )


def devices_allocatable(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """Allocatable equals the machine type's count, per node and resource; devices of DRA drivers count as well."""
    for resource, count in expected.resources.items():
        short = {n.name: n.allocatable.get(resource, 0) for n in view.nodes if n.allocatable.get(resource, 0) < count}
        short = {
            name: have for name, have in short.items() if not _served_by_dra(view, name, resource, count, expected)
        }
        if not short:
            continue
        lost = [n.name for n in view.nodes if n.name in short and n.capacity.get(resource, 0) > short[n.name]]
        yield Finding(
            level=Level.BLOCK,
            code="devices-missing",
            object=f"pool {expected.pool}",
            observed=f"{resource}: {_per_node(short)} allocatable on {and_more(sorted(short), 3)}"
            + (f" although capacity is higher on {and_more(sorted(lost), 3)}" if lost else ""),
            expected=f"{count} on every node",
            since=since_words(_first_broken(resource, short, view), view.taken),
            remedy="kubectl get nodes -o "
            f"custom-columns='NAME:.metadata.name,N:.status.allocatable.{_escape(resource)}'",
        )


def devices_beyond(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """More than the machine has: the plugin counts something else, or one device for several pods.

    Then a full number no longer shows that all devices work. Old EFA plugins count p6-b200's wrongly.
    """
    stated = expected.rdma if expected.counted else expected.resources
    for resource, count in stated.items():
        more = {n.name: n.allocatable.get(resource, 0) for n in view.nodes if n.allocatable.get(resource, 0) > count}
        if more:
            yield Finding.block(
                "devices-beyond",
                f"pool {expected.pool}",
                f"{resource}: {_per_node(more)} allocatable on {and_more(sorted(more), 3)}",
                f"{count} on every node: its machine has no more",
                "look at the device plugin's version and configuration: GPUs shared between pods (time slicing, MPS) "
                "are counted several times, and old versions of the EFA plugin count p6-b200's devices wrongly",
            )


def _first_broken(resource: str, nodes: Mapping[str, int], view: PluginView) -> datetime | None:
    """Since when a pod that serves this resource is not Ready on one of the nodes: its devices went with it."""
    serving = [p for p in KNOWN_PLUGINS if p.resources and resource.startswith(p.resources)]
    sets = {d.uid for d in view.daemonsets if any(recognises(p, d) for p in serving)}
    moments = [p.not_ready_since for p in view.pods if p.daemonset_uid in sets and p.node in nodes and not p.ready]
    return min((m for m in moments if m is not None), default=None)


# EKS Auto Mode's nodes have the device plugins in their runtime, and the charts' DaemonSets keep away from them
# (docs.aws.amazon.com/eks, "Manage hardware devices on Amazon EKS"); what they offer is compared as on any node.
_EKS = "eks.amazonaws.com/compute-type"


def plugins_cover_pool(whole: PluginView, expected: Expectation) -> Iterable[Finding]:
    """For every plugin that the pool needs: a DaemonSet exists, admits every node, and is Ready on each."""
    for plugin in needed(expected):
        view = (
            whole if plugin.csi else replace(whole, nodes=tuple(n for n in whole.nodes if n.labels.get(_EKS) != "auto"))
        )
        if whole.nodes and not view.nodes:
            continue
        sets = [d for d in view.daemonsets if recognises(plugin, d)]
        if not sets:
            yield from _plugin_absent(plugin, view, expected)
            continue
        # GKE ships one DaemonSet per node size: together they must admit every node, not each of them alone.
        sets.sort(key=lambda d: sum(refusal(d, n) is not None for n in view.nodes))
        yield from uncovered(sets, view, expected)
        for daemonset in sets:
            yield from unhealthy(daemonset, view)


def one_plugin_per_resource(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """Two plugins that register one resource on one node overwrite each other's devices.

    A device plugin and a DRA driver for the same devices give each of them to two pods.
    """
    for resource in expected.resources:
        twice = [
            n.name for n in view.nodes if n.allocatable.get(resource, 0) and _offered_by_dra(view, n.name, resource)
        ]
        if twice:
            yield Finding.block(
                "two-owners",
                f"pool {expected.pool}",
                f"{resource} is allocatable and in ResourceSlices as well on {and_more(sorted(twice), 3)}",
                "a device plugin or a DRA driver, not both",
                "keep one of them away from these nodes: kubectl get resourceslices -o wide",
            )
    running = {(p.daemonset_uid, p.node) for p in view.pods if p.ready}
    for plugin in needed(expected):
        sets = [d for d in view.daemonsets if plugin.resources and recognises(plugin, d)]
        for node in view.nodes if len(sets) > 1 else ():
            on_node = sorted((d for d in sets if (d.uid, node.name) in running), key=lambda d: d.object)
            if len(on_node) > 1:
                last = on_node[-1]
                yield Finding.block(
                    "two-plugins",
                    f"node {node.name}",
                    f"{' and '.join(d.object for d in on_node)} both serve {plugin.resources[0]}",
                    "one",
                    f"remove one of them: kubectl -n {last.namespace} delete daemonset {last.name}",
                )


def csi_registered(view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """The Lustre CSI driver is registered on every node, where the pool mounts Lustre."""
    if not expected.csi:
        return
    if view.csi is None:
        yield Finding.block("csi-unknown", f"pool {expected.pool}", "CSINode objects could not be read", expected.csi)
        return
    missing = sorted(n.name for n in view.nodes if expected.csi not in view.csi.get(n.name, ()))
    if missing:
        yield Finding.block(
            "csi-driver-missing",
            f"pool {expected.pool}",
            f"{expected.csi} is not registered on {and_more(missing, 3)}",
            "registered on every node",
            f"kubectl get csinode {missing[0]} -o yaml",
        )


CHECKS: tuple[Check, ...] = (
    machine_known,
    nodes_present,
    nodes_ready,
    nodes_well,
    plugins_cover_pool,
    devices_allocatable,
    devices_beyond,
    one_plugin_per_resource,
    csi_registered,
)


def device_resources(node: Node) -> set[str]:
    """Names of what known plugins and DRA drivers make visible on the node."""
    prefixes = tuple(name for plugin in KNOWN_PLUGINS for name in plugin.resources)
    return {name for name in {*node.allocatable, *node.capacity} if name.startswith(prefixes)}


def _plugin_absent(plugin: Plugin, view: PluginView, expected: Expectation) -> Iterable[Finding]:
    """No DaemonSet at all. Harmless only where every node shows the devices anyway (built into the node image)."""
    wanted = [r for r in expected.resources if r.startswith(plugin.resources)] if plugin.resources else []
    shown = bool(wanted) and all(
        n.allocatable.get(r, 0) >= expected.resources[r]
        or _served_by_dra(view, n.name, r, expected.resources[r], expected)
        for n in view.nodes
        for r in wanted
    )
    if not shown:
        yield Finding.block(
            "plugin-absent",
            f"pool {expected.pool}",
            f"no DaemonSet like {plugin.names[0]} in the cluster",
            f"one that serves {plugin.csi or ', '.join(wanted) or expected.machine_type}",
            f"install {plugin.key}",
        )


def _served_by_dra(view: PluginView, node: str, resource: str, count: int, expected: Expectation) -> bool:
    """Do the drivers of this very resource offer as many devices? GKE's rdma-0..7 are one driver's devices together."""
    prefix = _dra_prefix(resource)
    if prefix.endswith("-"):
        count = sum(n for name, n in expected.resources.items() if name.startswith(prefix))
    return 0 < count <= _offered_by_dra(view, node, resource)


def _offered_by_dra(view: PluginView, node: str, resource: str) -> int:
    """How many devices the drivers that can stand for this resource offer on the node."""
    offered = (view.slices or {}).get(node, {})
    return sum(offered.get(driver, 0) for driver in DRA_DRIVERS.get(_dra_prefix(resource), ()))


def _dra_prefix(resource: str) -> str:
    return next((prefix for prefix in DRA_DRIVERS if resource.startswith(prefix)), "")


def _counts(resources: Mapping[str, int]) -> str:
    """Each resource with its number; a row of numbered ones (rdma-0 to rdma-7) as one."""
    rows: dict[tuple[str, int], list[str]] = {}
    for name, count in resources.items():
        rows.setdefault((name.rstrip("0123456789"), count), []).append(name)
    words = [
        f"{count} {names[0]}" + (f" to {names[-1].rpartition('/')[2]}" if len(names) > 1 else "")
        for (_, count), names in rows.items()
    ]
    return ", ".join(words) or "its devices"


def _per_node(counts: Mapping[str, int]) -> str:
    low, high = min(counts.values()), max(counts.values())
    return str(low) if low == high else f"{low} to {high}"


def _escape(resource: str) -> str:
    return resource.replace(".", "\\.")
