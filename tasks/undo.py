"""Rollback: what a run changed goes back, exactly; what it did not change is not touched. Safe to run again."""

from __future__ import annotations

import getpass
from typing import Any

from infra.clock import rfc3339
from infra.errors import NotFound, Refused
from infra.kube import api, leases, read, records
from infra.model.gangs import GANG_KINDS, SURGE_KIND
from infra.model.pools import Pool, PoolState
from infra.model.record import HELD, Step, StepState
from infra.model.spec import Cluster, MigrationSpec
from infra.model.verdict import Finding, Level
from tasks import drain, fence, gangs, opening, planning, pools, report, swap_back
from tasks.identity import pool_words
from tasks.keeping import KeptRoom
from tasks.rules import story_ended
from tasks.rules.gangs import find_gangs, start_words, stop_words
from tasks.rules.wording import and_more, plural
from tasks.run import Run

PUT_BACK = {
    # What carries our marks.
    "nodes": ("get", "list", "patch"),
    **{kind.plural: ("get", "list", "patch") for kind in (*GANG_KINDS, SURGE_KIND)},
    "jobs/status": ("patch",),
    "commands": ("create",),
    "resourceflavors": ("get", "list", "patch"),
    # What says whether a node is empty, and who moves what is not.
    **dict.fromkeys(("pods", "poddisruptionbudgets", "replicasets", "statefulsets", "daemonsets"), ("list",)),
    # The run's record and the pools' locks.
    "configmaps": ("get", "delete"),
    "leases": ("get", "create", "update", "delete"),
}
"""What a rollback may have to do, whatever the run had changed: resource -> verbs, of the account that migrates."""
_GOING = (PoolState.DELETING, PoolState.DELETE_FAILED)


def roll_back(run: Run, *, remove_target: bool) -> dict[str, Any]:
    """Undo the run on the cluster and in the cloud, and forget its record.

    Raises:
        NotFound: no such run in this cluster.
        Unmeasured: a note of its record, which says what to put back, cannot be read.
        Refused: the source pool is already deleted, or the target to be removed is not ours or not empty.

    """
    record = records.read(run.kube, run.name)
    if record is None:
        raise NotFound(f"run {run.name}", "no record in this cluster", remedy="poolshift status")
    records.require_notes(run.kube, record)
    source = run.source_pool()
    if record.began(Step.RETIRE) and source is not None and source.state in _GOING:
        raise Refused(
            f"run {run.name}",
            f"{pool_words(run.spec.source)} is being deleted ({source.state.value})",
            expected="a source pool that stays",
            remedy="let poolshift migrate end it: pods must not land on nodes that the cloud takes away",
        )
    if source is None and record.began(Step.RETIRE):
        retired = record.steps.get(Step.RETIRE)
        state = retired.state.value if retired else "its entry cannot be read"
        raise Refused(
            f"run {run.name}",
            f"{pool_words(run.spec.source)} is deleted already ({state})",
            remedy="what is gone cannot be put back; a migration the other way is a new spec",
        )
    done: list[str] = []
    stays = ""
    # A gang that is started again must find the target closed and the source open: else it lands on what it leaves.
    if record.began(Step.MIGRATE):
        closed, stays = _close_target(run)
        done += closed
    swap_back.follow_leaving(run)
    restored = fence.unfence(run.kube, run.name)
    if restored:
        done.append(f"restored {plural(len(restored), 'node')}: {and_more(sorted(restored), 5)}")
    resumed = gangs.restore(run.kube, run.name)
    if resumed:
        done.append(f"resumed {and_more(list(resumed), 5)}")
    done += _open_kept(run)
    done += swap_back.take_back(run)
    settings = _clouds(run, record)
    removed: list[str] = []
    if remove_target:
        removed, stays = _remove_target(run, opened=record.began(Step.MIGRATE)), ""
        settings = [line for line in settings if not (removed and line.startswith(pool_words(run.spec.target)))]
    elif not record.began(Step.MIGRATE):
        stays = _left_closed(run)
    done += settings
    ended = _ended(record)
    theirs = gangs.forget_moved(run.kube, run.name)
    for line in (*done, *theirs):
        run.say(line)
    done += removed  # said by the cloud's own states, down to "gone"
    _tell_end(run, record, done, stays)
    records.remove(run.kube, run.name)
    summary = f"run {run.name} rolled back from {ended}: {plural(len(done), 'thing')} put back{stays}"
    return {"run": run.name, "done": done, "summary": summary, "simulated": run.simulated}


def _tell_end(run: Run, record: records.RunRecord, done: list[str], stays: str) -> None:
    """The report's last word, while the record that it is made of is there. What was put back does not depend on it."""
    end = story_ended.undone(getpass.getuser(), rfc3339(run.clock.now()), done, stays)
    try:
        run.say(f"report: {report.write_end(run, record, end)}")
    except Exception as failure:  # noqa: BLE001 - whatever an odd record does to a report, the rollback ends
        run.say(f"the report could not be written: {failure}")


def recorded(run: Run) -> Run:
    """The same run with the spec that it was started with: what was changed is undone, not what a file says now."""
    record = records.read(run.kube, run.name)
    if record is None or record.spec_hash == run.hash:
        return run
    stored = {**record.spec, "cluster": run.spec.cluster.model_dump(mode="json")}
    return Run(spec=MigrationSpec.model_validate(stored), kube=run.kube, say=run.say)


