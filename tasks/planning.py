"""The plan: read cluster and cloud once, judge everything, change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra import fabrics
from infra.kube import read
from infra.model.cluster import Node, Taint
from infra.model.pools import Pool
from infra.model.record import Step, StepState
from infra.model.spec import EksPool, EksTarget, ExternalPool, GkePool, GkeTarget, MigrationSpec, Strategy
from infra.model.survey import Survey
from infra.model.verdict import Finding, Level
from infra.model.workload import Snapshot
from infra.probes import catalogue
from tasks import outlook, pools
from tasks.identity import pool_words
from tasks.rules import cost, preflight, swap
from tasks.rules.idle import idle_nodes
from tasks.rules.placement import TargetShape, shape_of
from tasks.rules.plan import Plan
from tasks.rules.swap import SwapPlan
from tasks.rules.waves import plan_move
from tasks.rules.wording import plural
from tasks.run import Run

_ORDINARY = ("cpu", "memory", "pods", "ephemeral-storage")
_OPEN = 1 << 62  # more than any request


def survey(run: Run) -> Plan:
    """Read and judge. Raises what the adapters raise when cluster or cloud cannot be read at all."""
    spec = run.spec
    looked = pools.look(run.target, spec, run.name, run.source)
    snapshot = read.snapshot(run.kube)
    source_nodes = nodes_of(snapshot, looked.source)
    findings = preflight.judge(
        looked, spec, run.name, run.clock.now(), server=run.kube.server, source_nodes=len(source_nodes)
    )
    target_nodes = nodes_of(snapshot, looked.existing)
    shape = shape_of(target_nodes) or _shape(run, looked, source_nodes)
    moves = plan_move(
        snapshot,
        spec.drain,
        [n.name for n in source_nodes],
        shape,
        [n.name for n in target_nodes],
        run=run.name,
    )
    strategy = preflight.strategy(looked, spec)
    slices = _swap(strategy, spec, looked, snapshot, [n.name for n in source_nodes], shape)
    estimate = _estimate(run, looked, [each.add for each in slices.slices])
    findings = outlook.source_retired(run, findings)
    findings += _over_budget(estimate, spec.validation.budget_gpu_minutes)
    findings += [*slices.findings, *_cannot_retire(spec)]
    findings += _unseen(spec.source, looked.source, len(source_nodes), {f.code for f in findings})
    findings += outlook.busy(run, snapshot, target_nodes)
    findings += outlook.plugins_to_come(run, looked, shape)
    findings += outlook.plugins_on_source(run, looked.source)
    findings += _no_baseline(run, looked.source, idle_nodes(snapshot, source_nodes, _devices(looked.source)))
    blocked = moves.blocked or any(f.level is Level.BLOCK for f in findings)
    return Plan(
        run=run.name,
        source=pool_words(spec.source),
        target=pool_words(spec.target),
        strategy=strategy,
        findings=(*findings, *moves.findings),
        requests=() if blocked else tuple(run.target.render(_as_made(spec, strategy), run.name)),
        moves=moves,
        estimate=estimate,
        simulated=run.simulated,
        slices=slices,
    )


def _as_made(spec: MigrationSpec, strategy: Strategy) -> Any:
    """The target as it is first asked for: in a swap without nodes, which come slice by slice."""
    return spec.target.model_copy(update={"nodes": 0}) if strategy is Strategy.SWAP else spec.target


def nodes_of(snapshot: Snapshot, pool: Pool | None) -> list[Node]:
    """The pool's nodes, by the labels that its cloud gives them. No pool, or no labels: none."""
    if pool is None or not pool.node_selector:
        return []
    wanted = pool.node_selector.items()
    return [n for n in snapshot.nodes if all(n.labels.get(key) == value for key, value in wanted)]


def _shape(run: Run, looked: Survey, source: Sequence[Node]) -> TargetShape | None:
    """What a node of the target will look like, before it exists.

    What the node's image and kubelet keep for themselves is known only from nodes of the same type; without any, CPU
    and memory are left open, and the devices alone are judged.
    """
    target = run.spec.target
    if isinstance(target, ExternalPool):
        return None
    fabric = fabrics.fabric_of(target.machine_type)
    machine = looked.machine
    gpus = {fabric.gpu_resource: fabric.gpus} if fabric else {}
    rdma = dict(machine.rdma) if machine else dict(fabric.rdma_resources) if fabric else {}
    alike = [n for n in source if n.labels.get("node.kubernetes.io/instance-type") == target.machine_type]
    common = {r: min((n.allocatable.get(r, 0) for n in alike), default=_OPEN) for r in _ORDINARY}
    return TargetShape(
        labels={"node.kubernetes.io/instance-type": target.machine_type, **_pool_label(target), **target.labels},
        taints=tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in target.taints),
        allocatable={**common, **gpus, **rdma},
        nodes=target.nodes,
    )


