"""The nodes for one class of pods in order of score, mended where something changed instead of scored anew."""

from __future__ import annotations

import heapq

from infra.sandbox.control_plane.controllers.scheduler.needs import Needs
from infra.sandbox.control_plane.controllers.scheduler.nodes import NodeState
from infra.sandbox.control_plane.controllers.scheduler.scores import score
from infra.sandbox.control_plane.controllers.scheduler.snapshot import Snapshot


class Ranking:
    """For pods that only look at a node's own properties and resources: then scores of other nodes do not matter.

    A node that gets fuller only gets worse, so its old place in the heap is a bound and is corrected when it comes
    to the top. A node that gets emptier is put in again.
    """

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._heap: list[tuple[float, int, NodeState, int]] = []
        self._current: dict[str, int] = {}
        self._sequence = 0
        self._built_at = (-1, -1)
        self._freed_seen = 0

    def first(self, snapshot: Snapshot) -> NodeState | None:
        """The best node that has room, or None."""
        self._refresh(snapshot)
        requests = self._needs.requests
        while self._heap:
            _, sequence, node, changes = self._heap[0]
            if self._current.get(node.name) != sequence:
                heapq.heappop(self._heap)
            elif not node.fits(requests):
                heapq.heappop(self._heap)
                del self._current[node.name]
            elif node.changes != changes:
                heapq.heappop(self._heap)
                self._push(node)
            else:
                return node
        return None

    def _push(self, node: NodeState) -> None:
        self._sequence += 1
        self._current[node.name] = self._sequence
        heapq.heappush(self._heap, (-score(node, self._needs), self._sequence, node, node.changes))

    def _refresh(self, snapshot: Snapshot) -> None:
        built_for = (snapshot.nodes_version, snapshot.freed_epoch)
        if self._built_at != built_for:
            self._built_at = built_for
            self._heap.clear()
            self._current.clear()
            for node in snapshot.suitable(self._needs):
                self._push(node)
        elif self._freed_seen < len(snapshot.freed):
            for node in dict.fromkeys(snapshot.freed[self._freed_seen :]):
                judged = self._needs.suits.get(node.name)
                if judged is not None and not judged[1]:
                    self._push(node)
        self._freed_seen = len(snapshot.freed)
