"""Queues of Kueue: to which nodes one leads, by its flavours, in the order in which Kueue tries them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.model.cluster import EMPTY, Taint, Toleration


@dataclass(frozen=True, kw_only=True, slots=True)
class Flavor:
    """A ResourceFlavor in a cluster queue: `labels` and `tolerations` are what Kueue adds to pods that it admits.

    `taints` keep pods out that do not tolerate them. `group` is its resource group in the queue: of each group that
    has a resource in `covers` that a pod asks for, one flavour is chosen. `free` is its quota less what is used,
    amounts as in `Node.allocatable`; empty where a cohort lends more, so that only Kueue knows.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    group: int = 0
    covers: frozenset[str] = frozenset()
    free: Mapping[str, int] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """A LocalQueue with the ClusterQueue behind it. `stopped` says why it admits nothing, "" where it does.

    `missing` are objects that it names and that are not there, or were not read: where it leads is then unknown.
    """

    namespace: str
    name: str
    cluster: str
    flavors: tuple[Flavor, ...] = ()
    stopped: str = ""
    missing: tuple[str, ...] = ()
