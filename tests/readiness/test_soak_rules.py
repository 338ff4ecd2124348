"""What breaks a soak, over plain objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from infra.kube.owners import workload
from infra.model.endings import COMPLETE, FAILED, is_over
from tasks.rules.soak import END_UNSEEN, STOPPED, UNKNOWN, UNREAD, Seen, breaches

STARTED = datetime(2026, 1, 2, tzinfo=UTC)


def codes(name: str, seen: Seen) -> list[str]:
    return [f.code for f in breaches({name: seen}, [], {}, STARTED)]


def job(**changes: Any) -> dict[str, Any]:
    spec = {"parallelism": 2, "completions": 2, "suspend": changes.pop("suspend", False)}
    return {"spec": spec, "status": {"ready": 2, **changes}}


def test_a_workload_at_full_strength_is_no_breach() -> None:
    assert (
        codes("Deployment/a/b", Seen(obj={"spec": {"replicas": 2}, "status": {"readyReplicas": 2}}, known=True)) == []
    )
    assert codes("Job/a/b", Seen(obj=job(), known=True)) == []
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert codes("Job/a/b", Seen(obj=job(ready=0, **done), known=True)) == []


@pytest.mark.parametrize(
    ("status", "suspend", "code"),
    [
        ({"ready": 1}, False, "job-below-strength"),
        ({"ready": 0}, False, "job-below-strength"),
        ({}, True, "job-suspended"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, False, "job-failed"),
    ],
)
def test_a_job_that_does_not_run_whole_is_a_breach(status: dict[str, Any], suspend: bool, code: str) -> None:
    assert codes("Job/train/llm", Seen(obj=job(suspend=suspend, **status), known=True)) == [code]


def test_a_workload_that_somebody_stopped_shows_nothing_of_the_target() -> None:
    """Nobody broke it, and nobody has seen it run."""
    stopped = {"spec": {"parallelism": 0, "completions": 2}, "status": {}}
    assert codes("Job/a/b", Seen(obj=stopped, known=True)) == [STOPPED]
    assert codes("Deployment/a/b", Seen(obj={"spec": {"replicas": 0}, "status": {}}, known=True)) == [STOPPED]
    by_default = {"spec": {"replicas": None}, "status": {"readyReplicas": 1}}
    assert codes("Deployment/a/b", Seen(obj=by_default, known=True)) == []
    assert STOPPED in UNKNOWN


def test_a_kind_whose_strength_cannot_be_told_is_never_called_well() -> None:
    assert codes("Mystery/a/b", Seen(obj=None, known=False)) == [UNREAD]


def test_a_workload_that_is_gone_is_a_breach() -> None:
    assert codes("StatefulSet/a/b", Seen(obj=None, known=True)) == ["workload-gone"]


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "RayJob"])
def test_a_job_that_is_gone_is_done_where_it_was_seen_complete_failed_where_seen_so_and_else_unknown(kind: str) -> None:
    assert codes(f"{kind}/a/b", Seen(obj=None, known=True, ended=COMPLETE)) == []
    failed = codes(f"{kind}/a/b", Seen(obj=None, known=True, ended=FAILED))
    assert failed == [f"{'job' if kind == 'Job' else 'gang'}-failed"]
    assert codes(f"{kind}/a/b", Seen(obj=None, known=True)) == [END_UNSEEN]


@pytest.mark.parametrize(
    ("status", "over"),
    [
        ({}, False),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ({"conditions": [{"type": "Complete", "status": "False"}]}, False),
        ({"conditions": [{"type": "Finished", "status": "True"}]}, True),  # Kueue's Workload
        ({"jobStatus": "STOPPED"}, True),
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}, False),
        ({"state": "ready"}, False),  # a RayCluster
        ({"state": {"phase": "Completed"}}, True),
        ({"state": {"phase": "Aborted"}}, False),  # Volcano resumes it
    ],
)
def test_a_workload_is_over_where_it_will_not_run_again(status: dict[str, Any], over: bool) -> None:
    assert is_over({"status": status}) is over
    assert workload({"kind": "Job", "metadata": {}, "status": status}).finished is over


@pytest.mark.parametrize(
    ("status", "phases", "code"),
    [
        ({"conditions": [{"type": "Failed", "status": "True"}]}, ("Succeeded", "Failed"), "gang-failed"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, ("Running", "Failed"), "gang-failed"),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, (), "gang-failed"),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Complete"}, ("Running",), "gang-failed"),
        ({"state": {"phase": "Terminated"}}, (), "gang-failed"),
        ({"state": {"phase": "Aborted"}}, (), "gang-failed"),
        ({}, ("Succeeded", "Failed"), "gang-failed"),  # its operator has not told yet
        ({"conditions": [{"type": "Succeeded", "status": "True"}]}, ("Failed", "Succeeded"), ""),  # tried again
        ({"conditions": [{"type": "Completed", "status": "True"}]}, (), ""),  # its pods are cleaned up
        ({"conditions": [{"type": "Completed", "status": "False"}]}, (), "gang-without-pods"),
    ],
)
def test_a_gang_that_has_failed_is_a_breach_and_one_that_is_complete_none(
    status: dict[str, Any], phases: tuple[str, ...], code: str
) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    pods = tuple({"status": {"phase": phase, "conditions": ready}} for phase in phases)
    seen = Seen(obj={"status": status}, known=True, stopped=False, pods=pods)

    assert "".join(codes("MPIJob/a/b", seen)) == code


def test_a_gang_of_a_custom_kind_is_judged_by_its_pods() -> None:
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    unready = {"status": {"phase": "Running"}}

    assert codes("JobSet/a/b", Seen(obj={}, known=True, stopped=False, pods=(ready, ready))) == []
    assert codes("JobSet/a/b", Seen(obj={}, known=True, stopped=False, pods=(ready, unready))) == [
        "gang-below-strength"
    ]
    assert codes("JobSet/a/b", Seen(obj={}, known=True, stopped=False, pods=(ready, ready), wanted=2)) == []
    lacks = Seen(obj={}, known=True, stopped=False, pods=(ready, {"status": {"phase": "Failed"}}), wanted=2)
    assert codes("JobSet/a/b", lacks) == ["gang-below-strength"]
    assert codes("JobSet/a/b", Seen(obj={}, known=True, stopped=False)) == ["gang-without-pods"]
    assert codes("JobSet/a/b", Seen(obj={}, known=True, stopped=True)) == ["gang-stopped"]


@pytest.mark.parametrize(
    ("created", "selector", "counts"),
    [
        ("2026-01-02T00:00:01Z", {}, True),
        ("2025-12-01T00:00:00Z", {}, False),
        ("2025-12-01T00:00:00Z", {"pool": "new"}, True),
    ],
)
def test_a_pod_that_waits_for_a_node_counts_when_it_is_new_or_bound_to_the_target(
    created: str, selector: dict[str, str], counts: bool
) -> None:
    pod = {
        "metadata": {"namespace": "a", "name": "p", "creationTimestamp": created},
        "spec": {"nodeSelector": selector},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/4 nodes"}]},
    }

    assert bool(breaches({}, [pod], {"pool": "new"}, STARTED)) is counts
