"""The eviction subresource: the budget arithmetic and the answers of the real server (registry/core/pod/storage)."""

from __future__ import annotations

from typing import Any

from infra.sandbox.control_plane import admission, deletion, errors
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.selectors import matches_selector
from infra.sandbox.control_plane.store import BUDGET, NAMESPACE, POD, Store

Object = dict[str, Any]

REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
TWO_BUDGETS = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
DISRUPTED_LIMIT = 2000
"""Evictions that a budget's controller may leave unconfirmed."""
SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def evict(store: Store, namespace: str, name: str, options: deletion.Options) -> Object:
    """Evict one pod. The Status of success, or ApiError: 404, 409, 429 with a DisruptionBudget cause, 403, 500."""
    pod = store.require(POD, namespace, name)
    space = store.get(NAMESPACE, None, namespace)
    if space is not None and "deletionTimestamp" in space["metadata"]:
        raise admission.terminating(POD, name, namespace)
    if not ignores_budgets(pod):
        budget = _budget_of(store, pod)
        # The budget is charged before the precondition is looked at, as on the real server.
        if budget is not None and _is_guarded(pod, budget):
            _charge(store, budget, name, dry_run=options.dry_run)
    deletion.check_preconditions(POD, pod, options)
    if not options.dry_run:
        pod = _mark(store, pod)
    unconditional = deletion.Options(grace=options.grace, propagation=options.propagation, dry_run=options.dry_run)
    deletion.delete(store, POD, pod, unconditional)
    return SUCCESS


def ignores_budgets(pod: Object) -> bool:
    """A pod that does not run, or is going anyway, is deleted without asking its budget."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Pending", "Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]


def _budget_of(store: Store, pod: Object) -> Object | None:
    metadata = pod["metadata"]
    labels = metadata.get("labels") or {}
    budgets = [
        budget
        for budget in store.list(BUDGET, metadata["namespace"])
        if matches_selector(budget["spec"].get("selector"), labels)
    ]
    if len(budgets) > 1:
        raise errors.internal(TWO_BUDGETS)
    return budgets[0] if budgets else None


def _is_guarded(pod: Object, budget: Object) -> bool:
    """Does this eviction count against the budget? An unready pod may not."""
    conditions = pod.get("status", {}).get("conditions") or ()
    if any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        return True
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return False
    status = budget.get("status", {})
    desired = status.get("desiredHealthy", 0)
    return not (status.get("currentHealthy", 0) >= desired > 0)


def _charge(store: Store, budget: Object, pod: str, *, dry_run: bool) -> None:
    status, name = budget.get("status", {}), budget["metadata"]["name"]
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", retry=10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise errors.forbidden("policy", "poddisruptionbudget", name, "pdb disruptions allowed is negative")
    disrupted = status.get("disruptedPods") or {}
    if len(disrupted) > DISRUPTED_LIMIT:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise errors.forbidden("policy", "poddisruptionbudget", name, why)
    if allowed == 0:
        raise _too_many(_refusal(name, status))
    if dry_run:
        return
    charged = {**status, "disruptionsAllowed": allowed - 1, "disruptedPods": {**disrupted, pod: store.now()}}
    if allowed == 1:
        charged["conditions"] = _exhausted(status.get("conditions") or [], budget, store.now())
    store.commit(BUDGET, "MODIFIED", {**budget, "status": charged}, budget)


def _refusal(name: str, status: Object) -> str:
    condition: Object = next(
        (each for each in status.get("conditions") or () if each.get("type") == "DisruptionAllowed"), {}
    )
    explained = condition.get("status") == "False" and condition.get("message")
    if explained and condition.get("reason") == "SyncFailed":
        failed = f"because it failed sync: {condition['message']}"
        return f"The disruption budget {name} does not allow evicting pods currently {failed}"
    current, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if current <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {current} currently"
    if explained:
        why = f"({condition.get('reason', '')}): {condition['message']}"
        return f"The disruption budget {name} does not allow evicting pods currently {why}"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _exhausted(conditions: list[Object], budget: Object, now: str) -> list[Object]:
    """The DisruptionAllowed condition of a budget that has just been used up."""
    before: Object = next((each for each in conditions if each.get("type") == "DisruptionAllowed"), {})
    condition = {
        **before,
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "observedGeneration": budget.get("status", {}).get("observedGeneration", 0),
        "lastTransitionTime": now if before.get("status") != "False" else before["lastTransitionTime"],
    }
    return [each for each in conditions if each.get("type") != "DisruptionAllowed"] + [condition]


def _too_many(why: str, retry: int = 0) -> ApiError:
    cause = errors.Cause(reason="DisruptionBudget", message=why)
    details: Object = {"causes": [cause.to_json()]}
    if retry:
        details["retryAfterSeconds"] = retry
    return ApiError(429, "TooManyRequests", REFUSED, details)


def _mark(store: Store, pod: Object) -> Object:
    """The condition that says why the pod goes; it comes as a write of its own, before the deletion."""
    status = pod.get("status", {})
    conditions = status.get("conditions") or []
    before: Object = next((each for each in conditions if each.get("type") == "DisruptionTarget"), {})
    if before.get("status") == "True" and before.get("reason") == "EvictionByEvictionAPI":
        return pod
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": store.now(),
    }
    kept = [each for each in conditions if each.get("type") != "DisruptionTarget"]
    marked = {**pod, "status": {**status, "conditions": [*kept, condition]}}
    return store.commit(POD, "MODIFIED", marked, pod)
