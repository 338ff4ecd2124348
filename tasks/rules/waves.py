"""Which nodes leave together, in which order, and what every pod on them will wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from infra.model.spec import Drain, MoveMode, Waves
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot
from tasks.rules.budgets import Turns
from tasks.rules.decision import Act, Allowed, Context, Decision, strictest
from tasks.rules.drain import decide, drains_last, finding
from tasks.rules.gangs import Gang, as_moved, find_gangs, judge_gang, member_as_moved, pinned, quota_taken
from tasks.rules.placement import TargetShape, room_is_safe
from tasks.rules.queues import Taken
from tasks.rules.replicas import replica_findings
from tasks.rules.wording import and_more, plural

_BLOCK_LABELS = (
    "topology.kubernetes.io/zone",
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-3",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPod:
    """A pod that leaves in a wave. `turn` 1 goes at once; n+1 when the replacements of turn n are ready.

    `act` wait with turn 0: it cannot go as things stand. `gang` names the workload it moves with.
    """

    pod: str
    uid: str
    node: str
    act: Act
    turn: int = 1
    waits_for: str = ""
    code: str = ""
    gang: str = ""
    last: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedWave:
    """Nodes that are cordoned and emptied together."""

    number: int
    nodes: tuple[str, ...]
    pods: tuple[PlannedPod, ...]

    @property
    def turns(self) -> int:
        """How often budgets must open again before the wave is through."""
        return max((p.turn for p in self.pods), default=0)


@dataclass(frozen=True, kw_only=True)
class MovePlan:
    """What will move, in which order, what waits for what, and what can never go. Nothing in it has been done.

    `never` are keys of pods that a rule blocks; `stays` counts DaemonSet and static pods, which remain.
    """

    waves: tuple[PlannedWave, ...]
    findings: tuple[Finding, ...]
    never: tuple[str, ...]
    stays: int
    gangs: tuple[Gang, ...] = ()

    @property
    def blocked(self) -> bool:
        """Something can never go."""
        return any(f.level is Level.BLOCK for f in self.findings)

    @property
    def pods(self) -> int:
        """How many pods leave."""
        return sum(len(w.pods) for w in self.waves)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "waves": [
                {
                    "number": w.number,
                    "nodes": list(w.nodes),
                    "turns": w.turns,
                    "pods": [
                        {
                            "pod": p.pod, "uid": p.uid, "node": p.node, "act": p.act.value, "turn": p.turn,
                            "waits_for": p.waits_for, "code": p.code, "gang": p.gang,
                        }
                        for p in w.pods
                    ],
                }
                for w in self.waves
            ],
            "gangs": [{"workload": g.object, "pods": len(g.pods), "mode": g.mode.value} for g in self.gangs],
            "never": list(self.never),
            "stays": self.stays,
            "findings": [f.to_dict() for f in self.findings],
        }  # fmt: skip


def sizes(nodes: int, waves: Waves, done: int = 0) -> list[int]:
    """Nodes per wave. `done` nodes have left before (a run that continues): they have used up the first waves."""
    found: list[int] = []
    left, size, first = nodes + done, waves.size, waves.canary
    while left > 0:
        step = min(left, first or size)
        if not first and waves.ramp == "double":
            size *= 2
        first = 0
        left -= step
        used = min(step, done)
        done -= used
        if step > used:
            found.append(step - used)
    return found


def order_nodes(nodes: Iterable[str], snapshot: Snapshot, gangs: Sequence[Gang] = ()) -> list[str]:
    """Nodes of low priority first, a gang's nodes side by side, one topology block after another.

    The canary is the first: a node without a gang, so that a mistake costs least, but with something to move, or it
    would prove nothing. Nodes that are empty already come last.
    """
    gang_of = {p.node: g.object for g in gangs for p in g.pods}

    def key(name: str) -> tuple[Any, ...]:
        node = snapshot.node_by_name.get(name)
        leaving = [p for p in snapshot.pods_by_node.get(name, ()) if not p.mirror and not p.of_daemonset]
        blocks = tuple(node.labels.get(label, "") for label in _BLOCK_LABELS) if node else ()
        return (
            not leaving,
            name in gang_of,
            max((p.priority for p in leaving), default=0),
            blocks,
            gang_of.get(name, ""),
            name,
        )

    return sorted(set(nodes), key=key)


def plan_move(
    snapshot: Snapshot,
    drain: Drain,
    source_nodes: Sequence[str],
    target: TargetShape | None = None,
    target_nodes: Sequence[str] = (),
    done: int = 0,
    run: str = "",
) -> MovePlan:
    """Judge every pod on the source nodes and lay out the waves. Pure; see `MovePlan`. `run` tells its own cordons."""
    force = drain.force
    ctx = Context(
        snapshot=snapshot,
        allowed=Allowed(
            bare_pods=force.bare_pods,
            empty_dir=force.empty_dir,
            do_not_disrupt=force.do_not_disrupt,
            surge=drain.surge,
        ),
        target=target,
        run=run,
    )
    gangs = find_gangs(snapshot, drain, source_nodes)
    findings: list[Finding] = []
    placed: list[Pod] = []
    taken: Taken = {}
    for gang in gangs:
        findings += judge_gang(gang, snapshot, target, target_nodes, placed, taken)
        placed += as_moved(gang, target)
        taken = quota_taken(gang, target, taken)
    if not any(f.code == "gang-without-room" for f in findings):
        findings += _room_not_kept(snapshot, gangs, source_nodes, target, target_nodes)
    findings += replica_findings(snapshot, set(source_nodes))
    findings += _missing_nodes(snapshot, source_nodes)
    findings += _long_graces(snapshot, drain, source_nodes)
    member: Mapping[str, Gang] = {p.uid: g for g in gangs for p in g.pods}
    ordered = order_nodes(source_nodes, snapshot, gangs)
    waves, never, stays, at = [], [], 0, 0
    for number, size in enumerate(sizes(len(ordered), drain.waves, done), start=1):
        names = tuple(ordered[at : at + size])
        at += size
        turns = Turns(rooms=ctx.rooms)
        planned = []
        for pod in sorted(snapshot.on(names), key=lambda p: (p.priority, p.key)):
            of_gang = member.get(pod.uid)
            decisions = _of_member(pod, of_gang, ctx, drain) if of_gang else decide(pod, ctx)
            act = strictest(decisions)
            findings += [finding(pod, d) for d in decisions if d.act is not Act.SKIP and d.code != "finished"]
            if act is Act.SKIP:
                stays += 1
            elif act is Act.BLOCK:
                never.append(pod.key)
            else:
                planned.append(_planned(pod, act, decisions, of_gang, ctx, turns))
        waves.append(PlannedWave(number=number, nodes=names, pods=tuple(planned)))
    return MovePlan(waves=tuple(waves), findings=tuple(_sorted(findings)), never=tuple(never), stays=stays, gangs=gangs)


def gang_block(
    gang: Gang, ctx: Context, drain: Drain, target_nodes: Sequence[str], before: Sequence[Pod], taken: Taken
) -> Finding | None:
    """Why a gang must not be stopped as things stand, if there is a reason: asked again right before its stop.

    What its pods ask for may have changed since the plan. One that its owner ends is not ours to stop: no reason.
    """
    if gang.mode in (MoveMode.LEAVE, MoveMode.WAIT):
        return None
    # First what it asks for: nodes that it may not run on are no room for it either.
    found = [f for f in (pinned(gang, ctx.target),) if f is not None]
    found += judge_gang(gang, ctx.snapshot, ctx.target, target_nodes, before, taken)
    for pod in gang.pods:
        found += [finding(pod, d) for d in _of_member(pod, gang, ctx, drain) if d.act is Act.BLOCK]
    return next((f for f in found if f.level is Level.BLOCK), None)


def _of_member(pod: Pod, gang: Gang, ctx: Context, drain: Drain) -> tuple[Decision, ...]:
    """The rules' answers for a pod of a gang, as its template will be where that is changed on the way."""
    moved = member_as_moved(gang, pod, ctx.target)
    if pod.node not in gang.source:
        moved = replace(moved, node="")  # its node stays: what is written on it, by us too, asks for nothing
    # Whoever wrote down how it moves, or moves it himself, answers for what is lost with its pods.
    answered = gang.rule in drain.workloads or gang.mode in (MoveMode.LEAVE, MoveMode.WAIT)
    return _without_waits(decide(moved, ctx), scratch=answered)


