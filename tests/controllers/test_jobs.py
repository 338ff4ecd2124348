"""Jobs."""

from __future__ import annotations

from typing import Any

World = Any

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


def live(world: World, app: str) -> list[dict[str, Any]]:
    """Pods that neither ended nor are on their way out."""
    return [
        pod
        for pod in world.pods(app)
        if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] in ("Pending", "Running")
    ]


def test_a_job_runs_to_its_completions_within_its_parallelism(world: World) -> None:
    world.nodes(1)
    world.job("work", completions=3, parallelism=2)
    world.settle()
    assert len(live(world, "work")) == 2
    assert world.status("Job", "work")["active"] == 2
    assert world.status("Job", "work")["startTime"] == "2026-01-01T00:00:00Z"
    while live(world, "work"):
        world.finish(live(world, "work")[0])
        world.settle()
    status = world.status("Job", "work")
    assert status["succeeded"] == 3
    assert "active" not in status
    assert status["completionTime"]
    assert [(each["type"], each["reason"]) for each in status["conditions"]] == [
        ("SuccessCriteriaMet", "CompletionsReached"),
        ("Complete", "CompletionsReached"),
    ]
    assert status["conditions"][1]["message"] == "Reached expected number of succeeded pods"
    assert (status["ready"], status["terminating"], status["uncountedTerminatedPods"]) == (0, 0, {})
    assert world.events("work", "Completed") == ["Job completed"]


def test_a_pod_is_held_by_its_finalizer_until_it_is_counted(world: World) -> None:
    world.nodes(1)
    world.job("work")
    world.settle()
    [pod] = world.pods("work")
    assert pod["metadata"]["finalizers"] == [TRACKING]
    assert pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "work"
    world.finish(pod)
    world.settle()
    [pod] = world.pods("work")
    assert "finalizers" not in pod["metadata"]


def test_an_indexed_job_gives_each_pod_its_index(world: World) -> None:
    world.nodes(1)
    world.job("train", completions=3, parallelism=3, completionMode="Indexed")
    world.settle()
    pods = sorted(world.pods("train"), key=lambda pod: pod["metadata"]["labels"][INDEX])
    for number, pod in enumerate(pods):
        assert pod["metadata"]["annotations"][INDEX] == str(number)
        assert pod["metadata"]["labels"][INDEX] == str(number)
        assert pod["metadata"]["generateName"] == f"train-{number}-"
        assert pod["spec"]["hostname"] == f"train-{number}"
        [variable] = pod["spec"]["containers"][0]["env"]
        assert variable["name"] == "JOB_COMPLETION_INDEX"
        assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{INDEX}']"
    world.finish(pods[0])
    world.finish(pods[2])
    world.settle()
    assert world.status("Job", "train")["completedIndexes"] == "0,2"
    world.finish(pods[1])
    world.settle()
    assert world.status("Job", "train")["completedIndexes"] == "0-2"
    assert world.condition("Job", "train", "Complete")["status"] == "True"


def test_a_lost_index_is_run_again_after_the_backoff(world: World) -> None:
    world.nodes(1)
    world.job("train", completions=2, parallelism=2, completionMode="Indexed")
    world.settle()
    [victim] = [pod for pod in world.pods("train") if pod["metadata"]["labels"][INDEX] == "1"]
    world.delete("Pod", victim["metadata"]["name"])
    world.settle()
    assert [pod["metadata"]["labels"][INDEX] for pod in live(world, "train")] == ["0"]
    assert world.status("Job", "train")["failed"] == 1
    world.advance(11)
    assert sorted(pod["metadata"]["labels"][INDEX] for pod in live(world, "train")) == ["0", "1"]


