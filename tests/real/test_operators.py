"""Gangs of real operators, on a real control plane: their controllers and webhooks run; only the nodes are simulated.

Opt-in: each is skipped where its operator has not been built (`make operators`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.errors import PoolshiftError
from infra.kube.api import MERGE_PATCH
from infra.model.gangs import row_of
from infra.model.record import PRIOR
from infra.model.spec import Drain
from tasks.drain import move
from tasks.fence import unfence
from tasks.gangs import forget_moved, restore
from tests.real.gang_pools import NEW, OLD, POOL, add_pools, homes, pod_template, until
from tests.real.operators import running

pytestmark = [pytest.mark.real, pytest.mark.slow]
JOBSET = row_of("jobset.x-k8s.io", "JobSet")


@pytest.fixture(scope="module")
def pools(stage: Callable[..., Any]) -> Any:
    here = stage("healthy", "eks", "real")
    add_pools(here)
    return here


@pytest.fixture(scope="module")
def jobset(pools: Any) -> Iterator[Any]:
    with running("jobset", pools.kube, pools.kubeconfig):
        yield pools.kube


def create_jobset(kube: Any, name: str, **pod: Any) -> None:
    template = pod_template()
    template["spec"].update(pod)
    job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0, "template": template}
    annotations = {"sandbox.poolshift.dev/checkpoint-seconds": "600"}
    replicated = [{"name": "w", "replicas": 1, "template": {"metadata": {"annotations": annotations}, "spec": job}}]
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    spec = {"replicatedJobs": replicated, "failurePolicy": {"maxRestarts": 1}}
    kube.request("POST", JOBSET.path("default"), body={**body, "spec": spec})
    until(lambda: set(ranks(kube, name).values()) == set(OLD), "two ranks on the old pool")


def ranks(kube: Any, name: str) -> dict[str, str]:
    return homes(kube, f"jobset.sigs.k8s.io/jobset-name={name}")


def drain(**rule: Any) -> Drain:
    rule = {"namespace": "default", **rule}
    return Drain.model_validate({"workloads": [rule], "waves": {"canary": 0, "size": 2}, "pod_deadline": "4m"})


def template_of(kube: Any, row: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = kube.get(row.path("default", name))["spec"]["replicatedJobs"][0]["template"]["spec"]
    return found["template"]["spec"]


def test_a_jobset_is_saved_stopped_rehomed_and_runs_whole_on_the_target(jobset: Any) -> None:
    kube = jobset
    create_jobset(kube, "llm")
    before = template_of(kube, JOBSET, "llm")
    said: list[str] = []
    way = {"via": "exec", "command": ["checkpoint"]}

    report = move(
        kube, drain(name="llm", kind="JobSet", checkpoint=way, rehome=True), OLD, NEW, "r1", kube.clock, said.append
    )

    gang = report.waves[0].gangs[0]
    assert report.ok, (report.to_dict(), said)
    assert (gang.workload, gang.ranks) == ("jobset default/llm", 2)
    assert gang.checkpoint > gang.asked
    assert report.tally.sent == 0
    assert set(ranks(kube, "llm").values()) == set(NEW)
    root = kube.get(JOBSET.path("default", "llm"))
    assert root["status"].get("restarts", 0) == 0  # a suspension spends none
    assert template_of(kube, JOBSET, "llm")["nodeSelector"] == {POOL: "gpu-b"}

    # Stopped by hand, it goes back to what its owner wrote; running, nobody may change it.
    assert restore(kube, "r1") == ()
    body = {"spec": {"suspend": True}}
    kube.request("PATCH", JOBSET.path("default", "llm"), body=body, content_type=MERGE_PATCH)
    until(lambda: not ranks(kube, "llm"), "its pods gone")
    assert restore(kube, "r1") == ("jobset default/llm (its template: put back)",)
    assert template_of(kube, JOBSET, "llm") == before
    root = kube.get(JOBSET.path("default", "llm"))
    assert PRIOR not in root["metadata"].get("annotations", {})
    unfence(kube, "r1")
    body = {"spec": {"suspend": False}}
    kube.request("PATCH", JOBSET.path("default", "llm"), body=body, content_type=MERGE_PATCH)
    until(lambda: set(ranks(kube, "llm").values()) == set(OLD), "two ranks on the old pool again")
    assert forget_moved(kube, "r1") == ()
    kube.delete(JOBSET.path("default", "llm"))
    until(lambda: not ranks(kube, "llm"), "its pods gone")


def test_a_jobset_that_is_pinned_by_affinity_is_not_stopped_since_nobody_may_change_that(jobset: Any) -> None:
    kube = jobset
    term = {"matchExpressions": [{"key": POOL, "operator": "In", "values": ["gpu-a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    create_jobset(kube, "pinned", nodeSelector=None, affinity={"nodeAffinity": required})

    report = move(
        kube,
        drain(name="pinned", kind="JobSet", mode="restart", rehome=True),
        OLD,
        NEW,
        "r2",
        kube.clock,
        lambda _: None,
    )

    assert report.waves[0].gangs[0].code == "gang-pinned"
    assert set(ranks(kube, "pinned").values()) == set(OLD)
    path = JOBSET.path("default", "pinned")
    kube.request("PATCH", path, body={"spec": {"suspend": True}}, content_type=MERGE_PATCH)
    spec = kube.get(path)["spec"]
    term["matchExpressions"][0]["values"] = ["gpu-b"]
    pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["affinity"] = {"nodeAffinity": required}
    with pytest.raises(PoolshiftError, match="immutable"):
        kube.request("PATCH", path, body={"spec": spec}, content_type=MERGE_PATCH)
    kube.delete(path)
    until(lambda: not ranks(kube, "pinned"), "its pods gone")
