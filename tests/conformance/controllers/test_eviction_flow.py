"""Evictions end to end: what the budget, the owner and the pod show while one goes through."""


def three(cluster, **spec):
    cluster.node()
    cluster.workload("Deployment", "web", 3)
    pods = cluster.until_pods(3)
    cluster.budget("b", {"app": "web"}, **spec)
    return [pod["metadata"]["name"] for pod in pods]


def test_an_evicted_pod_is_replaced_by_its_owner(cluster):
    names = three(cluster, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    answer = cluster.evict(names[0])
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (201, "Status", "Success")
    cluster.until_gone("Pod", names[0])
    replaced = {pod["metadata"]["name"] for pod in cluster.until_pods(3)}
    assert len(replaced & set(names)) == 2


def test_a_closed_budget_refuses_and_names_itself(cluster):
    names = three(cluster, maxUnavailable=0)
    cluster.counts("b", allowed=0, current=3, desired=3, expected=3)
    answer = cluster.evict(names[0])
    assert answer.status == 429
    assert answer.body["reason"] == "TooManyRequests"
    assert answer.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert "retryAfterSeconds" not in answer.body["details"]
    assert answer.body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 3 healthy pods and has 3 currently",
        }
    ]


def test_a_budget_is_charged_at_once(cluster):
    names = three(cluster, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    cluster.silence_nodes()  # a replacement that gets Ready in between would give the budget back
    assert cluster.evict(names[0]).status == 201
    assert cluster.evict(names[1]).status == 429


def test_a_dry_run_charges_nothing(cluster):
    names = three(cluster, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    for name in names:
        assert cluster.evict(name, dryRun=["All"]).status == 201
    assert cluster.get("PodDisruptionBudget", "b")["status"]["disruptionsAllowed"] == 1
    assert len(cluster.until_pods(3)) == 3


def test_the_budget_is_charged_before_the_precondition(cluster):
    names = three(cluster, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    answer = cluster.evict(names[0], preconditions={"uid": "00000000-0000-0000-0000-000000000000"})
    assert (answer.status, answer.body["reason"]) == (409, "Conflict")
    status = cluster.get("PodDisruptionBudget", "b")["status"]
    assert status["disruptionsAllowed"] == 0
    assert list(status["disruptedPods"]) == [names[0]]
    assert cluster.evict(names[1]).status == 429


def test_an_evicted_pod_carries_the_disruption_target_condition(cluster):
    cluster.node()
    cluster.running_pod("p", annotations={"conformance/linger": ""})
    assert cluster.evict("p").status == 201
    pod = cluster.get("Pod", "p")
    condition = cluster.condition(pod, "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert condition["message"] == "Eviction API: evicting"
    assert pod["metadata"]["generation"] == 2
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30


def test_an_unready_pod_is_held_by_a_budget_that_is_not_met(cluster):
    names = three(cluster, minAvailable=3)
    cluster.counts("b", allowed=0, current=3, desired=3, expected=3)
    cluster.make_ready(names[0], ready=False)
    cluster.counts("b", allowed=0, current=2, desired=3, expected=3)
    assert cluster.evict(names[0]).status == 429


def test_an_unready_pod_goes_where_the_budget_is_met(cluster):
    names = three(cluster, minAvailable=2)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    cluster.make_ready(names[0], ready=False)
    cluster.counts("b", allowed=0, current=2, desired=2, expected=3)
    assert cluster.evict(names[0]).status == 201


def test_always_allow_lets_an_unready_pod_go(cluster):
    names = three(cluster, minAvailable=3, unhealthyPodEvictionPolicy="AlwaysAllow")
    cluster.counts("b", allowed=0, current=3, desired=3, expected=3)
    assert cluster.evict(names[0]).status == 429
    cluster.make_ready(names[0], ready=False)
    cluster.counts("b", allowed=0, current=2, desired=3, expected=3)
    assert cluster.evict(names[0]).status == 201


def test_two_budgets_over_one_pod_stop_every_eviction(cluster):
    names = three(cluster, maxUnavailable=3)
    cluster.budget("c", {"app": "web"}, maxUnavailable=3)
    answer = cluster.evict(names[0])
    assert answer.status == 500
    assert "reason" not in answer.body
    assert answer.body["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


def test_a_budget_that_is_not_counted_yet_says_when_to_come_again(cluster):
    names = three(cluster, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    # A status as it is between a change of the spec and the controller's next count.
    cluster.patch("PodDisruptionBudget", "b", {"spec": {"maxUnavailable": 2}})
    cluster.counts("b", allowed=2, current=3, desired=1, expected=3)
    assert cluster.evict(names[0], dryRun=["All"]).status == 201


def test_a_pod_with_a_deletion_time_is_evicted_without_charge(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 1, template={"annotations": {"conformance/linger": ""}})
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    cluster.delete("Pod", name)
    cluster.until_pods(1)
    cluster.budget("b", {"app": "web"}, maxUnavailable=0)
    cluster.counts("b", allowed=0, current=1, desired=1, expected=1)
    assert cluster.evict(name).status == 201


def test_a_pending_pod_is_evicted_past_a_closed_budget(cluster):
    cluster.pod("p")
    cluster.budget("b", {"app": "bare"}, minAvailable=5)
    cluster.counts("b", allowed=0, current=0, desired=5, expected=1)
    assert cluster.evict("p").status == 201
    cluster.until_gone("Pod", "p")


def test_a_finished_pod_is_evicted_past_a_closed_budget(cluster):
    cluster.node()
    cluster.running_pod("p")
    cluster.finish("p")
    cluster.budget("b", {"app": "bare"}, minAvailable=5)
    cluster.counts("b", allowed=0, current=0, desired=5, expected=1)
    assert cluster.evict("p").status == 201
    cluster.until_gone("Pod", "p")


def test_a_grace_period_of_the_eviction_wins_over_the_pod_s(cluster):
    cluster.node()
    cluster.running_pod("p", annotations={"conformance/linger": ""})
    assert cluster.evict("p", gracePeriodSeconds=7).status == 201
    assert cluster.get("Pod", "p")["metadata"]["deletionGracePeriodSeconds"] == 7


def test_a_daemonset_s_pod_comes_back_after_an_eviction(cluster):
    node = cluster.node()
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": cluster.template("agent")}
    cluster.create("DaemonSet", "agent", spec=spec)
    first = cluster.until_pods(1)[0]
    cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    assert cluster.evict(first["metadata"]["name"]).status == 201
    cluster.until_gone("Pod", first["metadata"]["name"])
    again = cluster.until_pods(1)[0]
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert again["spec"]["nodeName"] == node
