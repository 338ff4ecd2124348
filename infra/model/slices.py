"""What a swap needs of a cloud beyond whole pools: to give up the machines that it names, and to grow a pool.

A smaller size is never asked for: Auto Scaling and GKE then choose the machines that go, and nobody can promise that
these are the ones that were proven empty. Machines are named as Kubernetes names them (`node.spec.providerID`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infra.model.survey import Reservation


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """A machine that the cloud counts to a pool. `going`: it has begun to end it."""

    id: str
    going: bool = False


Prove = Callable[[Sequence[str]], None]
"""Told the ids of one request right before it is sent; what it raises stops it there."""


class Slices(Protocol):
    """One cloud's way to take single machines. Verbs are idempotent and bounded; errors as `infra.model.pools.Pools`.

    Implemented by `infra.aws.slices.EksSlices` and `infra.gcp.slices.GkeSlices`.
    """

    def instances(self, pool: Any) -> Mapping[str, Instance]:
        """The pool's machines as the cloud has them now, by id. A pool that does not exist has none."""
        ...

    def give_up(self, pool: Any, ids: Iterable[str], prove: Prove) -> None:
        """Ask the cloud to end exactly these machines, and to make the pool smaller by as many.

        What has to be changed first may take the cloud minutes, and a slice may take many requests: `prove` is asked
        before each of them that ends machines. Machines that are no longer the pool's, or are going already, are not
        asked for again. Returns at once: follow with `instances`.
        """
        ...

    def grow(self, pool: Any, nodes: int) -> None:
        """Ask for so many machines in all. `Refused` where the pool has more: growing never takes a machine away."""
        ...

    def reservation(self, target: Any) -> Reservation | None:
        """The reservation that the target names, as it is now; None where it names none. `NotFound`: it is gone."""
        ...
