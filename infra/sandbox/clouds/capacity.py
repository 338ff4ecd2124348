"""What a simulated pool's creation comes to: the scenario's outcome, or the reservation's own limit."""

from __future__ import annotations

from dataclasses import dataclass

from infra.sandbox.scenario import CloudConfig


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many machines come, and how the cloud words it when not all do ("" when all do).

    `kind` is the scenario's word: active, degraded, create-failed or stockout.
    """

    kind: str
    joined: int


@dataclass
class Faults:
    """One-shot accidents that a test or a demonstration sets; each is used up by the request it meets."""

    delete_failure: str = ""  # message with which the next deletion fails
    busy_seconds: float = 0.0  # the next change meets another operation that lasts so long (GKE)


@dataclass
class Capacity:
    """The reservation's room. `ours` maps a pool to the machines it holds of the reservation."""

    config: CloudConfig
    ours: dict[str, int]

    @property
    def total(self) -> int:
        """Machines of the reservation."""
        return self.config.scenario.reservation.total

    @property
    def free(self) -> int:
        """Machines of the reservation that nobody runs."""
        return max(0, self.total - self.config.scenario.reservation.used - sum(self.ours.values()))

    def outcome(self, nodes: int, *, reserved: bool) -> Outcome:
        """What a request for `nodes` machines comes to."""
        target = self.config.scenario.target
        if reserved and nodes > self.free:
            return Outcome(kind="stockout", joined=0)
        if target.outcome == "degraded":
            joined = nodes - 1 if target.nodes_joined is None else target.nodes_joined
            return Outcome(kind="degraded", joined=min(nodes, joined))
        if target.outcome == "active":
            return Outcome(kind="active", joined=nodes)
        return Outcome(kind=target.outcome, joined=0)
