"""May this pod leave its node, and if not, why? An ordered tuple of small pure functions over a snapshot.

`EXEMPT` rules are asked first and the first answer ends the matter (a mirror pod is skipped whatever else it is).
`RULES` are all asked, so that a person sees every reason at once; the strictest answer decides.
"""

from __future__ import annotations

from infra.model.cluster import EMPTY
from infra.model.gangs import gang_kind
from infra.model.verdict import Finding, Level
from infra.model.workload import Pod
from tasks.rules.decision import Act, Context, Decision, Rule
from tasks.rules.drain_budgets import behind_budget, surging
from tasks.rules.drain_stuck import dead_node, is_late, terminating
from tasks.rules.placement import (
    bound_elsewhere,
    bound_to,
    lacking,
    only_on,
    tolerates_everything,
    untolerated,
    wrong_label,
)

_DO_NOT_DISRUPT = ("karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-evict")
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_DRIVER_WORDS = ("csi", "device-plugin", "nvidia-driver", "rdma", "lustre")


def _mirror(pod: Pod, _: Context) -> Decision | None:
    if pod.mirror:
        return Decision(act=Act.SKIP, code="mirror", reason="a static pod: it belongs to its node")
    return None


def _daemonset(pod: Pod, ctx: Context) -> Decision | None:
    """Managed ones stay (the controller would bring them back); an orphan is a pod that nobody brings back."""
    owner = pod.owner
    if owner is None or owner.kind != "DaemonSet":
        return None
    read = "DaemonSet" in ctx.snapshot.kinds
    if owner.uid in ctx.snapshot.workload_by_uid or (not read and ctx.allowed.ignore_daemonsets):
        return Decision(act=Act.SKIP, code="daemonset", reason=f"DaemonSet {owner.name} runs on every node")
    if not read:
        return Decision(
            act=Act.BLOCK,
            code="daemonset",
            reason=f"managed by DaemonSet {owner.name}, which was not among the objects read",
            remedy="read the DaemonSets too, or pass --ignore-daemonsets",
        )
    if ctx.allowed.bare_pods:
        return Decision(act=Act.EVICT, code="daemonset-orphan", reason=f"DaemonSet {owner.name} is gone")
    return Decision(
        act=Act.BLOCK,
        code="daemonset-orphan",
        reason=f"its DaemonSet {owner.name} does not exist: nothing will bring the pod back",
        remedy="delete the pod, or allow drain.force.bare_pods (--force)",
    )


def _finished(pod: Pod, ctx: Context) -> Decision | None:
    if pod.finished and not pod.foreign_finalizers and not (pod.finalizers and is_late(pod, ctx)):
        return Decision(act=Act.EVICT, code="finished", reason=f"{pod.phase}: nothing runs any more")
    return None


def _bare(pod: Pod, ctx: Context) -> Decision | None:
    if pod.owner is not None or ctx.allowed.bare_pods:
        return None
    return Decision(
        act=Act.BLOCK,
        code="unmanaged",
        reason="no controller owns it: evicted, it is gone for good",
        remedy="move it by hand, or allow drain.force.bare_pods (--force)",
    )


def _owner_unread(pod: Pod, ctx: Context) -> Decision | None:
    """May it be of a gang? Whoever must not see that would tear it apart, pod by pod."""
    if ctx.target is None:
        return None  # a drain on its own moves no gangs
    owner = pod.owner
    for _ in range(8):  # a chain of owners is short; a longer one is a cycle
        if owner is None:
            break
        why = ctx.snapshot.unread.get(owner.kind, "")
        if why.startswith("403") and gang_kind(owner.api_version, owner.kind):
            return Decision(
                act=Act.BLOCK,
                code="owner-unread",
                reason=f"whether its {owner.kind} {owner.name} is a gang is unknown: {why}",
                remedy="kubectl auth can-i --list, and infra/deploy/rbac.yaml for what is needed",
            )
        known = ctx.snapshot.workload_by_uid.get(owner.uid)
        owner = known.owner if known else None
    return None


def _empty_dir(pod: Pod, ctx: Context) -> Decision | None:
    """Also medium Memory: what is in it is lost all the same."""
    if not pod.empty_dirs or ctx.allowed.empty_dir:
        return None
    return Decision(
        act=Act.BLOCK,
        code="local-storage",
        reason=f"its emptyDir {', '.join(pod.empty_dirs)} is lost when it leaves",
        remedy="allow drain.force.empty_dir (--delete-emptydir-data)",
        detail={"volumes": list(pod.empty_dirs)},
    )


def _volume(pod: Pod, ctx: Context) -> Decision | None:
    for claim in pod.claims:
        volume = ctx.snapshot.volume_by_claim.get((pod.namespace, claim))
        if volume is not None and bound_to(volume, pod.node):
            return Decision(
                act=Act.BLOCK,
                code="local-volume",
                reason=f"claim {claim} is stored on node {pod.node} alone",
                remedy=f"move the data, then delete claim {pod.namespace}/{claim}",
                detail={"volumes": [claim]},
            )
    if ctx.target is None:
        return None
    volume = bound_elsewhere(pod, ctx.snapshot.volume_by_claim, ctx.target)
    if volume is None:
        return None
    where = " or ".join(str(r) for term in volume.affinity for r in term)
    return Decision(
        act=Act.BLOCK,
        code="zone-bound-volume",
        reason=f"claim {volume.claim} can only be reached where {where}, and the target pool is elsewhere",
        remedy="put the target in that zone, or move the volume by a snapshot",
    )


