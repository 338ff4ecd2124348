"""StatefulSets and DaemonSets."""

from __future__ import annotations

from typing import Any

World = Any


def names(world: World, app: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.pods(app)]


# StatefulSets


def test_pods_of_a_stateful_set_start_one_after_the_other(world: World) -> None:
    world.nodes(2)
    world.kubelet.idle = True
    world.stateful_set("db", 3)
    world.settle()
    assert names(world, "db") == ["db-0"]
    world.kubelet.set_phase(world.get("Pod", "db-0"), "Running", ready=True)
    world.settle()
    assert names(world, "db") == ["db-0", "db-1"]
    world.kubelet.idle = False
    world.kubelet.again()
    world.settle()
    assert names(world, "db") == ["db-0", "db-1", "db-2"]


def test_a_stateful_pod_has_a_stable_identity(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 1)
    world.settle()
    pod = world.get("Pod", "db-0")
    revision = world.status("StatefulSet", "db")["currentRevision"]
    assert pod["spec"]["hostname"] == "db-0"
    assert pod["spec"]["subdomain"] == "db"
    labels = pod["metadata"]["labels"]
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-0"
    assert labels["apps.kubernetes.io/pod-index"] == "0"
    assert labels["controller-revision-hash"] == revision
    assert world.events("db", "SuccessfulCreate") == ["Create Pod db-0 in StatefulSet db successful"]


def test_the_status_of_a_stateful_set_that_is_up(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 2)
    world.settle()
    status = world.status("StatefulSet", "db")
    [revision] = world.list("ControllerRevision")
    assert status == {
        "observedGeneration": 1,
        "replicas": 2,
        "readyReplicas": 2,
        "currentReplicas": 2,
        "updatedReplicas": 2,
        "currentRevision": revision["metadata"]["name"],
        "updateRevision": revision["metadata"]["name"],
        "collisionCount": 0,
        "availableReplicas": 2,
    }
    assert revision["revision"] == 1


def test_a_deleted_stateful_pod_comes_back_under_its_name_only_when_it_is_gone(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 2)
    world.settle()
    uid = world.get("Pod", "db-0")["metadata"]["uid"]
    world.kubelet.holds.add("db-0")
    world.delete("Pod", "db-0")
    world.settle()
    assert world.get("Pod", "db-0")["metadata"]["uid"] == uid
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert world.get("Pod", "db-0")["metadata"]["uid"] != uid
    assert world.status("StatefulSet", "db")["readyReplicas"] == 2


def test_a_stateful_set_shrinks_from_the_highest_ordinal_one_at_a_time(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 4)
    world.settle()
    world.kubelet.holds.update(names(world, "db"))
    world.edit("StatefulSet", "db", replicas=1)
    world.settle()
    going = [pod["metadata"]["name"] for pod in world.pods("db") if "deletionTimestamp" in pod["metadata"]]
    assert going == ["db-3"]
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert names(world, "db") == ["db-0"]


def test_parallel_starts_and_stops_all_pods_at_once(world: World) -> None:
    world.nodes(1)
    world.kubelet.idle = True
    world.stateful_set("db", 3, podManagementPolicy="Parallel")
    world.settle()
    assert names(world, "db") == ["db-0", "db-1", "db-2"]
    world.kubelet.idle = False
    world.kubelet.again()
    world.settle()
    world.kubelet.holds.update(names(world, "db"))
    world.edit("StatefulSet", "db", replicas=0)
    world.settle()
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods("db"))


def test_ordinals_may_start_elsewhere(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 2, ordinals={"start": 5})
    world.settle()
    assert names(world, "db") == ["db-5", "db-6"]


def test_a_rolling_update_goes_from_the_highest_ordinal_and_waits_for_each(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 3)
    world.settle()
    world.kubelet.unready.add("db-2")
    world.reimage("StatefulSet", "db")
    world.settle()
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in world.pods("db")}
    assert images == {"db-0": "example.test/app:1", "db-1": "example.test/app:1", "db-2": "example.test/app:2"}
    status = world.status("StatefulSet", "db")
    assert status["currentRevision"] != status["updateRevision"]
    assert (status["currentReplicas"], status["updatedReplicas"]) == (2, 1)
    world.kubelet.set_phase(world.get("Pod", "db-2"), "Running", ready=True)
    world.settle()
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods("db")} == {"example.test/app:2"}
    status = world.status("StatefulSet", "db")
    assert status["currentRevision"] == status["updateRevision"]


