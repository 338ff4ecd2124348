"""May a pod leave as far as its budget goes, and if not, what holds the budget closed? Pure."""

from __future__ import annotations

from infra.model.workload import Pod
from tasks.rules.budgets import Room, patch, spends
from tasks.rules.decision import Act, Context, Decision
from tasks.rules.wording import and_more

_POLICY = "unhealthyPodEvictionPolicy"
_CORDONED = "node(s) were unschedulable"  # the scheduler's words for nodes that are cordoned


def behind_budget(pod: Pod, ctx: Context) -> Decision | None:
    """Refused for good, for now, or until pods are mended; None where no budget holds it."""
    over = ctx.coverage.of(pod)
    if not over or pod.phase == "Pending" or pod.terminating:
        return None
    names = [b.key for b in over]
    if len(over) > 1:
        return Decision(
            act=Act.BLOCK,
            code="multiple-pdb",
            reason=f"{len(over)} budgets select it ({', '.join(names)}): the eviction API refuses that for good",
            remedy="make one of their selectors narrower",
            detail={"budgets": names},
        )
    found = ctx.rooms[names[0]]
    if spends(pod, found) is False:
        return None
    detail = {"budgets": names, "needed": found.desired, "healthy": found.healthy, "expected": found.expected}
    if not found.never and found.allowed is None:
        return Decision(
            act=Act.WAIT,
            code="pdb-unknown",
            reason=f"budget {names[0]} "
            + (
                f"says {found.budget.allowed} disruptions, which nobody counts"
                if (found.budget.allowed or 0) < 0
                else "has changed and is not counted yet"
            ),
            remedy=f"kubectl get pdb -n {found.budget.namespace} {found.budget.name} -o yaml",
            detail=detail,
        )
    if not found.never and (found.allowed or 0) > 0:
        return None
    if not pod.ready or (not found.never and found.unhealthy and found.healthy < found.expected):
        reason, remedy = _unhealthy(found, ctx)
        return Decision(
            act=Act.BLOCK if found.never else Act.WAIT,
            code="pdb-unhealthy-pods",
            reason=reason,
            remedy=remedy,
            detail={**detail, "unhealthy": list(found.unhealthy)},
        )
    if found.never and found.another_helps and surging(pod, ctx):
        return Decision(
            act=Act.WAIT,
            code="surge-first",
            reason=f"budget {names[0]}: {found.never}; a second replica is started first",
            detail=detail,
        )
    if found.never:
        return Decision(
            act=Act.BLOCK,
            code="pdb-never",
            reason=f"budget {names[0]}: {found.never}",
            remedy=found.remedy,
            detail=detail,
        )
    return Decision(
        act=Act.WAIT,
        code="pdb",
        reason=f"{found.wording}: no eviction is allowed now",
        remedy=f"kubectl get pdb -n {found.budget.namespace} {found.budget.name}",
        detail=detail,
    )


def surging(pod: Pod, ctx: Context) -> bool:
    """Is it the one replica of a Deployment that may run two for a while, and may we let it?"""
    root = ctx.snapshot.root(pod.owner)
    return ctx.allowed.surge and root is not None and root.kind == "Deployment" and root.surge and root.replicas == 1


def _unhealthy(found: Room, ctx: Context) -> tuple[str, str]:
    """(reason, remedy) of a budget whose pods are not ready: to be mended where they run, to be given room else."""
    reason, remedies = f"{found.wording}; not ready: {and_more(found.unhealthy, 3)}", []
    if len(found.unplaced) < len(found.unhealthy):
        policy = found.budget.unhealthy_policy
        reason += f" (policy {policy})"
        let = "" if policy == "AlwaysAllow" else f", or: {patch(found.budget, **{_POLICY: 'AlwaysAllow'})}"
        remedies.append(f"mend those pods{let}")
    if found.unplaced:
        homeless = found.unplaced[0]
        said = homeless.unschedulable.partition(". ")[0].rstrip(".")  # what follows is of preemption
        reason += f"; {homeless.key} is on no node: {said or 'the scheduler has not said why'}"
        remedies.append(_room_for(homeless, ctx))
    return reason, "; ".join(remedies)


def _room_for(pod: Pod, ctx: Context) -> str:
    """What gives room to a pod that no node takes: whose cordons keep it out, or that what is open is full."""
    others, by_run = ctx.cordoned
    if _CORDONED not in pod.unschedulable or not (others or by_run):
        return f"free room or add nodes where it may run: kubectl describe pod -n {pod.namespace} {pod.name}"
    if others:
        return f"give it room: add nodes, or open what no run of poolshift has cordoned: {_uncordon(others)}"
    run, nodes = min(by_run.items(), key=lambda held: (held[0] == ctx.run, held[0]))
    if run == ctx.run:
        return "give it room: add nodes, or drain fewer at a time; its cordons keep the others closed"
    return f"give it room: add nodes, or, if {run} has ended, open what it left closed: {_uncordon(nodes)}"


def _uncordon(nodes: list[str], limit: int = 5) -> str:
    more = f" (and {len(nodes) - limit} more)" if len(nodes) > limit else ""
    return f"kubectl uncordon {' '.join(nodes[:limit])}{more}"
