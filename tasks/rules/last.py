"""Pods that go only when no other pod is left on their node (drivers). Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tasks.rules.lanes import Job


@dataclass(kw_only=True, slots=True)
class Last:
    """Who waits for the others of its node, and how many others each node has."""

    _waiting: dict[str, dict[str, Job]] = field(default_factory=dict)
    _others: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, uid: str) -> bool:
        return any(uid in jobs for jobs in self._waiting.values())

    def put(self, job: Job) -> None:
        """It waits for the others."""
        self._waiting.setdefault(job.pod.node, {})[job.pod.uid] = job

    def came(self, node: str) -> None:
        """One more that has to go first."""
        self._others[node] += 1

    def went(self, node: str) -> list[Job]:
        """One of those has left; returns who may go now."""
        self._others[node] -= 1
        return self.free(node)

    def free(self, node: str) -> list[Job]:
        """Who of the node may go now; they wait no longer."""
        return [] if self._others[node] > 0 else list(self._waiting.pop(node, {}).values())

    def drop(self, uid: str) -> Job | None:
        """It has left by itself."""
        for node, jobs in self._waiting.items():
            if uid in jobs:
                job = jobs.pop(uid)
                if not jobs:
                    del self._waiting[node]
                return job
        return None

    def nodes(self) -> list[str]:
        """Where somebody waits."""
        return list(self._waiting)

    def give_up(self) -> dict[str, Job]:
        """All that still wait, by UID; they wait no longer."""
        found = {uid: job for jobs in self._waiting.values() for uid, job in jobs.items()}
        self._waiting.clear()
        return found
