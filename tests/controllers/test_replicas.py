"""Deployments and ReplicaSets."""

from __future__ import annotations

from typing import Any

World = Any


def ready(world: World, name: str) -> int:
    return int(world.status("Deployment", name).get("readyReplicas", 0))


def test_a_deployment_comes_up_through_a_replica_set_named_after_its_template(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 3)
    world.settle()
    [replica_set] = world.list("ReplicaSet")
    digest = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{digest}"
    assert replica_set["spec"]["selector"]["matchLabels"] == {"app": "web", "pod-template-hash": digest}
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/desired-replicas"] == "3"
    assert replica_set["metadata"]["annotations"]["deployment.kubernetes.io/max-replicas"] == "4"
    pods = world.pods("web")
    assert len(pods) == 3
    for pod in pods:
        assert pod["metadata"]["generateName"] == f"web-{digest}-"
        assert pod["metadata"]["labels"]["pod-template-hash"] == digest
        [owner] = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("ReplicaSet", True, True)


def test_the_status_of_a_deployment_that_is_up(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 3)
    world.settle()
    status = world.status("Deployment", "web")
    conditions = {each["type"]: each for each in status.pop("conditions")}
    assert status == {
        "observedGeneration": 1,
        "replicas": 3,
        "updatedReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": 3,
        "terminatingReplicas": 0,
    }
    assert conditions["Available"]["reason"] == "MinimumReplicasAvailable"
    assert conditions["Available"]["message"] == "Deployment has minimum availability."
    assert conditions["Progressing"]["reason"] == "NewReplicaSetAvailable"
    assert conditions["Progressing"]["status"] == "True"
    name = world.list("ReplicaSet")[0]["metadata"]["name"]
    assert conditions["Progressing"]["message"] == f'ReplicaSet "{name}" has successfully progressed.'
    assert world.get("Deployment", "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
    assert world.get("Deployment", "web")["metadata"]["generation"] == 1


def test_a_pod_that_is_deleted_is_replaced(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 3)
    world.settle()
    gone = world.pods("web")[0]["metadata"]
    world.delete("Pod", gone["name"])
    world.settle()
    assert len(world.pods("web")) == 3
    assert gone["uid"] not in {pod["metadata"]["uid"] for pod in world.pods("web")}
    assert ready(world, "web") == 3


def test_a_pod_that_terminates_is_replaced_before_it_is_gone(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    name = world.pods("web")[0]["metadata"]["name"]
    world.kubelet.holds.add(name)
    world.delete("Pod", name)
    world.settle()
    assert len(world.pods("web")) == 3
    assert world.status("Deployment", "web")["terminatingReplicas"] == 1
    assert ready(world, "web") == 2


def test_scaling_up_and_down_says_so_in_events(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.edit("Deployment", "web", replicas=5)
    world.settle()
    assert ready(world, "web") == 5
    world.edit("Deployment", "web", replicas=1)
    world.settle()
    assert ready(world, "web") == 1
    name = world.list("ReplicaSet")[0]["metadata"]["name"]
    assert set(world.events("web", "ScalingReplicaSet")) == {
        f"Scaled up replica set {name} from 0 to 2",
        f"Scaled up replica set {name} from 2 to 5",
        f"Scaled down replica set {name} from 5 to 1",
    }
    annotations = world.list("ReplicaSet")[0]["metadata"]["annotations"]
    assert annotations["deployment.kubernetes.io/desired-replicas"] == "1"


def test_scale_to_zero(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.settle()
    world.edit("Deployment", "web", replicas=0)
    world.settle()
    assert world.pods("web") == []
    assert world.condition("Deployment", "web", "Available")["status"] == "True"


def conditions(pod: Any) -> list[tuple[str, str]]:
    return [(each["type"], each["status"]) for each in pod["status"].get("conditions", ())]


def test_a_rolling_update_stays_within_surge_and_unavailability(world: World) -> None:
    world.nodes(4)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    world.deployment("web", 4, strategy=strategy)
    world.settle()
    seen: list[tuple[int, int]] = []

    def watch(event: str, kind: Any, obj: Any, old: Any) -> None:
        if kind.plural == "pods":
            active = [p for p in world.pods("web") if "deletionTimestamp" not in p["metadata"]]
            up = [p for p in active if ("Ready", "True") in conditions(p)]
            seen.append((len(active), len(up)))

    world.store.subscribe(watch)
    world.reimage("Deployment", "web")
    world.settle()
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods("web")} == {"example.test/app:2"}
    assert max(active for active, _ in seen) == 5
    assert min(up for _, up in seen) >= 4
    assert sorted(rs["spec"]["replicas"] for rs in world.list("ReplicaSet")) == [0, 4]
    assert world.get("Deployment", "web")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"


def test_a_rollout_whose_pods_do_not_get_ready_stops_at_its_bounds(world: World) -> None:
    world.nodes(4)
    world.deployment("web", 4)
    world.settle()
    world.kubelet.idle = True
    world.reimage("Deployment", "web")
    world.settle()
    images = [pod["spec"]["containers"][0]["image"] for pod in world.pods("web")]
    assert images.count("example.test/app:1") == 3
    assert images.count("example.test/app:2") == 2
    assert ready(world, "web") == 3
    assert world.condition("Deployment", "web", "Progressing")["reason"] == "ReplicaSetUpdated"


def test_a_rollout_without_progress_times_out(world: World) -> None:
    world.nodes(2)
    world.kubelet.idle = True
    world.deployment("web", 2, progressDeadlineSeconds=60)
    world.settle()
    assert world.condition("Deployment", "web", "Progressing")["status"] == "True"
    world.advance(70)
    progressing = world.condition("Deployment", "web", "Progressing")
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert progressing["message"].endswith("has timed out progressing.")


def test_rollout_restart_goes_through_the_template_annotation(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    before = {pod["metadata"]["uid"] for pod in world.pods("web")}
    template = world.get("Deployment", "web")["spec"]["template"]
    restarted = {**template["metadata"], "annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}}
    world.edit("Deployment", "web", template={**template, "metadata": restarted})
    world.settle()
    after = {pod["metadata"]["uid"] for pod in world.pods("web")}
    assert len(after) == 2
    assert not before & after


def test_going_back_to_an_old_template_reuses_its_replica_set(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.reimage("Deployment", "web", "example.test/app:2")
    world.settle()
    world.reimage("Deployment", "web", "example.test/app:1")
    world.settle()
    sets = world.list("ReplicaSet")
    assert len(sets) == 2
    [active] = [rs for rs in sets if rs["spec"]["replicas"]]
    assert active["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
    assert active["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"] == "1"


def test_recreate_waits_until_the_old_pods_are_gone(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2, strategy={"type": "Recreate"})
    world.settle()
    held = world.pods("web")[0]["metadata"]["name"]
    world.kubelet.holds.add(held)
    world.reimage("Deployment", "web")
    world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods("web")] == [held]
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in world.pods("web")] == ["example.test/app:2"] * 2


def test_a_paused_deployment_scales_but_does_not_roll(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.edit("Deployment", "web", paused=True)
    world.reimage("Deployment", "web")
    world.edit("Deployment", "web", replicas=3)
    world.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in world.pods("web")] == ["example.test/app:1"] * 3
    assert world.condition("Deployment", "web", "Progressing")["reason"] == "DeploymentPaused"
    world.edit("Deployment", "web", paused=False)
    world.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in world.pods("web")] == ["example.test/app:2"] * 3


def test_old_replica_sets_beyond_the_history_limit_go(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 1)
    world.edit("Deployment", "web", revisionHistoryLimit=1)
    world.settle()
    for number in range(2, 6):
        world.reimage("Deployment", "web", f"example.test/app:{number}")
        world.settle()
    assert len(world.list("ReplicaSet")) == 2


def test_the_pod_with_the_lowest_deletion_cost_goes_first(world: World) -> None:
    world.nodes(3)
    world.deployment("web", 3)
    world.settle()
    cheap, *_ = [pod["metadata"]["name"] for pod in world.pods("web")]
    world.meta("Pod", cheap, annotations={"controller.kubernetes.io/pod-deletion-cost": "-10"})
    world.edit("Deployment", "web", replicas=2)
    world.settle()
    assert cheap not in {pod["metadata"]["name"] for pod in world.pods("web")}


def test_scaling_down_takes_pending_pods_first_and_then_those_on_crowded_nodes(world: World) -> None:
    world.nodes(2, cpu="2")
    world.deployment("web", 5, requests={"cpu": "1"})
    world.settle()
    pending = [pod["metadata"]["name"] for pod in world.pods("web") if not pod["spec"].get("nodeName")]
    assert len(pending) == 1
    world.edit("Deployment", "web", replicas=4)
    world.settle()
    assert not set(pending) & {pod["metadata"]["name"] for pod in world.pods("web")}
    world.edit("Deployment", "web", replicas=2)
    world.settle()
    assert sorted(pod["spec"]["nodeName"] for pod in world.pods("web")) == ["node-0", "node-1"]


def test_min_ready_seconds_delay_availability(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2, minReadySeconds=30)
    world.settle()
    assert ready(world, "web") == 2
    assert "availableReplicas" not in world.status("Deployment", "web")
    world.advance(31)
    assert world.status("Deployment", "web")["availableReplicas"] == 2


def test_a_bare_pod_that_matches_is_adopted_and_one_that_stops_to_match_is_released(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 1)
    world.settle()
    [replica_set] = world.list("ReplicaSet")
    [pod] = world.pods("web")
    world.meta("Pod", pod["metadata"]["name"], labels={"app": "other"})
    world.settle()
    assert "ownerReferences" not in world.get("Pod", pod["metadata"]["name"])["metadata"]
    assert len(world.pods("web")) == 1
    world.meta("Pod", pod["metadata"]["name"], labels=replica_set["spec"]["selector"]["matchLabels"])
    world.settle()
    assert len(world.pods("web")) == 1
    assert all(p["metadata"].get("ownerReferences") for p in world.pods("web"))


def test_failed_pods_are_replaced_and_stay(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.settle()
    world.finish(world.pods("web")[0], "Failed")
    world.settle()
    assert len(world.pods("web")) == 3
    assert ready(world, "web") == 2


def test_a_refused_pod_shows_as_replica_failure_on_the_deployment(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 1, priorityClassName="nobody")
    world.settle()
    failure = world.condition("Deployment", "web", "ReplicaFailure")
    assert (failure["status"], failure["reason"]) == ("True", "FailedCreate")
    assert "no PriorityClass with name nobody was found" in failure["message"]
    assert world.events(reason="FailedCreate")[0].startswith("Error creating: ")


def test_scaling_in_the_middle_of_a_rollout_shares_the_change(world: World) -> None:
    world.nodes(4)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}
    world.deployment("web", 10, strategy=strategy)
    world.settle()
    world.kubelet.idle = True
    world.reimage("Deployment", "web")
    world.settle()
    assert sorted(rs["spec"]["replicas"] for rs in world.list("ReplicaSet")) == [5, 8]
    world.edit("Deployment", "web", replicas=15)
    world.settle()
    assert sorted(rs["spec"]["replicas"] for rs in world.list("ReplicaSet")) == [7, 11]
