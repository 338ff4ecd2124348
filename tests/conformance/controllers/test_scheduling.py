"""The scheduler: where a pod goes, and the words in which it says why not."""

import pytest

NO_SCHEDULE = {"key": "example.com/kept", "value": "yes", "effect": "NoSchedule"}
HOPELESS = " preemption: 0/{n} nodes are available: {n} Preemption is not helpful for scheduling."
NO_VICTIMS = " preemption: 0/{n} nodes are available: {n} No preemption victims found for incoming pod."
MIXED = (
    " preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, "
    "1 Preemption is not helpful for scheduling."
)


def requests(**amounts):
    return {"container": {"resources": {"requests": amounts, "limits": amounts}}}


def gpus(number):
    return requests(**{"nvidia.com/gpu": str(number)})


def refused(cluster, name="p"):
    condition = cluster.unscheduled(name)
    assert condition["reason"] == "Unschedulable"
    return condition["message"]


def test_a_pod_is_bound_and_says_so(cluster):
    node = cluster.node()
    pod = cluster.running_pod("p")
    assert pod["spec"]["nodeName"] == node
    assert cluster.condition(pod, "PodScheduled")["status"] == "True"


def test_too_little_of_a_resource(cluster):
    cluster.node()
    cluster.pod("p", **requests(cpu="9"))
    message = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate,"
    assert refused(cluster) == message + HOPELESS.format(n=1)


def test_an_extended_resource_that_no_node_has(cluster):
    cluster.node()
    cluster.pod("p", **gpus(1))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate,"
    assert refused(cluster) == message + HOPELESS.format(n=1)


def test_an_extended_resource_that_is_taken(cluster):
    cluster.node(allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("first", **gpus(5))
    cluster.pod("p", **gpus(4))
    message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate,"
    assert refused(cluster) == message + NO_VICTIMS.format(n=1)


def test_two_resources_short_are_both_named(cluster):
    cluster.node()
    cluster.pod("p", **requests(cpu="9", memory="64Gi"))
    message = "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory. no new claims to deallocate,"
    assert refused(cluster) == message + HOPELESS.format(n=1)


def test_a_node_selector_that_no_node_has(cluster):
    cluster.node()
    cluster.pod("p", spec={"nodeSelector": {"pool": "elsewhere"}})
    message = (
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate,"
    )
    assert refused(cluster) == message + HOPELESS.format(n=1)


def test_an_untolerated_taint(cluster):
    cluster.node(taints=[NO_SCHEDULE])
    cluster.pod("p")
    message = "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate,"
    assert refused(cluster) == message + HOPELESS.format(n=1)


def test_a_cordoned_node(cluster):
    node = cluster.node()
    cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    cluster.pod("p")
    message = "0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate,"
    refused(cluster)
    assert refused(cluster) in (
        message + HOPELESS.format(n=1),
        message.replace("were unschedulable", "had untolerated taint(s)") + HOPELESS.format(n=1),
    )


def test_reasons_of_several_nodes_are_counted_and_sorted(cluster):
    cluster.node("a", taints=[NO_SCHEDULE])
    cluster.node("b")
    cluster.pod("p", **requests(cpu="9"))
    message = (
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). no new claims to deallocate,"
    )
    assert refused(cluster) == message + HOPELESS.format(n=2)


def test_taken_room_and_a_taint_are_worded_apart_in_preemption(cluster):
    cluster.node("a", taints=[NO_SCHEDULE])
    cluster.node("b", allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("first", **gpus(8))
    cluster.pod("p", **gpus(8))
    message = (
        "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s). "
        "no new claims to deallocate,"
    )
    assert refused(cluster) == message + MIXED


def test_a_pending_pod_is_bound_when_room_appears(cluster):
    node = cluster.node(taints=[NO_SCHEDULE])
    cluster.pod("p")
    refused(cluster)
    cluster.patch("Node", node, {"spec": {"taints": []}})
    cluster.until("Pod", "p", lambda p: p["spec"].get("nodeName") == node)


def test_a_pending_pod_is_bound_when_another_goes(cluster):
    cluster.node(allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("first", **gpus(8))
    cluster.pod("p", **gpus(8))
    refused(cluster)
    cluster.delete("Pod", "first")
    cluster.until("Pod", "p", lambda p: p["status"].get("phase") == "Running")


def test_a_finished_pod_holds_no_room(cluster):
    cluster.node(allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("first", **gpus(8))
    cluster.finish("first")
    cluster.running_pod("second", **gpus(8))


def test_a_terminating_pod_still_holds_its_room(cluster):
    cluster.node(allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("first", annotations={"conformance/linger": ""}, **gpus(8))
    cluster.delete("Pod", "first")
    cluster.pod("p", **gpus(8))
    refused(cluster)
    cluster.delete("Pod", "first", gracePeriodSeconds=0)
    cluster.until("Pod", "p", lambda p: p["status"].get("phase") == "Running")


def test_no_execute_deletes_pods_that_do_not_tolerate_it_past_their_budget(cluster):
    node = cluster.node()
    cluster.running_pod("p")
    cluster.budget("b", {"app": "bare"}, minAvailable=1)
    cluster.counts("b", allowed=0, current=1, desired=1, expected=1)
    cluster.patch("Node", node, {"spec": {"taints": [{"key": "example.com/out", "effect": "NoExecute"}]}})
    cluster.until_gone("Pod", "p")


def test_a_toleration_without_seconds_keeps_a_pod_under_no_execute(cluster):
    node = cluster.node()
    tolerations = [{"key": "example.com/out", "operator": "Exists"}]
    cluster.running_pod("stays", spec={"tolerations": tolerations})
    cluster.running_pod("goes")
    cluster.patch("Node", node, {"spec": {"taints": [{"key": "example.com/out", "effect": "NoExecute"}]}})
    cluster.until_gone("Pod", "goes")
    assert "deletionTimestamp" not in cluster.get("Pod", "stays")["metadata"]


def test_cordoning_adds_a_taint_and_uncordoning_takes_it_away(cluster):
    node = cluster.node()
    cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    cordoned = cluster.until("Node", node, lambda n: n["spec"].get("taints"))
    (taint,) = cordoned["spec"]["taints"]
    assert (taint["key"], taint["effect"]) == ("node.kubernetes.io/unschedulable", "NoSchedule")
    cluster.patch("Node", node, {"spec": {"unschedulable": None}})
    cluster.until("Node", node, lambda n: not n["spec"].get("taints"))


def test_a_pod_that_tolerates_a_cordon_still_lands(cluster):
    node = cluster.node()
    cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    cluster.running_pod("p", spec={"tolerations": [{"operator": "Exists"}]})


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "gen", "operator": "In", "values": ["7", "9"]}, True),
        ({"key": "gen", "operator": "NotIn", "values": ["7"]}, False),
        ({"key": "gen", "operator": "Exists"}, True),
        ({"key": "gen", "operator": "DoesNotExist"}, False),
        ({"key": "gen", "operator": "Gt", "values": ["6"]}, True),
        ({"key": "gen", "operator": "Lt", "values": ["7"]}, False),
        ({"key": "other", "operator": "NotIn", "values": ["7"]}, True),
    ],
    ids=lambda value: value["operator"] if isinstance(value, dict) else None,
)
def test_node_affinity_operators(cluster, expression, fits):
    cluster.node(labels={"gen": "7"})
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    cluster.pod("p", spec={"affinity": affinity})
    if fits:
        cluster.until("Pod", "p", lambda p: p["spec"].get("nodeName"))
    else:
        assert "didn't match Pod's node affinity/selector" in refused(cluster)