def test_too_many_failures_fail_the_job(world: World) -> None:
    world.nodes(1)
    world.job("work", backoffLimit=1)
    world.settle()
    for _ in range(2):
        world.finish(live(world, "work")[0], "Failed")
        world.advance(30)
    status = world.status("Job", "work")
    assert status["failed"] == 2
    assert [(each["type"], each["reason"]) for each in status["conditions"]] == [
        ("FailureTarget", "BackoffLimitExceeded"),
        ("Failed", "BackoffLimitExceeded"),
    ]
    assert status["conditions"][1]["message"] == "Job has reached the specified backoff limit"
    assert "completionTime" not in status
    assert world.events("work", "BackoffLimitExceeded")


def test_the_job_counts_as_failed_only_when_its_last_pod_is_gone(world: World) -> None:
    world.nodes(1)
    world.job("work", backoffLimit=0, parallelism=2, completions=2)
    world.settle()
    first, second = live(world, "work")
    world.kubelet.holds.add(second["metadata"]["name"])
    world.finish(first, "Failed")
    world.settle()
    assert world.condition("Job", "work", "FailureTarget")["status"] == "True"
    assert world.condition("Job", "work", "Failed") is None
    assert world.status("Job", "work")["terminating"] == 1
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert world.condition("Job", "work", "Failed")["status"] == "True"


def test_suspend_deletes_the_pods_without_counting_them_and_resume_starts_afresh(world: World) -> None:
    world.nodes(1)
    world.job("train", completions=2, parallelism=2, completionMode="Indexed")
    world.settle()
    world.advance(100)
    world.edit("Job", "train", suspend=True)
    world.settle()
    assert world.pods("train") == []
    status = world.status("Job", "train")
    assert "startTime" not in status
    assert "failed" not in status
    suspended = world.condition("Job", "train", "Suspended")
    assert (suspended["status"], suspended["reason"], suspended["message"]) == ("True", "JobSuspended", "Job suspended")
    world.edit("Job", "train", suspend=False)
    world.settle()
    assert len(live(world, "train")) == 2
    resumed = world.condition("Job", "train", "Suspended")
    assert (resumed["status"], resumed["reason"], resumed["message"]) == ("False", "JobResumed", "Job resumed")
    assert world.status("Job", "train")["startTime"] == "2026-01-01T00:01:40Z"


def test_a_job_made_suspended_does_not_start(world: World) -> None:
    world.nodes(1)
    world.job("train", suspend=True)
    world.settle()
    assert world.pods("train") == []
    assert "startTime" not in world.status("Job", "train")
    assert world.condition("Job", "train", "Suspended")["status"] == "True"


def test_the_active_deadline_ends_a_job(world: World) -> None:
    world.nodes(1)
    world.job("work", activeDeadlineSeconds=60)
    world.settle()
    world.advance(61)
    failed = world.condition("Job", "work", "Failed")
    assert (failed["reason"], failed["message"]) == (
        "DeadlineExceeded",
        "Job was active longer than specified deadline",
    )
    assert live(world, "work") == []


def test_a_finished_job_is_deleted_with_its_pods_after_its_ttl(world: World) -> None:
    world.nodes(1)
    world.job("work", ttlSecondsAfterFinished=120)
    world.settle()
    world.finish(live(world, "work")[0])
    world.settle()
    world.advance(100)
    assert world.exists("Job", "work")
    world.advance(30)
    assert not world.exists("Job", "work")
    assert world.pods("work") == []


def disrupted(world: World, pod: dict[str, Any]) -> None:
    """The condition that the eviction API puts on a pod."""
    pod = world.get("Pod", pod["metadata"]["name"])
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    conditions = [*pod["status"]["conditions"], target]
    pods = world.store.registry.kind_of("v1", "Pod")
    world.store.replace_status(pods, {**pod, "status": {**pod["status"], "conditions": conditions}})


def test_ignore_on_disruption_does_not_spend_the_backoff_limit(world: World) -> None:
    world.nodes(1)
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    world.job("work", backoffLimit=0, podFailurePolicy={"rules": [rule]})
    world.settle()
    [pod] = live(world, "work")
    disrupted(world, pod)
    world.delete("Pod", pod["metadata"]["name"])
    world.settle()
    world.advance(11)
    assert "failed" not in world.status("Job", "work")
    assert world.condition("Job", "work", "Failed") is None
    assert len(live(world, "work")) == 1


