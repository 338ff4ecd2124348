"""Workloads whose pods stop and start together: found by owner, judged as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from infra.model.gangs import KUEUE_JOB_UID, KUEUE_QUEUE, GangKind, Means, gang_kind
from infra.model.queues import Flavor, Queue
from infra.model.spec import Drain, MoveMode, WorkloadRule
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot, Workload
from tasks.rules.placement import TargetShape, place, without_room
from tasks.rules.queues import Taken, admitted_pod, leads, leads_to, passes_our_fence, quota_of, why_not
from tasks.rules.rehoming import rehomed_pod, still_pinned
from tasks.rules.wording import and_more, plural, span

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A workload that moves as one.

    `root` is the topmost owner (annotations go there); `switch` is the object that is suspended: the root itself, or
    the Kueue Workload that owns the root's suspend switch. `pods` are all live members, on whatever node.
    `source` are the nodes that are left. `queue` is Kueue's, where that switches it, and `here` its flavours that lead
    to any of them.
    """

    root: Workload
    kind: GangKind
    switch: Workload
    switch_kind: GangKind
    pods: tuple[Pod, ...]
    rule: WorkloadRule
    source: frozenset[str] = frozenset()
    queue: Queue | None = None
    here: tuple[Flavor, ...] = ()

    @property
    def object(self) -> str:
        """As errors name it."""
        return self.root.object

    @property
    def mode(self) -> MoveMode:
        """How it leaves."""
        return self.rule.mode

    @property
    def ranks(self) -> int:
        """How many pods must run again."""
        return max(self.root.replicas, 1)


def find_gangs(snapshot: Snapshot, drain: Drain, nodes: Iterable[str], source: Iterable[str] = ()) -> tuple[Gang, ...]:
    """Gangs with at least one live pod on the nodes, sorted by name. Jobs of one plain pod are no gang.

    `source` are all nodes that are left, where these are not all.
    """
    nodes = tuple(nodes)
    left = frozenset((*nodes, *source))
    roots: dict[str, Workload] = {}
    for pod in snapshot.on(nodes):
        root = snapshot.root(pod.owner)
        if root is not None and not pod.finished and gang_kind(root.api_version, root.kind) is not None:
            roots[root.uid] = root
    if not roots:
        return ()
    members: dict[str, list[Pod]] = {uid: [] for uid in roots}
    for pod in snapshot.pods:
        root = snapshot.root(pod.owner)
        if root is not None and root.uid in members and not pod.finished:
            members[root.uid].append(pod)
    found = (_gang(root, members[uid], snapshot, drain, left) for uid, root in roots.items())
    return tuple(sorted((g for g in found if g is not None), key=lambda g: (g.root.namespace, g.root.name)))


def _gang(root: Workload, pods: Sequence[Pod], snapshot: Snapshot, drain: Drain, left: frozenset[str]) -> Gang | None:
    kind = gang_kind(root.api_version, root.kind)
    if kind is None:
        return None
    gpus = any(pod.requests.get(r, 0) for pod in pods for r in GPU_RESOURCES)
    rule = next(
        (r for r in drain.workloads if (r.namespace, r.name, r.kind) == (root.namespace, root.name, root.kind)),
        None,
    )
    if kind.group == "batch" and rule is None and not (root.indexed or root.replicas > 1 or gpus):
        return None
    if rule is None:
        mode = MoveMode.CHECKPOINT if gpus else MoveMode.RESTART
        rule = WorkloadRule(namespace=root.namespace, name=root.name, kind=root.kind, mode=mode)
    switch, switch_kind = root, kind
    if KUEUE_QUEUE in root.labels:
        for workload in snapshot.workloads:
            if workload.kind == "Workload" and not workload.finished and _stands_for(workload, root):
                row = gang_kind(workload.api_version, "Workload")
                if row is not None:
                    switch, switch_kind = workload, row
    queue = snapshot.queues.get((root.namespace, switch.queue)) if switch is not root else None
    return Gang(
        root=root,
        kind=kind,
        switch=switch,
        switch_kind=switch_kind,
        pods=tuple(pods),
        rule=rule,
        source=left,
        queue=queue,
        here=leads_to(queue, [n for name in left if (n := snapshot.node_by_name.get(name))]) if queue else (),
    )


