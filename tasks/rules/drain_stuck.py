"""Pods that are leaving, or cannot: held by a finalizer, by a mount, by a process, on a dead node. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.model.workload import Pod
from tasks.rules.decision import Act, Context, Decision

STUCK_AFTER = timedelta(minutes=2)  # past the grace period: by then a kubelet has killed and removed what it can


def terminating(pod: Pod, ctx: Context) -> Decision | None:
    """Is it leaving as it should, or held up, and by what?"""
    if pod.deletion is None:
        return None
    since = _stamp(pod.deletion)
    late = is_late(pod, ctx)
    holding = pod.foreign_finalizers or (pod.finalizers if late and (pod.finished or pod.containers_ended) else ())
    if holding:
        return Decision(
            act=Act.BLOCK,
            code="finalizer",
            reason=f"terminating since {since}, held by finalizer {', '.join(holding)}",
            remedy=f"find the controller of {holding[0]}; it has not finished its clean-up",
            detail={"finalizers": list(holding), "since": since},
        )
    node = ctx.snapshot.node_by_name.get(pod.node)
    if node is not None and not node.ready and late:
        return Decision(
            act=Act.BLOCK,
            code="node-dead",
            reason=f"terminating since {since} on node {node.name}, whose kubelet does not answer",
            remedy=f"when the machine is surely off: kubectl taint node {node.name} "
            "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
            detail={"since": since},
        )
    if late:
        return _stuck(pod, ctx, since)
    return Decision(act=Act.WAIT, code="terminating", reason=f"leaving; its grace ends at {since}")


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_late(pod: Pod, ctx: Context) -> bool:
    """Surely past what a kubelet needs. Of a dump only the latest time it mentions is known, so never too early."""
    return pod.deletion is not None and ctx.now is not None and ctx.now - pod.deletion > STUCK_AFTER


def _stuck(pod: Pod, ctx: Context, since: str) -> Decision:
    drivers = _drivers(pod, ctx)
    code, reason, remedy = "stuck-terminating", "although its containers have ended", f"kubelet of {pod.node}"
    if drivers:
        code, reason = "stuck-unmount", f"its volumes ({', '.join(drivers)}) are not unmounted"
        remedy = f"CSI node pod of {drivers[0]}: kubectl get pods -A --field-selector spec.nodeName={pod.node}"
    elif not pod.containers_ended:
        reason = "its containers do not end: a process hangs in a mount or a device driver, or the kubelet does"
        remedy += ", and for processes in state D"
    return Decision(
        act=Act.BLOCK,
        code=code,
        reason=f"terminating since {since}, {reason}",
        remedy=f"look at the {remedy}",
        detail={"since": since, "drivers": list(drivers)},
    )


def _drivers(pod: Pod, ctx: Context) -> tuple[str, ...]:
    bound = (ctx.snapshot.volume_by_claim.get((pod.namespace, c)) for c in pod.claims)
    return tuple(sorted({v.driver for v in bound if v and v.driver} | set(pod.csi_drivers)))


def dead_node(pod: Pod, ctx: Context) -> Decision | None:
    """Nobody is there to end its containers."""
    node = ctx.snapshot.node_by_name.get(pod.node)
    if node is None or not node.conditions or node.ready:
        return None
    ready = next((c for c in node.conditions if c.type == "Ready"), None)
    if ready is None or ready.status != "Unknown":
        return None
    return Decision(
        act=Act.BLOCK,
        code="node-dead",
        reason=f"node {node.name} has not answered since {_stamp(ready.since) if ready.since else 'an unknown time'}: "
        "an evicted pod would stay Terminating for ever",
        remedy=f"restart the kubelet of {node.name}, or, when the machine is surely off, taint it "
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    )
