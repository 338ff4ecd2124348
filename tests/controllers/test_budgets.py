"""The status of PodDisruptionBudgets, for every kind of owner."""

from __future__ import annotations

from typing import Any

from infra.clock import rfc3339

World = Any


def numbers(world: World, name: str) -> tuple[int, int, int, int]:
    """(expected, desired, healthy, allowed)"""
    status = world.status("PodDisruptionBudget", name)
    return status["expectedPods"], status["desiredHealthy"], status["currentHealthy"], status["disruptionsAllowed"]


def test_max_unavailable_counts_against_the_scale_of_the_deployment(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 4)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    assert numbers(world, "web") == (4, 3, 4, 1)
    status = world.status("PodDisruptionBudget", "web")
    assert status["observedGeneration"] == 1
    [allowed] = status["conditions"]
    assert (allowed["type"], allowed["status"], allowed["reason"], allowed["message"]) == (
        "DisruptionAllowed",
        "True",
        "SufficientPods",
        "",
    )
    assert allowed["observedGeneration"] == 1


def test_percentages_round_up(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 7)
    world.budget("most", "web", maxUnavailable="50%")
    world.settle()
    assert numbers(world, "most") == (7, 3, 7, 4)
    world.edit("PodDisruptionBudget", "most", maxUnavailable=None, minAvailable="50%")
    world.settle()
    assert numbers(world, "most") == (7, 4, 7, 3)
    assert world.status("PodDisruptionBudget", "most")["observedGeneration"] == 2


def test_an_integer_minimum_counts_pods_not_scale(world: World) -> None:
    world.nodes(1, cpu="2")
    world.deployment("web", 3, requests={"cpu": "1"})
    world.budget("web", "web", minAvailable=2)
    world.settle()
    assert numbers(world, "web") == (3, 2, 2, 0)
    [allowed] = world.status("PodDisruptionBudget", "web")["conditions"]
    assert (allowed["status"], allowed["reason"]) == ("False", "InsufficientPods")


def test_a_pod_that_terminates_or_is_not_ready_is_not_healthy(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 3)
    world.budget("web", "web", maxUnavailable=2)
    world.settle()
    first, second, _ = world.pods("web")
    world.kubelet.holds.add(first["metadata"]["name"])
    world.kubelet.idle = True
    world.delete("Pod", first["metadata"]["name"])
    world.kubelet.set_phase(second, "Running", ready=False)
    world.settle()
    assert numbers(world, "web") == (3, 1, 1, 0)


def test_the_budget_follows_a_change_of_scale_with_the_next_pod(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    world.edit("Deployment", "web", replicas=5)
    world.settle()
    assert numbers(world, "web") == (5, 4, 5, 1)


def test_stateful_sets_and_plain_replica_sets_have_a_scale(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 3)
    world.budget("db", "db", maxUnavailable=1)
    template = world.template("plain")
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "plain"}}, "template": template}
    world.add("ReplicaSet", {"metadata": {"name": "plain"}, "spec": spec})
    world.budget("plain", "plain", minAvailable="50%")
    world.settle()
    assert numbers(world, "db") == (3, 2, 3, 1)
    assert numbers(world, "plain") == (2, 1, 2, 1)


def test_bare_pods_are_never_evictable_by_share_but_by_number(world: World) -> None:
    world.nodes(1)
    for number in range(3):
        world.pod(f"bare-{number}")
    world.budget("share", "bare", maxUnavailable=1)
    world.settle()
    assert numbers(world, "share") == (0, 0, 3, 0)
    assert any("were found to be unmanaged" in text for text in world.events("share", "UnmanagedPods"))
    world.edit("PodDisruptionBudget", "share", maxUnavailable=None, minAvailable=1)
    world.settle()
    assert numbers(world, "share") == (3, 1, 3, 2)


def test_owners_without_a_scale_fail_the_budget(world: World) -> None:
    world.nodes(1)
    world.daemon_set("agent")
    world.job("work")
    world.budget("agent", "agent", maxUnavailable=1)
    world.budget("work", "work", maxUnavailable=1)
    world.settle()
    for name, resource in (("agent", "daemonsets.apps"), ("work", "jobs.batch")):
        failed = world.condition("PodDisruptionBudget", name, "DisruptionAllowed")
        assert (failed["status"], failed["reason"]) == ("False", "SyncFailed")
        assert failed["message"] == f"{resource} does not implement the scale subresource"
        assert "observedGeneration" not in world.status("PodDisruptionBudget", name)
        assert world.status("PodDisruptionBudget", name)["disruptionsAllowed"] == 0


