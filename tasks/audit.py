"""`poolshift audit`: are the plugins there, and since when not. From a dump or the live cluster; no GPU-minute."""

from __future__ import annotations

import io
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from infra import fabrics
from infra.clock import rfc3339
from infra.errors import NotFound, PoolshiftError
from infra.kube import api, plugins
from infra.model.cluster import EMPTY, Node
from infra.model.plugins import PluginPod, PluginView
from infra.model.pools import MACHINE_LABEL, POOL_LABELS, Pool, PoolState, in_pool, pool_names
from infra.model.reading import Kind
from infra.model.spec import Cluster
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks import audit_files, judge, ledgers, readiness
from tasks.rules import audit as rules
from tasks.rules import readiness as readiness_rules
from tasks.rules.audit import Component
from tasks.rules.nearest import nearest
from tasks.rules.wording import plural

SIMULATED = "poolshift.dev/simulated"  # the label of the sandbox's nodes, in every dump of them


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found. `reading` holds the facts of a plugin's own log, when that was the input.

    `notes`: what was seen and could not be judged. `simulated`: the sandbox made the cluster, or the dump's nodes.
    """

    components: tuple[Component, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    now: datetime | None = None
    notes: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def outcome(self) -> Outcome:
        """Fail beats unmeasured.

        Nothing to judge is unmeasured, and so are plugins without the pools they serve, and nodes that offer devices
        and are of a machine type that nobody knows: pools that are well say nothing of them.
        """
        alone = self.notes or (self.components and not self.verdicts and not self.reading)
        return worst(
            [Outcome.UNMEASURED] * bool(alone)
            + [c.outcome for c in self.components]
            + [v.outcome for v in self.verdicts]
        )

    @property
    def exit_code(self) -> int:
        """0 pass, 3 fail, 4 unmeasured."""
        return self.outcome.exit_code

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Broken components and the pools' findings, worst first; a cause that a pool tells is told once."""
        told = {f.object for v in self.verdicts for f in v.findings if f.code == "plugin-excludes-nodes"}
        mine = [
            Finding(
                level=Level.BLOCK if c.outcome is Outcome.FAIL else Level.WARN,
                code=c.cause or "not-ready",
                object=c.name,
                observed=" ".join(x for x in (c.reason, c.image, c.message) if x),
                since=rfc3339(c.since) if c.since else "",
            )
            for c in self.components
            if c.outcome is not Outcome.PASS
            and not (c.cause in rules.EXCLUDED and f"daemonset {c.facts.get('namespace')}/{c.name}" in told)
        ]
        return (*mine, *(f for v in self.verdicts for f in v.findings))

    def wording(self) -> str:
        """One line: the outcome and how much was looked at; below it, what could not be, and why."""
        parts = [plural(len(self.components), "component")] if self.components else []
        parts += [plural(len(self.verdicts), "pool")] if self.verdicts else []
        mark = " (simulated)" if self.simulated else ""
        first = f"audit{mark}: {self.outcome.value} ({', '.join(parts) or 'nothing to judge'})"
        untold = [v.reason for v in self.verdicts if v.outcome is Outcome.UNMEASURED and not v.findings]
        why = [*self.notes, *dict.fromkeys(untold)]
        if untold:
            why.append(f"next: {audit_files.DUMP}")
        return "\n".join([first, *(f"  {line}" for line in why)])

    def to_json(self) -> dict[str, Any]:
        """The worst component's facts at the top (a pool's, where no component is broken), all of them below."""
        shown = [_component(c, self.now) for c in self.components]
        top = dict(shown[0]) if shown else {}
        if self.components and top.get("component", "").startswith("node "):
            del top["component"]
        broken = next((f for v in self.verdicts for f in v.findings if f.level is Level.BLOCK), None)
        if broken is not None and top.get("healthy") is not False:
            top |= {"healthy": False, "reason": None, "cause": broken.code, "message": broken.wording()}
        return {
            "kind": "k8s",
            **top,
            **dict(self.reading),
            "outcome": self.outcome.value,
            "components": shown,
            "pools": [v.to_dict() for v in self.verdicts],
            "notes": list(self.notes),
            "simulated": self.simulated,
        }


def of_files(paths: Sequence[str], pools: Sequence[str] = ()) -> Audit:
    """Audit kubectl dumps as one, or a device plugin's own log. Raises Unmeasured for a text that is neither."""
    found_objects = audit_files.objects(paths)
    if found_objects is not None:
        given = [part for path in paths for part in ("-f", path)]
        return of_objects(found_objects, pools, command=f"poolshift audit {shlex.join(given)}")
    found = judge.judge(io.BytesIO(audit_files.content(paths[0])))
    if found.kind is not Kind.K8S or pools:  # a log names no pool
        raise audit_files.no_objects(paths[0])
    reading = {**found.fields}
    healthy = reading.get("healthy")
    outcome = Outcome.UNMEASURED if healthy is None else Outcome.PASS if healthy else Outcome.FAIL
    said = "its log shows neither that it registered with the kubelet nor an error" if healthy is None else ""
    component = Component(
        name=str(reading.get("component") or "device plugin"),
        outcome=outcome,
        cause=str(reading.get("cause") or ""),
        message=str(reading.get("error") or said),
    )
    return Audit(components=(component,), reading=reading)


