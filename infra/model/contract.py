"""The narrow contract that each cloud adapter fulfils."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from infra.model.pools import Pool, Request
from infra.model.survey import Survey

ProvePool = Callable[[Pool], None]
"""Told the pool as it is right before the request to delete it is sent; what it raises stops it there."""


def unproven(pool: Pool) -> None:
    """For a caller that asks for nothing before a deletion."""


class Pools(Protocol):
    """One cloud's node pools. Every verb is idempotent and bounded in time.

    Errors: `NotFound`, `Forbidden`, `NoCapacity`, `Conflict`, `Unreachable`, `CloudError`. No SDK class leaves an
    implementation. Implemented by `infra.aws.pools.EksPools`, `infra.gcp.pools.GkePools` and
    `infra.kube.external.ExternalPools`.
    """

    def find(self, pool: Any) -> Pool | None:
        """The pool that the spec part (`EksPool`, `GkeTarget`, …) names, or None."""
        ...

    def survey(self, source: Any, target: Any, run: str) -> Survey:
        """Read everything that the cloud-side preflight judges, before anything is created. Reads only.

        What cannot be read is listed in `Survey.unread` with its reason; only an unknown cluster, an unreachable
        cloud or missing credentials raise.
        """
        ...

    def render(self, target: Any, run: str) -> list[Request]:
        """The requests that would create the target, in order. Reads only (EFA layout, image)."""
        ...

    def create(self, target: Any, run: str) -> Pool:
        """Send what `render` shows. A pool of the same name and run is adopted; of another owner: `Conflict`."""
        ...

    def fence_for_run(self, pool: Any, run: str) -> Mapping[str, Any]:
        """Keep the cloud from working against the run (autoscaler bounds, node repair). Returns the prior state.

        The prior state is also written to the pool's tags before anything changes, so a second call (after a kill,
        or by another process) returns the first state and not our own.
        """
        ...

    def release(self, pool: Any) -> None:
        """Drop our unproven taint from the pool's own configuration, so that later nodes come without it."""
        ...

    def unfence(self, pool: Any, prior: Mapping[str, Any]) -> None:
        """Put the prior state back, exactly."""
        ...

    def delete(self, pool: Any, prove: ProvePool = unproven) -> None:
        """Ask for deletion; absent is success. Follow with `find`.

        A cloud that is busy may take half an hour before it accepts the request: `prove` is asked right before each.
        Once the pool is gone, calling again removes what was made beside it (an EC2 launch template).
        """
        ...
