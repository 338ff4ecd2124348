"""Jobs, above all Indexed ones: a probe and a gang are both such a Job."""

INDEXED = {"completionMode": "Indexed"}


def names(cluster):
    return [pod["metadata"]["name"] for pod in cluster.list("Pod")]


def by_index(cluster, count):
    pods = cluster.until_pods(count)
    return {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod for pod in pods}


def test_an_indexed_job_makes_one_pod_per_index(cluster):
    cluster.node()
    cluster.job("train", parallelism=3, completions=3, **INDEXED)
    pods = by_index(cluster, 3)
    assert sorted(pods) == ["0", "1", "2"]
    for index, pod in pods.items():
        assert pod["metadata"]["generateName"] == f"train-{index}-"
        assert pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == index
        assert pod["spec"]["hostname"] == f"train-{index}"
        assert pod["spec"]["restartPolicy"] == "Never"


def test_an_indexed_pod_reads_its_index_from_the_environment(cluster):
    cluster.node()
    cluster.job("train", parallelism=1, completions=1, **INDEXED)
    (variable,) = by_index(cluster, 1)["0"]["spec"]["containers"][0]["env"]
    assert variable["name"] == "JOB_COMPLETION_INDEX"
    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['batch.kubernetes.io/job-completion-index']"


def test_a_job_s_pods_carry_its_labels_and_a_tracking_finalizer(cluster):
    cluster.node()
    job = cluster.job("train", parallelism=1, completions=1)
    pod = cluster.until_pods(1)[0]
    uid = job["metadata"]["uid"]
    labels = pod["metadata"]["labels"]
    assert labels["batch.kubernetes.io/job-name"] == labels["job-name"] == "train"
    assert labels["batch.kubernetes.io/controller-uid"] == labels["controller-uid"] == uid
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    assert job["spec"]["selector"]["matchLabels"] == {"batch.kubernetes.io/controller-uid": uid}


def test_defaults_of_a_job(cluster):
    job = cluster.job("train", suspend=True)
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["completionMode"], spec["suspend"]) == (6, "NonIndexed", True)
    assert (spec["parallelism"], spec["completions"]) == (1, 1)
    assert spec["podReplacementPolicy"] == "TerminatingOrFailed"


def test_a_job_is_complete_when_every_index_succeeded(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2, **INDEXED)
    for pod in by_index(cluster, 2).values():
        cluster.finish(pod["metadata"]["name"])
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Complete").get("status") == "True")
    status = job["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")
    assert "completionTime" in status
    assert cluster.condition(job, "Complete")["reason"] == "CompletionsReached"
    assert cluster.condition(job, "SuccessCriteriaMet")["status"] == "True"
    assert "active" not in status
    for pod in cluster.list("Pod"):
        assert not pod["metadata"].get("finalizers")


def test_active_and_ready_are_counted(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2, **INDEXED)
    by_index(cluster, 2)
    status = cluster.until("Job", "train", lambda j: j["status"].get("ready") == 2)["status"]
    assert status["active"] == 2
    assert "startTime" in status


def test_parallelism_bounds_the_pods(cluster):
    cluster.node()
    cluster.job("sweep", parallelism=1, completions=2, **INDEXED)
    first = by_index(cluster, 1)
    assert list(first) == ["0"]
    cluster.finish(first["0"]["metadata"]["name"])
    cluster.eventually(lambda: len(names(cluster)) == 2)
    indexes = [p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for p in cluster.list("Pod")]
    assert sorted(indexes) == ["0", "1"]


def test_suspending_deletes_the_pods_and_says_so(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2, **INDEXED)
    by_index(cluster, 2)
    cluster.patch("Job", "train", {"spec": {"suspend": True}})
    cluster.until_pods(0)
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Suspended").get("status") == "True")
    condition = cluster.condition(job, "Suspended")
    assert (condition["reason"], condition["message"]) == ("JobSuspended", "Job suspended")
    job = cluster.until("Job", "train", lambda j: not j["status"].get("active"))
    assert ("startTime" in job["status"]) == (cluster.minor < 36)
    assert "failed" not in job["status"]


def test_suspending_is_graceful(cluster):
    cluster.node()
    cluster.job("train", template={"annotations": {"conformance/linger": ""}, "spec": {"restartPolicy": "Never"}})
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    cluster.patch("Job", "train", {"spec": {"suspend": True}})
    pod = cluster.until("Pod", name, lambda p: "deletionTimestamp" in p["metadata"])
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30


def test_resuming_starts_all_indexes_again(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2, suspend=True, **INDEXED)
    cluster.until("Job", "train", lambda j: cluster.condition(j, "Suspended").get("status") == "True")
    assert names(cluster) == []
    cluster.patch("Job", "train", {"spec": {"suspend": False}})
    assert sorted(by_index(cluster, 2)) == ["0", "1"]
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Suspended").get("status") == "False")
    assert cluster.condition(job, "Suspended")["reason"] == "JobResumed"
    assert "startTime" in job["status"]