def _do_not_disrupt(pod: Pod, ctx: Context) -> Decision | None:
    if ctx.allowed.do_not_disrupt:
        return None
    node = ctx.snapshot.node_by_name.get(pod.node)
    for holder, notes in (("", pod.annotations), (f"node {pod.node}: ", node.annotations if node else EMPTY)):
        for key in _DO_NOT_DISRUPT:
            value = str(notes.get(key, ""))
            if value and value != "false":
                return _keep(f"{holder}{key}={value}")
    if pod.annotations.get(_SAFE_TO_EVICT) == "false":
        return _keep(f"{_SAFE_TO_EVICT}=false")
    return None


def _keep(annotation: str) -> Decision:
    return Decision(
        act=Act.BLOCK,
        code="do-not-disrupt-annotation",
        reason=f"asks not to be moved: {annotation}",
        remedy="ask its owner, then remove the annotation or allow drain.force.do_not_disrupt",
        detail={"annotation": annotation},
    )


def _pinned(pod: Pod, ctx: Context) -> Decision | None:
    wrong = wrong_label(pod, ctx.target) if ctx.target else ""
    if not wrong:
        return None
    return Decision(
        act=Act.BLOCK,
        code="pinned",
        reason=f"its {wrong} does not match the target pool",
        remedy="change the owner's template, or give the target pool that label",
    )


def _pinned_to_node(pod: Pod, ctx: Context) -> Decision | None:
    if ctx.target is not None or not only_on(pod, pod.node):
        return None
    return Decision(
        act=Act.EVICT,
        code="pinned-to-node",
        reason=f"may only run on node {pod.node}: its replacement stays Pending while that is cordoned",
        remedy="change the owner's template before the node goes",
    )


def _host_path(pod: Pod, _: Context) -> Decision | None:
    if not pod.host_paths:
        return None
    return Decision(
        act=Act.EVICT,
        code="host-path",
        reason=f"keeps {', '.join(pod.host_paths)} of node {pod.node}: its replacement will not find what is in it",
        remedy="copy the data, or make sure that it is only a cache",
        detail={"paths": list(pod.host_paths)},
    )


def _target_taint(pod: Pod, ctx: Context) -> Decision | None:
    taint = untolerated(pod, ctx.target.taints) if ctx.target else None
    if taint is None:
        return None
    return Decision(
        act=Act.BLOCK,
        code="target-taint",
        reason=f"does not tolerate the target's taint {taint.key}={taint.value}:{taint.effect}",
        remedy="add the toleration to the owner's template, or leave the taint off the target",
    )


def _target_resource(pod: Pod, ctx: Context) -> Decision | None:
    missing = lacking(pod, ctx.target) if ctx.target else None
    if missing is None:
        return None
    resource, asked, offered = missing
    return Decision(
        act=Act.BLOCK,
        code="target-resource",
        reason=f"asks for {asked} {resource}, and a target node offers {offered}",
        remedy="choose a machine type that has it, or change the request",
    )


def _comes_back(pod: Pod, _: Context) -> Decision | None:
    if not tolerates_everything(pod):
        return None
    return Decision(
        act=Act.EVICT,
        code="tolerates-fence",
        reason="tolerates every taint: its replacement may land on the source pool again",
        remedy="give its owner a nodeSelector of the target pool",
    )


def _single(pod: Pod, ctx: Context) -> Decision | None:
    if surging(pod, ctx):
        return None
    owner = ctx.snapshot.workload_by_uid.get(pod.owner.uid) if pod.owner else None
    if owner is None or owner.kind not in ("ReplicaSet", "StatefulSet") or owner.replicas != 1:
        return None
    return Decision(
        act=Act.EVICT,
        code="single-replica",
        reason=f"the only replica of {owner.object}: it is down while it moves",
        remedy="run a second replica during the move",
    )


def _claims_devices(pod: Pod, _: Context) -> Decision | None:
    if not pod.resource_claims:
        return None
    return Decision(
        act=Act.EVICT,
        code="resource-claim",
        reason=f"uses resource claims {', '.join(pod.resource_claims)}: the target needs devices of that class",
        remedy="kubectl get resourceclaims,deviceclasses,resourceslices -A",
    )


EXEMPT: tuple[Rule, ...] = (_mirror, _finished, _daemonset)
RULES: tuple[Rule, ...] = (
    terminating,
    dead_node,
    _bare,
    _owner_unread,
    _empty_dir,
    _volume,
    _do_not_disrupt,
    behind_budget,
    _pinned,
    _pinned_to_node,
    _host_path,
    _target_taint,
    _target_resource,
    _comes_back,
    _single,
    _claims_devices,
)


def decide(pod: Pod, ctx: Context) -> tuple[Decision, ...]:
    """Every rule's answer, in the order of the rules; an exempt pod has one."""
    for rule in EXEMPT:
        if (answer := rule(pod, ctx)) is not None:
            return (answer,)
    if pod.terminating and (answer := terminating(pod, ctx)) is not None:
        return (answer,)
    return tuple(answer for rule in RULES if (answer := rule(pod, ctx)) is not None)


def drains_last(pod: Pod) -> bool:
    """Drivers leave after those who use them: a CSI pod that goes first leaves mounts that nobody can undo."""
    name = pod.name.lower()
    return any(word in name for word in _DRIVER_WORDS)


def finding(pod: Pod, decision: Decision) -> Finding:
    """A decision as a line of a plan."""
    level = {Act.BLOCK: Level.BLOCK, Act.WAIT: Level.WARN, Act.EVICT: Level.WARN, Act.SKIP: Level.INFO}[decision.act]
    return Finding(
        level=Level.INFO if decision.code == "finished" else level,
        code=decision.code,
        object=f"pod {pod.key}",
        observed=decision.reason,
        remedy=decision.remedy,
        since=str(decision.detail.get("since", "")),
    )