def test_a_job_counts_under_an_integer_minimum(world: World) -> None:
    world.nodes(1)
    world.job("work", parallelism=3, completions=3)
    world.budget("work", "work", minAvailable=2)
    world.settle()
    assert numbers(world, "work") == (3, 2, 3, 1)


def test_a_pod_whose_controller_is_gone_fails_the_budget(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 1)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    [replica_set] = world.list("ReplicaSet")
    reference = {**world.pods("web")[0]["metadata"]["ownerReferences"][0], "name": "other"}
    world.kubelet.idle = True
    body = world.template("lost")
    body["metadata"] |= {"name": "lost", "ownerReferences": [{**reference, "uid": replica_set["metadata"]["uid"]}]}
    world.add("Pod", body)
    world.budget("lost", "lost", maxUnavailable=1)
    world.settle()
    failed = world.condition("PodDisruptionBudget", "lost", "DisruptionAllowed")
    assert failed["message"] == 'found no controllers for pod "lost"'


def test_a_budget_without_pods(world: World) -> None:
    world.budget("empty", "nobody", minAvailable=1)
    world.settle()
    assert numbers(world, "empty") == (0, 1, 0, 0)
    assert world.events("empty", "NoPods") == ["No matching pods found"]


def test_an_empty_selector_means_every_pod_of_the_namespace(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.deployment("api", 3)
    world.add("PodDisruptionBudget", {"metadata": {"name": "all"}, "spec": {"selector": {}, "maxUnavailable": 1}})
    world.settle()
    assert numbers(world, "all") == (5, 4, 5, 1)


def test_of_two_budgets_over_the_same_pods_only_one_is_kept_current(world: World) -> None:
    world.nodes(1)
    world.budget("one", "web", maxUnavailable=1)
    world.budget("two", "web", maxUnavailable=1)
    world.settle()
    world.deployment("web", 2)
    world.settle()
    assert numbers(world, "one") == (2, 1, 2, 1)
    assert numbers(world, "two") == (0, 0, 0, 0)
    assert world.events(reason="MultiplePodDisruptionBudgets")


def charge(world: World, name: str, pod: str) -> None:
    """What the eviction API writes before it deletes."""
    budget = world.get("PodDisruptionBudget", name)
    status = {**budget["status"], "disruptedPods": {pod: rfc3339(world.clock.now())}}
    status["disruptionsAllowed"] -= 1
    kind = world.store.registry.kind_of("policy/v1", "PodDisruptionBudget")
    world.store.replace_status(kind, {**budget, "status": status})


def test_an_evicted_pod_that_stays_counts_as_disrupted_for_two_minutes(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 3)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    name = world.pods("web")[0]["metadata"]["name"]
    charge(world, "web", name)
    world.settle()
    assert numbers(world, "web") == (3, 2, 2, 0)
    assert list(world.status("PodDisruptionBudget", "web")["disruptedPods"]) == [name]
    world.advance(110)
    assert numbers(world, "web") == (3, 2, 2, 0)
    world.advance(11)
    assert numbers(world, "web") == (3, 2, 3, 1)
    assert "disruptedPods" not in world.status("PodDisruptionBudget", "web")
    assert world.events(name, "NotDeleted")


def test_a_disrupted_pod_that_is_deleted_leaves_the_map(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 3)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    name = world.pods("web")[0]["metadata"]["name"]
    charge(world, "web", name)
    world.delete("Pod", name)
    world.settle()
    assert numbers(world, "web") == (3, 2, 3, 1)
    assert "disruptedPods" not in world.status("PodDisruptionBudget", "web")


def test_a_stale_disruption_target_is_taken_back(world: World) -> None:
    world.nodes(1)
    world.pod("bare")
    world.settle()
    pod = world.get("Pod", "bare")
    now = rfc3339(world.clock.now())
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    target["lastTransitionTime"] = now
    kind = world.store.registry.kind_of("v1", "Pod")
    world.store.replace_status(
        kind, {**pod, "status": {**pod["status"], "conditions": [*pod["status"]["conditions"], target]}}
    )
    world.budget("bare", "bare", minAvailable=1)
    world.store.replace_status(kind, world.get("Pod", "bare"))
    world.meta("Pod", "bare", annotations={"touched": "yes"})
    world.advance(121)
    assert world.condition("Pod", "bare", "DisruptionTarget")["status"] == "False"


def test_a_percentage_that_is_none_fails_the_budget(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 1)
    world.budget("web", "web", maxUnavailable="half")
    world.settle()
    failed = world.condition("PodDisruptionBudget", "web", "DisruptionAllowed")
    assert failed["reason"] == "SyncFailed"
    assert "not a percentage" in failed["message"]
