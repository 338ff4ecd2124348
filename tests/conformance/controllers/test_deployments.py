"""Deployments, ReplicaSets and StatefulSets: what they create, in which order, and what their status says."""

import pytest


def test_a_deployment_makes_one_replicaset_named_after_its_template(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    pods = cluster.until_pods(2)
    (replicaset,) = cluster.list("ReplicaSet")
    hashed = replicaset["metadata"]["labels"]["pod-template-hash"]
    assert replicaset["metadata"]["name"] == f"web-{hashed}"
    assert replicaset["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": hashed}
    assert replicaset["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    owner = replicaset["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "Deployment",
        "web",
        True,
        True,
    )
    for pod in pods:
        assert pod["metadata"]["generateName"] == f"web-{hashed}-"
        assert pod["metadata"]["labels"]["pod-template-hash"] == hashed
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"


def test_a_ready_deployment_is_available_and_has_progressed(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    done = cluster.until("Deployment", "web", lambda d: d["status"].get("availableReplicas") == 2)
    done = cluster.until(
        "Deployment", "web", lambda d: cluster.condition(d, "Progressing").get("reason") == "NewReplicaSetAvailable"
    )
    status = done["status"]
    assert status["replicas"] == status["updatedReplicas"] == status["readyReplicas"] == 2
    assert status["observedGeneration"] == 1
    assert "unavailableReplicas" not in status
    assert cluster.condition(done, "Available")["status"] == "True"
    assert cluster.condition(done, "Available")["reason"] == "MinimumReplicasAvailable"


def test_an_unready_deployment_is_not_available(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2, template={"annotations": {"conformance/ready": "false"}})
    found = cluster.until("Deployment", "web", lambda d: d["status"].get("unavailableReplicas") == 2)
    assert "readyReplicas" not in found["status"]
    assert cluster.condition(found, "Available")["reason"] == "MinimumReplicasUnavailable"
    assert cluster.condition(found, "Available")["message"] == "Deployment does not have minimum availability."


def test_a_new_template_rolls_the_pods_over(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 3)
    old = {pod["metadata"]["name"] for pod in cluster.until_pods(3)}
    cluster.patch("Deployment", "web", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
    cluster.until(
        "Deployment",
        "web",
        lambda d: (
            d["status"].get("updatedReplicas") == 3
            and d["status"].get("replicas") == 3
            and d["status"].get("observedGeneration") == 2
        ),
    )
    assert not old & {pod["metadata"]["name"] for pod in cluster.until_pods(3)}
    revisions = {
        found["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: found["spec"]["replicas"]
        for found in cluster.list("ReplicaSet")
    }
    assert revisions == {"1": 0, "2": 3}


def test_a_rollout_that_is_never_ready_keeps_the_old_pods_within_max_unavailable(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 4)
    cluster.until_pods(4)
    change = {"conformance/ready": "false"}
    cluster.patch("Deployment", "web", {"spec": {"template": {"metadata": {"annotations": change}}}})
    # 25 % of 4: one more pod than wanted, one less than wanted ready.
    cluster.until(
        "Deployment",
        "web",
        lambda d: (
            d["status"].get("updatedReplicas") == 2
            and d["status"].get("readyReplicas") == 3
            and d["status"].get("replicas") == 5
        ),
    )


def test_recreate_ends_the_old_pods_before_the_new(cluster):
    cluster.node()
    spec = {"strategy": {"type": "Recreate"}}
    cluster.workload("Deployment", "web", 2, spec=spec, template={"annotations": {"conformance/linger": ""}})
    old = cluster.until_pods(2)
    cluster.patch("Deployment", "web", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
    cluster.eventually(lambda: all("deletionTimestamp" in pod["metadata"] for pod in cluster.list("Pod")))
    assert len(cluster.list("Pod")) == 2
    for pod in old:
        cluster.delete("Pod", pod["metadata"]["name"], gracePeriodSeconds=0)
    new = cluster.until_pods(2)
    assert {pod["metadata"]["annotations"]["v"] for pod in new} == {"2"}


def test_a_paused_deployment_does_not_roll_over_but_scales(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    change = {"paused": True, "replicas": 3, "template": {"metadata": {"annotations": {"v": "2"}}}}
    cluster.patch("Deployment", "web", {"spec": change})
    pods = cluster.until_pods(3)
    assert all("v" not in pod["metadata"].get("annotations", {}) for pod in pods)
    assert len(cluster.list("ReplicaSet")) == 1


def test_the_scale_subresource_shows_and_sets_replicas(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    cluster.until("Deployment", "web", lambda d: d["status"].get("replicas") == 2)
    scale = cluster.call("GET", cluster.path("Deployment", "web", "scale")).body
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": "app=web"}
    cluster.patch("Deployment", "web", {"spec": {"replicas": 1}}, sub="scale")
    cluster.until_pods(1)


def test_scaling_to_zero_ends_all_pods(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    cluster.scale("Deployment", "web", 0)
    cluster.until_pods(0)
    found = cluster.until("Deployment", "web", lambda d: not d["status"].get("replicas"))
    assert found["spec"]["replicas"] == 0


def test_scaling_down_prefers_pods_that_are_not_ready(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 3)
    pods = cluster.until_pods(3)
    cluster.make_ready(pods[1]["metadata"]["name"], ready=False)
    cluster.until("ReplicaSet", "web", lambda r: r["status"].get("readyReplicas") == 2)
    cluster.scale("ReplicaSet", "web", 2)
    left = {pod["metadata"]["name"] for pod in cluster.until_pods(2)}
    assert left == {pods[0]["metadata"]["name"], pods[2]["metadata"]["name"]}


def test_scaling_down_prefers_the_lower_deletion_cost(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 3)
    pods = cluster.until_pods(3)
    cheap = pods[2]["metadata"]["name"]
    annotations = {"controller.kubernetes.io/pod-deletion-cost": "-100"}
    cluster.patch("Pod", cheap, {"metadata": {"annotations": annotations}})
    cluster.until("ReplicaSet", "web", lambda r: r["status"].get("readyReplicas") == 3)
    cluster.scale("ReplicaSet", "web", 2)
    assert cheap not in {pod["metadata"]["name"] for pod in cluster.until_pods(2)}


def test_a_replicaset_adopts_a_matching_orphan(cluster):
    cluster.node()
    cluster.running_pod("orphan", "web")
    made = cluster.workload("ReplicaSet", "web", 2)
    cluster.until_pods(2)
    found = cluster.until("Pod", "orphan", lambda p: p["metadata"].get("ownerReferences"))
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


def test_a_pod_whose_label_is_taken_away_is_released_and_replaced(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 1)
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    cluster.patch("Pod", name, {"metadata": {"labels": {"app": "debug"}}})
    cluster.until("Pod", name, lambda p: not p["metadata"].get("ownerReferences"))
    cluster.until_pods(1, "app=web")


def test_a_failed_pod_is_replaced(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 1)
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    cluster.finish(name, "Failed", 1)
    cluster.eventually(
        lambda: [
            pod for pod in cluster.list("Pod") if pod["metadata"]["name"] != name and cluster.condition(pod, "Ready")
        ]
    )


def test_a_statefulset_starts_its_pods_one_after_the_other(cluster):
    cluster.node()
    cluster.workload("StatefulSet", "db", 3, template={"annotations": {"conformance/ready": "false"}})
    cluster.until("Pod", "db-0", lambda p: p["status"]["phase"] == "Running")
    cluster.until("StatefulSet", "db", lambda s: s["status"].get("replicas") == 1)
    assert cluster.get("Pod", "db-1") is None
    cluster.make_ready("db-0", ready=True)
    cluster.until("Pod", "db-1", lambda p: p["status"]["phase"] == "Running")
    assert cluster.get("Pod", "db-2") is None


def test_a_parallel_statefulset_starts_all_at_once(cluster):
    cluster.node()
    unready = {"annotations": {"conformance/ready": "false"}}
    cluster.workload("StatefulSet", "db", 3, spec={"podManagementPolicy": "Parallel"}, template=unready)
    names = [pod["metadata"]["name"] for pod in cluster.until_pods(3, ready=False)]
    assert names == ["db-0", "db-1", "db-2"]


def test_a_statefulset_s_pods_know_their_name_and_index(cluster):
    cluster.node()
    cluster.workload("StatefulSet", "db", 1)
    pod = cluster.until_pods(1)[0]
    labels = pod["metadata"]["labels"]
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-0"
    assert labels["apps.kubernetes.io/pod-index"] == "0"
    assert pod["spec"]["hostname"] == "db-0"
    assert pod["spec"]["subdomain"] == "db"
    found = cluster.until("StatefulSet", "db", lambda s: s["status"].get("readyReplicas") == 1)
    assert labels["controller-revision-hash"] == found["status"]["updateRevision"]
    assert found["status"]["currentRevision"] == found["status"]["updateRevision"]


def test_a_deleted_statefulset_pod_comes_back_with_its_name_only_when_gone(cluster):
    cluster.node()
    cluster.workload("StatefulSet", "db", 1, template={"annotations": {"conformance/linger": ""}})
    first = cluster.until_pods(1)[0]
    cluster.delete("Pod", "db-0")
    assert len(cluster.list("Pod")) == 1
    cluster.delete("Pod", "db-0", gracePeriodSeconds=0)
    again = cluster.until("Pod", "db-0", lambda p: p["metadata"]["uid"] != first["metadata"]["uid"])
    assert again["metadata"]["name"] == "db-0"


def test_a_statefulset_scales_down_from_the_highest_number(cluster):
    cluster.node()
    cluster.workload("StatefulSet", "db", 3)
    cluster.until_pods(3)
    cluster.scale("StatefulSet", "db", 1)
    assert [pod["metadata"]["name"] for pod in cluster.until_pods(1)] == ["db-0"]


def test_a_statefulset_s_new_template_replaces_from_the_highest_number(cluster):
    cluster.node()
    cluster.workload("StatefulSet", "db", 2)
    cluster.until_pods(2)
    change = {"conformance/ready": "false"}
    cluster.patch("StatefulSet", "db", {"spec": {"template": {"metadata": {"annotations": change}}}})
    # db-1 is replaced first; as it never gets ready, db-0 stays what it was.
    cluster.until(
        "Pod",
        "db-1",
        lambda p: (
            p["metadata"].get("annotations", {}).get("conformance/ready") == "false"
            and p["status"]["phase"] == "Running"
        ),
    )
    assert "conformance/ready" not in cluster.get("Pod", "db-0")["metadata"].get("annotations", {})


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_status_observes_the_generation_of_the_spec(cluster, kind):
    cluster.node()
    cluster.workload(kind, "web", 1)
    cluster.until_pods(1)
    cluster.scale(kind, "web", 2)
    found = cluster.until(kind, "web", lambda w: w["status"].get("readyReplicas") == 2)
    assert found["metadata"]["generation"] == 2
    assert found["status"]["observedGeneration"] == 2
