"""The scheduler: puts pending pods on nodes, says why when it cannot, and tries again when something changed."""

from __future__ import annotations

import heapq

from infra.sandbox.control_plane.controllers.cluster import CLAIM, NODE, POD, VOLUME, Cluster
from infra.sandbox.control_plane.controllers.objects import (
    Object,
    condition,
    is_finished,
    key_of,
    labels_of,
    with_condition,
)
from infra.sandbox.control_plane.controllers.scheduler import filters, nodes, preempt, scores
from infra.sandbox.control_plane.controllers.scheduler.needs import Needs
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.scheduler.ranking import Ranking
from infra.sandbox.control_plane.controllers.scheduler.snapshot import Snapshot
from infra.sandbox.control_plane.controllers.scheduler.verdicts import NEVER, STILL_LEAVING, Diagnosis, Turned
from infra.sandbox.control_plane.controllers.volumes import Volumes
from infra.sandbox.control_plane.controllers.work import Key

SOURCE = "default-scheduler"
_FRESH: Key = ("", "fresh")
_RETRY: Key = ("", "retry")
_BATCH = 50
"""Pods placed before other controllers get their turn."""
_LEAST_TO_SCORE = 100
"""Of large clusters only a share of the nodes is looked at for each pod, and never fewer than these."""


