"""Deletion of pods between API server and node agent."""


def lingering(cluster, **spec):
    cluster.node()
    return cluster.running_pod("p", annotations={"conformance/linger": ""}, spec=spec)


def test_deletion_sets_a_time_and_waits_for_the_node(cluster):
    lingering(cluster)
    answer = cluster.delete("Pod", "p")
    assert (answer.status, answer.body["kind"]) == (200, "Pod")
    meta = answer.body["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 30
    assert meta["deletionTimestamp"]
    assert cluster.get("Pod", "p")["status"]["phase"] == "Running"


def test_the_pod_s_own_grace_period_is_used(cluster):
    lingering(cluster, terminationGracePeriodSeconds=5)
    assert cluster.delete("Pod", "p").body["metadata"]["deletionGracePeriodSeconds"] == 5


def test_grace_can_be_shortened_but_not_stretched(cluster):
    lingering(cluster, terminationGracePeriodSeconds=5)
    cluster.delete("Pod", "p")
    answer = cluster.delete("Pod", "p", gracePeriodSeconds=60)
    assert (answer.status, answer.body["metadata"]["deletionGracePeriodSeconds"]) == (200, 5)
    answer = cluster.delete("Pod", "p", gracePeriodSeconds=2)
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 2


def test_grace_zero_removes_at_once(cluster):
    lingering(cluster)
    assert cluster.delete("Pod", "p", gracePeriodSeconds=0).status == 200
    assert cluster.get("Pod", "p") is None


def test_an_unbound_pod_goes_at_once(cluster):
    cluster.pod("p")
    assert cluster.delete("Pod", "p").status == 200
    assert cluster.get("Pod", "p") is None


def test_a_finished_pod_goes_at_once(cluster):
    cluster.node()
    cluster.running_pod("p")
    cluster.finish("p")
    cluster.delete("Pod", "p")
    assert cluster.get("Pod", "p") is None


def test_a_bound_pending_pod_goes_at_once_or_by_its_node(cluster):
    cluster.node()
    cluster.pod("p", annotations={"conformance/idle": "", "conformance/linger": ""})
    cluster.until("Pod", "p", lambda p: p["spec"].get("nodeName"))
    answer = cluster.delete("Pod", "p")
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert cluster.get("Pod", "p") is not None


def test_a_wrong_uid_is_a_conflict(cluster):
    lingering(cluster)
    wrong = "11111111-2222-3333-4444-555555555555"
    answer = cluster.delete("Pod", "p", preconditions={"uid": wrong})
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    uid = cluster.get("Pod", "p")["metadata"]["uid"]
    assert answer.body["message"] == (
        f'Operation cannot be fulfilled on Pod "p": the UID in the precondition ({wrong}) does not match the UID '
        f"in record ({uid}). The object might have been deleted and then recreated"
    )


def test_a_finalizer_outlives_the_containers(cluster):
    cluster.node()
    cluster.pod("p", finalizers=["example.com/hold"])
    cluster.until("Pod", "p", lambda p: p["status"].get("phase") == "Running")
    cluster.delete("Pod", "p")
    held = cluster.until("Pod", "p", lambda p: p["metadata"].get("deletionGracePeriodSeconds") == 0)
    assert held["metadata"]["finalizers"] == ["example.com/hold"]
    cluster.patch("Pod", "p", {"metadata": {"finalizers": None}})
    cluster.until_gone("Pod", "p")


def test_a_deleted_node_takes_its_pods_only_later(cluster):
    node = cluster.node()
    cluster.running_pod("p", annotations={"conformance/linger": ""})
    answer = cluster.delete("Node", node)
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (200, "Status", "Success")
    assert cluster.get("Pod", "p")["spec"]["nodeName"] == node


def test_a_dry_run_deletes_nothing(cluster):
    lingering(cluster)
    answer = cluster.call("DELETE", cluster.path("Pod", "p"), dryRun="All")
    assert answer.status == 200
    assert "deletionTimestamp" not in cluster.get("Pod", "p")["metadata"]


def test_a_new_node_carries_the_not_ready_taint_until_it_is_ready(cluster):
    name = f"{cluster.namespace}-new"
    cluster.nodes.append(name)
    made = cluster.create("Node", name)
    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


def test_a_node_that_reports_not_ready_is_tainted(cluster):
    node = cluster.node()
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no network"}
    cluster.patch("Node", node, {"status": {"conditions": [condition]}}, sub="status")
    found = cluster.until("Node", node, lambda n: n["spec"].get("taints"))
    effects = {(t["key"], t["effect"]) for t in found["spec"]["taints"]}
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in effects


def test_pods_on_a_node_that_says_not_ready_itself_stay_ready(cluster):
    """Its agent is alive and would say so of the pods; only a node that fell silent has its pods marked."""
    node = cluster.node()
    cluster.workload("ReplicaSet", "web", 1)
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "no network"}
    cluster.patch("Node", node, {"status": {"conditions": [condition]}}, sub="status")
    cluster.until("Node", node, lambda n: n["spec"].get("taints"))
    assert cluster.condition(cluster.get("Pod", name), "Ready")["status"] == "True"


def test_pods_tolerate_a_node_that_is_away_for_five_minutes(cluster):
    pod = cluster.pod("p")
    tolerations = {(t["key"], t["effect"], t["tolerationSeconds"]) for t in pod["spec"]["tolerations"]}
    assert tolerations == {
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    }