def _stands_for(workload: Workload, root: Workload) -> bool:
    owner = workload.owner
    return workload.labels.get(KUEUE_JOB_UID) == root.uid or (owner is not None and owner.uid == root.uid)


def judge_gang(
    gang: Gang,
    snapshot: Snapshot,
    target: TargetShape | None,
    target_nodes: Sequence[str] = (),
    before: Sequence[Pod] = (),
    taken: Taken = MappingProxyType({}),
) -> list[Finding]:
    """Everything to know before a gang is stopped.

    Room is judged for the whole gang as things stand, with the pods `before` (gangs that go first) placed as well, and
    with the quota that they have `taken`.
    """
    found = []
    match gang.mode:
        case MoveMode.LEAVE:
            found.append(_finding(gang, Level.WARN, "gang-left", "its owner moves it (mode leave)"))
        case MoveMode.WAIT:
            found.append(_finding(gang, Level.WARN, "gang-waits", f"is waited for, at most {span(gang.rule.max_wait)}"))
        case MoveMode.CHECKPOINT if gang.rule.checkpoint.via == "annotation":
            seen = gang.rule.checkpoint.seen_annotation
            if seen not in gang.root.annotations:
                found.append(
                    _finding(
                        gang,
                        Level.WARN,
                        "checkpoint-never-seen",
                        f"has never reported a checkpoint in annotation {seen}: it will not be stopped without one",
                        "have it write the time of its newest checkpoint there, or give it mode restart, wait or leave",
                    )
                )
    if gang.mode in (MoveMode.LEAVE, MoveMode.WAIT):
        return found
    found += _unadmitted(gang, snapshot, target, taken) + _closed(gang, snapshot, target, target_nodes)
    homeless = _homeless([*before, *as_moved(gang, target)], snapshot, target, target_nodes)
    if homeless:
        found.append(
            _finding(
                gang,
                Level.BLOCK,
                "gang-without-room",
                (
                    f"{len(homeless)} of its {plural(len(gang.pods), 'pod')} "
                    "find no room on the target when all are placed"
                ),
                "make the target larger, or free it",
            )
        )
    left = gang.root.restarts_left
    if gang.switch_kind.means is Means.COMMAND and left is not None and left < 2:
        found.append(
            _finding(
                gang,
                Level.BLOCK,
                "no-restarts-left",
                f"has {plural(left, 'retry')} left: Volcano counts its resumption as one, and fails it at the last",
                "give it mode wait or leave in its rule: nobody may raise maxRetry of a job that exists",
            )
        )
    if gang.switch_kind.means is not Means.SUSPEND:
        return found
    if left == 0 and not gang.root.ignores_disruption:
        found.append(
            _finding(
                gang, Level.WARN, "no-restarts-left", "has no restart left: one failed pod after the move ends it",
                "raise backoffLimit or maxRestarts first",
            )
        )  # fmt: skip
    return found