def of_objects(
    objects: Iterable[Mapping[str, Any]], pools: Sequence[str] = (), *, command: str = "poolshift audit"
) -> Audit:
    """Audit plain objects of any kinds; unknown kinds are left out.

    Applications' pods are no components, and are looked at only where a dump holds nothing else. Pools are judged as
    on a live cluster, as far as the dump holds what that takes. `pools`: only these, by name; `command` is what was
    typed, without them.

    Raises:
        NotFound: no node belongs to one of `pools`.
        BadFile: an object is not built as Kubernetes builds it.

    """
    kinds, doubts = audit_files.by_kind(objects)
    try:
        return _of_kinds(kinds, doubts, pools, command)
    except audit_files.ODD as cause:
        raise audit_files.first_odd(kinds, cause) from cause


def _of_kinds(
    kinds: Mapping[str, list[Mapping[str, Any]]], doubts: Sequence[str], pools: Sequence[str], command: str
) -> Audit:
    pods = [p for p in kinds.get("Pod", ()) if plugins.is_component(p)]
    if not pods and not kinds.keys() & {"Node", "DaemonSet"}:
        pods = kinds.get("Pod", [])
    nodes = _chosen(kinds.get("Node", ()), pools, command)
    if pools:  # a DaemonSet's own counts are of all nodes: these pools' verdicts say what it lacks on theirs
        theirs = {node["metadata"]["name"] for node in nodes}
        pods = [p for p in pods if (p.get("spec") or {}).get("nodeName") in theirs]
    view = plugins.from_objects(
        nodes,
        kinds.get("DaemonSet", ()),
        pods,
        taken=audit_files.newest(kinds),
        slices=kinds.get("ResourceSlice"),
        csi=kinds.get("CSINode"),
    )
    needed = ["DaemonSet", "Pod"] + ["ResourceSlice"] * bool(rules.dra_drivers(view.daemonsets))
    verdicts, notes = _pools(view, missing=[kind for kind in needed if kind not in kinds])
    missed = {f.object for v in verdicts for f in v.findings}
    found = rules.components(
        view.nodes,
        () if pools else view.daemonsets,
        view.pods,
        kinds.get("Event", ()),
        missed=missed if verdicts else None,
    )
    notes = (*notes, *doubts)
    if not verdicts:
        notes = (*notes, "no node of a known machine type: whether the plugins cover every node cannot be told")
    simulated = any(node.labels.get(SIMULATED) == "true" for node in view.nodes)
    return Audit(components=tuple(found), verdicts=verdicts, notes=notes, simulated=simulated)


def of_cluster(cluster: Cluster, pools: Sequence[str] = ()) -> Audit:
    """Audit every accelerator pool of a live cluster, or `pools`, found by their nodes' labels and machine type.

    Raises:
        NotFound: no node belongs to one of `pools`.

    """
    kube = api.connect(cluster)
    view = plugins.survey(kube, _chosen(kube.list("/api/v1/nodes"), pools))
    verdicts, notes = _pools(view)
    remembered = tuple(_remember(v, simulated=kube.sandbox is not None) for v in verdicts)
    return Audit(verdicts=remembered, now=kube.clock.now(), notes=notes, simulated=kube.sandbox is not None)


def _chosen(
    nodes: Iterable[Mapping[str, Any]], pools: Sequence[str], command: str = "poolshift audit"
) -> list[Mapping[str, Any]]:
    """The nodes of these pools; all where none is named. Raises NotFound for a pool without a node."""
    if not pools:
        return list(nodes)
    labels = [(node, node["metadata"].get("labels") or {}) for node in nodes]
    for pool in pools:
        if not any(in_pool(each, pool) for _, each in labels):
            there = pool_names(each for _, each in labels)
            raise NotFound(
                f"pool {pool}",
                "no node belongs to it",
                expected=f"one of {', '.join(there)}" if there else "nodes with the label of a pool",
                remedy=_nearest(command, pool, there),
            )
    return [node for node, each in labels if any(in_pool(each, pool) for pool in pools)]


def _nearest(command: str, pool: str, there: Sequence[str]) -> str:
    """What to type instead: with the pool that is spelled most alike, else with one that is there, else without."""
    close = nearest(pool, there) or there[:1]
    return f"{command} --pool {close[0]}" if close else f"{command}, without --pool"


def _is_known(labels: Mapping[str, str]) -> bool:
    return fabrics.fabric_of(labels.get(MACHINE_LABEL, "")) is not None


