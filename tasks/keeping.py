"""Room on the target for gangs that move later: loose pods of earlier waves would spread over all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from infra.errors import NotFound
from infra.kube import records
from infra.kube.api import Kube
from infra.model.record import HELD, UNPROVEN_TAINT
from infra.model.spec import Drain, MoveMode
from infra.model.workload import Pod, Snapshot
from tasks.opening import close_nodes, open_nodes
from tasks.rules.gangs import as_moved, find_gangs
from tasks.rules.placement import room_to_keep, shape_of
from tasks.rules.waves import leaving
from tasks.rules.wording import and_more

_KEPT = "kept-room"  # note in the run record: target nodes that a killed move may have left closed


@dataclass(kw_only=True)
class KeptRoom:
    """The target nodes that one move keeps closed until its gangs have come. `waiting`: Pending before we began."""

    kube: Kube
    run: str
    target: tuple[str, ...]
    say: Callable[[str], None]
    names: tuple[str, ...] = ()
    waiting: frozenset[str] | None = None
    given_way: bool = False

    def open_left(self) -> tuple[str, ...]:
        """Open what a move of this run had closed when it was killed; which nodes. Raises Conflict."""
        record = records.read(self.kube, self.run)
        left = record.notes.get(_KEPT) if record else None
        names = tuple(str(name) for name in left) if isinstance(left, list) else ()
        if names:
            self.names = names
            self.open()
        return names

    def usable(self, now: Snapshot) -> list[str]:
        """Target nodes that take work, or will: not those that are closed since they are not proven."""
        return [
            name
            for name in self.target
            if (node := now.node_by_name.get(name)) is not None
            if name in self.names
            or not (node.annotations.get(HELD) or any(t.key == UNPROVEN_TAINT for t in node.taints))
        ]

    def keep(self, now: Snapshot, drain: Drain, ahead: Sequence[str], leaving_now: Iterable[str] = ()) -> None:
        """Close as many nodes as the gangs on the source nodes ahead need, if the loose pods fit on the others.

        Raises Conflict.
        """
        if self.waiting is None:
            self.waiting = frozenset(p.uid for p in now.pods if _stuck(p))
        usable = self.usable(now)
        shape = shape_of([now.node_by_name[name] for name in usable])
        gangs = [g for g in find_gangs(now, drain, ahead) if g.mode not in (MoveMode.LEAVE, MoveMode.WAIT)]
        members = {p.uid for g in gangs for p in g.pods}
        loose = [p for p in leaving(now, [*ahead, *leaving_now]) if p.uid not in members]
        wanted: tuple[str, ...] = ()
        if gangs and loose and not self.given_way:
            wanted = room_to_keep([p for g in gangs for p in as_moved(g, shape)], loose, now, usable)
        self._change(wanted)

    def open(self) -> None:
        """Open all that is kept. Raises Conflict."""
        self._change(())

    def give_way(self, pods: Iterable[Pod]) -> bool:
        """Open all, for good, when a pod finds no place since we began: work that waits goes first."""
        stuck = [p.key for p in pods if _stuck(p) and p.uid not in (self.waiting or ())] if self.names else []
        if not stuck:
            return False
        self.say(f"{and_more(stuck, 3)} find no place: opening the nodes that were kept for gangs")
        self.given_way = True
        self.open()
        return True

    def _change(self, wanted: tuple[str, ...]) -> None:
        if set(wanted) == set(self.names):
            return
        self._note([*self.names, *wanted])  # first: a killed process must not leave a closed node that nobody knows of
        open_nodes(self.kube, [n for n in self.names if n not in wanted])
        close_nodes(self.kube, [n for n in wanted if n not in self.names], self.run)
        if wanted:
            self.say(f"kept closed until the gangs have moved: {and_more(sorted(wanted), 5)}")
        self.names = wanted
        self._note(list(wanted))

    def _note(self, names: list[str]) -> None:
        try:
            records.write_note(self.kube, self.run, _KEPT, names)
        except NotFound:
            pass  # a move without a record, which nobody resumes


def _stuck(pod: Pod) -> bool:
    return pod.phase == "Pending" and not pod.node and bool(pod.unschedulable)
