"""Owners and dependents, nodes that come and go, namespaces, claims."""

from __future__ import annotations

from typing import Any

from infra.clock import rfc3339

World = Any


def taints(world: World, node: str) -> set[tuple[str, str]]:
    return {(each["key"], each["effect"]) for each in world.get("Node", node)["spec"].get("taints") or ()}


# Garbage collection


def test_background_deletion_takes_dependents_after_their_owner(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.settle()
    world.delete("Deployment", "web", propagation="Background")
    assert not world.exists("Deployment", "web")
    world.settle()
    assert world.list("ReplicaSet") == []
    assert world.pods("web") == []


def test_foreground_deletion_keeps_the_owner_until_its_dependents_are_gone(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.settle()
    held = world.pods("web")[0]["metadata"]["name"]
    world.kubelet.holds.add(held)
    world.delete("Deployment", "web", propagation="Foreground")
    world.settle()
    assert world.get("Deployment", "web")["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert [pod["metadata"]["name"] for pod in world.pods("web")] == [held]
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert not world.exists("Deployment", "web")
    assert world.list("ReplicaSet") == []


def test_orphans_lose_their_owner_and_live(world: World) -> None:
    world.nodes(1)
    world.deployment("web", 2)
    world.settle()
    world.delete("Deployment", "web", propagation="Orphan")
    world.settle()
    assert not world.exists("Deployment", "web")
    [replica_set] = world.list("ReplicaSet")
    assert "ownerReferences" not in replica_set["metadata"]
    assert len(world.pods("web")) == 2
    world.deployment("web", 2)
    world.settle()
    assert world.list("ReplicaSet")[0]["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
    assert len(world.list("ReplicaSet")) == 1


def test_an_object_whose_owner_never_was_is_collected(world: World) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "no", "uid": "0000"}
    world.add("ConfigMap", {"metadata": {"name": "stray", "ownerReferences": [owner]}})
    world.settle()
    assert not world.exists("ConfigMap", "stray")


def test_one_owner_left_is_enough_and_the_other_reference_goes(world: World) -> None:
    first = world.add("ConfigMap", {"metadata": {"name": "first"}})
    second = world.add("ConfigMap", {"metadata": {"name": "second"}})
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": each["metadata"]["name"], "uid": each["metadata"]["uid"]}
        for each in (first, second)
    ]
    world.add("ConfigMap", {"metadata": {"name": "child", "ownerReferences": references}})
    world.settle()
    world.delete("ConfigMap", "first")
    world.settle()
    assert [each["name"] for each in world.get("ConfigMap", "child")["metadata"]["ownerReferences"]] == ["second"]


# Nodes


def test_a_fresh_node_is_tainted_until_it_is_ready(world: World) -> None:
    world.node("slow", ready=False)
    world.settle()
    assert ("node.kubernetes.io/not-ready", "NoSchedule") in taints(world, "slow")
    world.pod("one")
    world.settle()
    assert "nodeName" not in world.get("Pod", "one")["spec"]
    node = world.get("Node", "slow")
    kind = world.store.registry.kind_of("v1", "Node")
    ready = {**node["status"]["conditions"][0], "status": "True"}
    world.store.replace_status(kind, {**node, "status": {**node["status"], "conditions": [ready]}})
    world.settle()
    assert taints(world, "slow") == set()
    assert world.get("Pod", "one")["spec"]["nodeName"] == "slow"
    assert world.events("slow", "RegisteredNode") == ["Registered Node slow in Controller"]


def test_cordon_and_uncordon_show_as_a_taint(world: World) -> None:
    world.nodes(1)
    world.edit("Node", "node-0", unschedulable=True)
    world.settle()
    assert taints(world, "node-0") == {("node.kubernetes.io/unschedulable", "NoSchedule")}
    world.edit("Node", "node-0", unschedulable=False)
    world.settle()
    assert taints(world, "node-0") == set()


def test_pressure_shows_as_a_taint(world: World) -> None:
    world.nodes(1)
    node = world.get("Node", "node-0")
    kind = world.store.registry.kind_of("v1", "Node")
    pressure = {"type": "MemoryPressure", "status": "True"}
    conditions = [*node["status"]["conditions"], pressure]
    world.store.replace_status(kind, {**node, "status": {**node["status"], "conditions": conditions}})
    world.settle()
    assert taints(world, "node-0") == {("node.kubernetes.io/memory-pressure", "NoSchedule")}


def test_a_silent_node_becomes_unknown_and_its_pods_not_ready(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.budget("web", "web", maxUnavailable=1)
    world.settle()
    world.kubelet.dark.add("node-0")
    world.advance(40)
    assert world.condition("Node", "node-0", "Ready")["status"] == "True"
    world.advance(20)
    ready = world.condition("Node", "node-0", "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "Unknown",
        "NodeStatusUnknown",
        "Kubelet stopped posting node status.",
    )
    assert world.condition("Node", "node-0", "DiskPressure")["reason"] == "NodeStatusNeverUpdated"
    assert taints(world, "node-0") == {
        ("node.kubernetes.io/unreachable", "NoSchedule"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
    }
    [lost] = [pod for pod in world.pods("web") if pod["spec"]["nodeName"] == "node-0"]
    assert world.condition("Pod", lost["metadata"]["name"], "Ready")["status"] == "False"
    assert world.status("PodDisruptionBudget", "web")["currentHealthy"] == 1
    assert world.events("node-0", "NodeNotReady") == ["Node node-0 status is now: NodeNotReady"]
    assert world.events(lost["metadata"]["name"], "NodeNotReady") == ["Node is not ready"]


def test_pods_leave_an_unreachable_node_when_their_patience_ends(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.kubelet.dark.add("node-0")
    world.advance(340)
    assert all("deletionTimestamp" not in pod["metadata"] for pod in world.pods("web"))
    world.advance(40)
    [lost] = [pod for pod in world.pods("web") if pod["spec"]["nodeName"] == "node-0"]
    assert "deletionTimestamp" in lost["metadata"]
    target = world.condition("Pod", lost["metadata"]["name"], "DisruptionTarget")
    assert (target["reason"], target["message"]) == (
        "DeletionByTaintManager",
        "Taint manager: deleting due to NoExecute taint",
    )
    assert len(world.pods("web")) == 3


def test_a_node_that_reports_again_is_clean_again(world: World) -> None:
    world.nodes(2)
    world.settle()
    world.kubelet.dark.add("node-0")
    world.advance(70)
    world.kubelet.dark.clear()
    node = world.get("Node", "node-0")
    kind = world.store.registry.kind_of("v1", "Node")
    now = rfc3339(world.clock.now())
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "lastTransitionTime": now}
    world.store.replace_status(kind, {**node, "status": {**node["status"], "conditions": [ready]}})
    world.settle()
    assert taints(world, "node-0") == set()


def test_when_every_node_is_away_nothing_is_thrown_off(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.kubelet.dark.update({"node-0", "node-1"})
    world.advance(500)
    assert {effect for node in ("node-0", "node-1") for _, effect in taints(world, node)} == {"NoSchedule"}
    assert all("deletionTimestamp" not in pod["metadata"] for pod in world.pods("web"))


def test_a_no_execute_taint_throws_pods_off_at_once_or_later(world: World) -> None:
    world.nodes(1)
    toleration = {"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 100}
    forever = {"key": "gone", "operator": "Exists"}
    world.pod("soon")
    world.pod("later", tolerations=[toleration])
    world.pod("never", tolerations=[forever])
    world.settle()
    world.edit("Node", "node-0", taints=[{"key": "gone", "effect": "NoExecute"}])
    world.settle()
    assert sorted(pod["metadata"]["name"] for pod in world.pods()) == ["later", "never"]
    assert world.events("soon", "TaintManagerEviction") == ["Marking for deletion Pod default/soon"]
    world.advance(110)
    assert [pod["metadata"]["name"] for pod in world.pods()] == ["never"]


def test_pods_of_a_removed_node_are_collected(world: World) -> None:
    world.nodes(2)
    world.deployment("web", 2)
    world.settle()
    world.kubelet.dark.add("node-0")
    world.delete("Node", "node-0")
    world.advance(30)
    assert len(world.pods("web")) == 2
    world.advance(15)
    assert [pod["spec"]["nodeName"] for pod in world.pods("web")] == ["node-1", "node-1"]
    assert world.events("node-0", "RemovingNode")


def test_a_terminating_pod_that_was_never_bound_goes(world: World) -> None:
    world.pod("one", schedulingGates=[{"name": "example.test/hold"}])
    world.meta("Pod", "one", finalizers=["example.test/held"])
    world.delete("Pod", "one")
    world.settle()
    assert world.status("Pod", "one")["phase"] == "Failed"
    world.meta("Pod", "one", finalizers=[])
    assert not world.exists("Pod", "one")


def test_out_of_service_frees_pods_that_hang_on_a_dead_node(world: World) -> None:
    world.nodes(2)
    world.stateful_set("db", 2)
    world.settle()
    node = world.get("Pod", "db-0")["spec"]["nodeName"]
    world.kubelet.dark.add(node)
    world.advance(70)
    world.delete("Pod", "db-0")
    world.settle()
    assert "deletionTimestamp" in world.get("Pod", "db-0")["metadata"]
    present = world.get("Node", node)["spec"]["taints"]
    world.edit("Node", node, taints=[*present, {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}])
    world.settle()
    assert world.get("Pod", "db-0")["spec"]["nodeName"] != node


# Namespaces


def test_a_namespace_is_furnished_emptied_and_removed(world: World) -> None:
    world.nodes(1)
    world.add("Namespace", {"metadata": {"name": "team"}})
    world.settle()
    assert world.exists("ConfigMap", "kube-root-ca.crt", "team")
    world.add("ConfigMap", {"metadata": {"name": "mine", "namespace": "team"}})
    pod = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    world.add("Pod", pod)
    world.settle()
    world.delete("Namespace", "team", "")
    world.settle()
    assert not world.exists("Namespace", "team", "")
    assert world.list("ConfigMap", "team") == []


def test_a_namespace_waits_for_its_pods_and_says_what_remains(world: World) -> None:
    world.nodes(1)
    world.add("Namespace", {"metadata": {"name": "team"}})
    pod = {"metadata": {"name": "one", "namespace": "team"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    world.add("Pod", pod)
    world.settle()
    world.kubelet.holds.add("one")
    world.delete("Namespace", "team", "")
    world.settle()
    assert world.status("Namespace", "team", "")["phase"] == "Terminating"
    remaining = world.condition("Namespace", "team", "NamespaceContentRemaining", "")
    assert remaining["message"] == "Some resources are remaining: pods. has 1 resource instances"
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert not world.exists("Namespace", "team", "")


def test_a_finalizer_holds_the_namespace(world: World) -> None:
    world.add("Namespace", {"metadata": {"name": "team"}})
    world.add("ConfigMap", {"metadata": {"name": "held", "namespace": "team", "finalizers": ["example.test/held"]}})
    world.settle()
    world.delete("Namespace", "team", "")
    world.settle()
    held = world.condition("Namespace", "team", "NamespaceFinalizersRemaining", "")
    assert held["message"] == (
        "Some content in the namespace has finalizers remaining: example.test/held in 1 resource instances"
    )
    world.meta("ConfigMap", "held", "team", finalizers=[])
    world.settle()
    assert not world.exists("Namespace", "team", "")


# Claims


def claim(name: str, **spec: Any) -> dict[str, Any]:
    body = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": body}


def test_a_claim_of_an_immediate_class_is_bound_at_once_and_one_that_waits_is_not(world: World) -> None:
    for name, mode in (("now", "Immediate"), ("later", "WaitForFirstConsumer")):
        body = {"metadata": {"name": name}, "provisioner": "example.test/disk", "volumeBindingMode": mode}
        world.add("StorageClass", body)
    world.add("PersistentVolumeClaim", claim("a", storageClassName="now"))
    world.add("PersistentVolumeClaim", claim("b", storageClassName="later"))
    world.settle()
    assert world.status("PersistentVolumeClaim", "a")["phase"] == "Bound"
    assert world.status("PersistentVolumeClaim", "a")["capacity"] == {"storage": "5Gi"}
    assert world.status("PersistentVolumeClaim", "b")["phase"] == "Pending"


def test_a_claim_takes_the_smallest_volume_that_serves(world: World) -> None:
    for name, size in (("small", "1Gi"), ("right", "8Gi"), ("large", "80Gi")):
        spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
        world.add("PersistentVolume", {"metadata": {"name": name}, "spec": spec})
    world.add("PersistentVolumeClaim", claim("a", storageClassName=""))
    world.settle()
    assert world.get("PersistentVolumeClaim", "a")["spec"]["volumeName"] == "right"
    assert world.status("PersistentVolume", "right", "")["phase"] == "Bound"
    assert world.status("PersistentVolume", "large", "")["phase"] == "Available"


def test_a_claim_in_use_stays_until_its_pod_is_gone_and_takes_its_volume_along(world: World) -> None:
    world.nodes(1)
    world.add("PersistentVolumeClaim", claim("data"))
    world.pod("one", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    world.settle()
    world.delete("PersistentVolumeClaim", "data")
    world.settle()
    assert "deletionTimestamp" in world.get("PersistentVolumeClaim", "data")["metadata"]
    world.delete("Pod", "one")
    world.settle()
    assert not world.exists("PersistentVolumeClaim", "data")
    assert world.list("PersistentVolume", None) == []


# Events


def test_repeated_and_flooding_events_are_counted_combined_and_dropped(world: World) -> None:
    world.nodes(4)
    world.deployment("web", 40)
    world.settle()
    name = world.list("ReplicaSet")[0]["metadata"]["name"]
    made = world.events(name, "SuccessfulCreate")
    assert len([text for text in made if text.startswith("Created pod: ")]) == 10
    assert len(made) <= 25
    assert any(text.startswith("(combined from similar events): ") for text in made)


def test_events_go_after_an_hour(world: World) -> None:
    world.nodes(1)
    world.pod("one")
    world.settle()
    assert world.events("one")
    world.advance(3700)
    assert world.events("one") == []
