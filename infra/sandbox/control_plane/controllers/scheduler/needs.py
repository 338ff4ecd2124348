"""What a pod asks of a node. Pods that ask the same share one `Needs`, so most of a decision is made once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from infra.sandbox.control_plane.controllers.objects import Object, controller_of, labels_of
from infra.sandbox.control_plane.controllers.scheduler.topology import PodTerm
from infra.sandbox.control_plane.quantity import parse

Amounts = dict[str, int]
"""Resource name to amount: cpu in thousandths, everything else in its unit."""

Port = tuple[str, str, int]
"""Protocol, host address, host port."""

_SHARED_KEYS = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "overhead",
    "resources",
    "priority",
    "preemptionPolicy",
)


def amount(name: str, text: str | int) -> int:
    """A quantity as an integer: cpu in thousandths, rounded up."""
    value = parse(text) * (1000 if name == "cpu" else 1)
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """A resource list as integers."""
    return {name: amount(name, text) for name, text in (quantities or {}).items()}


def _add(into: Amounts, more: Amounts) -> None:
    for name, value in more.items():
        into[name] = into.get(name, 0) + value


def requests_of(spec: Object) -> Amounts:
    """What a pod takes from a node: its containers together, or its largest init step, plus the overhead."""
    running: Amounts = {}
    for container in spec.get("containers") or ():
        _add(running, amounts((container.get("resources") or {}).get("requests")))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = amounts((container.get("resources") or {}).get("requests"))
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            own = {}
        step = dict(sidecars)
        _add(step, own)
        peak = {name: max(step.get(name, 0), peak.get(name, 0)) for name in {*step, *peak}}
    _add(running, sidecars)
    total = {name: max(running.get(name, 0), peak.get(name, 0)) for name in {*running, *peak}}
    total.update(amounts((spec.get("resources") or {}).get("requests")))
    _add(total, amounts(spec.get("overhead")))
    return {name: value for name, value in total.items() if value > 0}


def ports_of(spec: Object) -> tuple[Port, ...]:
    """Host ports of a pod."""
    return tuple(
        (port.get("protocol") or "TCP", port.get("hostIP") or "0.0.0.0", port["hostPort"])  # noqa: S104 (any address)
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def claims_of(spec: Object) -> tuple[str, ...]:
    """Names of the claims that a pod mounts."""
    return tuple(
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes") or ()
        if volume.get("persistentVolumeClaim")
    )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One DoNotSchedule topology spread constraint."""

    term: PodTerm
    max_skew: int
    min_domains: int
    honours_taints: bool
    honours_affinity: bool


@dataclass(slots=True, eq=False)
class Needs:
    """The wishes of a class of pods, and what the scheduler remembers about the class."""

    namespace: str
    owner: str
    spec: Object
    labels: Mapping[str, str]
    requests: Amounts
    ports: tuple[Port, ...]
    claims: tuple[str, ...]
    attract: tuple[PodTerm, ...]
    repel: tuple[PodTerm, ...]
    preferred: tuple[tuple[int, PodTerm], ...]
    spreads: tuple[Spread, ...]
    node_wishes: tuple[Mapping[str, Any], ...]
    pinned: frozenset[str] | None
    """Names of the only nodes that the affinity allows by metadata.name, or None."""
    suits: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By node name: (version of the node that was judged, reason it does not suit or "")."""
    suitable_at: int = -1
    suitable: list[Any] = field(default_factory=list)
    ranking: Any = None
    failed_at: int = -1
    """State of the cluster in which the last pod of the class found no node, -1 for none."""
    failure: str = ""
    """The message of that time."""

    @property
    def plain(self) -> bool:
        """Only resources and node properties matter."""
        return not (self.ports or self.claims or self.attract or self.repel or self.preferred or self.spreads)


def signature(pod: Object) -> bytes:
    """Equal for pods that ask the same."""
    spec = pod["spec"]
    owner = controller_of(pod)
    affinity = spec.get("affinity") or {}
    labels_matter = (
        affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get("topologySpreadConstraints")
    )
    meta = pod["metadata"]
    return orjson.dumps(
        [
            meta["namespace"],
            owner["uid"] if owner else "",
            labels_of(pod) if labels_matter or not owner else None,
            [spec.get(key) for key in _SHARED_KEYS],
            [[c.get("resources"), c.get("ports")] for c in spec.get("containers") or ()],
            [[c.get("resources"), c.get("restartPolicy")] for c in spec.get("initContainers") or ()],
            claims_of(spec),
        ]
    )


def needs_of(pod: Object) -> Needs:
    """Read a pod's wishes."""
    spec = pod["spec"]
    namespace = pod["metadata"]["namespace"]
    labels = labels_of(pod)
    affinity = spec.get("affinity") or {}
    toward = affinity.get("podAffinity") or {}
    away = affinity.get("podAntiAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    wished = "preferredDuringSchedulingIgnoredDuringExecution"
    owner = controller_of(pod)
    preferred = [
        (each["weight"], PodTerm.read(each["podAffinityTerm"], namespace, labels)) for each in toward.get(wished) or ()
    ]
    preferred += [
        (-each["weight"], PodTerm.read(each["podAffinityTerm"], namespace, labels)) for each in away.get(wished) or ()
    ]
    return Needs(
        namespace=namespace,
        owner=owner["uid"] if owner else "",
        spec=spec,
        labels=labels,
        requests=requests_of(spec),
        ports=ports_of(spec),
        claims=claims_of(spec),
        attract=tuple(PodTerm.read(each, namespace, labels) for each in toward.get(required) or ()),
        repel=tuple(PodTerm.read(each, namespace, labels) for each in away.get(required) or ()),
        preferred=tuple(preferred),
        spreads=tuple(
            Spread(
                term=PodTerm.read(each, namespace, labels, spread=True),
                max_skew=each["maxSkew"],
                min_domains=each.get("minDomains") or 1,
                honours_taints=each.get("nodeTaintsPolicy") == "Honor",
                honours_affinity=each.get("nodeAffinityPolicy", "Honor") == "Honor",
            )
            for each in spec.get("topologySpreadConstraints") or ()
            if each.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        ),
        node_wishes=tuple((affinity.get("nodeAffinity") or {}).get(wished) or ()),
        pinned=_pinned(affinity),
    )


def _pinned(affinity: Object) -> frozenset[str] | None:
    """The node names, when every required term names nodes by metadata.name (as daemon pods do)."""
    terms = ((affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get(
        "nodeSelectorTerms"
    )
    if not terms:
        return None
    names: set[str] = set()
    for term in terms:
        named = [
            set(each["values"])
            for each in term.get("matchFields") or ()
            if each["key"] == "metadata.name" and each["operator"] == "In"
        ]
        if not named:
            return None
        names |= set.intersection(*named)
    return frozenset(names)
