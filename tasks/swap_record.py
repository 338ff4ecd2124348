"""A swap as the run's record has it: how it was laid out, how far each slice has come, and which nodes that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra import connect
from infra.errors import Unmeasured
from infra.kube import read, records
from infra.model.cluster import Node
from infra.model.pools import PoolState
from infra.model.record import SliceRecord, SliceStage, Step
from infra.model.spec import Strategy
from infra.model.survey import Reservation
from tasks import planning
from tasks.facts import notes_of, source_of, target_of
from tasks.identity import pool_words
from tasks.rules import swap as rules
from tasks.rules.wording import plural
from tasks.run import Run

_NOTE = "swap"
_GARBLED = (ValueError, KeyError, TypeError, AttributeError)  # what is raised on reading JSON that is not ours


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The swap as it was laid out before the first node was given up. `nodes` are all source nodes."""

    sizes: tuple[rules.Size, ...]
    nodes: Mapping[str, tuple[str, str]]


def applies(run: Run) -> bool:
    """Did the plan that this run passed decide for a swap? Raises Unmeasured when that cannot be told, or is denied."""
    decided = _plan(run).get("strategy")
    if decided not in (Strategy.SWAP, Strategy.SIDE_BY_SIDE):
        raise records.unreadable(run.kube, run.name, "step.plan", f"strategy {decided!r}")
    if decided != Strategy.SWAP and _NOTE in notes_of(run):
        raise records.unreadable(run.kube, run.name, "step.plan", f"strategy {decided}, and a swap has begun")
    return bool(decided == Strategy.SWAP)


def _plan(run: Run) -> Mapping[str, Any]:
    record = records.read(run.kube, run.name)
    if record is not None:
        records.require_plan(run.kube, record)
    return record.steps[Step.PLAN].data if record is not None and Step.PLAN in record.steps else {}


def begun(run: Run) -> bool:
    """Has the canary passed, and has the next slice begun or been allowed to?"""
    entries = slices_of(run)
    return bool(entries) and entries[0].stage.reached(SliceStage.PROVEN)


def smallest(run: Run) -> int:
    """Nodes of the smallest slice: so many the baseline is measured on, for each slice is compared with it."""
    try:
        return min(int(each["add"]) for each in _plan(run)["slices"])
    except _GARBLED as error:
        raise records.unreadable(run.kube, run.name, "step.plan", f"slices: {error!r}") from error


def laid_out(run: Run) -> Whole | None:
    """The swap as recorded; None before it has begun."""
    found = notes_of(run).get(_NOTE)
    if found is None:
        return None
    try:
        nodes = {str(name): (str(uid), str(machine)) for name, (uid, machine) in found["nodes"].items()}
        sizes = tuple(rules.Size(give=int(g), add=int(a), total=int(t)) for g, a, t in found["sizes"])
    except _GARBLED as error:
        raise records.unreadable(run.kube, run.name, f"note.{_NOTE}", repr(error)) from error
    return Whole(sizes=sizes, nodes=nodes)


def slices_of(run: Run) -> list[SliceRecord]:
    """Every slice that has begun, in order."""
    whole, notes = laid_out(run), notes_of(run)
    wanted = (f"slice-{n}" for n in range(1, len(whole.sizes) + 1 if whole else 1))
    return [_slice(run, key, notes[key]) for key in wanted if key in notes]


def _slice(run: Run, key: str, note: Any) -> SliceRecord:
    try:
        return SliceRecord.from_dict(note)
    except _GARBLED as error:
        raise records.unreadable(run.kube, run.name, f"note.{key}", repr(error)) from error


def rest(run: Run) -> list[str]:
    """Source nodes that no slice takes: they leave at the end, all together."""
    whole = lay_out(run)
    taken = {name for each in slices_of(run) for name in each.nodes}
    return sorted(set(whole.nodes) - taken)


def moved(run: Run) -> list[Mapping[str, Any]]:
    """How the drains of the slices went, as `MoveReport.to_dict`."""
    return [each.moved for each in slices_of(run) if each.moved]


def lay_out(run: Run) -> Whole:
    """The recorded swap, or a new one from what cluster and cloud say now, written before anything else."""
    found = laid_out(run)
    if found is not None:
        return found
    source = source_of(run)
    nodes = planning.nodes_of(read.snapshot(run.kube, owners=False, storage=False), source)
    if len(nodes) < source.nodes or source.state in (PoolState.DELETING, PoolState.DELETE_FAILED):
        raise Unmeasured(
            pool_words(run.spec.source),
            f"{plural(len(nodes), 'node')} in Kubernetes, {source.state.value}",
            expected=f"{source.nodes}, as the cloud says",
            remedy="put the pool's label back on its nodes",
        )
    reserved: Reservation | None = connect.slices(run.target).reservation(run.spec.target)
    wanted = int(run.spec.target.nodes)  # type: ignore[union-attr]  # the plan refuses external pools
    sizes = rules.sizes(wanted, reserved.free if reserved else 0, run.spec.swap.slice)
    note = {
        "nodes": {n.name: [n.uid, n.provider_id] for n in nodes},
        "sizes": [[s.give, s.add, s.total] for s in sizes],
    }
    records.write_note(run.kube, run.name, _NOTE, note)
    laid = laid_out(run)
    assert laid is not None
    return laid


def untouched(run: Run, whole: Whole, entry: SliceRecord) -> list[str]:
    """Source nodes that neither this slice nor an earlier one takes."""
    taken = {name for e in slices_of(run) for name in e.nodes} | set(entry.nodes)
    return sorted(set(whole.nodes) - taken)


def target_nodes(run: Run) -> list[Node]:
    """Nodes of the target pool, by name."""
    pool = target_of(run)
    snapshot = read.snapshot(run.kube, pool.node_selector, owners=False, storage=False)
    return sorted(planning.nodes_of(snapshot, pool), key=lambda n: n.name)


def opened(run: Run) -> list[Node]:
    """Target nodes that are proven and take work."""
    uids = {uid for e in slices_of(run) if e.stage is SliceStage.OPEN for uid in e.new}
    return [n for n in target_nodes(run) if n.uid in uids]


def write(run: Run, entry: SliceRecord) -> SliceRecord:
    """Into the record, before anything that relies on it."""
    records.write_note(run.kube, run.name, entry.note, entry.to_dict())
    return entry
