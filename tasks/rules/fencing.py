"""What fencing and cordoning change on a node, and how it is put back. Pure: a node's JSON in, a merge patch out.

The prior state is written into the node itself, in the same patch as the change, so that whoever finds the node
after a crash knows what to restore.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from infra.errors import Refused
from infra.model.record import FENCE_TAINT, PRIOR, RUN

EXCLUDE_FROM_LB = "node.kubernetes.io/exclude-from-external-load-balancers"
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KARPENTER_KEEP = "karpenter.sh/do-not-disrupt"

DRAIN = "drain-"  # what the name of a drain on its own begins with

Raw = Mapping[str, Any]


def prior_of(node: Raw, run: str) -> dict[str, Any] | None:
    """The state before this run, or None when the run has not touched the node. Raises Refused for another run's."""
    text = ((node.get("metadata") or {}).get("annotations") or {}).get(PRIOR)
    if not text:
        return None
    try:
        prior = json.loads(text)
    except ValueError:
        prior = None
    name = node["metadata"]["name"]
    if not isinstance(prior, dict) or "run" not in prior:
        raise Refused(
            f"node {name}",
            f"annotation {PRIOR} is unreadable: {text[:80]!r}",
            expected="JSON that poolshift wrote",
            remedy=f"see what it was like before, and put it back: kubectl uncordon {name}; kubectl taint node {name} "
            f"{FENCE_TAINT}-; then: kubectl annotate node {name} {PRIOR}-; kubectl label node {name} {RUN}-",
        )
    if prior["run"] != run:
        raise Refused(
            f"node {name}",
            f"is held by run {prior['run']}",
            expected=f"no run, or {run}",
            remedy=f"let it end, or: {end_words(str(prior['run']), name)}",
        )
    return prior


def end_words(run: str, node: str) -> str:
    """How what a run holds on a node is ended: a drain on its own is none that could be rolled back."""
    if run.startswith(DRAIN):
        return f"poolshift drain {node} --take-over, if it was killed on another machine"
    return f"poolshift rollback {run}"


def fence_patch(node: Raw, run: str) -> dict[str, Any] | None:
    """Our taint, the autoscaler's hands off, and the memory of both. None when all is there."""
    prior = prior_of(node, run)
    taints = list((node.get("spec") or {}).get("taints") or ())
    ours = next((t for t in taints if t.get("key") == FENCE_TAINT), None)
    if ours is not None and ours.get("value") != run:
        raise Refused(
            f"node {node['metadata']['name']}",
            f"is fenced by run {ours.get('value')}",
            expected=f"no fence, or that of {run}",
            remedy=f"poolshift rollback {ours.get('value')}",
        )
    patch = _marks(node, run, prior, annotations={SCALE_DOWN_DISABLED: "true"}, more={"taint": True})
    if ours is None:
        patch = patch or {}
        patch["spec"] = {"taints": [*taints, {"key": FENCE_TAINT, "value": run, "effect": "NoSchedule"}]}
    return patch


def guard_patch(node: Raw, run: str) -> dict[str, Any] | None:
    """Keep autoscalers from removing a node of the target pool while it is still empty."""
    keep = {SCALE_DOWN_DISABLED: "true", KARPENTER_KEEP: "true"}
    return _marks(node, run, prior_of(node, run), annotations=keep)


def cordon_patch(node: Raw, run: str) -> dict[str, Any] | None:
    """Unschedulable and out of the load balancers. None when it is so and the memory of it is stored."""
    prior = prior_of(node, run)
    more: dict[str, Any] = {"cordoned": True}
    unschedulable = bool((node.get("spec") or {}).get("unschedulable"))
    if unschedulable and not (prior or {}).get("cordoned"):
        more["unschedulable"] = True  # cordoned by somebody since our first mark: that cordon is theirs
    patch = _marks(node, run, prior, labels={EXCLUDE_FROM_LB: "true"}, more=more)
    if not unschedulable:
        patch = patch or {}
        patch["spec"] = {"unschedulable": True}
    return patch


def adopt_patch(node: Raw, old: str, new: str) -> dict[str, Any] | None:
    """What run `old` changed on a node, and its memory of what was before, become `new`'s. None: it is not `old`'s."""
    if ((node.get("metadata") or {}).get("labels") or {}).get(RUN) != old or (prior := prior_of(node, old)) is None:
        return None
    memory = json.dumps({**prior, "run": new}, sort_keys=True, separators=(",", ":"))
    return {"metadata": {"labels": {RUN: new}, "annotations": {PRIOR: memory}}}


def _marks(
    node: Raw,
    run: str,
    prior: Mapping[str, Any] | None,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Set labels and annotations, remembering what each was before."""
    meta = node.get("metadata") or {}
    have_labels, have_notes = meta.get("labels") or {}, meta.get("annotations") or {}
    new_labels = {**(labels or {}), RUN: run}
    new_notes = dict(annotations or {})
    memory: dict[str, Any] = dict(
        prior or {"run": run, "unschedulable": bool((node.get("spec") or {}).get("unschedulable"))}
    )
    memory["labels"] = {k: have_labels.get(k) for k in new_labels} | dict(memory.get("labels") or {})
    memory["annotations"] = {k: have_notes.get(k) for k in new_notes} | dict(memory.get("annotations") or {})
    memory.update(more or {})
    set_labels = {k: v for k, v in new_labels.items() if have_labels.get(k) != v}
    set_notes = {k: v for k, v in new_notes.items() if have_notes.get(k) != v}
    if prior != memory:
        set_notes[PRIOR] = json.dumps(memory, sort_keys=True, separators=(",", ":"))
    if not set_labels and not set_notes:
        return None
    return {"metadata": {k: v for k, v in (("labels", set_labels), ("annotations", set_notes)) if v}}


def restore_patch(node: Raw, run: str, *, keep_cordon: bool = False) -> dict[str, Any] | None:
    """Exactly the state before the run; what others have changed since is theirs. None when the run left no mark.

    With `keep_cordon` the node stays unschedulable and only our notes go (a stand-alone drain that succeeded).
    """
    prior = prior_of(node, run)
    if prior is None:
        return None
    meta, spec = node.get("metadata") or {}, node.get("spec") or {}
    have_labels, have_notes = meta.get("labels") or {}, meta.get("annotations") or {}
    labels = {
        k: v
        for k, v in (prior.get("labels") or {}).items()
        if have_labels.get(k) == (run if k == RUN else "true") and have_labels.get(k) != v
    }
    notes: dict[str, Any] = {
        k: v
        for k, v in (prior.get("annotations") or {}).items()
        if have_notes.get(k) == "true" and have_notes.get(k) != v
    }
    notes[PRIOR] = None
    patch: dict[str, Any] = {"metadata": {"labels": labels, "annotations": notes}}
    changed: dict[str, Any] = {}
    taints = list(spec.get("taints") or ())
    left = [t for t in taints if not (t.get("key") == FENCE_TAINT and t.get("value") == run)]
    if len(left) != len(taints):
        changed["taints"] = left or None
    if prior.get("cordoned") and not prior.get("unschedulable") and spec.get("unschedulable") and not keep_cordon:
        changed["unschedulable"] = None
    if changed:
        patch["spec"] = changed
    return patch
