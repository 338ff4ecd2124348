"""What a simulated pool's creation comes to: the scenario's outcome, or the reservation's own limit."""

from __future__ import annotations

from collections.abc import Callable
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
    """The reservation's room. `ours` maps a pool to the machines it holds of the reservation.

    `cleaning` counts machines that have ended and are not free yet; `withheld` those that never will be.
    """

    config: CloudConfig
    ours: dict[str, int]
    cleaning: int = 0
    withheld: int = 0

    def __post_init__(self) -> None:
        if self.config.scenario.reservation.source:
            self.ours[self.config.place.source_pool] = len(self.config.source_nodes)

    def ended(self, pool: str, later: Callable[[float, Callable[[], None]], None]) -> None:
        """One machine of the pool has ended: it is cleaned, then free, unless the scenario withholds it."""
        if not self.ours.get(pool):
            return
        self.ours[pool] -= 1
        reservation = self.config.scenario.reservation
        if self.withheld < reservation.withheld:
            self.withheld += 1
            return
        self.cleaning += 1

        def free() -> None:
            self.cleaning -= 1

        later(reservation.release_seconds, free)

    @property
    def total(self) -> int:
        """Machines of the reservation."""
        return self.config.scenario.reservation.total

    @property
    def free(self) -> int:
        """Machines of the reservation that nobody runs."""
        taken = self.config.scenario.reservation.used + sum(self.ours.values()) + self.cleaning + self.withheld
        return max(0, self.total - taken)

    def outcome(self, nodes: int, *, reserved: bool) -> Outcome:
        """What a request for `nodes` machines comes to."""
        target = self.config.scenario.target
        if not nodes and target.outcome != "create-failed":
            return Outcome(kind="active", joined=0)
        if reserved and nodes > self.free:
            return Outcome(kind="stockout", joined=0)
        if target.outcome == "degraded":
            joined = nodes - 1 if target.nodes_joined is None else target.nodes_joined
            return Outcome(kind="degraded", joined=min(nodes, joined))
        if target.outcome == "active":
            return Outcome(kind="active", joined=nodes)
        return Outcome(kind=target.outcome, joined=0)
