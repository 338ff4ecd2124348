"""Rolling a swap back: the source gets its machines again, out of the target's empty ones.

Work is not moved. Target nodes that hold work stay, and the source is smaller by as many until a person empties them
and grows it.
"""

from __future__ import annotations

from infra import connect
from infra.errors import Conflict, NoCapacity, PoolshiftError
from infra.kube import leases, read
from infra.model.pools import Pool
from infra.model.verdict import Finding
from tasks import machines, planning, swap_record
from tasks.identity import pool_words
from tasks.rules.wording import and_more, plural
from tasks.run import Run, reach


def follow_leaving(run: Run) -> None:
    """Wait for machines whose end has begun: nothing may be scheduled on their nodes, which a rollback would open.

    Raises:
        CloudError, Unmeasured: as `tasks.machines.await_gone`.

    """
    whole = swap_record.laid_out(run)
    if whole is None:
        return
    known = {machine for _, machine in whole.nodes.values()}  # gone from the cloud's list, the node stays for a while
    for cloud, part in ((run.source, run.spec.source), (run.target, run.spec.target)):
        pool = cloud.find(part)
        if pool is None:
            continue
        have = connect.slices(cloud).instances(part)
        snapshot = read.snapshot(run.kube, pool.node_selector, owners=False, storage=False)
        leaving = {
            n.name: (n.uid, n.provider_id)
            for n in planning.nodes_of(snapshot, pool)
            if (have[n.provider_id].going if n.provider_id in have else n.provider_id in known)
        }
        if leaving:
            run.say(f"{plural(len(leaving), 'machine')} of {pool_words(part)} are ending: waiting until they are gone")
            machines.await_gone(run, cloud, part, leaving)


def take_back(run: Run) -> list[str]:
    """Give up as many empty target machines as the source lacks, and grow the source by them. Idempotent.

    Returns what was done, and what could not be. Nothing for a run that is no swap, or has given nothing up.

    Raises:
        CloudError, NoCapacity, Unmeasured: as `tasks.machines.await_gone` and `await_nodes`.

    """
    whole = swap_record.laid_out(run)
    if whole is None or run.source_pool() is None:
        return []
    wanted, what = len(whole.nodes), pool_words(run.spec.source)
    source = connect.slices(run.source)
    missing = wanted - sum(not i.going for i in source.instances(run.spec.source).values())
    if missing <= 0:
        return []
    done = _empty_target(run, missing)
    reach("rollback:given")
    room = _room(run, whole, missing)
    if room:
        leases.check()
        source.grow(run.spec.source, wanted - missing + room)
        reach("rollback:growing")
        machines.await_nodes(run, run.source, run.spec.source, wanted - missing + room)
        done.append(f"{what}: {plural(room, 'machine')} again, {wanted - missing + room} of {wanted}")
    if room < missing:
        done.append(
            f"{what} has {wanted - missing + room} of {wanted} machines: {plural(missing - room, 'machine')} of the "
            f"reservation still in use; empty nodes of {pool_words(run.spec.target)} and grow it by hand"
        )
    return done


def _room(run: Run, whole: swap_record.Whole, missing: int) -> int:
    """How many machines the source can have again. Those that end just now are waited for; others' are not ours."""
    cloud = connect.slices(run.target)
    source = len(whole.nodes) - missing
    target = sum(not i.going for i in cloud.instances(run.spec.target).values())
    ours = len(whole.nodes) + sum(size.add - size.give for size in whole.sizes)  # with those that were free before
    try:
        machines.await_room(run, min(missing, max(0, ours - source - target)), "the rollback")
    except NoCapacity as short:
        run.say(short.wording())
    reserved = cloud.reservation(run.spec.target)
    return missing if reserved is None else min(missing, reserved.free)


def _empty_target(run: Run, missing: int) -> list[str]:
    """End as many target machines as are needed and proven empty. What the reservation has free already is not."""
    target = run.target_pool()
    if target is None or target.ours != run.name:
        return []
    reserved = connect.slices(run.target).reservation(run.spec.target)
    needed = missing - (reserved.free if reserved else 0)
    if needed <= 0:
        return []
    given = dict(list(_idle(run, target).items())[:needed])
    if given:
        machines.give_up(run, run.target, run.spec.target, given, _not_empty)
        machines.await_gone(run, run.target, run.spec.target, given)
    return [f"{pool_words(run.spec.target)}: {plural(len(given), 'empty machine')} given up"] if given else []


def _idle(run: Run, target: Pool) -> machines.Nodes:
    """Target nodes that hold no work now, those first that are not proven or closed to it: nothing lands on them."""
    snapshot = read.snapshot(run.kube, target.node_selector, owners=False, storage=False)
    proven = {uid for each in swap_record.slices_of(run) for uid in each.new}
    nodes = sorted(planning.nodes_of(snapshot, target), key=lambda n: (n.uid in proven, n.name))
    found = {n.name: (n.uid, n.provider_id) for n in nodes}
    return {name: ids for name, ids in found.items() if not machines.occupied(run, {name: ids})}


def _not_empty(found: list[Finding]) -> PoolshiftError:
    return Conflict(
        "target nodes",
        f"got work while they were to be given back: {and_more([f.fact() for f in found], 3)}",
        expected="no pod on them",
        remedy="run the same command again: others are taken",
    )