def _pools(view: PluginView, *, missing: Sequence[str] = ()) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """A verdict for each pool whose machine type is known, and what could not be judged.

    `missing`: kinds that a dump does not hold, of which therefore nothing can be said to be absent.
    """
    pools: dict[tuple[str, str, str], list[Node]] = {}
    others: list[tuple[str, Node]] = []
    for node in view.nodes:
        machine = node.labels.get(MACHINE_LABEL, "")
        label = next((name for name in POOL_LABELS if name in node.labels), "")
        if _is_known(node.labels):
            pools.setdefault((label, node.labels[label], machine), []).append(node)
        else:
            others.append((label, node))
    mixed = {(label, name) for label, name, _ in pools if label != MACHINE_LABEL}
    strange = Counter(
        node.labels.get(MACHINE_LABEL) or "(no type)"
        for label, node in others
        if rules.is_accelerated(node) or (label, node.labels.get(label, "")) in mixed
    )
    placed: dict[str, list[PluginPod]] = {}
    for pod in view.pods:
        placed.setdefault(pod.node, []).append(pod)
    verdicts = []
    for (label, name, machine), nodes in pools.items():
        expected = readiness.expectation(_pool(label, name, machine, len(nodes)))
        pods = tuple(pod for node in nodes for pod in placed.get(node.name, ()))  # each pool looks at its own alone
        found = readiness_rules.judge(replace(view, nodes=tuple(nodes), pods=pods), expected)
        verdicts.append(_without(missing, found, view) if missing else found)
    notes = [
        f"{plural(count, 'node')} of machine type {machine}: not in infra/fabrics, so what they should offer is unknown"
        for machine, count in sorted(strange.items())
    ]
    return tuple(verdicts), tuple(notes)


def _without(missing: Sequence[str], verdict: Verdict, view: PluginView) -> Verdict:
    """A dump without DaemonSets or pods shows devices that are missing; a pass takes the plugins as well.

    One without the slices of a DRA driver that runs does not even show the devices that it serves.
    """
    unseen = {"plugin-pod-missing"} | ({"plugin-absent"} if "DaemonSet" in missing else set())
    served = rules.dra_drivers(view.daemonsets) if "ResourceSlice" in missing else ()
    findings = tuple(
        f
        for f in verdict.findings
        if not (f.code in unseen and set(missing) != {"ResourceSlice"})
        and not (served and f.code in ("plugin-absent", "devices-missing") and rules.by_slices(f, served))
    )
    if any(f.level is Level.BLOCK for f in findings):
        return replace(verdict, findings=findings, reason=findings[0].fact())
    if set(missing) == {"ResourceSlice"} and findings == verdict.findings:
        return verdict  # nothing was left to the driver
    kinds = " and no ".join(f"{kind}s" for kind in missing)
    lacks = (
        "what its DRA driver offers" if set(missing) == {"ResourceSlice"} else "whether the plugins cover every node"
    )
    reason = f"the dump holds no {kinds}: {lacks} cannot be told"
    return replace(verdict, outcome=Outcome.UNMEASURED, findings=findings, reason=reason)


def _remember(verdict: Verdict, *, simulated: bool) -> Verdict:
    """Since when by our own history, where the objects do not say and the ledger knows one pool of this name."""
    known = [f.object.removeprefix("pool ") for f in verdict.findings if f.object.startswith("pool ")]
    if verdict.outcome is Outcome.PASS or not known or any(f.since for f in verdict.findings):
        return verdict
    try:
        since = ledgers.since_by_name(known[0], verdict.check, simulated=simulated)
    except PoolshiftError:
        return verdict  # the history only adds to what was seen
    findings = tuple(replace(f, since=since) if f.level is Level.BLOCK else f for f in verdict.findings)
    return replace(verdict, findings=findings) if since else verdict


def _pool(label: str, name: str, machine: str, count: int) -> Pool:
    return Pool(
        kind="external",
        name=name,
        identity=f"{label}={name}",
        state=PoolState.ACTIVE,
        machine_type=machine,
        nodes=count,
        node_selector={label: name},
    )


def _component(component: Component, now: datetime | None) -> dict[str, Any]:
    healthy = {Outcome.PASS: True, Outcome.FAIL: False, Outcome.UNMEASURED: None}[component.outcome]
    facts = {
        "component": component.name,
        "healthy": healthy,
        "reason": component.reason or None,
        "cause": component.cause or None,
        "message": component.message or None,
        "image": component.image or None,
        "since": rfc3339(component.since) if component.since else None,
        "since_seconds": int((now - component.since).total_seconds()) if now and component.since else None,
        "restarts": component.restarts,
        "pods_ready": component.pods_ready,
        "pods_total": component.pods_total,
        "resource": component.resource or None,
        "allocatable": component.allocatable,
        "expected": component.expected,
        **dict(component.facts),
    }
    return {key: value for key, value in facts.items() if value is not None or key in ("healthy", "reason", "cause")}