def test_pods_below_the_partition_keep_the_old_template_even_when_they_are_remade(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 3, updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 2}})
    world.settle()
    world.reimage("StatefulSet", "db")
    world.settle()
    world.delete("Pod", "db-0")
    world.settle()
    images = {pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"] for pod in world.pods("db")}
    assert images == {"db-0": "example.test/app:1", "db-1": "example.test/app:1", "db-2": "example.test/app:2"}


def test_on_delete_updates_only_pods_that_somebody_deletes(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 2, updateStrategy={"type": "OnDelete"})
    world.settle()
    world.reimage("StatefulSet", "db")
    world.settle()
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods("db")} == {"example.test/app:1"}
    world.delete("Pod", "db-1")
    world.settle()
    assert world.get("Pod", "db-1")["spec"]["containers"][0]["image"] == "example.test/app:2"


def test_claims_are_made_bound_kept_and_used_again(world: World) -> None:
    world.nodes(2, labels={"topology.kubernetes.io/zone": "zone-a"})
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "10Gi"}}
    world.stateful_set("db", 2, volumeClaimTemplates=[claim])
    world.settle()
    assert [each["metadata"]["name"] for each in world.list("PersistentVolumeClaim")] == ["data-db-0", "data-db-1"]
    bound = world.get("PersistentVolumeClaim", "data-db-0")
    assert bound["status"]["phase"] == "Bound"
    assert bound["metadata"]["labels"] == {"app": "db"}
    volume = world.store.get(world.store.registry.kind_of("v1", "PersistentVolume"), None, bound["spec"]["volumeName"])
    assert volume["metadata"]["labels"] == {"poolshift.dev/simulated": "true"}
    mounted = world.get("Pod", "db-0")["spec"]["volumes"][0]
    assert mounted == {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}
    world.edit("StatefulSet", "db", replicas=0)
    world.settle()
    world.edit("StatefulSet", "db", replicas=1)
    world.settle()
    assert world.get("PersistentVolumeClaim", "data-db-0")["metadata"]["uid"] == bound["metadata"]["uid"]
    assert len(world.list("PersistentVolumeClaim")) == 2


def test_the_retention_policy_lets_claims_go_with_their_pod_or_their_set(world: World) -> None:
    world.nodes(1)
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    policy = {"whenDeleted": "Delete", "whenScaled": "Delete"}
    world.stateful_set("db", 3, volumeClaimTemplates=[claim], persistentVolumeClaimRetentionPolicy=policy)
    world.settle()
    world.edit("StatefulSet", "db", replicas=2)
    world.settle()
    assert [each["metadata"]["name"] for each in world.list("PersistentVolumeClaim")] == ["data-db-0", "data-db-1"]
    world.delete("StatefulSet", "db", propagation="Background")
    world.settle()
    assert world.list("PersistentVolumeClaim") == []


def test_a_failed_stateful_pod_is_deleted_and_made_again(world: World) -> None:
    world.nodes(1)
    world.stateful_set("db", 1)
    world.settle()
    before = world.get("Pod", "db-0")
    world.finish(before, "Failed")
    world.settle()
    after = world.get("Pod", "db-0")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"


# DaemonSets


def test_a_daemon_set_runs_one_pod_on_every_node_and_on_new_ones(world: World) -> None:
    world.nodes(3)
    world.daemon_set("agent")
    world.settle()
    assert sorted(pod["spec"]["nodeName"] for pod in world.pods("agent")) == ["node-0", "node-1", "node-2"]
    world.node("node-3")
    world.settle()
    assert len(world.pods("agent")) == 4
    assert world.status("DaemonSet", "agent") == {
        "currentNumberScheduled": 4,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 4,
        "numberReady": 4,
        "observedGeneration": 1,
        "updatedNumberScheduled": 4,
        "numberAvailable": 4,
    }


def test_a_daemon_pod_names_its_node_and_carries_the_automatic_tolerations(world: World) -> None:
    world.nodes(1)
    world.daemon_set("agent")
    world.settle()
    [pod] = world.pods("agent")
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}]
    }
    tolerations = {(each["key"], each["effect"]) for each in pod["spec"]["tolerations"]}
    assert tolerations == {
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    }
    assert all("tolerationSeconds" not in each for each in pod["spec"]["tolerations"])
    [revision] = world.list("ControllerRevision")
    digest = revision["metadata"]["labels"]["controller-revision-hash"]
    assert pod["metadata"]["labels"]["controller-revision-hash"] == digest
    assert pod["metadata"]["labels"]["pod-template-generation"] == "1"