def _unadmitted(gang: Gang, snapshot: Snapshot, target: TargetShape | None, taken: Taken) -> list[Finding]:
    """Kueue alone starts what it has admitted: stopped, it must be sure to come up on the target."""
    if KUEUE_QUEUE not in gang.root.labels:
        return []
    if gang.queue is None and (gang.switch is not gang.root or "Workload" in snapshot.unread):
        refused = snapshot.unread.get("Workload") or snapshot.unread.get("ResourceFlavor")
        kinds = "workloads, localqueues, clusterqueues and resourceflavors of kueue.x-k8s.io"
        why, remedy = refused or "it was not read", f"allow get and list of {kinds}, or add them to the dump"
        if not refused and "ResourceFlavor" in snapshot.kinds:
            why, remedy = "it is not there", f"create it: kubectl -n {gang.root.namespace} get localqueues"
        name = gang.root.labels[KUEUE_QUEUE]
        return [
            _finding(gang, Level.BLOCK, "queue-unread", f"where Kueue's queue {name} leads is unknown: {why}", remedy)
        ]
    if gang.queue is None:
        return []
    if gang.queue.missing:
        name, gone = gang.queue.name, ", ".join(gang.queue.missing)
        why, remedy = (
            f"where Kueue's queue {name} leads is unknown: {gone} is not there",
            "create it, or add it to the dump",
        )
        return [_finding(gang, Level.BLOCK, "queue-unread", why, remedy)]
    if target is None:
        return []
    gpus = {r for p in gang.pods for r in GPU_RESOURCES if p.requests.get(r, 0)}
    why = why_not(_whole(gang), gang.switch, gang.queue, target, taken, gpus)
    if not why:
        open_to_it = [f.name for f in _to_hold(gang, target) if passes_our_fence(f, gang.pods)]
        if not open_to_it:
            return []
        why = (
            f"it, or the flavour, tolerates every taint, so that nothing keeps it from flavour {', '.join(open_to_it)}"
        )
        why = f"Kueue would start it on the source again: {why}"
        remedy = "give it tolerations with a key, or mode wait or leave in its rule"
        return [_finding(gang, Level.BLOCK, "gang-without-flavor", why, remedy)]
    remedy = "give its cluster queue a ResourceFlavor with labels of the target's nodes, and quota"
    return [_finding(gang, Level.BLOCK, "gang-without-flavor", f"Kueue would not start it again: {why}", remedy)]


def _whole(gang: Gang) -> tuple[Pod, ...]:
    """All pods that Kueue admits it with. For one that is not there just now the largest of the others stands."""
    short = gang.ranks - len(gang.pods)
    if short <= 0 or not gang.pods:
        return gang.pods
    largest = max(gang.pods, key=lambda p: [p.requests.get(r, 0) for r in (*GPU_RESOURCES, "cpu", "memory")])
    return gang.pods + (largest,) * short


def quota_taken(gang: Gang, target: TargetShape | None, taken: Taken) -> Taken:
    """`taken` with what this gang takes of its queue's quota on the target."""
    if gang.queue is None or target is None:
        return taken
    more = quota_of(_whole(gang), gang.switch, gang.queue, target, taken)
    return {**taken, **{key: taken.get(key, 0) + amount for key, amount in more.items()}}


def _closed(gang: Gang, snapshot: Snapshot, target: TargetShape | None, target_nodes: Sequence[str]) -> list[Finding]:
    """Flavours that are closed to everybody while work leaves, and whom else that touches."""
    found = []
    for flavor in _to_hold(gang, target):
        apart = gang.source.union(target_nodes)
        others = [n.name for n in snapshot.nodes if n.name not in apart and flavor.labels.items() <= n.labels.items()]
        text = "Kueue admits nothing to it while the source is left"
        if others:
            text += f", and so nothing new to nodes that stay: {and_more(sorted(others), 5)}"
        found.append(
            Finding(level=Level.WARN, code="flavor-closed", object=f"resourceflavor {flavor.name}", observed=text)
        )
    return found


def _to_hold(gang: Gang, target: TargetShape | None) -> list[Flavor]:
    return [f for f in gang.here if target is not None and not leads(f, target)]


def held_flavors(gang: Gang, target: TargetShape | None) -> list[str]:
    """Flavours that lead to the source and not to the target: Kueue must not choose them again."""
    return [f.name for f in _to_hold(gang, target)]