def spec_of(cluster: Cluster, name: str) -> MigrationSpec:
    """The spec that a run of this cluster was started with. Raises NotFound."""
    record = records.read(api.connect(cluster), name)
    if record is None or record.kind != "migration":
        raise NotFound(f"run {name}", "neither a spec file nor a run of this cluster", remedy="poolshift status")
    return MigrationSpec.model_validate({**record.spec, "cluster": cluster.model_dump(mode="json")})


def _clouds(run: Run, record: records.RunRecord) -> list[str]:
    """Cloud settings as they were before the run, from the record."""
    done = []
    for note, cloud, part in (
        ("cloud-prior-source", run.source, run.spec.source),
        ("cloud-prior-target", run.target, run.spec.target),
    ):
        prior = record.notes.get(note)
        if isinstance(prior, dict) and cloud.find(part) is not None:
            leases.check()
            cloud.unfence(part, prior)
            done.append(f"{pool_words(part)}: cloud settings as before")
    return done


def _close_target(run: Run) -> tuple[list[str], str]:
    """Fence a target that had been opened off from new pods; says what was done, and which work stays on it.

    What runs there is left to run: a rollback moves no work. It would keep a later run from measuring the pool.
    """
    pool = run.target_pool()
    if pool is None or pool.ours != run.name:
        return [], ""
    nodes, blocks, back = _occupied(run, pool)
    opening.close_nodes(run.kube, nodes, run.name)
    what = pool_words(run.spec.target)
    stays = f"; {plural(len(blocks), 'pod')} stay on {what}, back with: {back}" if blocks else ""
    return [f"{what} fenced off from new pods: {plural(len(nodes), 'node')}"], stays


def _open_kept(run: Run) -> list[str]:
    """A target that we have not made stays as it was: what a killed move kept closed on it, for gangs, opens."""
    pool = run.target_pool()
    if pool is None or pool.ours == run.name:
        return []
    names = KeptRoom(kube=run.kube, run=run.name, target=(), say=run.say).open_left()
    return [f"{pool_words(run.spec.target)}: opened {and_more(list(names), 5)}"] if names else []


def _left_closed(run: Run) -> str:
    """A target that was made and never opened: it stays, costs money and takes no work, so say what to do with it."""
    pool = run.target_pool()
    if pool is None or pool.ours != run.name:
        return ""
    labels = _labels(pool)
    return (
        f"; {pool_words(run.spec.target)} stays, closed to work and not proven ({plural(pool.nodes, 'node')}). "
        "To go on with it: poolshift migrate SPEC; to delete it: the same, then poolshift rollback SPEC "
        f"--remove-target; to use it as it is: kubectl uncordon -l {labels} && "
        f"kubectl annotate node -l {labels} {HELD}-"
    )


def _occupied(run: Run, pool: Pool) -> tuple[list[str], list[Finding], str]:
    """The pool's nodes, what keeps them from being empty, and how that is moved."""
    snapshot = read.snapshot(run.kube, pool.node_selector, storage=False)
    nodes = planning.nodes_of(snapshot, pool)
    found = drain.verify_empty(run.kube, {n.name: n.uid for n in nodes})
    names = [n.name for n in nodes]
    emptying = f"poolshift drain --selector {_labels(pool)} --ignore-daemonsets"
    held = find_gangs(snapshot, run.spec.drain, names)
    if held:
        more = " and so on" if len(held) > 3 else ""
        stop, start = (" and ".join(words(gang) for gang in held[:3]) + more for words in (stop_words, start_words))
        emptying = f"{stop} (a drain on its own asks for no checkpoint), then {emptying}, then {start}"
    return names, [f for f in found if f.level is Level.BLOCK], emptying


def _labels(pool: Pool) -> str:
    return ",".join(f"{key}={value}" for key, value in pool.node_selector.items())


def hides_machines(pool: Pool, seen: int) -> bool:
    """Are fewer nodes seen than it has machines? One that is being deleted loses its nodes before its size."""
    return pool.state not in _GOING and seen < pool.nodes


def _remove_target(run: Run, *, opened: bool) -> list[str]:
    """`opened`: it may have taken work, so that each of its machines must be seen as a node, and empty."""
    pool = run.target_pool()
    if pool is None:
        return []
    what = pool_words(run.spec.target)
    if pool.ours != run.name:
        raise Refused(what, f"belongs to {pool.ours or 'somebody else'}", expected=f"made by run {run.name}")

    def prove() -> None:
        nodes, blocks, back = _occupied(run, pool)
        if blocks:
            raise Refused(
                what,
                f"is not empty: {and_more([f.wording() for f in blocks], 3)}",
                expected="no pod on it",
                remedy=f"move them: {back}",
            )
        standing = run.target_pool()
        if opened and standing is not None and hides_machines(standing, len(nodes)):
            raise Refused(
                what,
                f"{plural(len(nodes), 'node')} in Kubernetes: what runs on the others cannot be seen",
                expected=f"{standing.nodes}, as the cloud says",
                remedy=f"kubectl get nodes -L {','.join(pool.node_selector)}: put the pool's label back, or let the "
                "cloud repair or remove machines that have no node",
            )

    prove()
    pools.retire(run.target, run.spec.target, run.clock, run.say, prove)
    return [f"{what} deleted"]


def _ended(record: records.RunRecord) -> str:
    last = [step for step in Step if step in record.steps]
    if not last:
        return "the start"
    entry = record.steps[last[-1]]
    return f"{entry.step.value}{'' if entry.state is StepState.DONE else ' (' + entry.state.value + ')'}"
