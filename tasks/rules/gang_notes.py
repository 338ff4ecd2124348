"""A gang as a run has noted it on its switch: which pods are its own, and how it is moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.model.gangs import GangKind, row_of
from infra.model.spec import Drain, MoveMode, WorkloadRule
from infra.model.workload import Pod


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


def still_wanted(raw: Mapping[str, Any], noted: Mapping[str, Any]) -> int:
    """How many pods the workload starts by now: a Job none for ranks that have completed, or are no longer wanted."""
    ranks, spec, status = int(noted["ranks"]), raw.get("spec") or {}, raw.get("status") or {}
    if noted["root"][:2] != ["batch", "Job"]:
        return ranks
    completions = spec.get("completions")
    left = completions - int(status.get("succeeded") or 0) if isinstance(completions, int) else ranks
    return min(ranks, int(spec.get("parallelism") or 1), left)
