"""Workloads whose pods stop and start together: found by owner, judged as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.model.gangs import KUEUE_JOB_UID, KUEUE_QUEUE, GangKind, Means, gang_kind, row_of
from infra.model.queues import Flavor, Queue
from infra.model.spec import Drain, MoveMode, WorkloadRule
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod, Snapshot, Workload
from tasks.rules.placement import TargetShape, place, without_room
from tasks.rules.queues import admitted_pod, leads, leads_to, why_not
from tasks.rules.rehoming import rehomed_pod, still_pinned
from tasks.rules.wording import plural, span

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


@dataclass(frozen=True, kw_only=True)
class Gang:
    """A workload that moves as one.

    `root` is the topmost owner (annotations go there); `switch` is the object that is suspended: the root itself, or
    the Kueue Workload that owns the root's suspend switch. `pods` are all live members, on whatever node.
    `queue` is Kueue's, where that switches it, and `here` its flavours that lead to the nodes where the pods are.
    """

    root: Workload
    kind: GangKind
    switch: Workload
    switch_kind: GangKind
    pods: tuple[Pod, ...]
    rule: WorkloadRule
    uses_gpus: bool
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


def find_gangs(snapshot: Snapshot, drain: Drain, nodes: Iterable[str]) -> tuple[Gang, ...]:
    """Gangs with at least one live pod on the nodes, sorted by name. Jobs of one plain pod are no gang."""
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
    found = (_gang(root, members[uid], snapshot, drain) for uid, root in roots.items())
    return tuple(sorted((g for g in found if g is not None), key=lambda g: (g.root.namespace, g.root.name)))


def _gang(root: Workload, pods: Sequence[Pod], snapshot: Snapshot, drain: Drain) -> Gang | None:
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
        uses_gpus=gpus,
        queue=queue,
        here=leads_to(queue, pods, snapshot.node_by_name) if queue else (),
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
) -> list[Finding]:
    """Everything to know before a gang is stopped.

    Room is judged for the whole gang as things stand, with the pods `before` (gangs that go first) placed as well.
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
    found += _unadmitted(gang, snapshot, target)
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


def _unadmitted(gang: Gang, snapshot: Snapshot, target: TargetShape | None) -> list[Finding]:
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
    why = why_not(gang.pods, gang.switch, gang.queue, target) if gang.queue and target else ""
    if not why:
        return []
    remedy = "give its cluster queue a ResourceFlavor with labels of the target's nodes, and quota"
    return [_finding(gang, Level.BLOCK, "gang-without-flavor", f"Kueue would not start it again: {why}", remedy)]


def held_flavors(gang: Gang, target: TargetShape | None) -> list[str]:
    """Flavours that lead to where it runs now and not to the target: Kueue must not choose them again."""
    return [f.name for f in gang.here if target is not None and not leads(f, target)]


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


def members(pods: Iterable[Pod], noted: Mapping[str, Any]) -> list[Pod]:
    """Live pods of a gang that was noted, old and new: by the label its operator sets, or by the owner it had."""
    kind, namespace, name = root_of(noted)
    owners = set(noted["owners"])
    return [
        p
        for p in pods
        if p.namespace == namespace
        and not p.finished
        and (
            (kind.pod_label and p.labels.get(kind.pod_label) == name) or (p.owner is not None and p.owner.uid in owners)
        )
    ]


def root_of(noted: Mapping[str, Any]) -> tuple[GangKind, str, str]:
    """(kind, namespace, name) of the workload itself."""
    group, kind, namespace, name = noted["root"]
    return row_of(group, kind, noted.get("version", "")), namespace, name


def rule_of(drain: Drain, noted: Mapping[str, Any]) -> WorkloadRule:
    """How a gang that was noted is moved: as the spec says, or as it was begun."""
    _, kind, namespace, name = noted["root"]
    wanted = (namespace, name, kind)
    found = next((r for r in drain.workloads if (r.namespace, r.name, r.kind) == wanted), None)
    if found is not None:
        return found
    mode = MoveMode.CHECKPOINT if noted.get("asked") else MoveMode.RESTART
    return WorkloadRule(namespace=namespace, name=name, kind=kind, mode=mode)


def ended_words(ended: Mapping[str, Any]) -> str:
    """How a gang's move ended, in a phrase; from a report's JSON."""
    if ended.get("running"):
        saved = f", checkpoint of {ended['checkpoint']} seen" if ended.get("checkpoint") else ""
        return f"moved, {plural(int(ended.get('ranks') or 0), 'rank')}{saved}"
    return str(ended.get("reason") or ("left by itself" if ended.get("end") == "drained" else ended.get("end") or ""))


def stop_words(gang: Gang) -> str:
    """How a person stops it by hand: the command, where its switch is a field."""
    kind, at = gang.switch_kind, gang.switch
    values = {Means.SUSPEND: True, Means.ACTIVE: False, Means.SCALE: 0}
    if kind.means not in values:
        return f"stop {gang.object} after a checkpoint"
    patch = json.dumps(kind.switch(values[kind.means]), separators=(",", ":"))
    command = f"kubectl -n {at.namespace} patch {kind.plural}.{kind.group} {at.name} --type merge -p '{patch}'"
    return f"stop {gang.object} after a checkpoint: {command}"


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
