"""Which pods leave only because the spec says that something may be lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from infra.model.workload import Snapshot
from tasks.rules.decision import Act, Allowed, Context
from tasks.rules.drain import decide


def forced_pods(snapshot: Snapshot, nodes: Iterable[str], allowed: Allowed) -> dict[str, str]:
    """Pods on the nodes that nothing but an opt-in lets go: NAMESPACE/NAME to what is lost or overruled."""
    strict = Context(
        snapshot=snapshot, allowed=replace(allowed, bare_pods=False, empty_dir=False, do_not_disrupt=False)
    )
    lenient = Context(snapshot=snapshot, allowed=allowed)
    found: dict[str, str] = {}
    for pod in snapshot.on(nodes):
        held = {d.code for d in decide(pod, lenient) if d.act is Act.BLOCK}
        overruled = [d for d in decide(pod, strict) if d.act is Act.BLOCK and d.code not in held]
        if overruled:
            found[pod.key] = "; ".join(f"{d.code}: {d.reason}" for d in overruled)
    return found
