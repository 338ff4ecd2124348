"""`poolshift audit`: are the plugins there, and since when not. From a dump or the live cluster; no GPU-minute."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra import fabrics
from infra.clock import rfc3339
from infra.errors import Unmeasured
from infra.kube import api, dump, plugins
from infra.model.cluster import EMPTY
from infra.model.pools import Pool, PoolState
from infra.model.reading import Kind
from infra.model.spec import Cluster
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks import judge, readiness
from tasks.rules import audit as rules
from tasks.rules.audit import Component

# The labels by which each cloud and the usual provisioners mark the pool of a node, most specific first.
POOL_LABELS = (
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "karpenter.sh/nodepool",
    "alpha.eksctl.io/nodegroup-name",
)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What was found. `reading` holds the facts of a plugin's own log, when that was the input."""

    components: tuple[Component, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    now: datetime | None = None

    @property
    def outcome(self) -> Outcome:
        """Fail beats unmeasured; nothing to judge is unmeasured."""
        return worst([c.outcome for c in self.components] + [v.outcome for v in self.verdicts])

    @property
    def exit_code(self) -> int:
        """0 pass, 3 fail, 4 unmeasured."""
        return {Outcome.PASS: 0, Outcome.FAIL: 3, Outcome.UNMEASURED: 4}[self.outcome]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Broken components and the pool's findings, worst first."""
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
        ]
        return (*mine, *(f for v in self.verdicts for f in v.findings))

    def wording(self) -> str:
        """One line: the outcome and how much was looked at."""
        parts = [f"{len(self.components)} components"] if self.components else []
        parts += [f"{len(self.verdicts)} pools"] if self.verdicts else []
        return f"audit: {self.outcome.value} ({', '.join(parts) or 'nothing to judge'})"

    def to_json(self) -> dict[str, Any]:
        """The worst component's facts at the top, all components and verdicts below."""
        shown = [_component(c, self.now) for c in self.components]
        top = dict(shown[0]) if shown else {}
        if self.components and top.get("component", "").startswith("node "):
            del top["component"]
        return {
            "kind": "k8s",
            **top,
            **dict(self.reading),
            "outcome": self.outcome.value,
            "components": shown,
            "pools": [v.to_dict() for v in self.verdicts],
        }


def of_file(path: str) -> Audit:
    """Audit a kubectl dump, or a device plugin's own log. Raises Unmeasured for a text that is neither."""
    data = _bytes(path)
    if data.lstrip()[:1] in (b"{", b"[") or b"apiVersion:" in data[:4096]:
        return of_objects(dump.parse(data, path))
    found = judge.judge(io.BytesIO(data))
    if found.kind is not Kind.K8S:
        raise Unmeasured(
            f"file {path}",
            "is neither a list of Kubernetes objects nor a device plugin's log",
            expected="kubectl get nodes,daemonsets,pods,events -A -o json",
        )
    reading = {**found.fields}
    healthy = reading.get("healthy")
    outcome = Outcome.UNMEASURED if healthy is None else Outcome.PASS if healthy else Outcome.FAIL
    component = Component(
        name=str(reading.get("component") or "device plugin"), outcome=outcome, cause=str(reading.get("cause") or "")
    )
    return Audit(components=(component,), reading=reading)


def of_objects(objects: Iterable[Mapping[str, Any]]) -> Audit:
    """Audit plain objects of any kinds; unknown kinds are left out."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for obj in objects:
        kinds.setdefault(str(obj.get("kind")), []).append(obj)
    view = plugins.from_objects(
        kinds.get("Node", ()), kinds.get("DaemonSet", ()), kinds.get("Pod", ()), taken=datetime.fromtimestamp(0, UTC)
    )
    found = rules.components(view.nodes, view.daemonsets, view.pods, kinds.get("Event", ()))
    return Audit(components=tuple(found))


def of_cluster(cluster: Cluster) -> Audit:
    """Audit every accelerator pool of a live cluster, found by its nodes' labels and machine type."""
    kube = api.connect(cluster)
    pools: dict[tuple[str, str, str], int] = {}
    for node in kube.list("/api/v1/nodes"):
        labels = node["metadata"].get("labels") or {}
        machine = labels.get("node.kubernetes.io/instance-type", "")
        label = next((name for name in POOL_LABELS if name in labels), "")
        if label and fabrics.fabric_of(machine) is not None:
            key = (label, labels[label], machine)
            pools[key] = pools.get(key, 0) + 1
    verdicts = tuple(
        readiness.look(kube, _pool(label, name, machine, count)) for (label, name, machine), count in pools.items()
    )
    return Audit(verdicts=verdicts, now=kube.clock.now())


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


def _bytes(path: str) -> bytes:
    import sys

    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise Unmeasured(f"file {path}", f"cannot be read: {cause.strerror or cause}") from cause