def test_node_selector_and_taints_decide_where_daemon_pods_run(world: World) -> None:
    world.node("gpu", labels={"pool": "gpu"}, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    world.node("cpu", labels={"pool": "cpu"})
    world.daemon_set("plain")
    world.daemon_set("on-gpu", nodeSelector={"pool": "gpu"}, tolerations=[{"key": "gpu", "operator": "Exists"}])
    world.daemon_set("no-toleration", nodeSelector={"pool": "gpu"})
    world.settle()
    assert [pod["spec"]["nodeName"] for pod in world.pods("plain")] == ["cpu"]
    assert [pod["spec"]["nodeName"] for pod in world.pods("on-gpu")] == ["gpu"]
    assert world.status("DaemonSet", "no-toleration")["desiredNumberScheduled"] == 0


def test_a_new_no_schedule_taint_leaves_the_pod_but_counts_it_as_misscheduled(world: World) -> None:
    world.nodes(2)
    world.daemon_set("agent")
    world.settle()
    world.edit("Node", "node-0", taints=[{"key": "mine", "effect": "NoSchedule"}])
    world.settle()
    assert len(world.pods("agent")) == 2
    status = world.status("DaemonSet", "agent")
    assert (status["desiredNumberScheduled"], status["numberMisscheduled"]) == (1, 1)


def test_a_node_whose_label_goes_loses_its_daemon_pod(world: World) -> None:
    world.nodes(2, labels={"agent": "yes"})
    world.daemon_set("agent", nodeSelector={"agent": "yes"})
    world.settle()
    world.meta("Node", "node-0", labels={"kubernetes.io/hostname": "node-0"})
    world.settle()
    assert [pod["spec"]["nodeName"] for pod in world.pods("agent")] == ["node-1"]


def test_daemon_pods_stay_on_a_cordoned_node(world: World) -> None:
    world.nodes(2)
    world.daemon_set("agent")
    world.settle()
    world.edit("Node", "node-0", unschedulable=True)
    world.settle()
    world.delete("Pod", next(p["metadata"]["name"] for p in world.pods("agent") if p["spec"]["nodeName"] == "node-0"))
    world.settle()
    assert sorted(pod["spec"]["nodeName"] for pod in world.pods("agent")) == ["node-0", "node-1"]
    assert world.status("DaemonSet", "agent")["desiredNumberScheduled"] == 2


def test_a_daemon_set_rolls_within_max_unavailable(world: World) -> None:
    world.nodes(4)
    world.daemon_set("agent")
    world.settle()
    world.kubelet.idle = True
    world.reimage("DaemonSet", "agent")
    world.settle()
    images = [pod["spec"]["containers"][0]["image"] for pod in world.pods("agent")]
    assert sorted(images) == ["example.test/app:1"] * 3 + ["example.test/app:2"]
    status = world.status("DaemonSet", "agent")
    assert (status["updatedNumberScheduled"], status["numberUnavailable"]) == (1, 1)
    world.kubelet.idle = False
    world.kubelet.again()
    world.settle()
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods("agent")} == {"example.test/app:2"}


def test_a_daemon_set_with_surge_starts_the_new_pod_beside_the_old_one(world: World) -> None:
    world.nodes(2)
    world.daemon_set("agent", strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}})
    world.settle()
    world.kubelet.idle = True
    world.reimage("DaemonSet", "agent")
    world.settle()
    assert len(world.pods("agent")) == 3
    world.kubelet.idle = False
    world.kubelet.again()
    world.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in world.pods("agent")] == ["example.test/app:2"] * 2


def test_on_delete_leaves_old_daemon_pods(world: World) -> None:
    world.nodes(2)
    world.daemon_set("agent", strategy={"type": "OnDelete"})
    world.settle()
    world.reimage("DaemonSet", "agent")
    world.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in world.pods("agent")] == ["example.test/app:1"] * 2


def test_a_failed_daemon_pod_is_replaced_ever_more_slowly(world: World) -> None:
    world.nodes(1)
    world.daemon_set("agent")
    world.settle()
    first = world.pods("agent")[0]
    world.finish(first, "Failed")
    world.settle()
    second = world.pods("agent")[0]
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    world.finish(second, "Failed")
    world.settle()
    assert world.pods("agent")[0]["metadata"]["uid"] == second["metadata"]["uid"]
    world.advance(2)
    assert world.pods("agent")[0]["metadata"]["uid"] != second["metadata"]["uid"]
    assert world.events("agent", "FailedDaemonPod")
