"""States of a budget that its controller never leaves standing long enough to be met from outside."""

from __future__ import annotations

import pytest

from infra.sandbox.control_plane import deletion, eviction
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.store import BUDGET, POD


@pytest.fixture
def evict(store):
    """Evict a ready pod under a budget with this status."""
    labels = {"app": "web"}
    container = {"name": "main", "image": "app:1"}
    metadata = {"name": "p", "namespace": "default"}
    pod = store.create(POD, {"metadata": {**metadata, "labels": labels}, "spec": {"containers": [container]}})
    ready = {"type": "Ready", "status": "True"}
    store.replace_status(POD, {**pod, "status": {"phase": "Running", "conditions": [ready]}})

    def run(**status):
        spec = {"selector": {"matchLabels": labels}, "minAvailable": 1}
        budget = store.create(BUDGET, {"metadata": {"name": "b", "namespace": "default"}, "spec": spec})
        store.replace_status(BUDGET, {**budget, "status": status})
        return eviction.evict(store, "default", "p", deletion.Options())

    return run


def refusal_of(evict, **status):
    with pytest.raises(ApiError) as refusal:
        evict(**status)
    return refusal.value


def test_a_status_behind_the_spec_asks_to_come_back_in_ten_seconds(evict):
    refusal = refusal_of(evict, observedGeneration=0, disruptionsAllowed=5)

    assert (refusal.code, refusal.details["retryAfterSeconds"]) == (429, 10)
    assert refusal.details["causes"] == [
        {"reason": "DisruptionBudget", "message": "The disruption budget b is still being processed by the server."}
    ]


def test_more_healthy_than_desired_and_still_closed(evict):
    refusal = refusal_of(evict, observedGeneration=1, disruptionsAllowed=0, currentHealthy=3, desiredHealthy=1)

    cause = refusal.details["causes"][0]["message"]
    assert cause == "The disruption budget b does not allow evicting pods currently"


def test_a_failed_sync_is_named(evict):
    condition = {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no controllers"}
    refusal = refusal_of(evict, observedGeneration=1, disruptionsAllowed=0, conditions=[condition])

    assert refusal.details["causes"][0]["message"].endswith("because it failed sync: no controllers")


def test_a_negative_budget_is_403(evict):
    refusal = refusal_of(evict, observedGeneration=1, disruptionsAllowed=-1)

    assert (refusal.code, refusal.reason) == (403, "Forbidden")


def test_too_many_unconfirmed_evictions_are_403(evict):
    pods = {f"p{index}": "2026-01-01T00:00:00Z" for index in range(2001)}
    refusal = refusal_of(evict, observedGeneration=1, disruptionsAllowed=1, disruptedPods=pods)

    assert refusal.code == 403
    assert "DisruptedPods map too big" in refusal.message


def test_the_last_disruption_closes_the_budgets_condition(store, evict):
    evict(observedGeneration=1, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)

    status = store.get(BUDGET, "default", "b")["status"]
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["p"])
    assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ("False", "InsufficientPods")
