"""The scheduler's picture of the cluster: nodes with what is on them, and where pods of each term run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from infra.sandbox.control_plane.controllers.cluster import NAMESPACE, NODE, Cluster
from infra.sandbox.control_plane.controllers.objects import Object, is_finished, key_of, labels_of
from infra.sandbox.control_plane.controllers.scheduler.needs import Needs, needs_of, signature
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState, read_node, scheduling_part, unsuitable
from infra.sandbox.control_plane.controllers.scheduler.preempt import priority_of
from infra.sandbox.control_plane.controllers.scheduler.topology import PodTerm, TermCounts
from infra.sandbox.control_plane.controllers.work import Key

_MOST_CLASSES = 4096
"""Classes of pods kept before the store of them is emptied."""
_MOST_FREED = 100_000
"""Entries of `freed` before it starts anew."""


@dataclass(slots=True)
class _Bound:
    uid: str
    node: str
    needs: Needs
    pod: Object


class Snapshot:
    """Kept current by events, so a decision looks only at nodes, never at all pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.nodes: dict[str, NodeState] = {}
        self.version = 0
        """Grows when something changed that could let a waiting pod in."""
        self.nodes_version = 0
        self.freed: list[NodeState] = []
        """Nodes that got emptier, in order."""
        self.freed_epoch = 0
        """Grows when `freed` starts anew."""
        self._bound: dict[Key, _Bound] = {}
        self._reserved: dict[Key, tuple[str, Needs]] = {}
        self._priorities: Counter[int] = Counter()
        self._needs_of: dict[str, Needs] = {}
        self._classes: dict[bytes, Needs] = {}
        self._terms: dict[bytes, TermCounts] = {}
        self._repelling: dict[tuple[bytes, str], TermCounts] = {}
        """Required anti-affinity of pods that run: by node, how many pods have that term."""
        self._waiting_for_node: dict[str, set[Key]] = {}

    def needs(self, pod: Object) -> Needs:
        """The class of a pod."""
        uid = pod["metadata"]["uid"]
        known = self._needs_of.get(uid)
        if known is not None:
            return known
        key = signature(pod)
        found = self._classes.get(key)
        if found is None:
            if len(self._classes) >= _MOST_CLASSES:
                self._classes.clear()
            found = self._classes[key] = needs_of(pod)
        self._needs_of[uid] = found
        return found

    def forget(self, pod: Object) -> None:
        """The pod is gone or asks for something else now."""
        self._needs_of.pop(pod["metadata"]["uid"], None)

    # Nodes

    def node_changed(self, event: str, node: Object, old: Object | None) -> bool:
        """Take a node's event. True when it could let a waiting pod in."""
        name = node["metadata"]["name"]
        if event == "DELETED":
            self.nodes.pop(name, None)
            self.nodes_version += 1
            return False
        if event == "MODIFIED" and old is not None and scheduling_part(node) == scheduling_part(old):
            return False
        self.nodes_version += 1
        fresh = read_node(node, self.nodes_version)
        before = self.nodes.get(name)
        self.nodes[name] = fresh
        if before is not None:
            fresh.used, fresh.pods, fresh.ports, fresh.owners = before.used, before.pods, before.ports, before.owners
            fresh.changes = before.changes + 1
        else:
            for pod in self._cluster.view.pods_on(name):
                if pod.key in self._bound:
                    fresh.take(self._bound[pod.key].needs)
        self.version += 1
        return True

    def labels_of_node(self, name: str) -> Mapping[str, str] | None:
        """Labels of a node, None when it is unknown."""
        node = self.nodes.get(name)
        return node.labels if node is not None else None

    def labels_of_namespace(self, name: str) -> Mapping[str, str]:
        """Labels of a namespace."""
        found = self._cluster.store.get(NAMESPACE, None, name)
        return labels_of(found) if found is not None else {}

    def suitable(self, needs: Needs) -> list[NodeState]:
        """Nodes whose own properties let the class in; judged again only where a node changed."""
        if needs.suitable_at == self.nodes_version:
            return needs.suitable
        found = []
        for node in self._candidates(needs):
            judged = needs.suits.get(node.name)
            if judged is None or judged[0] != node.version:
                judged = needs.suits[node.name] = (node.version, unsuitable(node, needs.spec))
            if not judged[1]:
                found.append(node)
        needs.suitable, needs.suitable_at = found, self.nodes_version
        return found

    def _candidates(self, needs: Needs) -> Iterator[NodeState]:
        if needs.pinned is None:
            yield from self.nodes.values()
            return
        for name in needs.pinned:
            node = self.nodes.get(name)
            if node is not None:
                yield node

    # Pods

    def pod_changed(self, event: str, pod: Object) -> tuple[bool, bool]:
        """Take a pod's event. Returns (a pod came, a pod went or changed so that room or a term may be free)."""
        key = key_of(pod)
        node = pod["spec"].get("nodeName") or ""
        before = self._bound.get(key)
        stays = event != "DELETED" and node and not is_finished(pod)
        if before is not None and (not stays or before.uid != pod["metadata"]["uid"] or before.node != node):
            self._give(key, before)
            if not stays:
                self.version += 1
                return False, True
            before = None
        if not stays:
            return False, False
        if before is None:
            self._take(key, node, pod)
            return True, False
        return False, self._relabelled(before, pod)

    def _take(self, key: Key, node: str, pod: Object) -> None:
        bound = self._bound[key] = _Bound(pod["metadata"]["uid"], node, self.needs(pod), pod)
        state = self.nodes.get(node)
        if state is not None:
            state.take(bound.needs)
        self._priorities[priority_of(pod)] += 1
        self._count(bound, 1)

    def _give(self, key: Key, bound: _Bound) -> None:
        del self._bound[key]
        state = self.nodes.get(bound.node)
        if state is not None:
            self._free(state, bound.needs)
        priority = priority_of(bound.pod)
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        self._count(bound, -1)

    def _free(self, state: NodeState, needs: Needs) -> None:
        state.give(needs)
        if len(self.freed) >= _MOST_FREED:
            self.freed.clear()
            self.freed_epoch += 1
        self.freed.append(state)

    def _count(self, bound: _Bound, by: int) -> None:
        for counts in self._terms.values():
            if counts.term.means(bound.pod, self.labels_of_namespace):
                counts.change(bound.node, by)
        for term in bound.needs.repel:
            key = (term.key, term.topology)
            self._repelling.setdefault(key, TermCounts(term)).change(bound.node, by)

    def _relabelled(self, bound: _Bound, pod: Object) -> bool:
        """Labels or the start of termination change who is meant by a term."""
        before = bound.pod
        bound.pod = pod
        same_labels = labels_of(before) == labels_of(pod)
        was_going = "deletionTimestamp" in before["metadata"]
        if same_labels and was_going == ("deletionTimestamp" in pod["metadata"]):
            return False
        changed = False
        for counts in self._terms.values():
            was = counts.term.means(before, self.labels_of_namespace)
            now = counts.term.means(pod, self.labels_of_namespace)
            if was != now:
                counts.change(bound.node, 1 if now else -1)
                changed = True
        if changed:
            self.version += 1
        return changed

    # Room that preemption has made

    def reserve(self, key: Key, node: str, needs: Needs) -> None:
        """Keep room on a node for a pod that waits for its victims to go."""
        self._reserved[key] = (node, needs)
        state = self.nodes.get(node)
        if state is not None:
            state.take(needs)

    def release(self, key: Key) -> str:
        """Give the room up again. Returns the node, "" when nothing was kept."""
        node, needs = self._reserved.pop(key, ("", None))
        state = self.nodes.get(node)
        if state is not None and needs is not None:
            self._free(state, needs)
        return node

    def lowest_priority(self) -> int:
        """The lowest priority of any pod on a node."""
        return min(self._priorities, default=0)

    # Terms

    def counts(self, term: PodTerm) -> TermCounts:
        """Where the pods that a term means run; counted over all pods once, then kept current."""
        found = self._terms.get(term.key)
        if found is None:
            found = self._terms[term.key] = TermCounts(term)
            for bound in self._bound.values():
                if term.means(bound.pod, self.labels_of_namespace):
                    found.change(bound.node, 1)
        return found

    def domains(self, term: PodTerm) -> Counter[str]:
        """Pods that a term means, by value of its topology label."""
        return self.counts(term).by_domain(term.topology, self.labels_of_node)

    def repelled_domains(self, pod: Object) -> list[tuple[str, frozenset[str]]]:
        """(topology label, its values) where pods that run want no pod like this one."""
        return [
            (topology, frozenset(counts.by_domain(topology, self.labels_of_node)))
            for (_, topology), counts in self._repelling.items()
            if counts.by_node and counts.term.means(pod, self.labels_of_namespace)
        ]

    def load(self) -> None:
        """Start from what the store holds."""
        for node in self._cluster.store.list(NODE):
            self.node_changed("ADDED", node, None)
