"""What a plan can say of a target before anything is made: is it free, and will its plugins come to its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra.fabrics import fabric_of
from infra.kube import plugins, records
from infra.model.cluster import Node
from infra.model.pools import Pool, PoolState, pool_names
from infra.model.record import Step, StepState
from infra.model.spec import ExternalPool, MigrationSpec
from infra.model.survey import Survey
from infra.model.verdict import Finding, Level
from infra.model.workload import Snapshot
from tasks.identity import pool_words
from tasks.readiness import expectation, look
from tasks.rules import forecast, occupied
from tasks.rules.nearest import did_you_mean
from tasks.rules.placement import TargetShape
from tasks.rules.wording import and_more
from tasks.run import Run


def busy(run: Run, snapshot: Snapshot, nodes: Sequence[Node]) -> list[Finding]:
    """A pool that exists is measured as a whole, so before its gate nothing may hold its devices."""
    proven = run.step(Step.GATE)
    moving = run.step(Step.MIGRATE) is not None  # then what runs there is what was moved
    if not nodes or moving or (proven is not None and proven.state is StepState.DONE):
        return []
    return occupied.judge(snapshot, nodes, pool_words(run.spec.target))


def plugins_to_come(run: Run, looked: Survey, shape: TargetShape | None) -> list[Finding]:
    """Would the plugins run on nodes of the target? Asked before there are any, so that nothing is made in vain."""
    target = run.spec.target
    if isinstance(target, ExternalPool) or looked.existing is not None or shape is None or looked.machine is None:
        return []
    labels = {"kubernetes.io/os": "linux", **shape.labels}
    node = Node(name=f"a node of {target.name}", uid="", labels=labels, taints=shape.taints)
    pool = Pool(
        kind=target.kind,
        name=target.name,
        identity="",
        state=PoolState.CREATING,
        machine_type=target.machine_type,
        nodes=target.nodes,
        rdma=dict(looked.machine.rdma),
    )
    sets, fabric = plugins.daemonsets(run.kube), fabric_of(target.machine_type)
    old = forecast.outdated(sets, node, fabric.minimums if fabric else ())
    return [*old, *forecast.excluded(sets, node, expectation(pool))]


def plugins_on_source(run: Run, source: Pool | None) -> list[Finding]:
    """Plugins that fail on the old pool, often longer than anybody knows: the new pool's nodes get the same ones."""
    found = look(run.kube, source).findings if source is not None else ()
    return [
        replace(
            finding,
            level=Level.WARN,
            code=f"source-{finding.code}",
            expected="the plugin that the new pool will need as well in order",
        )
        for finding in found
        if finding.level is Level.BLOCK and finding.code.startswith("plugin-") and finding.since
    ]


_PLACE = ("kind", "region", "project", "location", "cluster", "name")


def source_retired(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """A source that is not there may be one that a run of ours has retired: then there is no name to correct."""
    if all(f.code != "source-not-found" for f in findings):
        return list(findings)
    known = records.list_runs(run.kube)
    by = next((r for r in sorted(known, key=lambda r: r.name != run.name) if _deleted_source(r, run.spec)), None)
    if by is None:
        there = pool_names(node["metadata"].get("labels") or {} for node in run.kube.list("/api/v1/nodes"))
        return [_other_name(f, run.spec.source.name, there) if f.code == "source-not-found" else f for f in findings]
    said = f"is gone: run {by.name} retired it at {by.steps[Step.RETIRE].finished}"
    then = f"nothing is left to move: poolshift report {by.name}; for another migration, another name and source.name"
    return [replace(f, observed=said, remedy=then) if f.code == "source-not-found" else f for f in findings]


def _other_name(found: Finding, written: str, there: Sequence[str]) -> Finding:
    """With the pools that have nodes, and the one that was probably meant."""
    if not there:
        return found
    meant = did_you_mean(written, there)
    return replace(
        found,
        expected=f"{found.expected}, e.g. one that has nodes: {and_more(there, 10)}",
        remedy=f"{meant} {found.remedy}".strip(),
    )


def _deleted_source(record: records.RunRecord, spec: MigrationSpec) -> bool:
    """Has this run ended with the deletion of the spec's source?"""
    end, source = record.steps.get(Step.RETIRE), record.spec.get("source") or {}
    place = {key: value for key, value in spec.source.model_dump(mode="json").items() if key in _PLACE}
    return (
        end is not None
        and end.state is StepState.DONE
        and not end.data.get("kept")
        and {key: source.get(key) for key in place} == place
    )