def test_a_suspended_job_may_change_where_its_pods_run(cluster):
    cluster.job("train", suspend=True)
    where = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "new"}}}}}
    job = cluster.patch("Job", "train", where)
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "new"}


def test_a_job_that_has_started_and_is_suspended_may_change_where_its_pods_run_from_1_36_on(cluster):
    cluster.node()
    cluster.job("train")
    cluster.until_pods(1)
    cluster.patch("Job", "train", {"spec": {"suspend": True}})
    cluster.until_pods(0)
    cluster.until("Job", "train", lambda j: not j["status"].get("active"))
    where = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "new"}}}}}
    answer = cluster.call("PATCH", cluster.path("Job", "train"), where, kind="merge-patch")
    if cluster.minor < 36:
        assert (answer.status, answer.body["details"]["causes"][0]["field"]) == (422, "spec.template")
    else:
        assert answer.status == 200
        assert answer.body["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "new"}


def test_a_running_job_may_not_change_where_its_pods_run(cluster):
    cluster.node()
    cluster.job("train")
    cluster.until_pods(1)
    where = {"spec": {"template": {"spec": {"nodeSelector": {"pool": "new"}}}}}
    answer = cluster.call("PATCH", cluster.path("Job", "train"), where, kind="merge-patch")
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    (cause,) = answer.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "spec.template")
    assert cause["message"].endswith("field is immutable")


def test_a_failed_pod_is_tried_again(cluster):
    cluster.node()
    cluster.job("train", parallelism=1, completions=1, backoffLimit=3, **INDEXED)
    first = by_index(cluster, 1)["0"]["metadata"]["name"]
    cluster.finish(first, "Failed", 1)
    cluster.until("Job", "train", lambda j: j["status"].get("failed") == 1)
    again = cluster.eventually(lambda: [name for name in names(cluster) if name != first])
    assert again[0].startswith("train-0-")


def test_a_job_fails_past_its_backoff_limit(cluster):
    cluster.node()
    cluster.job("train", backoffLimit=0)
    cluster.finish(cluster.until_pods(1)[0]["metadata"]["name"], "Failed", 1)
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Failed").get("status") == "True")
    condition = cluster.condition(job, "Failed")
    assert condition["reason"] == "BackoffLimitExceeded"
    assert condition["message"] == "Job has reached the specified backoff limit"
    assert job["status"]["failed"] == 1
    assert cluster.condition(job, "FailureTarget")["reason"] == "BackoffLimitExceeded"


def test_a_deadline_ends_a_job(cluster):
    cluster.node()
    cluster.job("train", activeDeadlineSeconds=1)
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Failed").get("status") == "True")
    condition = cluster.condition(job, "Failed")
    assert condition["reason"] == "DeadlineExceeded"
    assert condition["message"] == "Job was active longer than specified deadline"
    cluster.until_pods(0)


def test_a_pod_failure_policy_ignores_a_disruption(cluster):
    cluster.node()
    policy = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
    cluster.job("train", backoffLimit=0, podFailurePolicy=policy)
    first = cluster.until_pods(1)[0]["metadata"]["name"]
    assert cluster.evict(first).status == 201
    cluster.eventually(lambda: [name for name in names(cluster) if name != first])
    job = cluster.get("Job", "train")
    assert not job["status"].get("failed")
    assert not cluster.condition(job, "Failed")


def test_an_evicted_pod_counts_as_failed_without_a_policy(cluster):
    cluster.node()
    cluster.job("train", backoffLimit=0)
    assert cluster.evict(cluster.until_pods(1)[0]["metadata"]["name"]).status == 201
    job = cluster.until("Job", "train", lambda j: cluster.condition(j, "Failed").get("status") == "True")
    assert cluster.condition(job, "Failed")["reason"] == "BackoffLimitExceeded"


def test_a_finished_job_goes_after_its_time_to_live(cluster):
    cluster.node()
    cluster.job("train", ttlSecondsAfterFinished=0)
    cluster.finish(cluster.until_pods(1)[0]["metadata"]["name"])
    cluster.until_gone("Job", "train")
    cluster.eventually(lambda: names(cluster) == [])


def test_deleting_a_job_deletes_its_pods_despite_the_finalizer(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2)
    cluster.until_pods(2)
    answer = cluster.delete("Job", "train", propagationPolicy="Background")
    assert answer.status == 200
    cluster.until_gone("Job", "train")
    cluster.eventually(lambda: names(cluster) == [])


def test_deleting_a_job_without_a_policy_orphans_its_pods_and_warns(cluster):
    cluster.node()
    cluster.job("train")
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    answer = cluster.delete("Job", "train")
    assert answer.status == 200
    assert answer.warning == (
        '299 - "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove '
        'them or set propagationPolicy=Orphan to suppress this warning"'
    )
    cluster.until_gone("Job", "train")
    pod = cluster.until("Pod", name, lambda p: not p["metadata"].get("ownerReferences"))
    assert "deletionTimestamp" not in pod["metadata"]
