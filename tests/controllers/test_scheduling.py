"""Where pods go, and what is said when they cannot go anywhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

World = Any

NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_CLAIMS = "no new claims to deallocate"
NO_VICTIMS = "No preemption victims found for incoming pod"


def node_of(world: World, name: str) -> str | None:
    found: str | None = world.get("Pod", name)["spec"].get("nodeName")
    return found


def message(world: World, name: str) -> str:
    scheduled = world.condition("Pod", name, "PodScheduled")
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
    text: str = scheduled["message"]
    return text


def test_a_scheduled_pod_says_so(world: World) -> None:
    world.nodes(1)
    world.pod("one")
    world.settle()
    scheduled = world.condition("Pod", "one", "PodScheduled")
    assert scheduled["status"] == "True"
    assert scheduled["lastProbeTime"] is None
    assert world.events("one", "Scheduled") == ["Successfully assigned default/one to node-0"]
    assert world.get("Pod", "one")["metadata"]["generation"] == 1


def test_without_nodes(world: World) -> None:
    world.pod("one")
    world.settle()
    assert message(world, "one") == "no nodes available to schedule pods"


def test_the_message_counts_each_reason(world: World) -> None:
    world.node("gpu-0", nvidia_com__gpu="8")
    world.node("gpu-1", nvidia_com__gpu="8")
    world.node("cpu")
    world.node("tainted", nvidia_com__gpu="8", taints=[{"key": "x", "effect": "NoSchedule"}])
    world.settle()
    for number in range(2):
        world.pod(f"full-{number}", requests={"nvidia.com/gpu": "8"})
    world.settle()
    world.pod("late", requests={"nvidia.com/gpu": "4"})
    world.settle()
    assert message(world, "late") == (
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient nvidia.com/gpu. "
        f"{NO_CLAIMS}, preemption: 0/4 nodes are available: 2 {NO_VICTIMS}, 2 {NOT_HELPFUL}."
    )
    assert world.events("late", "FailedScheduling") == [message(world, "late")]


def test_cordoned_nodes_and_wrong_labels(world: World) -> None:
    world.nodes(2)
    world.edit("Node", "node-0", unschedulable=True)
    world.settle()
    world.pod("one", nodeSelector={"pool": "gpu"})
    world.settle()
    assert message(world, "one") == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) were unschedulable. "
        f"{NO_CLAIMS}, preemption: 0/2 nodes are available: 2 {NOT_HELPFUL}."
    )


def test_a_pod_may_lack_several_things_on_one_node(world: World) -> None:
    world.nodes(1, cpu="1", memory="1Gi", pods="1")
    world.pod("first")
    world.settle()
    world.pod("big", requests={"cpu": "2", "memory": "2Gi"})
    world.settle()
    assert message(world, "big") == (
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 Too many pods. "
        f"{NO_CLAIMS}, preemption: 0/1 nodes are available: 1 {NOT_HELPFUL}."
    )


def priority_class(world: World, name: str, value: int, **more: Any) -> None:
    kind = world.store.registry.kind_of("scheduling.k8s.io/v1", "PriorityClass")
    world.store.create(kind, {"metadata": {"name": name}, "value": value, **more})


def test_a_pod_that_never_preempts_says_so(world: World) -> None:
    priority_class(world, "polite", 1000, preemptionPolicy="Never")
    world.nodes(1, cpu="1")
    world.pod("low", requests={"cpu": "1"})
    world.settle()
    world.pod("high", requests={"cpu": "1"}, priorityClassName="polite")
    world.settle()
    assert message(world, "high") == (
        f"0/1 nodes are available: 1 Insufficient cpu. {NO_CLAIMS}, "
        "preemption: not eligible due to preemptionPolicy=Never."
    )


def test_a_higher_priority_makes_room_and_the_room_is_kept_for_it(world: World) -> None:
    priority_class(world, "high", 1000)
    world.nodes(1, cpu="2")
    world.pod("low", requests={"cpu": "2"})
    world.settle()
    world.kubelet.holds.add("low")
    high = world.pod("high", requests={"cpu": "1"}, priorityClassName="high")
    world.settle()
    assert message(world, "high") == "0/1 nodes are available: 1 Insufficient cpu."
    assert world.status("Pod", "high")["nominatedNodeName"] == "node-0"
    target = world.condition("Pod", "low", "DisruptionTarget")
    assert (target["reason"], target["message"]) == (
        "PreemptionByScheduler",
        "default-scheduler: preempting to accommodate a higher priority pod",
    )
    assert world.events("low", "Preempted") == [f"Preempted by pod {high['metadata']['uid']} on node node-0"]
    world.pod("greedy", requests={"cpu": "2"})
    world.kubelet.holds.clear()
    world.kubelet.again()
    world.settle()
    assert node_of(world, "high") == "node-0"
    assert "nominatedNodeName" not in world.status("Pod", "high")
    assert node_of(world, "greedy") is None


def test_preemption_takes_the_fewest_and_least_important_pods(world: World) -> None:
    for name, value in (("high", 1000), ("middle", 100)):
        priority_class(world, name, value)
    world.nodes(1, cpu="3")
    world.pod("middle", requests={"cpu": "1"}, priorityClassName="middle")
    world.pod("low-a", requests={"cpu": "1"})
    world.pod("low-b", requests={"cpu": "1"})
    world.settle()
    world.pod("high", requests={"cpu": "1"}, priorityClassName="high")
    world.settle()
    assert node_of(world, "high") == "node-0"
    assert world.exists("Pod", "middle")
    assert world.exists("Pod", "low-a") != world.exists("Pod", "low-b")


def test_preemption_prefers_pods_that_no_budget_guards(world: World) -> None:
    priority_class(world, "high", 1000)
    world.nodes(2, cpu="1")
    world.deployment("guarded", 1, requests={"cpu": "1"})
    world.budget("guarded", "guarded", maxUnavailable=0)
    world.settle()
    world.pod("free", requests={"cpu": "1"})
    world.settle()
    world.pod("high", requests={"cpu": "1"}, priorityClassName="high")
    world.settle()
    assert node_of(world, "high") is not None
    assert not world.exists("Pod", "free")
    assert world.status("Deployment", "guarded")["readyReplicas"] == 1


def test_pods_too_big_for_what_preemption_could_free_preempt_nobody(world: World) -> None:
    priority_class(world, "high", 1000)
    world.nodes(1, cpu="2")
    world.pod("other", requests={"cpu": "1"}, priorityClassName="high")
    world.pod("low", requests={"cpu": "1"})
    world.settle()
    world.pod("high", requests={"cpu": "2"}, priorityClassName="high")
    world.settle()
    assert message(world, "high").endswith("preemption: 0/1 nodes are available: 1 Insufficient cpu.")
    assert world.exists("Pod", "low")


def test_requests_are_accounted_and_given_back(world: World) -> None:
    world.nodes(1, cpu="2")
    world.pod("one", requests={"cpu": "1500m"})
    world.settle()
    world.pod("two", requests={"cpu": "1"})
    world.settle()
    assert node_of(world, "two") is None
    world.delete("Pod", "one")
    world.settle()
    assert node_of(world, "two") == "node-0"


def test_a_finished_pod_gives_its_room_back(world: World) -> None:
    world.nodes(1, cpu="1")
    world.pod("one", requests={"cpu": "1"}, restartPolicy="Never")
    world.pod("two", requests={"cpu": "1"})
    world.settle()
    assert node_of(world, "two") is None
    world.finish(world.get("Pod", "one"))
    world.settle()
    assert node_of(world, "two") == "node-0"


def test_a_terminating_pod_still_takes_its_room(world: World) -> None:
    world.nodes(1, cpu="1")
    world.pod("one", requests={"cpu": "1"})
    world.settle()
    world.kubelet.holds.add("one")
    world.delete("Pod", "one")
    world.pod("two", requests={"cpu": "1"})
    world.settle()
    assert node_of(world, "two") is None


def test_init_containers_count_by_their_peak(world: World) -> None:
    world.nodes(1, cpu="3")
    init = [{"name": "init", "image": "x", "resources": {"requests": {"cpu": "3"}}}]
    world.pod("one", requests={"cpu": "1"}, initContainers=init)
    world.settle()
    assert node_of(world, "one") == "node-0"
    world.pod("two", requests={"cpu": "1"})
    world.settle()
    assert node_of(world, "two") is None


def test_waiting_pods_go_to_a_node_that_comes(world: World) -> None:
    world.nodes(1)
    world.pod("one", nodeSelector={"pool": "new"})
    world.settle()
    world.node("fresh", labels={"pool": "new"})
    world.settle()
    assert node_of(world, "one") == "fresh"


def test_uncordon_untaint_and_new_resources_let_waiting_pods_in(world: World) -> None:
    world.nodes(1)
    world.edit("Node", "node-0", unschedulable=True)
    world.pod("one", requests={"nvidia.com/gpu": "1"})
    world.settle()
    world.edit("Node", "node-0", unschedulable=False)
    world.settle()
    assert "Insufficient nvidia.com/gpu" in message(world, "one")
    node = world.get("Node", "node-0")
    kind = world.store.registry.kind_of("v1", "Node")
    status = {**node["status"], "allocatable": {**node["status"]["allocatable"], "nvidia.com/gpu": "8"}}
    world.store.replace_status(kind, {**node, "status": status})
    world.settle()
    assert node_of(world, "one") == "node-0"


def test_a_heartbeat_does_not_make_waiting_pods_try_again(world: World) -> None:
    world.nodes(1)
    world.pod("one", nodeSelector={"pool": "none"})
    world.settle()
    before = world.get("Pod", "one")["metadata"]["resourceVersion"]
    node = world.get("Node", "node-0")
    kind = world.store.registry.kind_of("v1", "Node")
    [ready] = [c for c in node["status"]["conditions"] if c["type"] == "Ready"]
    beat = {**ready, "lastHeartbeatTime": "2026-01-01T00:00:09Z"}
    world.store.replace_status(kind, {**node, "status": {**node["status"], "conditions": [beat]}})
    world.settle()
    assert world.get("Pod", "one")["metadata"]["resourceVersion"] == before


def test_gated_pods_wait_for_their_gates(world: World) -> None:
    world.nodes(1)
    world.pod("one", schedulingGates=[{"name": "example.test/hold"}])
    world.settle()
    assert node_of(world, "one") is None
    assert world.condition("Pod", "one", "PodScheduled")["reason"] == "SchedulingGated"
    pod = world.get("Pod", "one")
    spec = {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
    world.store.replace(world.store.registry.kind_of("v1", "Pod"), {**pod, "spec": spec})
    world.settle()
    assert node_of(world, "one") == "node-0"


def test_a_pod_with_a_node_name_is_left_alone_but_accounted(world: World) -> None:
    world.nodes(1, cpu="2")
    world.pod("fixed", nodeName="node-0", requests={"cpu": "2"})
    world.pod("late", requests={"cpu": "1"})
    world.settle()
    assert world.condition("Pod", "fixed", "PodScheduled") is None
    assert node_of(world, "late") is None


def test_another_schedulers_pods_are_left_alone(world: World) -> None:
    world.nodes(1)
    world.pod("one", schedulerName="volcano")
    world.settle()
    assert node_of(world, "one") is None
    assert world.condition("Pod", "one", "PodScheduled") is None


def test_higher_priority_goes_first(world: World) -> None:
    world.nodes(1, cpu="1")
    priority_class(world, "high", 1000)
    world.pod("low", requests={"cpu": "1"})
    world.pod("high", requests={"cpu": "1"}, priorityClassName="high")
    world.settle()
    assert (node_of(world, "high"), node_of(world, "low")) == ("node-0", None)


def test_node_affinity_operators(world: World) -> None:
    world.node("a", labels={"gpus": "8", "zone": "x"})
    world.node("b", labels={"gpus": "4"})
    world.settle()

    def affinity(*expressions: dict[str, Any]) -> dict[str, Any]:
        terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    world.pod("gt", affinity=affinity({"key": "gpus", "operator": "Gt", "values": ["4"]}))
    world.pod("lt", affinity=affinity({"key": "gpus", "operator": "Lt", "values": ["8"]}))
    world.pod("not-in", affinity=affinity({"key": "zone", "operator": "NotIn", "values": ["x"]}))
    world.pod("exists", affinity=affinity({"key": "zone", "operator": "Exists"}))
    world.settle()
    assert [node_of(world, name) for name in ("gt", "lt", "not-in", "exists")] == ["a", "b", "b", "a"]


def test_preferred_node_affinity_is_a_wish(world: World) -> None:
    world.node("a")
    world.node("b", labels={"pool": "gpu"})
    preference = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}
    wish = [{"weight": 100, "preference": preference}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
    world.settle()
    world.pod("one", affinity=affinity)
    world.settle()
    assert node_of(world, "one") == "b"


def anti(app: str, topology: str = "kubernetes.io/hostname") -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": topology}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_anti_affinity_keeps_pods_apart(world: World) -> None:
    world.nodes(3)
    world.deployment("web", 4, affinity=anti("web"))
    world.settle()
    placed = [pod["spec"].get("nodeName") for pod in world.pods("web")]
    assert sorted(filter(None, placed)) == ["node-0", "node-1", "node-2"]
    [waiting] = [pod["metadata"]["name"] for pod in world.pods("web") if not pod["spec"].get("nodeName")]
    assert message(world, waiting) == (
        "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. "
        f"{NO_CLAIMS}, preemption: 0/3 nodes are available: 3 {NO_VICTIMS}."
    )
    world.node("node-3")
    world.settle()
    assert node_of(world, waiting) == "node-3"


def test_the_anti_affinity_of_pods_that_run_holds_for_others_too(world: World) -> None:
    world.nodes(1)
    world.pod("loner", app="loner", affinity=anti("web"))
    world.settle()
    world.pod("web", app="web")
    world.settle()
    assert "1 node(s) didn't satisfy existing pods anti-affinity rules" in message(world, "web")
    world.delete("Pod", "loner")
    world.settle()
    assert node_of(world, "web") == "node-0"


def test_affinity_brings_pods_together_and_the_first_of_its_kind_may_start(world: World) -> None:
    world.node("a", labels={"rack": "1"})
    world.node("b", labels={"rack": "1"})
    world.node("c", labels={"rack": "2"})
    world.settle()
    term = {"labelSelector": {"matchLabels": {"app": "gang"}}, "topologyKey": "rack"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for number in range(4):
        world.pod(f"gang-{number}", app="gang", affinity=affinity)
    world.settle()
    racks = {world.get("Node", str(node_of(world, f"gang-{n}")))["metadata"]["labels"]["rack"] for n in range(4)}
    assert len(racks) == 1


def test_affinity_to_pods_that_are_not_there(world: World) -> None:
    world.nodes(1)
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    world.pod("web", app="web", affinity=affinity)
    world.settle()
    assert "1 node(s) didn't match pod affinity rules" in message(world, "web")
    world.pod("cache", app="cache")
    world.settle()
    assert node_of(world, "web") == "node-0"


def test_topology_spread_holds_the_skew(world: World) -> None:
    for zone in ("a", "b"):
        for number in range(2):
            world.node(f"{zone}{number}", labels={"topology.kubernetes.io/zone": zone})
    world.settle()
    constraint = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    world.deployment("web", 6, topologySpreadConstraints=[constraint])
    world.settle()
    zones = Counter(str(pod["spec"]["nodeName"])[0] for pod in world.pods("web"))
    assert zones == {"a": 3, "b": 3}
    for name in ("b0", "b1"):
        world.edit("Node", name, unschedulable=True)
    world.edit("Deployment", "web", replicas=8)
    world.settle()
    waiting = [pod["metadata"]["name"] for pod in world.pods("web") if not pod["spec"].get("nodeName")]
    assert len(waiting) == 1
    assert "2 node(s) didn't match pod topology spread constraints" in message(world, waiting[0])


def test_host_ports_are_taken_once_a_node(world: World) -> None:
    world.nodes(1)
    containers = [{"name": "main", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    world.pod("one", containers=containers)
    world.settle()
    world.pod("two", containers=containers)
    world.settle()
    assert "1 node(s) didn't have free ports for the requested pod ports" in message(world, "two")


def test_pods_of_one_owner_spread_over_empty_nodes(world: World) -> None:
    world.nodes(5)
    world.deployment("web", 10)
    world.settle()
    assert set(Counter(pod["spec"]["nodeName"] for pod in world.pods("web")).values()) == {2}


def test_a_missing_claim_is_named(world: World) -> None:
    world.nodes(2)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    world.pod("one", volumes=volumes)
    world.settle()
    assert message(world, "one") == '0/2 nodes are available: persistentvolumeclaim "data" not found. not found'
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    world.add("PersistentVolumeClaim", claim)
    world.settle()
    assert node_of(world, "one") is not None


def test_a_volume_keeps_its_pod_in_its_zone(world: World) -> None:
    world.node("a", labels={"topology.kubernetes.io/zone": "zone-a"})
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    claim["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    world.add("PersistentVolumeClaim", claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    world.settle()
    world.pod("one", volumes=volumes)
    world.settle()
    world.node("b", labels={"topology.kubernetes.io/zone": "zone-b"})
    world.edit("Node", "a", unschedulable=True)
    world.delete("Pod", "one")
    world.settle()
    world.pod("two", volumes=volumes)
    world.settle()
    assert message(world, "two") == (
        "0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, "
        f"1 node(s) were unschedulable. {NO_CLAIMS}, preemption: 0/2 nodes are available: 2 {NOT_HELPFUL}."
    )


def test_a_daemon_pod_that_does_not_fit_names_only_its_node(world: World) -> None:
    world.nodes(2, cpu="1")
    world.pod("full", nodeName="node-0", requests={"cpu": "1"})
    world.settle()
    world.daemon_set("agent", requests={"cpu": "1"})
    world.settle()
    [waiting] = [pod["metadata"]["name"] for pod in world.pods("agent") if not pod["spec"].get("nodeName")]
    assert message(world, waiting) == (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. "
        f"{NO_CLAIMS}, preemption: 0/2 nodes are available: 1 {NO_VICTIMS}, 1 {NOT_HELPFUL}."
    )
