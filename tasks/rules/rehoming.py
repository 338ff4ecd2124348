"""Where a gang's pods are pinned to the source pool, and what their template must say to land on the target. Pure.

Only what the two pools differ in is changed: a selector that both satisfy stays as its owner wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from infra.model.gangs import GangKind
from infra.model.workload import Pod, Requirement, Toleration
from tasks.rules.placement import TargetShape, terms_may_hold, untolerated, wrong_label

Raw = dict[str, Any]


def rehomed_pod(pod: Pod, target: TargetShape) -> Pod:
    """The pod as its changed template would make it: for judging room and fit before anything is stopped."""
    selector = {k: target.labels.get(k, v) for k, v in pod.node_selector.items()}
    terms = tuple(tuple(_moved(r, target) for r in term) for term in pod.affinity)
    tolerations = pod.tolerations
    while (taint := untolerated(replace(pod, tolerations=tolerations), target.taints)) is not None:
        tolerations += (Toleration(key=taint.key, value=taint.value, effect=taint.effect),)
    return replace(
        pod,
        node_selector=selector,
        affinity=pod.affinity if terms_may_hold(pod.affinity, target) else terms,
        tolerations=tolerations,
    )


def still_pinned(pods: Iterable[Pod], target: TargetShape) -> str:
    """What would keep a pod off the target; "" when all may go."""
    for pod in pods:
        if wrong := wrong_label(pod, target):
            return f"its {wrong} does not match the target pool"
        if taint := untolerated(pod, target.taints):
            return f"it does not tolerate the target's taint {taint.key}={taint.value}:{taint.effect}"
    return ""


def rehome_patch(row: GangKind, raw: Mapping[str, Any], target: TargetShape) -> Raw | None:
    """The merge patch of the workload's templates, None when they fit as they are. Lists are given whole."""
    spec = deepcopy(dict(raw.get("spec") or {}))
    changed: set[str] = set()
    for path in row.templates:
        for pod_spec in _at(spec, path):
            if _rehome(pod_spec, target):
                changed.add(path[0])
    return {"spec": {key: spec[key] for key in sorted(changed)}} if changed else None


def _at(tree: Any, path: Sequence[str]) -> list[Raw]:
    """Pod specs under a path; `*` is every item of a list or a mapping. What is not there is left out."""
    if not path:
        return [tree] if isinstance(tree, dict) else []
    if path[0] == "*":
        items = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
        return [found for item in items for found in _at(item, path[1:])]
    return _at(tree.get(path[0]), path[1:]) if isinstance(tree, dict) else []


def _rehome(spec: Raw, target: TargetShape) -> bool:
    """Change one pod spec in place; was anything changed?"""
    changed = False
    for key, value in (spec.get("nodeSelector") or {}).items():
        wanted = target.labels.get(key)
        if wanted is not None and wanted != value:
            spec["nodeSelector"][key] = wanted
            changed = True
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    terms = required.get("nodeSelectorTerms") or []
    read = tuple(
        tuple(
            Requirement(key=e["key"], operator=e["operator"], values=tuple(e.get("values") or ()))
            for e in term.get("matchExpressions") or ()
        )
        for term in terms
    )
    if read and not terms_may_hold(read, target):
        for term in terms:
            for expression in term.get("matchExpressions") or ():
                wanted = target.labels.get(expression["key"])
                if expression["operator"] == "In" and wanted is not None and wanted not in expression["values"]:
                    expression["values"] = [wanted]
                    changed = True
    tolerations = list(spec.get("tolerations") or ())
    for taint in target.taints:
        known = [
            Toleration(
                key=t.get("key") or "",
                operator=t.get("operator") or "Equal",
                value=t.get("value") or "",
                effect=t.get("effect") or "",
            )
            for t in tolerations
        ]
        if taint.effect != "PreferNoSchedule" and not any(t.tolerates(taint) for t in known):
            tolerations.append({"key": taint.key, "value": taint.value, "effect": taint.effect})
            changed = True
            spec["tolerations"] = tolerations
    return changed


def _moved(requirement: Requirement, target: TargetShape) -> Requirement:
    wanted = target.labels.get(requirement.key)
    if requirement.operator == "In" and wanted is not None and wanted not in requirement.values:
        return replace(requirement, values=(wanted,))
    return requirement
