"""What watches a migration from outside sees a budget broken by a deed, and no deed where a node falls silent."""

from __future__ import annotations

import pytest

from infra.kube.api import MERGE_PATCH
from tests.migration.observer import Observer


@pytest.fixture
def pools(build, kubelet):
    """Three ready pods, of which two must stay, and no replacement ever gets ready."""
    build.node("one")
    build.deployment("web", 3, budget={"minAvailable": 2})
    build.until_ready(3)
    kubelet.never_ready = lambda _: True
    return build


def test_ready_pods_that_are_taken_past_their_budget_are_told_of(kube, pools):
    with Observer(kube) as seen:
        for pod in pools.pods()[:2]:
            kube.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")
        pools.until_ready(1)
    assert [line for line in seen.broken() if "1 ready pods, 2 wanted" in line]


def test_pods_that_turn_unready_under_a_silent_node_are_nobodys_deed(kube, pools):
    silent = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
    with Observer(kube) as seen:
        for pod in pools.pods():
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
            kube.request("PATCH", path, body=silent, content_type=MERGE_PATCH)
    assert seen.broken() == []
