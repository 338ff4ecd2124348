"""Where a probe stands: what the cluster could not run is unmeasured, with the object and the cluster's words."""

from datetime import UTC, datetime, timedelta

import pytest

from infra.clock import rfc3339
from infra.fabrics import fabric_of
from infra.model.spec import Validation
from infra.probes import catalogue
from tasks.rules import cost
from tasks.rules.probing import State, any_failed, ended_at, held_seconds, images_of, look, owned_by

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


def ago(seconds):
    return rfc3339(NOW - timedelta(seconds=seconds))


def job(condition=None, reason="", message=""):
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": message}] if condition else []
    return {"metadata": {"name": "probe", "namespace": "poolshift"}, "status": {"conditions": conditions}}


def pod(name="p", node="a", phase="Running", **status):
    return {
        "metadata": {"name": name, "namespace": "poolshift", "creationTimestamp": ago(900)},
        "spec": {"nodeName": node, "containers": [{"name": "probe"}]},
        "status": {"phase": phase, **status},
    }


def ended(name, node, code=0, reason="Completed", phase=None):
    terminated = {"exitCode": code, "reason": reason, "finishedAt": ago(10)}
    return pod(
        name,
        node,
        phase or ("Succeeded" if code == 0 else "Failed"),
        conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(70)}],
        containerStatuses=[{"name": "probe", "image": "i", "state": {"terminated": terminated}}],
    )


def waiting(reason, age):
    status = {
        "name": "probe",
        "image": "example.com/x:1",
        "state": {"waiting": {"reason": reason, "message": "no such"}},
    }
    return pod(phase="Pending", startTime=ago(age), containerStatuses=[status])


def unscheduled(age):
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        "lastTransitionTime": ago(age),
    }
    return pod(phase="Pending", node="", conditions=[condition])


def test_all_pods_succeeded_on_their_own_nodes_is_ended():
    seen = look(job("Complete"), [ended("p0", "a"), ended("p1", "b")], NOW, pods_wanted=2)
    assert seen.state is State.ENDED


@pytest.mark.parametrize("pods", [[ended("p0", "a")], [ended("p0", "a"), ended("p1", "a")], []])
def test_complete_without_all_pods_on_distinct_nodes_is_unmeasured(pods):
    assert look(job("Complete"), pods, NOW, pods_wanted=2).state is State.UNMEASURED


def test_a_pod_beside_the_wanted_ones_makes_the_run_unmeasured():
    """One that was there and went, of which nobody can say what it printed."""
    pods = [ended("p0", "a"), ended("p1", "b"), ended("p2", "b", code=1)]
    assert look(job("Complete"), pods, NOW, pods_wanted=2).state is State.UNMEASURED


def test_a_program_that_was_started_again_is_unmeasured():
    again = ended("p0", "a")
    again["status"]["containerStatuses"][0]["restartCount"] = 1
    seen = look(job("Complete"), [again], NOW, pods_wanted=1)
    assert seen.state is State.UNMEASURED
    assert "started again" in seen.reason


def test_pods_of_a_former_job_of_that_name_and_pods_in_its_clothes_are_not_its_own():
    mine = {"metadata": {"name": "probe", "uid": "new"}}
    owned = {"metadata": {"ownerReferences": [{"kind": "Job", "uid": "new", "controller": True}]}}
    former = {"metadata": {"ownerReferences": [{"kind": "Job", "uid": "old", "controller": True}]}}
    assert owned_by(owned, mine)
    assert not owned_by(former, mine)
    assert not owned_by({"metadata": {}}, mine)


def test_the_images_that_ran_are_known_by_id():
    first, second = ended("p0", "a"), ended("p1", "b")
    first["status"]["containerStatuses"][0]["imageID"] = "x@sha256:1"
    assert images_of([first, second]) == ("sha256:1",)


def test_a_program_that_ended_badly_may_be_judged():
    seen = look(job("Failed", "BackoffLimitExceeded"), [ended("p0", "a", code=1)], NOW, pods_wanted=1)
    assert seen.state is State.FAILED
    assert "exit code 1" in seen.reason


