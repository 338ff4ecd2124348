"""What the disruption controller writes into a budget, for every kind of owner."""

import time

import pytest


def test_min_available_counts_the_pods_of_a_deployment(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 4)
    cluster.until_pods(4)
    cluster.budget("b", {"app": "web"}, minAvailable=3)
    status = cluster.counts("b", allowed=1, current=4, desired=3, expected=4)
    condition = cluster.condition({"status": status}, "DisruptionAllowed")
    assert (condition["status"], condition["reason"]) == ("True", "SufficientPods")
    assert condition["message"] == ""
    assert condition["observedGeneration"] == 1
    assert status["observedGeneration"] == 1


def test_a_closed_budget_says_insufficient_pods(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    cluster.budget("b", {"app": "web"}, minAvailable=2)
    status = cluster.counts("b", allowed=0, current=2, desired=2, expected=2)
    condition = cluster.condition({"status": status}, "DisruptionAllowed")
    assert (condition["status"], condition["reason"]) == ("False", "InsufficientPods")


@pytest.mark.parametrize(
    ("replicas", "spec", "desired"),
    [
        (3, {"minAvailable": "50%"}, 2),  # rounded up
        (3, {"maxUnavailable": "50%"}, 1),  # the share that may be missing is rounded up too
        (7, {"minAvailable": "30%"}, 3),
        (7, {"maxUnavailable": "30%"}, 4),
        (3, {"maxUnavailable": 1}, 2),
        (3, {"maxUnavailable": 0}, 3),
        (3, {"maxUnavailable": 5}, 0),
        (3, {"maxUnavailable": "100%"}, 0),
        (3, {"minAvailable": "100%"}, 3),
        (3, {"minAvailable": 0}, 0),
    ],
    ids=str,
)
def test_percentages_are_of_the_owner_s_replicas(cluster, replicas, spec, desired):
    cluster.node()
    cluster.workload("Deployment", "web", replicas)
    cluster.until_pods(replicas)
    cluster.budget("b", {"app": "web"}, **spec)
    cluster.counts("b", allowed=replicas - desired, current=replicas, desired=desired, expected=replicas)


def test_min_available_above_the_replicas_never_allows(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    cluster.budget("b", {"app": "web"}, minAvailable=3)
    cluster.counts("b", allowed=0, current=2, desired=3, expected=2)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet"])
def test_replicasets_and_statefulsets_are_counted_by_their_scale(cluster, kind):
    cluster.node()
    cluster.workload(kind, "web", 2)
    cluster.until_pods(2)
    cluster.budget("b", {"app": "web"}, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)


def test_expected_pods_follow_a_scale_up_before_the_pods_are_there(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2, template={"annotations": {"conformance/ready": "false"}})
    cluster.until_pods(2, ready=False)
    cluster.budget("b", {"app": "web"}, maxUnavailable=1)
    cluster.counts("b", allowed=0, current=0, desired=1, expected=2)
    cluster.scale("Deployment", "web", 4)
    cluster.counts("b", allowed=0, current=0, desired=3, expected=4)


def test_two_deployments_under_one_budget_are_added(cluster):
    cluster.node()
    for name in ("one", "two"):
        template = cluster.template(name)
        template["metadata"]["labels"]["tier"] = "front"
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template}
        cluster.create("Deployment", name, spec=spec)
    cluster.until_pods(4)
    cluster.budget("b", {"tier": "front"}, maxUnavailable="50%")
    cluster.counts("b", allowed=2, current=4, desired=2, expected=4)


def test_a_job_cannot_be_counted_under_max_unavailable(cluster):
    cluster.node()
    cluster.job("train", parallelism=2, completions=2)
    cluster.until_pods(2)
    cluster.budget("b", {"app": "train"}, maxUnavailable=1)
    status = cluster.until(
        "PodDisruptionBudget", "b", lambda b: cluster.condition(b, "DisruptionAllowed").get("reason") == "SyncFailed"
    )["status"]
    condition = cluster.condition({"status": status}, "DisruptionAllowed")
    assert condition["status"] == "False"
    assert condition["message"] == "jobs.batch does not implement the scale subresource"
    assert status["disruptionsAllowed"] == 0


def test_a_job_is_counted_under_an_integer_min_available(cluster):
    cluster.node()
    cluster.job("train", parallelism=3, completions=3)
    cluster.until_pods(3)
    cluster.budget("b", {"app": "train"}, minAvailable=2)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)


def test_a_daemonset_cannot_be_counted_under_max_unavailable(cluster):
    cluster.node()
    spec = {"selector": {"matchLabels": {"app": "agent"}}, "template": cluster.template("agent")}
    cluster.create("DaemonSet", "agent", spec=spec)
    cluster.until_pods(1)
    cluster.budget("b", {"app": "agent"}, maxUnavailable=1)
    status = cluster.until(
        "PodDisruptionBudget", "b", lambda b: cluster.condition(b, "DisruptionAllowed").get("reason") == "SyncFailed"
    )["status"]
    message = cluster.condition({"status": status}, "DisruptionAllowed")["message"]
    assert message == "daemonsets.apps does not implement the scale subresource"


def test_bare_pods_are_not_expected_under_max_unavailable(cluster):
    cluster.node()
    cluster.running_pod("a")
    cluster.running_pod("b")
    cluster.budget("b", {"app": "bare"}, maxUnavailable=1)
    cluster.counted("b")
    cluster.counts("b", allowed=0, current=2, desired=0, expected=0)


def test_bare_pods_are_counted_under_an_integer_min_available(cluster):
    cluster.node()
    cluster.running_pod("a")
    cluster.running_pod("b")
    cluster.budget("b", {"app": "bare"}, minAvailable=1)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)