def pinned(gang: Gang, target: TargetShape | None) -> Finding | None:
    """Its pods may not run on the target: stopped, it would not come up again. None when they may, or will."""
    if target is None or gang.mode in (MoveMode.LEAVE, MoveMode.WAIT):
        return None
    if gang.switch is not gang.root and gang.queue is None:
        return None  # which of its labels are Kueue's is unknown, and said so
    why = still_pinned(as_moved(gang, target), target)
    if not why:
        return None
    kind, remedy = gang.switch_kind, "give the target pool that label, or change its template"
    changed = [rehomed_pod(p, target, affinity=kind.affinity) for p in gang.pods] if kind.templates else gang.pods
    if not still_pinned(changed, target):
        remedy = "allow it: rehome: true in its rule under drain.workloads; or change its template"
    elif kind.templates and not kind.affinity:
        remedy = f"give the target pool that label; a {kind.kind} lets nobody change its node affinity, stopped or not"
    return _finding(gang, Level.BLOCK, "gang-pinned", why, remedy)


def rehomes(gang: Gang) -> bool:
    """Is its template changed on the way? Only where the spec allows it and the kind can be changed while stopped."""
    return gang.rule.rehome and bool(gang.switch_kind.templates)


def as_moved(gang: Gang, target: TargetShape | None) -> tuple[Pod, ...]:
    """Its pods as they will be: by its template of now, or the one that it gets on the way."""
    return tuple(member_as_moved(gang, p, target) for p in gang.pods)


def member_as_moved(gang: Gang, pod: Pod, target: TargetShape | None) -> Pod:
    """One of its pods as it will be."""
    if gang.queue and target:
        return admitted_pod(pod, gang.switch, gang.queue, target)
    return rehomed_pod(pod, target, affinity=gang.switch_kind.affinity) if target and rehomes(gang) else pod


def ended_words(ended: Mapping[str, Any]) -> str:
    """How a gang's move ended, in a phrase; from a report's JSON."""
    if ended.get("ended"):
        return f"moved, and came to its end ({ended['ended']})"
    if ended.get("running"):
        saved = f", checkpoint of {ended['checkpoint']} seen" if ended.get("checkpoint") else ""
        return f"moved, {plural(int(ended.get('ranks') or 0), 'rank')}{saved}"
    return str(ended.get("reason") or ("left by itself" if ended.get("end") == "drained" else ended.get("end") or ""))


def stop_words(gang: Gang) -> str:
    """How a person stops it by hand: the command of its kind."""
    return f"stop {gang.object} after a checkpoint: {_by_hand(gang, stop=True)}"


def start_words(gang: Gang) -> str:
    """How a person starts it again after `stop_words`: the command of its kind."""
    what = f"start {gang.object} again"
    if gang.switch_kind.means is Means.SCALE:
        what += " (N: its replicas of before)"
    return f"{what}: {_by_hand(gang, stop=False)}"


def _by_hand(gang: Gang, *, stop: bool) -> str:
    kind, at = gang.switch_kind, gang.switch
    values: Mapping[Means, tuple[object, object]] = {
        Means.SUSPEND: (True, False),
        Means.ACTIVE: (False, True),
        Means.SCALE: (0, "N"),
    }
    if kind.means not in values:  # Volcano's switch is no field: its own tool makes the Command object
        return f"vcctl job {'suspend' if stop else 'resume'} --namespace {at.namespace} --name {at.name}"
    patch = json.dumps(kind.switch(values[kind.means][0 if stop else 1]), separators=(",", ":")).replace('"N"', "N")
    return f"kubectl -n {at.namespace} patch {kind.plural}.{kind.group} {at.name} --type merge -p '{patch}'"


def _homeless(
    pods: Sequence[Pod], snapshot: Snapshot, target: TargetShape | None, target_nodes: Sequence[str]
) -> tuple[Pod, ...]:
    if target_nodes:
        return without_room(pods, snapshot, target_nodes)
    if target is None or not target.allocatable:
        return ()
    return place(pods, [dict(target.allocatable) for _ in range(target.nodes)])


def _finding(gang: Gang, level: Level, code: str, observed: str, remedy: str = "") -> Finding:
    return Finding(level=level, code=code, object=gang.object, observed=observed, remedy=remedy)
