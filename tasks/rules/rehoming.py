"""Where a gang's pods are pinned to the source pool, and what their template must say to land on the target. Pure.

Only what the two pools differ in is changed: a selector that both satisfy stays as its owner wrote it. What is changed
is kept, value by value, so that it can go back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from infra.model.cluster import Toleration
from infra.model.gangs import GangKind
from infra.model.workload import Pod, Requirement
from tasks.rules.placement import TargetShape, terms_may_hold, untolerated, wrong_label

Raw = dict[str, Any]


def rehomed_pod(pod: Pod, target: TargetShape, *, affinity: bool = True) -> Pod:
    """The pod as its changed template would make it: for judging room and fit before anything is stopped.

    Without `affinity` that stays as it is: its kind lets nobody change it.
    """
    selector = {k: target.labels.get(k, v) for k, v in pod.node_selector.items()}
    terms = tuple(tuple(_moved(r, target) for r in term) for term in pod.affinity)
    tolerations = pod.tolerations
    while (taint := untolerated(replace(pod, tolerations=tolerations), target.taints)) is not None:
        tolerations += (Toleration(key=taint.key, value=taint.value, effect=taint.effect),)
    return replace(
        pod,
        node_selector=selector,
        affinity=terms if affinity and not terms_may_hold(pod.affinity, target) else pod.affinity,
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One value of a template: where below spec, what its owner wrote and what we write instead; None is nothing.

    A step of `at` is a key, an index, or the name of a list's item; "-" at the end is an item of a list, wherever.
    """

    at: tuple[str | int, ...]
    was: Any
    now: Any

    def to_dict(self) -> Raw:
        """Plain JSON."""
        return {"at": list(self.at), "was": self.was, "now": self.now}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Change:
        """Raises KeyError for what is no change."""
        return cls(at=tuple(raw["at"]), was=raw["was"], now=raw["now"])

    @property
    def place(self) -> str:
        """The field, as a person looks for it."""
        return ".".join(str(step) for step in self.at if step not in ("spec", "template", "-"))


def rehome_changes(row: GangKind, raw: Mapping[str, Any], target: TargetShape) -> tuple[Change, ...]:
    """What must change in the workload's templates for its pods to run on the target; nothing if they may already."""
    spec = raw.get("spec") or {}
    return tuple(
        Change(at=(*at, *change.at), was=change.was, now=change.now)
        for path in row.templates
        for at, pod_spec in _at(spec, path)
        for change in _changes(pod_spec, target, affinity=row.affinity)
    )


def undone(changes: Sequence[Change]) -> tuple[Change, ...]:
    """The same changes the other way round."""
    return tuple(Change(at=c.at, was=c.now, now=c.was) for c in reversed(changes))


def joined(earlier: Sequence[Change], later: Sequence[Change]) -> tuple[Change, ...]:
    """Changes on top of changes, as one: the oldest value of each place is the one to go back to."""
    known = {(c.at, json.dumps(c.now)): c for c in earlier}
    found = list(earlier)
    for change in later:
        before = known.get((change.at, json.dumps(change.was)))
        if before is not None and change.was is not None:
            found.remove(before)
            change = Change(at=change.at, was=before.was, now=change.now)
        found.append(change)
    return tuple(found)


def under(changes: Sequence[Change], path: Sequence[str]) -> tuple[Change, ...]:
    """Those below a path, seen from there."""
    n = len(path)
    return tuple(Change(at=c.at[n:], was=c.was, now=c.now) for c in changes if c.at[:n] == tuple(path))


def apply(raw: Mapping[str, Any], changes: Sequence[Change]) -> tuple[Raw | None, tuple[Change, ...]]:
    """(merge patch that makes the changes, those that cannot be made because others have changed the place since).

    The patch is None when nothing is left to change.
    """
    spec = dict(raw.get("spec") or {})
    after = deepcopy(spec)
    foreign = tuple(change for change in changes if not _set(after, change))
    patch = _merge_patch(spec, after)
    return ({"spec": patch} if patch else None), foreign


