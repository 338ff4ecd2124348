"""What all parts of one move share: what moves where, the cluster as it is seen, who may end it, what is empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from infra.clock import Clock
from infra.kube.api import Kube
from infra.kube.read import snapshot
from infra.kube.view import View
from infra.model.spec import Drain
from infra.model.workload import Snapshot
from tasks.evict import Evictor
from tasks.gangs import Mover
from tasks.keeping import KeptRoom
from tasks.move_report import WaveReport
from tasks.rules.outcome import End, Limits
from tasks.rules.placement import TargetShape, shape_of
from tasks.steering import Stand, Steer


@dataclass(kw_only=True)
class MoveState:
    """One `move`. `reason` says why it stopped early, "" while it has not."""

    kube: Kube
    drain: Drain
    source: tuple[str, ...]
    target: tuple[str, ...]
    run: str
    clock: Clock
    say: Callable[[str], None]
    on_wave: Callable[[WaveReport], None]
    on_progress: Callable[[Stand], None]
    steer: Steer
    view: View
    evictor: Evictor
    until: datetime
    ends: dict[str, End] = field(default_factory=dict)
    reports: list[WaveReport] = field(default_factory=list)
    reason: str = ""

    @cached_property
    def room(self) -> KeptRoom:
        """What is kept on the target for gangs."""
        return KeptRoom(kube=self.kube, run=self.run, target=self.target, say=self.say)

    def look(self) -> Snapshot:
        """Owners and nodes anew; pods and budgets from the view."""
        self.view.pump(0)
        live = (tuple(self.view.pods.values()), tuple(self.view.budgets.values()))
        return snapshot(self.kube, live=live)

    def shape(self, now: Snapshot) -> TargetShape | None:
        """What every target node offers; None without one."""
        return shape_of([now.node_by_name[n] for n in self.target if n in now.node_by_name])

    def mover(self) -> Mover:
        """Moves gangs off the whole source pool."""
        return Mover(
            kube=self.kube,
            view=self.view,
            clock=self.clock,
            run=self.run,
            off=frozenset(self.source),
            onto=frozenset(self.target),
            limit=self.drain.pod_deadline,
            say=self.say,
            target=self.shape(self.look()),
            cancelled=lambda: bool(self.steer.ended()),
            barred=lambda: bool(self.steer.barred()),
        )

    @property
    def emptied(self) -> int:
        """Source nodes proven empty so far."""
        return sum(end is End.DRAINED for end in self.ends.values())

    def limits(self) -> Limits:
        """Deadlines of one wave."""
        return Limits(
            pod=self.drain.pod_deadline,
            wave=self.drain.wave_deadline,
            until=self.until,
            delete_after=self.drain.force.delete_after,
        )