def _without_waits(decisions: tuple[Decision, ...], *, scratch: bool) -> tuple[Decision, ...]:
    """A gang is suspended by its owner: budgets and bareness of its pods do not hold it, nor spared scratch space."""
    spared = {"pdb", "pdb-never", "pdb-unhealthy-pods", "pdb-unknown", "multiple-pdb", "single-replica"}
    if scratch:
        spared.add("local-storage")
    return tuple(
        replace(d, remedy=f"{d.remedy}, or write down how it moves under drain.workloads")
        if d.code == "local-storage"
        else d
        for d in decisions
        if d.code not in spared
    )


def _planned(
    pod: Pod, act: Act, decisions: tuple[Decision, ...], gang: Gang | None, ctx: Context, turns: Turns
) -> PlannedPod:
    code = next((d.code for d in decisions if d.act is act), "")
    turn, waits = (1, "") if gang or pod.finished else turns.take(pod, ctx.coverage.of(pod))
    if gang is not None and gang.mode in (MoveMode.LEAVE, MoveMode.WAIT):
        act, waits = Act.WAIT, gang.object
    return PlannedPod(
        pod=pod.key,
        uid=pod.uid,
        node=pod.node,
        act=act,
        turn=turn,
        waits_for=waits,
        code=code,
        gang=gang.object if gang else "",
        last=drains_last(pod),
    )