def _set(spec: Raw, change: Change) -> bool:
    """Make one change in place. False when the place holds neither what was nor what shall be."""
    at: Any = spec
    for step in change.at[:-2]:
        at = _step(at, step)
    one, last = change.at[-2:]
    if last == "-":
        return _set_item(at, str(one), change)
    at = _step(at, one)
    if not isinstance(at, dict):
        return False
    now = at.get(last)
    if now == change.now:
        return True
    if now != change.was:
        return False
    if change.now is None:
        del at[last]
    else:
        at[last] = change.now
    return True


def _set_item(at: Any, key: str, change: Change) -> bool:
    """Put an item at the end of a list, or take it out; a list that becomes empty goes."""
    if not isinstance(at, dict):
        return False
    items = [item for item in at.get(key) or () if change.was is None or item != change.was]
    if change.now is not None and change.now not in items:
        items.append(change.now)
    if items:
        at[key] = items
    else:
        at.pop(key, None)
    return True


def _step(at: Any, step: str | int) -> Any:
    if isinstance(at, dict):
        return at.get(step)
    if not isinstance(at, list):
        return None
    if isinstance(step, int):
        return at[step] if step < len(at) else None
    return next((item for item in at if _name(item) == step), None)


def _name(item: Any) -> str | None:
    """What tells an item of a list from the others, where its API gives it a name."""
    return (item.get("name") or item.get("groupName")) if isinstance(item, dict) else None


def _merge_patch(before: Raw, after: Raw) -> Raw:
    """RFC 7396: what is gone is null, lists are given whole."""
    patch: Raw = dict.fromkeys((key for key in before if key not in after), None)
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if below := _merge_patch(old, value):
                patch[key] = below
        elif value != old:
            patch[key] = value
    return patch


def _at(tree: Any, path: Sequence[str]) -> list[tuple[tuple[str | int, ...], Raw]]:
    """Pod specs under a path and where each is; `*` is every item of a list or a mapping. Nothing where none is."""
    if not path:
        return [((), tree)] if isinstance(tree, dict) else []
    if path[0] != "*":
        found: list[tuple[str | int, Any]] = [(path[0], tree.get(path[0]))] if isinstance(tree, dict) else []
    elif isinstance(tree, dict):
        found = list(tree.items())
    else:
        found = [(_name(item) or i, item) for i, item in enumerate(tree if isinstance(tree, list) else ())]
    return [((step, *at), pod_spec) for step, below in found for at, pod_spec in _at(below, path[1:])]


def _changes(spec: Mapping[str, Any], target: TargetShape, *, affinity: bool) -> Iterator[Change]:
    """What must change in one pod spec."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        wanted = target.labels.get(key)
        if wanted is not None and wanted != value:
            yield Change(at=("nodeSelector", key), was=value, now=wanted)
    if affinity:
        yield from _affinity_changes(spec, target)
    tolerations = [
        Toleration(
            key=t.get("key") or "",
            operator=t.get("operator") or "Equal",
            value=t.get("value") or "",
            effect=t.get("effect") or "",
        )
        for t in spec.get("tolerations") or ()
    ]
    for taint in target.taints:
        if taint.effect != "PreferNoSchedule" and not any(t.tolerates(taint) for t in tolerations):
            tolerations.append(Toleration(key=taint.key, value=taint.value, effect=taint.effect))
            item = {"key": taint.key, "value": taint.value, "effect": taint.effect}
            yield Change(at=("tolerations", "-"), was=None, now=item)


def _affinity_changes(spec: Mapping[str, Any], target: TargetShape) -> Iterator[Change]:
    path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    terms: Any = spec
    for key in path:
        terms = (terms or {}).get(key)
    read = tuple(
        tuple(
            Requirement(key=e["key"], operator=e["operator"], values=tuple(e.get("values") or ()))
            for e in term.get("matchExpressions") or ()
        )
        for term in terms or ()
    )
    if not read or terms_may_hold(read, target):
        return
    for i, term in enumerate(read):
        for j, requirement in enumerate(term):
            moved = _moved(requirement, target)
            if moved is not requirement:
                at = (*path, i, "matchExpressions", j, "values")
                yield Change(at=at, was=list(requirement.values), now=list(moved.values))


def _moved(requirement: Requirement, target: TargetShape) -> Requirement:
    wanted = target.labels.get(requirement.key)
    if requirement.operator == "In" and wanted is not None and wanted not in requirement.values:
        return replace(requirement, values=(wanted,))
    return requirement
