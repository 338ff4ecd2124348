"""Which defects of a scenario hold for a node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from infra.sandbox.scenario import Defect, FewerDevices, ImageMissing, NoGdr, Side, SlowNic


@dataclass(frozen=True, kw_only=True)
class Defects:
    """The defects of a scenario, and the name of the pool that is its source."""

    source_pool: str = ""
    items: Sequence[Defect] = ()

    def side(self, pool: str) -> Side:
        """Every pool but the source is a target."""
        return "source" if pool == self.source_pool else "target"

    def image_missing(self, image: str, pool: str) -> bool:
        """Whether nodes of the pool cannot pull the image."""
        return any(
            fnmatchcase(image, item.image)
            for item in self.items
            if isinstance(item, ImageMissing) and item.pool in ("any", self.side(pool))
        )

    def nic_rates(self, pool: str, position: int, count: int) -> tuple[float, ...]:
        """Share of the line rate of each of a node's NICs."""
        rates = [1.0] * count
        for item in self.items:
            if isinstance(item, SlowNic) and self._here(item.pool, item.node, pool, position) and item.nic < count:
                rates[item.nic] = item.rate
        return tuple(rates)

    def gdr(self, pool: str, position: int) -> bool:
        """Whether the node's NICs reach GPU memory."""
        return not any(
            isinstance(item, NoGdr) and self._here(item.pool, item.node, pool, position) for item in self.items
        )

    def limit(self, pool: str, position: int, resource: str, count: int) -> int:
        """How many devices a plugin registers."""
        for item in self.items:
            here = isinstance(item, FewerDevices) and self._here(item.pool, item.node, pool, position)
            if here and isinstance(item, FewerDevices) and item.resource == resource:
                return min(count, item.count)
        return count

    def _here(self, side: Side, node: int, pool: str, position: int) -> bool:
        return side in ("any", self.side(pool)) and node == position