def leaving(snapshot: Snapshot, nodes: Iterable[str]) -> list[Pod]:
    """Pods that must be elsewhere before their node goes."""
    return [p for p in snapshot.on(nodes) if not p.mirror and not p.finished and not p.of_daemonset]


def _room_not_kept(
    snapshot: Snapshot,
    gangs: Sequence[Gang],
    nodes: Sequence[str],
    target: TargetShape | None,
    target_nodes: Sequence[str],
) -> list[Finding]:
    """Loose pods leave before gangs: where both do not fit beside each other, they may take a gang's room."""
    moving = [g for g in gangs if g.mode not in (MoveMode.LEAVE, MoveMode.WAIT)]
    members = [p for g in moving for p in as_moved(g, target)]
    own = {p.uid for g in gangs for p in g.pods}
    loose = [p for p in leaving(snapshot, nodes) if p.uid not in own]
    if not members or not loose or target is None or not target.allocatable:
        return []
    if room_is_safe(members, loose, snapshot, target, target_nodes):
        return []
    return [
        Finding(
            level=Level.WARN,
            code="gang-room-not-kept",
            object=and_more([g.object for g in moving], 3),
            observed=f"{plural(len(members), 'pod')} of gangs and {plural(len(loose), 'other pod')} do not fit beside "
            f"each other on {plural(len(target_nodes) or target.nodes, 'target node')}; the others leave first",
            expected="nodes for the gangs alone, and room for all others on the rest",
            remedy="raise target.nodes, or scale down what can be spared; a gang that finds no room is not stopped, "
            "and the move ends there",
        )
    ]


def _long_graces(snapshot: Snapshot, drain: Drain, nodes: Iterable[str]) -> list[Finding]:
    """Pods that may rightly take longer to end than we wait for them: told once for each workload."""
    graces: dict[str, int] = {}
    for pod in snapshot.on(nodes):
        if pod.grace > drain.pod_deadline.total_seconds() and not (pod.mirror or pod.finished or pod.of_daemonset):
            root = snapshot.root(pod.owner)
            name = root.object if root else f"pod {pod.key}"
            graces[name] = max(pod.grace, graces.get(name, 0))
    return [
        Finding(
            level=Level.WARN,
            code="grace-past-deadline",
            object=name,
            observed=f"its pods may take {timedelta(seconds=grace)} to end, and are waited for {drain.pod_deadline}",
            remedy="raise drain.pod_deadline above that, or lower terminationGracePeriodSeconds",
        )
        for name, grace in graces.items()
    ]


def _missing_nodes(snapshot: Snapshot, names: Iterable[str]) -> list[Finding]:
    return [
        Finding(
            level=Level.WARN,
            code="node-gone",
            object=f"node {name}",
            observed="is not in the cluster",
            remedy="kubectl get nodes",
        )
        for name in sorted(set(names) - set(snapshot.node_by_name))
    ]


def _sorted(findings: list[Finding]) -> list[Finding]:
    order = (Level.BLOCK, Level.WARN, Level.INFO)
    told_once = dict.fromkeys(findings)  # a flavour of several gangs
    return sorted(told_once, key=lambda f: (order.index(f.level), f.code, f.object))