def test_anti_affinity_by_host_keeps_pods_apart(cluster):
    cluster.node()
    term = {"labelSelector": {"matchLabels": {"app": "bare"}}, "topologyKey": "kubernetes.io/hostname"}
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    cluster.running_pod("first", spec=spec)
    cluster.pod("p", spec=spec)
    message = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. no new claims to deallocate,"
    assert refused(cluster) == message + NO_VICTIMS.format(n=1)


def test_pod_affinity_by_host_puts_pods_together(cluster):
    cluster.node("a")
    cluster.node("b")
    first = cluster.running_pod("first", app="cache")
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    second = cluster.running_pod("second", spec=spec)
    assert second["spec"]["nodeName"] == first["spec"]["nodeName"]


def test_topology_spread_refuses_a_skew(cluster):
    for zone in ("a", "b"):
        cluster.node(zone, labels={"topology.kubernetes.io/zone": zone})
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "bare"}},
    }
    nodes = [
        cluster.running_pod(f"p{number}", spec={"topologySpreadConstraints": [spread]})["spec"]["nodeName"]
        for number in range(4)
    ]
    assert len(set(nodes[:2])) == len(set(nodes[2:])) == 2


def test_a_higher_priority_preempts(cluster, request):
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = f"high-{cluster.namespace}"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    assert cluster.call("POST", path, body).status == 201
    request.addfinalizer(lambda: cluster.call("DELETE", f"{path}/{name}"))
    cluster.node(allocatable={"nvidia.com/gpu": "8"})
    cluster.running_pod("low", **gpus(8))
    pod = cluster.pod("high", spec={"priorityClassName": name}, **gpus(8))
    assert pod["spec"]["priority"] == 1000
    cluster.until_gone("Pod", "low")
    cluster.until("Pod", "high", lambda p: p["status"].get("phase") == "Running")


def test_a_scheduling_gate_holds_a_pod(cluster):
    cluster.node()
    cluster.pod("p", spec={"schedulingGates": [{"name": "example.com/wait"}]})
    condition = cluster.unscheduled("p")
    assert condition["reason"] == "SchedulingGated"
    cluster.patch("Pod", "p", {"spec": {"schedulingGates": None}})
    cluster.until("Pod", "p", lambda p: p["spec"].get("nodeName"))


def test_a_named_node_needs_no_scheduler(cluster):
    node = cluster.node(taints=[NO_SCHEDULE])
    pod = cluster.running_pod("p", spec={"nodeName": node})
    assert pod["spec"]["nodeName"] == node


def test_a_foreign_scheduler_s_pod_is_left_alone(cluster):
    cluster.node()
    cluster.pod("theirs", spec={"schedulerName": "volcano"})
    cluster.running_pod("ours")
    assert "nodeName" not in cluster.get("Pod", "theirs")["spec"]


def test_an_unschedulable_pod_leaves_an_event(cluster):
    cluster.node()
    cluster.pod("p", **requests(cpu="9"))
    refused(cluster)
    events = cluster.eventually(lambda: [e for e in cluster.list("Event") if e.get("reason") == "FailedScheduling"])
    about = events[0].get("regarding") or events[0]["involvedObject"]
    assert (about["kind"], about["name"]) == ("Pod", "p")
    assert "Insufficient cpu" in (events[0].get("note") or events[0]["message"])