def test_with_a_failure_policy_the_replacement_waits_until_the_pod_has_failed(world: World) -> None:
    world.nodes(1)
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    world.job("work", podFailurePolicy={"rules": [rule]})
    world.settle()
    [pod] = live(world, "work")
    world.kubelet.holds.add(pod["metadata"]["name"])
    world.delete("Pod", pod["metadata"]["name"])
    world.advance(60)
    assert live(world, "work") == []
    assert world.status("Job", "work")["terminating"] == 1


def test_an_exit_code_may_fail_the_whole_job(world: World) -> None:
    world.nodes(1)
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    world.job("work", completions=2, parallelism=2, podFailurePolicy={"rules": [rule]})
    world.settle()
    pod = live(world, "work")[0]
    world.finish(pod, "Failed", exit_code=42)
    world.settle()
    failed = world.condition("Job", "work", "Failed")
    name = pod["metadata"]["name"]
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"] == (
        f"Container main for pod default/{name} failed with exit code 42 matching FailJob rule at index 0"
    )


def test_limits_per_index_give_up_one_index_and_finish_the_others(world: World) -> None:
    world.nodes(1)
    world.job("train", completions=2, parallelism=2, completionMode="Indexed", backoffLimitPerIndex=1)
    world.settle()
    for _ in range(2):
        [pod] = [each for each in live(world, "train") if each["metadata"]["labels"][INDEX] == "0"]
        world.finish(pod, "Failed")
        world.advance(30)
    status = world.status("Job", "train")
    assert status["failedIndexes"] == "0"
    assert world.condition("Job", "train", "Failed") is None
    world.finish(live(world, "train")[0])
    world.settle()
    failed = world.condition("Job", "train", "Failed")
    assert (failed["reason"], failed["message"]) == ("FailedIndexes", "Job has failed indexes")
    assert world.status("Job", "train")["completedIndexes"] == "1"


def test_a_success_policy_ends_the_job_early(world: World) -> None:
    world.nodes(1)
    policy = {"rules": [{"succeededIndexes": "0"}]}
    world.job("train", completions=3, parallelism=3, completionMode="Indexed", successPolicy=policy)
    world.settle()
    [leader] = [pod for pod in world.pods("train") if pod["metadata"]["labels"][INDEX] == "0"]
    world.finish(leader)
    world.settle()
    complete = world.condition("Job", "train", "Complete")
    assert (complete["reason"], complete["message"]) == ("SuccessPolicy", "Matched rules at index 0")
    assert live(world, "train") == []


def test_less_parallelism_removes_pods(world: World) -> None:
    world.nodes(1)
    world.job("work", completions=5, parallelism=4)
    world.settle()
    world.edit("Job", "work", parallelism=1)
    world.settle()
    assert len(live(world, "work")) == 1
    assert "failed" not in world.status("Job", "work")


def test_pods_of_a_deleted_job_are_freed_and_go(world: World) -> None:
    world.nodes(1)
    world.job("work", parallelism=2, completions=2)
    world.settle()
    world.delete("Job", "work", propagation="Background")
    world.settle()
    assert not world.exists("Job", "work")
    assert world.pods("work") == []


def test_container_restarts_count_against_the_limit(world: World) -> None:
    world.nodes(1)
    world.job("work", backoffLimit=2, template=world.template("work", restartPolicy="OnFailure"))
    world.settle()
    pod = live(world, "work")[0]
    pods = world.store.registry.kind_of("v1", "Pod")
    restarted = [{"name": "main", "restartCount": 2, "state": {"running": {}}}]
    world.store.replace_status(pods, {**pod, "status": {**pod["status"], "containerStatuses": restarted}})
    world.settle()
    assert world.condition("Job", "work", "Failed")["reason"] == "BackoffLimitExceeded"
