"""Jobs that end, and are taken away, while somebody watches over what was moved."""

from __future__ import annotations

from datetime import timedelta

import pytest

from infra.kube import records
from infra.kube.api import MERGE_PATCH
from infra.model.gangs import GANG_KINDS
from infra.model.pools import Pool, PoolState
from infra.model.spec import Soak
from infra.model.verdict import Outcome
from tasks.soak import soak

JOBS = "/apis/batch/v1/namespaces/default/jobs"
TARGET = {"pool": "new"}


@pytest.fixture
def watch(kube, kubelet, build, fast_clock):
    """Watches over the Job `train` with this UID; `at` is called at each line of progress, with its number."""
    kube.clock = fast_clock
    for name in ("new-1", "new-2"):
        build.node(name, "new")
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": kube.namespace}})
    records.create(kube, "r1", "migration", "{}")
    pool = Pool(
        kind="external",
        name="new",
        identity="new",
        state=PoolState.ACTIVE,
        machine_type="a2-highgpu-8g",
        nodes=2,
        node_selector=TARGET,
    )
    settings = Soak(duration=timedelta(minutes=5), interval=timedelta(minutes=1))

    def begin(uid, at=lambda number: None, name="Job/default/train"):
        lines = []

        def say(line):
            lines.append(line)
            at(len(lines))

        return soak(kube, pool, {name: uid}, settings, "r1", say)

    return begin


@pytest.fixture
def job(kube, watch):
    """The Job, running whole; its UID."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    body = {"metadata": {"name": "train"}, "spec": {"backoffLimit": 0, "template": template}}
    return kube.request("POST", JOBS, body=body)["metadata"]["uid"]


def end(kube, phase="Succeeded"):
    """Its pod does."""
    pods = list(kube.list("/api/v1/namespaces/default/pods", {"labelSelector": "batch.kubernetes.io/job-name=train"}))
    for pod in pods:
        status = {"phase": phase, "conditions": []}
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
        kube.request("PATCH", path, body={"status": status}, content_type=MERGE_PATCH)


def test_a_job_that_was_seen_complete_may_be_gone(kube, watch, job):
    def at(number):
        if number == 1:
            end(kube)
        elif "soak-ended" in records.read(kube, "r1").notes:
            kube.delete(f"{JOBS}/train")

    verdict = watch(job, at)
    assert verdict.outcome is Outcome.PASS, verdict.findings
    assert kube.get(f"{JOBS}/train") is None

    again = watch(job)  # of another process, later: what was seen is in the run's record
    assert again.outcome is Outcome.PASS, again


@pytest.mark.parametrize("seen", ["gone before anybody looked", "another of its name was complete"])
def test_a_job_whose_own_end_nobody_saw_is_unknown(kube, watch, job, seen):
    def at(number):
        if number == 1 and seen != "gone before anybody looked":
            end(kube)
        elif number == 3 or seen == "gone before anybody looked":
            kube.delete(f"{JOBS}/train")

    verdict = watch("of another job" if seen != "gone before anybody looked" else job, at)

    assert verdict.outcome is Outcome.UNMEASURED, verdict
    assert "was not seen complete" in verdict.reason
    assert "create it again" in verdict.findings[0].remedy


def test_a_job_that_was_seen_to_fail_has_failed_although_it_is_gone(kube, watch, job):
    def at(number):
        if number == 1:
            end(kube, "Failed")
        elif "soak-ended" in records.read(kube, "r1").notes:
            kube.delete(f"{JOBS}/train")

    verdict = watch(job, at)

    assert (verdict.outcome, verdict.findings[0].code) == (Outcome.FAIL, "job-failed"), verdict
    assert kube.get(f"{JOBS}/train") is None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gang_is_at_full_strength_only_with_all_the_pods_that_it_asks_for(kube, watch, build, ranks):
    row = next(kind for kind in GANG_KINDS if kind.kind == "JobSet")
    build.definition(row)
    jobs = [{"name": "w", "replicas": 1, "template": {"spec": {"parallelism": 2}}}]
    meta = {"apiVersion": f"{row.group}/{row.version}", "kind": "JobSet", "metadata": {"name": "train"}}
    made = kube.request("POST", row.path("default"), body={**meta, "spec": {"replicatedJobs": jobs}})
    for rank in range(ranks):
        build.pod(f"rank-{rank}", "new-1", labels={row.pod_label: "train"})
    build.until_ready(ranks)

    verdict = watch(made["metadata"]["uid"], name="JobSet/default/train")

    assert verdict.outcome is (Outcome.PASS if ranks == 2 else Outcome.FAIL), verdict
    assert [f.code for f in verdict.findings] == ["gang-below-strength"] * (ranks == 1)
