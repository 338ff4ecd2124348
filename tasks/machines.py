"""Single machines of a pool: given up, and followed until they are gone, a reservation has room, or new ones join.

Every wait has a limit and says what it saw last; a run that is started again goes on waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from infra import connect
from infra.errors import CloudError, NoCapacity, NotFound, Unmeasured, Unreachable
from infra.kube import leases
from infra.kube import nodes as kube_nodes
from infra.model.contract import Pools
from infra.model.pools import IssueClass, Pool, PoolState
from infra.model.verdict import Finding, Level
from tasks import fence, pools
from tasks.emptiness import verify_empty
from tasks.identity import pool_words
from tasks.rules.wording import and_more, plural, span
from tasks.run import Run

Nodes = Mapping[str, tuple[str, str]]  # name -> UID and the cloud's id of the machine
GONE_LIMIT = timedelta(minutes=40)  # ending a GPU machine takes minutes; EKS' lifecycle hook may add its own
_BUSY = (PoolState.ACTIVE, PoolState.UPDATING, PoolState.CREATING)


def occupied(run: Run, nodes: Nodes) -> list[Finding]:
    """Why these nodes, by UID, are not proven empty."""
    return [f for f in verify_empty(run.kube, {n: uid for n, (uid, _) in nodes.items()}) if f.level is Level.BLOCK]


def give_up(run: Run, cloud: Pools, part: Any, nodes: Nodes, refuse: Callable[[list[Finding]], Exception]) -> None:
    """End the machines of these nodes. Right before each request its nodes are cordoned and proven empty by UID.

    Args:
        run: the run.
        cloud: of the pool.
        part: the spec's part that names the pool.
        nodes: what is to go.
        refuse: makes the error to raise out of what is found on a node; its machine is not asked to end.

    Raises:
        Unmeasured: another process may have the run. CloudError: from the cloud.

    """
    by_machine = {machine: name for name, (_, machine) in nodes.items()}

    def prove(machines: Sequence[str]) -> None:
        if leases.lost():
            raise Unmeasured(f"run {run.name}", leases.lost(), remedy="see who runs now: poolshift status")
        asked = {by_machine[machine]: nodes[by_machine[machine]] for machine in machines}
        fence.cordon(run.kube, asked, run.name)  # somebody may have taken ours back since
        if found := occupied(run, asked):
            raise refuse(found)

    connect.slices(cloud).give_up(part, by_machine, prove)


def await_gone(run: Run, cloud: Pools, part: Any, nodes: Nodes, kept: Collection[str] = ()) -> None:
    """Return when the cloud and Kubernetes no longer have these nodes, and the pool's size says so too.

    Args:
        run: the run.
        cloud: of the pool.
        part: the spec's part that names the pool.
        nodes: by name: UID and the cloud's id of the machine.
        kept: ids of the pool's other machines. One that is missing was taken by somebody else: CloudError.

    """
    slices, what = connect.slices(cloud), pool_words(part)
    started = run.clock.now()
    while True:
        have = slices.instances(part)
        lost = sorted(machine for machine in kept if machine not in have or have[machine].going)
        if lost:
            raise CloudError(
                what,
                f"{plural(len(lost), 'machine')} that nobody named went too: {and_more(lost, 3)}",
                expected="only what was proven empty to be ended",
                remedy="find who scales this pool in its activity log; poolshift status shows what was asked for",
            )
        standing = sorted(name for name, (_, machine) in nodes.items() if machine in have)
        seen = [n["metadata"]["name"] for n in kube_nodes.list_raw(run.kube, nodes)
                if n["metadata"]["uid"] == nodes[n["metadata"]["name"]][0]]  # fmt: skip
        found = cloud.find(part)
        # EKS shows a changed size late; whoever reads it before would ask for the old one again.
        if not standing and not seen and (found is None or found.nodes == len(have)):
            return
        if run.clock.now() - started >= GONE_LIMIT:
            left = standing or seen
            raise Unmeasured(
                what,
                f"{and_more(left, 3) if left else 'its size'} still there after {span(run.clock.now() - started)}",
                expected=f"{plural(len(nodes), 'machine')} ended, {len(have) - len(standing)} left",
                remedy="look at it in the cloud's console; the same command goes on waiting",
            )
        run.clock.sleep(pools.POLL.total_seconds())


def await_room(run: Run, count: int, why: str) -> None:
    """Return when the reservation has room for `count` machines. A target without a reservation is not waited for."""
    slices, limit = connect.slices(run.target), run.spec.swap.release_timeout
    started, said = run.clock.now(), -1
    while True:
        found = slices.reservation(run.spec.target)
        if found is None or (found.free >= count and found.usable):
            return
        if found.free != said:
            run.say(f"{why}: reservation {found.name} has {found.free} of {found.total} free, {count} needed")
            said = found.free
        if run.clock.now() - started >= limit:
            raise NoCapacity(
                f"reservation {found.name}",
                f"has {found.free} of {plural(found.total, 'machine')} free after {span(run.clock.now() - started)}, "
                f"and is {found.state}",
                expected=f"{count} for {why}, whose machines were given up",
                remedy="see who took them; the same command goes on waiting, poolshift rollback SPEC takes back "
                "what there is",
            )
        run.clock.sleep(pools.POLL.total_seconds())


def await_nodes(run: Run, cloud: Pools, part: Any, count: int) -> Pool:
    """Return when the pool has `count` machines and as many nodes in Kubernetes. Judged by nodes, not by status.

    Raises:
        NoCapacity, CloudError: the cloud says why they do not come; capacity is waited for a while first.
        Unmeasured: no outcome within `pools.PROVISION_LIMIT`.

    """
    slices, started = connect.slices(cloud), run.clock.now()
    while True:
        try:
            found = cloud.find(part)
            have = sum(not i.going for i in slices.instances(part).values()) if found else 0
        except Unreachable as error:
            run.say(f"no answer, asking again: {error}")
            found, have = None, -1
        if found is None and have >= 0:
            raise NotFound(pool_words(part), "is gone", remedy="poolshift rollback SPEC")
        lasted = run.clock.now() - started
        joined = len(_joined(run, found))
        if found is not None and have >= count and joined >= count:
            return found
        if found is not None and found.state not in _BUSY:
            short = any(i.issue_class in (IssueClass.CAPACITY, IssueClass.QUOTA) for i in found.issues)
            if not short or lasted >= pools.CAPACITY_PATIENCE:
                raise pools.failure(found)
        if lasted >= pools.PROVISION_LIMIT:
            raise Unmeasured(
                pool_words(part),
                f"{plural(have, 'machine')}, {plural(joined, 'node')} joined after {span(lasted)}",
                expected=str(count),
                remedy="read the pool's activities and the machines' console output; the same command goes on waiting",
            )
        run.clock.sleep(pools.POLL.total_seconds())


def _joined(run: Run, pool: Pool | None) -> list[kube_nodes.Raw]:
    if pool is None or not pool.node_selector:
        return []
    return kube_nodes.list_raw(run.kube, label=",".join(f"{key}={value}" for key, value in pool.node_selector.items()))
