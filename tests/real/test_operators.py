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
from infra.model.pools import Pool, PoolState
from infra.model.record import PRIOR
from infra.model.spec import Drain, MigrationSpec
from infra.model.verdict import Outcome
from infra.probes import catalogue
from tasks import checks, validate
from tasks.drain import move
from tasks.fence import unfence
from tasks.gangs import forget_moved, restore
from tasks.measuring import Session
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
    unfence(kube, "r2")  # the nodes of the target stay guarded until their run ends
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


@pytest.fixture(scope="module")
def mpi(pools: Any) -> Iterator[Any]:
    with running("mpi-operator", pools.kube, pools.kubeconfig):
        yield pools.kube


def test_nccl_tests_run_as_the_operator_makes_them_and_leave_nothing(mpi: Any) -> None:
    kube = mpi
    spec = MigrationSpec.model_validate(
        {
            "name": "mpi",
            "source": {"kind": "external", "name": "old", "selector": {POOL: "gpu-a"}},
            "target": {"kind": "external", "name": "new", "selector": {POOL: "gpu-b"}},
            "validation": {"nccl_tests_image": "registry.example.com/nccl-tests:1", "sweep_sizes": [1 << 28, 1 << 30]},
        }
    )
    pool = Pool(
        kind="eks",
        name="gpu-b",
        identity="pools/gpu-b",
        state=PoolState.ACTIVE,
        machine_type="p5en.48xlarge",
        nodes=2,
        node_selector={POOL: "gpu-b"},
        gpus={"nvidia.com/gpu": 8},
        rdma={"vpc.amazonaws.com/efa": 16},
    )
    until(lambda: len(validate.idle(kube, pool)) == 2, "two idle nodes")
    said: list[str] = []
    nodes = validate.idle(kube, pool)
    session = Session.open(kube, pool, nodes, spec, "mpi", "hash", kube.clock, said.append)
    probe = catalogue.nccl_tests(spec.validation)
    assert probe is not None

    (verdict,) = checks.nccl_tests(session, probe)

    assert verdict.outcome is Outcome.PASS, (verdict.reason, said)
    (evidence,) = session.evidence
    assert evidence.complete
    assert [row["size_bytes"] for row in evidence.reading["rows"]] == [1 << 28, 1 << 29, 1 << 30]
    assert evidence.gpu_minutes > 0
    for path in ("/apis/kubeflow.org/v2beta1/namespaces/poolshift/mpijobs", "/apis/batch/v1/namespaces/poolshift/jobs"):
        assert list(kube.list(path)) == []
    assert list(kube.list("/api/v1/namespaces/poolshift/pods")) == []


MPIJOB = row_of("kubeflow.org", "MPIJob")


def test_an_mpijob_moves_with_its_launcher(mpi: Any) -> None:
    kube = mpi
    worker, launcher = pod_template(), pod_template()
    del launcher["spec"]["containers"][0]["resources"]
    for template in (worker, launcher):
        del template["spec"]["restartPolicy"]
    roles = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": 2, "template": worker}}
    meta = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": "llm"}}
    body = {**meta, "spec": {"slotsPerWorker": 8, "mpiReplicaSpecs": roles}}
    kube.request("POST", MPIJOB.path("default"), body=body)
    label = "training.kubeflow.org/job-name=llm"
    until(lambda: len(homes(kube, label)) == 3, "launcher and workers Running")
    assert set(homes(kube, label).values()) == set(OLD)

    report = move(
        kube, drain(name="llm", kind="MPIJob", mode="restart", rehome=True), OLD, NEW, "r3", kube.clock, lambda _: None
    )

    assert report.ok, report.to_dict()
    assert (len(homes(kube, label)), set(homes(kube, label).values())) == (3, set(NEW))
    unfence(kube, "r3")
    forget_moved(kube, "r3")
    kube.delete(MPIJOB.path("default", "llm"))
    until(lambda: not homes(kube, label), "its pods gone")


LWS = row_of("leaderworkerset.x-k8s.io", "LeaderWorkerSet")


@pytest.fixture(scope="module")
def lws(pools: Any) -> Iterator[Any]:
    with running("lws", pools.kube, pools.kubeconfig):
        yield pools.kube


def test_a_leader_worker_set_is_scaled_to_nothing_rehomed_and_scaled_back(lws: Any) -> None:
    kube = lws
    templates = {"leaderTemplate": pod_template(), "workerTemplate": pod_template(), "size": 2}
    for role in ("leaderTemplate", "workerTemplate"):
        templates[role]["spec"]["restartPolicy"] = "Always"
    meta = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "serve"}}
    kube.request("POST", LWS.path("default"), body={**meta, "spec": {"replicas": 1, "leaderWorkerTemplate": templates}})
    label = "leaderworkerset.sigs.k8s.io/name=serve"
    until(lambda: sorted(homes(kube, label).values()) == sorted(OLD), "leader and worker Running")

    report = move(
        kube,
        drain(name="serve", kind="LeaderWorkerSet", mode="restart", rehome=True),
        OLD,
        NEW,
        "r4",
        kube.clock,
        lambda _: None,
    )

    assert report.ok, report.to_dict()
    assert sorted(homes(kube, label).values()) == sorted(NEW)
    assert kube.get(LWS.path("default", "serve"))["spec"]["replicas"] == 1
    unfence(kube, "r4")
    forget_moved(kube, "r4")
    kube.delete(LWS.path("default", "serve"))
    until(lambda: not homes(kube, label), "its pods gone")