class Scheduler:
    """Fresh pods in order of priority; pods without a node wait by class until something changes."""

    def __init__(self, cluster: Cluster, volumes: Volumes) -> None:
        self._cluster = cluster
        self._volumes = volumes
        self._snapshot = Snapshot(cluster)
        self._queue = cluster.work.queue("scheduler", self.reconcile)
        self._fresh: list[tuple[int, int, Key]] = []
        self._sequence = 0
        self._waiting: dict[int, tuple[Needs, dict[Key, None]]] = {}
        self._class_of: dict[Key, int] = {}
        self._next_node = 0
        cluster.on(POD, self._pod_changed)
        cluster.on(NODE, self._node_changed)
        cluster.on(CLAIM, self._storage_changed)
        cluster.on(VOLUME, self._storage_changed)

    # Events

    def _pod_changed(self, event: str, pod: Object, old: Object | None) -> None:
        came, went = self._snapshot.pod_changed(event, pod)
        key = key_of(pod)
        if event == "DELETED" or pod["spec"].get("nodeName"):
            self._stop_waiting(key)
            if event == "DELETED":
                self._snapshot.release(key)
                self._snapshot.forget(pod)
        elif event == "ADDED" or (old is not None and (old["spec"] != pod["spec"] or labels_of(old) != labels_of(pod))):
            self._snapshot.forget(pod)
            self._push(pod)
        if came and any(needs.attract or needs.spreads for needs, _ in self._waiting.values()):
            self._snapshot.version += 1
            self._queue.add(_RETRY)
        if went and self._waiting:
            self._queue.add(_RETRY)

    def _node_changed(self, event: str, node: Object, old: Object | None) -> None:
        if self._snapshot.node_changed(event, node, old) and self._waiting:
            self._queue.add(_RETRY)

    def _storage_changed(self, event: str, obj: Object, old: Object | None) -> None:
        if any(needs.claims for needs, _ in self._waiting.values()):
            self._snapshot.version += 1
            self._queue.add(_RETRY)

    def _push(self, pod: Object) -> None:
        if not _is_ours(pod):
            return
        self._stop_waiting(key_of(pod))
        self._sequence += 1
        heapq.heappush(self._fresh, (-(pod["spec"].get("priority") or 0), self._sequence, key_of(pod)))
        self._queue.add(_FRESH)

    def _stop_waiting(self, key: Key) -> None:
        known = self._class_of.pop(key, None)
        if known is not None:
            waiting = self._waiting[known][1]
            waiting.pop(key, None)
            if not waiting:
                del self._waiting[known]

    # Work

    def reconcile(self, key: Key) -> None:
        """Place a batch of fresh pods, or try the waiting ones again."""
        if key == _RETRY:
            self._retry()
            return
        for _ in range(_BATCH):
            if not self._fresh:
                return
            self._place(heapq.heappop(self._fresh)[2])
        if self._fresh:
            self._queue.add(_FRESH)

    def _retry(self) -> None:
        """One class after the other, highest priority first: while its pods find room, the next one may."""
        classes = sorted(self._waiting.values(), key=lambda each: -(each[0].spec.get("priority") or 0))
        for needs, waiting in classes:
            for key in list(waiting):
                if needs.failed_at == self._snapshot.version or not self._place(key):
                    break

    def _place(self, key: Key) -> bool:
        """Bind one pod, or say why not. False when it found no node."""
        pod = self._cluster.get(POD, key)
        if pod is None or not _is_ours(pod):
            return True
        needs = self._snapshot.needs(pod)
        if needs.failed_at == self._snapshot.version and not self._may_preempt(pod):
            self._refuse(pod, needs, needs.failure)
            return False
        nominated = self._snapshot.release(key)
        chosen = self._choose(pod, needs)
        if isinstance(chosen, NodeState):
            self._bind(pod, needs, chosen)
            return True
        message, nominated = self._make_room(pod, needs, chosen, nominated)
        needs.failed_at, needs.failure = self._snapshot.version, message
        if nominated:
            self._snapshot.reserve(key, nominated, needs)
        self._refuse(pod, needs, message, nominated)
        return False

    def _may_preempt(self, pod: Object) -> bool:
        policy = pod["spec"].get("preemptionPolicy")
        return policy != "Never" and self._snapshot.lowest_priority() < preempt.priority_of(pod)

    def _make_room(self, pod: Object, needs: Needs, diagnosis: Diagnosis, nominated: str) -> tuple[str, str]:
        """Preempt if that helps. Returns what to say of the pod, and the node that is kept for it, if any."""
        if diagnosis.early or not diagnosis.nodes:
            return diagnosis.message(), ""
        if needs.spec.get("preemptionPolicy") == "Never":
            return diagnosis.message(NEVER), ""
        if nominated and preempt.waits_for_victims(self._cluster, pod):
            return diagnosis.message(STILL_LEAVING), nominated
        nodes_of = self._snapshot.nodes
        candidates = [nodes_of[name] for name, turned in diagnosis.turned.items() if turned.only_room]
        choice, with_victims = preempt.choose(self._cluster, pod, needs, candidates)
        if choice is not None:
            preempt.act(self._cluster, pod, choice)
            return diagnosis.found(), choice.node.name
        diagnosis.still_short = {name: diagnosis.turned[name].reasons for name in with_victims}
        return diagnosis.message(), ""

    def _choose(self, pod: Object, needs: Needs) -> NodeState | Diagnosis:
        snapshot = self._snapshot
        early = self._volumes.refusal(needs.namespace, needs.claims) if needs.claims else ""
        if early:
            return Diagnosis(len(snapshot.nodes), early=early)
        checks = self._checks(pod, needs)
        if not checks and not needs.preferred:
            if needs.ranking is None:
                needs.ranking = Ranking(needs)
            node: NodeState | None = needs.ranking.first(snapshot)
        else:
            node = self._search(needs, checks)
        return node if node is not None else self._diagnose(needs, checks)

    def _search(self, needs: Needs, checks: list[filters.Check]) -> NodeState | None:
        """The best of the first nodes that pass every check, beginning after the ones looked at last."""
        suitable = self._snapshot.suitable(needs)
        wanted = self._how_many(len(self._snapshot.nodes))
        start = self._next_node % len(suitable) if suitable else 0
        found: list[NodeState] = []
        for position in range(len(suitable)):
            node = suitable[(start + position) % len(suitable)]
            if node.fits(needs.requests) and not any(check(node)[0] for check in checks):
                found.append(node)
                if len(found) == wanted:
                    break
        self._next_node = start + len(found)
        if not found:
            return None
        return scores.best(found, needs, filters.pod_wishes(self._snapshot, needs, found))

    def _how_many(self, nodes: int) -> int:
        """Nodes to find before the best of them is taken (numFeasibleNodesToFind of the real scheduler)."""
        share = max(5, 50 - nodes // 125)
        return nodes if nodes < _LEAST_TO_SCORE else max(_LEAST_TO_SCORE, nodes * share // 100)

    def _checks(self, pod: Object, needs: Needs) -> list[filters.Check]:
        """Checks beyond resources, in the real scheduler's order; none for plain pods."""
        checks: list[filters.Check] = []
        if needs.ports:
            checks.append(lambda node: ("" if node.has_ports(needs.ports) else nodes.NO_PORT, True))
        if needs.claims:
            checks.append(lambda node: (self._volumes.mismatch(needs.namespace, needs.claims, node.labels), False))
        if needs.spreads:
            checks.append(filters.spread_check(self._snapshot, needs, pod))
        if needs.attract or needs.repel or self._snapshot.repelled_domains(pod):
            checks.append(filters.affinity_check(self._snapshot, needs, pod))
        return checks

    def _diagnose(self, needs: Needs, checks: list[filters.Check]) -> Diagnosis:
        """Why every node was turned down: the first check that fails on each."""
        snapshot = self._snapshot
        diagnosis = Diagnosis(len(snapshot.nodes))
        ports, others = (checks[:1], checks[1:]) if needs.ports else ([], checks)
        for node in snapshot.nodes.values():
            diagnosis.turned[node.name] = self._turn_down(node, needs, ports, others)
        return diagnosis

    def _turn_down(
        self, node: NodeState, needs: Needs, ports: list[filters.Check], others: list[filters.Check]
    ) -> Turned:
        if needs.pinned is not None and node.name not in needs.pinned:
            return Turned(reasons=("node(s) didn't satisfy plugin(s) [NodeAffinity]",), would_help=False)
        own = nodes.unsuitable(node, needs.spec)
        if own:
            return Turned(reasons=(own,), would_help=False)
        reason, would_help = _first_failure(ports, node)
        if reason:
            return Turned(reasons=(reason,), would_help=would_help, only_room=would_help)
        lacking, would_help = node.lacks(needs.requests)
        if lacking:
            return Turned(reasons=tuple(lacking), would_help=would_help, only_room=would_help)
        reason, would_help = _first_failure(others, node)
        return Turned(reasons=(reason,), would_help=would_help)

    # Writes

    def _bind(self, pod: Object, needs: Needs, node: NodeState) -> None:
        self._stop_waiting(key_of(pod))
        if needs.claims:
            self._volumes.bind_for(needs.namespace, needs.claims, node.name)
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": self._cluster.stamp(),
        }
        status = {key: value for key, value in pod["status"].items() if key != "nominatedNodeName"}
        status["conditions"] = with_condition(status.get("conditions"), scheduled)
        bound = {**pod, "spec": {**pod["spec"], "nodeName": node.name}, "status": status}
        self._cluster.store.commit(POD, "MODIFIED", bound, pod)
        meta = pod["metadata"]
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node.name}"
        self._cluster.events.emit(bound, POD, "Normal", "Scheduled", text, SOURCE, action="Binding")

    def _refuse(self, pod: Object, needs: Needs, message: str, nominated: str = "") -> None:
        key = key_of(pod)
        self._waiting.setdefault(id(needs), (needs, {}))[1][key] = None
        self._class_of[key] = id(needs)
        known = condition(pod, "PodScheduled")
        before = pod["status"].get("nominatedNodeName", "")
        told = known is not None and (known.get("status"), known.get("message")) == ("False", message)
        if told and nominated == before:
            return
        refused = {
            "type": "PodScheduled",
            "observedGeneration": pod["metadata"].get("generation", 1),
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": self._cluster.stamp(),
            "reason": "Unschedulable",
            "message": message,
        }
        if known is not None and known.get("status") == "False":
            refused["lastTransitionTime"] = known.get("lastTransitionTime")
        status = {**pod["status"], "conditions": with_condition(pod["status"].get("conditions"), refused)}
        status.pop("nominatedNodeName", None)
        if nominated:
            status["nominatedNodeName"] = nominated
        self._cluster.write_status(POD, pod, status)
        self._cluster.events.emit(pod, POD, "Warning", "FailedScheduling", message, SOURCE, action="Scheduling")


def _first_failure(checks: list[filters.Check], node: NodeState) -> tuple[str, bool]:
    for check in checks:
        reason, would_help = check(node)
        if reason:
            return reason, would_help
    return "", True


def _is_ours(pod: Object) -> bool:
    """Waits for this scheduler: no node, no gate, not on its way out."""
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and not spec.get("schedulingGates")
        and spec.get("schedulerName", SOURCE) == SOURCE
        and "deletionTimestamp" not in pod["metadata"]
        and not is_finished(pod)
    )
