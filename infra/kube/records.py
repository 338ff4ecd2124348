"""The run record: one ConfigMap per run, one key per step, written by whoever holds the pool's lease."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.clock import rfc3339
from infra.errors import Conflict, Unmeasured
from infra.kube.api import MERGE_PATCH, Kube
from infra.model.record import MANAGED_BY, RUN, Step, StepRecord

_SPEC, _HASH, _CREATED, _KIND = "spec.json", "spec.sha256", "created", "kind"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as the cluster knows it."""

    name: str
    kind: str
    created: str
    spec_hash: str
    spec: Mapping[str, Any]
    steps: Mapping[Step, StepRecord] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Keys whose entry cannot be read, and why. Their step is looked at again."""
    uid: str = ""

    def began(self, step: Step) -> bool:
        """Has the step an entry, be it one that cannot be read?"""
        return step in self.steps or f"step.{step}" in self.unreadable


def spec_hash(spec_json: str) -> str:
    """SHA-256 of the canonical JSON of a spec; binds evidence to what was asked for.

    By which kubeconfig and context the cluster is reached is left out: the same run goes on from another machine. So
    is the budget of GPU-minutes, which may be raised for a run that it stopped, and proves nothing.
    """
    spec = json.loads(spec_json)
    for part, left_out in (("cluster", ("kubeconfig", "context")), ("validation", ("budget_gpu_minutes",))):
        if isinstance(spec.get(part), dict):
            spec[part] = {key: value for key, value in spec[part].items() if key not in left_out}
    canonical = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def ensure_namespace(kube: Kube) -> None:
    """Create poolshift's namespace if it is absent."""
    if kube.get(f"/api/v1/namespaces/{kube.namespace}") is not None:
        return
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": kube.namespace, "labels": {MANAGED_BY: "poolshift"}},
    }
    try:
        kube.request("POST", "/api/v1/namespaces", body=body)
    except Conflict:
        return  # somebody else made it first


def _path(kube: Kube, name: str = "") -> str:
    base = f"/api/v1/namespaces/{kube.namespace}/configmaps"
    return f"{base}/poolshift-run-{name}" if name else base


def read(kube: Kube, name: str) -> RunRecord | None:
    """The record of a run, or None."""
    found = kube.get(_path(kube, name))
    return _parse(found) if found is not None else None


def list_runs(kube: Kube) -> list[RunRecord]:
    """Every run recorded in the namespace, oldest first."""
    found = kube.list(_path(kube), {"labelSelector": f"{MANAGED_BY}=poolshift,{RUN}"})
    return sorted((_parse(item) for item in found), key=lambda record: record.created)


def create(kube: Kube, name: str, kind: str, spec_json: str) -> RunRecord:
    """Start a record; one that exists is returned as it is."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"poolshift-run-{name}", "labels": {RUN: name, MANAGED_BY: "poolshift"}},
        "data": {
            _SPEC: spec_json,
            _HASH: spec_hash(spec_json),
            _CREATED: rfc3339(kube.clock.now()),
            _KIND: kind,
        },
    }
    try:
        return _parse(kube.request("POST", _path(kube), body=body))
    except Conflict:
        found = read(kube, name)
        if found is None:
            raise
        return found


def write_step(kube: Kube, name: str, record: StepRecord) -> None:
    """Write one step's entry. Other keys are not touched."""
    _patch(kube, name, {f"step.{record.step.value}": record.to_json()})


def write_note(kube: Kube, name: str, key: str, value: object) -> None:
    """Keep a small JSON fact beside the steps (prior state of the cloud, an approval)."""
    _patch(kube, name, {f"note.{key}": json.dumps(value, separators=(",", ":"), default=str)})


def require_notes(kube: Kube, record: RunRecord) -> None:
    """Stop where a note cannot be read: it holds what is to be put back or what has begun, which must not be guessed.

    Raises Unmeasured.
    """
    for key, why in sorted(record.unreadable.items()):
        if key.startswith("note."):
            raise unreadable(kube, record.name, key, why)


def require_plan(kube: Kube, record: RunRecord) -> None:
    """Stop where the plan cannot be read and what it decided has begun: a new one might decide something else.

    Raises Unmeasured.
    """
    why = record.unreadable.get(f"step.{Step.PLAN}")
    if why and any(record.began(step) for step in Step if step is not Step.PLAN):
        raise unreadable(kube, record.name, f"step.{Step.PLAN}", why)


def unreadable(kube: Kube, name: str, key: str, why: str) -> Unmeasured:
    """The error for an entry of a run's record that nothing may be guessed from."""
    return Unmeasured(
        f"run {name}",
        f"{key} of its record cannot be read ({why})",
        expected="JSON as poolshift writes it",
        remedy=f"mend it: kubectl edit configmap poolshift-run-{name} -n {kube.namespace}; "
        f"or put back what was changed: poolshift rollback {name}",
    )


def remove(kube: Kube, name: str) -> None:
    """Forget a run. Absent is success."""
    kube.delete(_path(kube, name))


def _patch(kube: Kube, name: str, data: Mapping[str, str]) -> None:
    kube.request("PATCH", _path(kube, name), body={"data": dict(data)}, content_type=MERGE_PATCH, retry=True)


def _mapping(text: str | None) -> dict[str, Any]:
    """JSON of a mapping; anything else is empty."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _parse(config_map: Mapping[str, Any]) -> RunRecord:
    """Tolerant: entries that cannot be read are named apart, so their step is looked at again."""
    data = config_map.get("data") or {}
    steps: dict[Step, StepRecord] = {}
    notes: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for key, text in data.items():
        try:
            if key.startswith("step."):
                record = StepRecord.from_json(text)
                if key != f"step.{record.step.value}":
                    msg = f"it speaks of step {record.step.value}"
                    raise ValueError(msg)
                steps[record.step] = record
            elif key.startswith("note."):
                notes[key.removeprefix("note.")] = json.loads(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            unreadable[key] = f"{type(error).__name__}: {error}"
    return RunRecord(
        name=str(config_map["metadata"]["name"]).removeprefix("poolshift-run-"),
        kind=str(data.get(_KIND, "migration")),
        created=str(data.get(_CREATED, "")),
        spec_hash=str(data.get(_HASH, "")),
        spec=_mapping(data.get(_SPEC)),
        steps=steps,
        notes=notes,
        unreadable=unreadable,
        uid=str(config_map["metadata"].get("uid", "")),
    )