@pytest.mark.parametrize(
    ("pods", "word"),
    [
        ([unscheduled(400)], "Insufficient nvidia.com/gpu"),
        ([waiting("ImagePullBackOff", 400)], "ImagePullBackOff"),
        ([waiting("CreateContainerConfigError", 400)], "CreateContainerConfigError"),
        ([pod(phase="Failed", reason="Evicted", message="low on memory")], "low on memory"),
        ([ended("p0", "a", code=137, reason="OOMKilled")], "OOMKilled"),
        ([ended("p0", "a", code=128, reason="StartError")], "StartError"),
        (
            [pod(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}])],
            "PreemptionByScheduler",
        ),
    ],
)
@pytest.mark.parametrize("condition", [None, "Failed"])
def test_what_the_cluster_did_not_let_run_is_unmeasured_and_names_the_pod(pods, word, condition):
    seen = look(job(condition, "BackoffLimitExceeded"), pods, NOW, pods_wanted=1)
    assert seen.state is State.UNMEASURED
    assert seen.object.startswith("pod poolshift/")
    assert word in seen.reason


@pytest.mark.parametrize("early", [unscheduled(30), waiting("ImagePullBackOff", 30), waiting("ContainerCreating", 900)])
def test_a_slow_start_is_waited_for(early):
    assert look(job(), [early], NOW, pods_wanted=1).state is State.RUNNING


def test_a_deadline_is_unmeasured_and_asks_for_time():
    seen = look(job("Failed", "DeadlineExceeded"), [pod()], NOW, pods_wanted=1)
    assert seen.state is State.UNMEASURED
    assert "validation.timeout" in seen.remedy


def test_a_job_that_somebody_deleted_and_a_failure_without_a_pod_are_unmeasured():
    assert look(None, [], NOW, pods_wanted=1).state is State.UNMEASURED
    assert look(job("Failed", "BackoffLimitExceeded"), [], NOW, pods_wanted=1).state is State.UNMEASURED


def test_devices_are_held_from_scheduling_to_the_end_of_the_program():
    assert held_seconds(ended("p", "a"), NOW) == 60
    assert held_seconds(unscheduled(400), NOW) == 0
    running = pod(conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": ago(70)}])
    assert held_seconds(running, NOW) == 70


def test_the_time_of_the_evidence_is_the_end_of_the_last_program():
    assert ended_at([ended("p", "a"), pod()]) == NOW - timedelta(seconds=10)
    assert ended_at([pod()]) is None


def test_a_first_failed_pod_is_seen_while_others_run():
    assert any_failed([pod(), ended("p1", "b", code=1)])
    assert not any_failed([pod(), ended("p1", "b")])


def test_a_validation_states_its_gpu_minutes_probe_by_probe():
    probes = catalogue.all_probes(Validation(storage_claim="train/data"))
    found = cost.estimate(probes, 2, fabric_of("p5en.48xlarge").gpus)
    assert found.gpu_minutes == pytest.approx(sum(item.gpu_minutes for item in found.items))
    assert next(i for i in found.items if i.probe == "storage").gpu_minutes == 0
    assert "transport-proof" in found.wording()


def test_a_probe_over_the_budget_is_not_started_and_says_what_is_left():
    probe = catalogue.train_step(Validation())
    need = cost.of(probe, 2, 8)
    assert cost.over_budget(probe, 2, 8, left=need, budget=need) == ""
    refused = cost.over_budget(probe, 2, 8, left=need - 1, budget=need)
    assert "validation.budget_gpu_minutes" in refused
    assert "--budget" in refused


def test_the_cheap_proof_is_a_small_part_of_the_whole():
    probes = catalogue.all_probes(Validation())
    whole = cost.estimate(probes, 2, 8)
    proof = next(i for i in whole.items if i.probe == "transport-proof")
    assert proof.gpu_minutes < 0.12 * whole.gpu_minutes
