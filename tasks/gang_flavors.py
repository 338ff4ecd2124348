"""What Kueue admits while a pool is left: nothing to where only that pool is, from the fence on."""

from __future__ import annotations

from infra.errors import Conflict, Forbidden, NotFound
from infra.kube import flavors
from infra.model.workload import Snapshot
from tasks.move_state import MoveState
from tasks.rules.queues import only_there


def close_flavors(work: MoveState, now: Snapshot) -> None:
    """Hold the flavours that lead nowhere but to the source: what is queued meanwhile would wait there.

    One that leads to nodes that stay is left open: it is held only while a gang must not be admitted to it. A flavour
    that cannot be held keeps no pod from moving, and is said; a gang that needs it held is not stopped then.
    """
    target = work.shape(now)
    if target is None:
        return
    try:
        queues = flavors.read_served(work.kube)
    except (Forbidden, NotFound) as error:
        work.say(f"where Kueue's queues lead is not known, it may admit to the source: {error.wording()}")
        return
    for name in only_there(queues.values(), now.nodes, work.source, target):
        try:
            if flavors.hold(work.kube, name, work.run):
                work.say(f"Kueue admits nothing more to flavour {name}, which leads to the source")
        except (Forbidden, Conflict) as error:
            work.say(f"Kueue may admit to the source: {error.wording()}")