def _pool_label(target: EksTarget | GkeTarget) -> Mapping[str, str]:
    key = "eks.amazonaws.com/nodegroup" if isinstance(target, EksTarget) else "cloud.google.com/gke-nodepool"
    return {key: target.name}


def _estimate(run: Run, looked: Survey, slices: Sequence[int] = ()) -> cost.Estimate:
    """Both sides: the baseline measures the source as the validation does the target, or each slice of it."""
    target = run.spec.target
    machine_type = target.machine_type or (looked.source.machine_type if looked.source else "")
    fabric = fabrics.fabric_of(machine_type)
    nodes = target.nodes if not isinstance(target, ExternalPool) else looked.existing.nodes if looked.existing else 0
    parts = slices or (nodes,)
    every = [cost.estimate(catalogue.all_probes(run.spec.validation), n, fabric.gpus if fabric else 0) for n in parts]
    validation = every[0]
    for number, part in enumerate(every[1:], start=2):
        validation = validation.plus(part.named(f"slice {number}"))
    if run.spec.gate.max_step_ratio is None or looked.source is None:
        return validation
    old = fabrics.fabric_of(looked.source.machine_type)
    count = min(min(parts) or looked.source.nodes, looked.source.nodes)
    probes = catalogue.baseline_probes(run.spec.validation)
    return cost.estimate(probes, count, old.gpus if old else 0).named("baseline").plus(validation)


def _unseen(part: EksPool | GkePool | ExternalPool, pool: Pool | None, seen: int, known: set[str]) -> list[Finding]:
    """Every node that the cloud has must be seen in Kubernetes: one that is not would be deleted with its work."""
    if pool is None or seen >= pool.nodes or "source-nodes-unseen" in known:
        return []
    labels = ",".join(f"{key}={value}" for key, value in pool.node_selector.items())
    return [
        Finding(
            level=Level.BLOCK,
            code="source-nodes-unseen",
            object=pool_words(part),
            observed=f"{plural(seen, 'node')} in Kubernetes",
            expected=f"{pool.nodes}, as the cloud says",
            remedy=f"put the pool's label back on its nodes: kubectl get nodes -l {labels}",
        )
    ]


def _no_baseline(run: Run, pool: Pool | None, idle: Sequence[Node]) -> list[Finding]:
    """Without a baseline the gate cannot open: said before a pool is made and GPU-minutes are spent."""
    wants = run.spec.validation.train_step and run.spec.gate.max_step_ratio is not None
    measured = run.step(Step.BASELINE)
    if not wants or pool is None or len(idle) >= 2 or (measured is not None and measured.state is StepState.DONE):
        return []
    return [
        Finding(
            level=Level.BLOCK,
            code="baseline-not-measurable",
            object=pool_words(run.spec.source),
            observed=f"{plural(len(idle), 'idle node')}",
            expected="two, to measure what the new pool is compared with (gate.max_step_ratio)",
            remedy="free two nodes of the old pool, or set gate.max_step_ratio to null",
        )
    ]


def _devices(pool: Pool | None) -> set[str]:
    return ({*pool.gpus, *pool.rdma} if pool else set()) or {"nvidia.com/gpu"}


def _swap(
    strategy: Strategy,
    spec: MigrationSpec,
    looked: Survey,
    snapshot: Snapshot,
    nodes: Sequence[str],
    shape: TargetShape | None,
) -> SwapPlan:
    """The slices of a swap; none for pools that stand side by side."""
    target = spec.target
    if strategy is not Strategy.SWAP:
        return SwapPlan()
    if isinstance(target, ExternalPool):
        return SwapPlan(findings=tuple(swap.check(spec, looked, SwapPlan())))
    free = looked.reservation.free if looked.reservation else 0
    planned = swap.plan(snapshot, spec.drain, nodes, shape, swap.sizes(target.nodes, free, spec.swap.slice))
    return replace(planned, findings=(*swap.check(spec, looked, planned), *planned.findings))


def _cannot_retire(spec: MigrationSpec) -> list[Finding]:
    """Nodes that something else owns cannot be deleted here: better said now than after the move."""
    if not isinstance(spec.source, ExternalPool) or not spec.retire.enabled:
        return []
    return [
        Finding(
            level=Level.BLOCK,
            code="source-not-ours-to-delete",
            object=pool_words(spec.source),
            observed="is an external pool, and retire.enabled is true",
            expected="retire: {enabled: false}; its owner deletes it once it is empty",
            remedy="set retire.enabled to false",
        )
    ]


def _over_budget(estimate: cost.Estimate, budget: float) -> list[Finding]:
    """A budget that cannot hold the last probe ends in a held gate: said before anything is made."""
    if estimate.gpu_minutes <= budget:
        return []
    return [
        Finding(
            level=Level.BLOCK,
            code="validation-over-budget",
            object="validation.budget_gpu_minutes",
            observed=f"{budget:g}, and the validation needs {estimate.wording()}",
            expected=f"at least {estimate.whole_minutes}",
            remedy="raise it, or leave out what is dear: validation.train_step, fewer validation.train_steps",
        )
    ]