def test_a_finished_pod_stays_expected_but_is_not_healthy(cluster):
    cluster.node()
    cluster.running_pod("a")
    cluster.running_pod("b")
    cluster.finish("b")
    cluster.budget("b", {"app": "bare"}, minAvailable=1)
    cluster.counts("b", allowed=0, current=1, desired=1, expected=2)


def test_pods_of_an_unknown_owner_are_not_expected_under_max_unavailable(cluster):
    cluster.node()
    owner = cluster.create("ConfigMap", "owner")
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    cluster.running_pod("a", ownerReferences=[reference])
    cluster.budget("b", {"app": "bare"}, maxUnavailable=1)
    status = cluster.until("PodDisruptionBudget", "b", lambda b: b["status"].get("conditions"))["status"]
    condition = cluster.condition({"status": status}, "DisruptionAllowed")
    assert (condition["status"], condition["reason"]) == ("False", "SyncFailed")


def test_an_empty_selector_selects_every_pod_of_the_namespace(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    cluster.budget("b", maxUnavailable=1)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)


def test_an_empty_selector_is_charged_by_an_eviction(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    pods = cluster.until_pods(2)
    cluster.budget("b", maxUnavailable=0)
    cluster.counts("b", allowed=0, current=2, desired=2, expected=2)
    answer = cluster.evict(pods[0]["metadata"]["name"])
    assert answer.status == 429, answer
    assert answer.body["details"]["causes"][0]["reason"] == "DisruptionBudget"


def test_no_selector_selects_nothing(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    pods = cluster.until_pods(2)
    cluster.create("PodDisruptionBudget", "b", spec={"maxUnavailable": 0})
    cluster.counts("b", allowed=0, current=0, desired=0, expected=0)
    assert cluster.evict(pods[0]["metadata"]["name"]).status == 201


def test_an_unready_pod_is_expected_and_not_healthy(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    pods = cluster.until_pods(2)
    cluster.budget("b", {"app": "web"}, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)
    cluster.make_ready(pods[0]["metadata"]["name"], ready=False)
    cluster.counts("b", allowed=0, current=1, desired=1, expected=2)
    cluster.make_ready(pods[0]["metadata"]["name"], ready=True)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)


def test_a_terminating_pod_is_not_healthy(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 2, template={"annotations": {"conformance/linger": ""}})
    pods = cluster.until_pods(2)
    cluster.budget("b", {"app": "web"}, minAvailable=1)
    cluster.counts("b", allowed=1, current=2, desired=1, expected=2)
    cluster.delete("Pod", pods[0]["metadata"]["name"])
    # It is expected, as every selected pod is under an integer; healthy are the other one and its replacement.
    cluster.counts("b", allowed=1, current=2, desired=1, expected=3)


def test_an_accepted_eviction_is_noted_until_the_pod_is_seen_terminating(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 3)
    pods = cluster.until_pods(3)
    cluster.budget("b", {"app": "web"}, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    assert cluster.evict(pods[0]["metadata"]["name"]).status == 201
    cluster.until_gone("Pod", pods[0]["metadata"]["name"])
    status = cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    assert not status.get("disruptedPods")


def test_changing_the_spec_raises_generation_and_is_observed(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 3)
    cluster.until_pods(3)
    cluster.budget("b", {"app": "web"}, maxUnavailable=1)
    cluster.counts("b", allowed=1, current=3, desired=2, expected=3)
    changed = cluster.patch("PodDisruptionBudget", "b", {"spec": {"maxUnavailable": 2}})
    assert changed["metadata"]["generation"] == 2
    status = cluster.counts("b", allowed=2, current=3, desired=1, expected=3)
    assert status["observedGeneration"] == 2


def test_a_new_budget_shows_zeros_until_it_is_counted(cluster):
    created = cluster.create(
        "PodDisruptionBudget", "b", spec={"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    )
    zeros = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}
    assert created["status"] == zeros
    assert created["metadata"]["generation"] == 1


def test_a_budget_over_no_pods_is_counted(cluster):
    cluster.budget("b", {"app": "nobody"}, minAvailable=1)
    status = cluster.counted("b")
    assert cluster.counts("b", allowed=0, current=0, desired=1, expected=0)
    assert cluster.condition({"status": status}, "DisruptionAllowed")["reason"] == "InsufficientPods"


def test_a_custom_resource_with_a_scale_is_counted_by_it(cluster, gangs):
    path = f"/apis/{gangs}/namespaces/{cluster.namespace}/gangs"
    body = {"apiVersion": gangs, "kind": "Gang", "metadata": {"name": "g"}, "spec": {"replicas": 5}}
    owner = cluster.eventually(lambda: (a := cluster.call("POST", path, body)).status == 201 and a.body)
    reference = {
        "apiVersion": gangs,
        "kind": "Gang",
        "name": "g",
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    cluster.node()
    for number in range(3):
        cluster.running_pod(f"g-{number}", "gang", ownerReferences=[reference])
    cluster.budget("b", {"app": "gang"}, maxUnavailable=2)

    def counted():
        # The real controller manager learns of a new kind within 30 s, and tries ever more rarely: wake it up.
        cluster.patch("Pod", "g-0", {"metadata": {"annotations": {"look": str(time.monotonic())}}})
        time.sleep(0.2)
        status = cluster.get("PodDisruptionBudget", "b")["status"]
        return status if status.get("expectedPods") == 5 else None

    status = cluster.eventually(counted, patience=90)
    assert (status["disruptionsAllowed"], status["currentHealthy"], status["desiredHealthy"]) == (0, 3, 3)
