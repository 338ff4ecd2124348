"""DaemonSets: on which nodes, with which tolerations, and what the status counts."""

NO_SCHEDULE = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def daemonset(cluster, **more):
    template = cluster.template("agent", **more)
    cluster.create("DaemonSet", "agent", spec={"selector": {"matchLabels": {"app": "agent"}}, "template": template})


def numbers(cluster, **wanted):
    return cluster.until(
        "DaemonSet", "agent", lambda d: all(d["status"].get(key, 0) == value for key, value in wanted.items())
    )["status"]


def test_one_pod_runs_on_every_matching_node(cluster):
    nodes = {cluster.node("a"), cluster.node("b")}
    daemonset(cluster)
    pods = cluster.until_pods(2)
    assert {pod["spec"]["nodeName"] for pod in pods} == nodes
    status = numbers(cluster, numberReady=2, numberAvailable=2, updatedNumberScheduled=2)
    assert status["desiredNumberScheduled"] == status["currentNumberScheduled"] == 2
    assert status["numberMisscheduled"] == 0
    assert status["observedGeneration"] == 1


def test_its_pods_are_bound_by_node_affinity(cluster):
    node = cluster.node()
    daemonset(cluster)
    spec = cluster.until_pods(1)[0]["spec"]
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]


def test_its_pods_tolerate_what_happens_to_nodes(cluster):
    cluster.node()
    daemonset(cluster)
    found = {(t["key"], t["effect"]) for t in cluster.until_pods(1)[0]["spec"]["tolerations"]}
    assert found == {
        ("node.kubernetes.io/not-ready", "NoExecute"),
        ("node.kubernetes.io/unreachable", "NoExecute"),
        ("node.kubernetes.io/disk-pressure", "NoSchedule"),
        ("node.kubernetes.io/memory-pressure", "NoSchedule"),
        ("node.kubernetes.io/pid-pressure", "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    }


def test_host_network_adds_a_toleration(cluster):
    cluster.node()
    daemonset(cluster, spec={"hostNetwork": True})
    keys = {t["key"] for t in cluster.until_pods(1)[0]["spec"]["tolerations"]}
    assert "node.kubernetes.io/network-unavailable" in keys


def test_a_taint_keeps_it_off_and_is_not_counted_as_desired(cluster):
    free = cluster.node("free")
    cluster.node("gpu", taints=[NO_SCHEDULE])
    daemonset(cluster)
    assert cluster.until_pods(1)[0]["spec"]["nodeName"] == free
    assert numbers(cluster, numberReady=1)["desiredNumberScheduled"] == 1


def test_a_toleration_lets_it_on(cluster):
    cluster.node("gpu", taints=[NO_SCHEDULE])
    daemonset(cluster, spec={"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]})
    cluster.until_pods(1)


def test_a_cordoned_node_gets_its_pod(cluster):
    node = cluster.node()
    cluster.patch("Node", node, {"spec": {"unschedulable": True}})
    daemonset(cluster)
    assert cluster.until_pods(1)[0]["spec"]["nodeName"] == node


def test_a_new_no_schedule_taint_leaves_a_running_pod_but_counts_it_misscheduled(cluster):
    node = cluster.node()
    daemonset(cluster)
    first = cluster.until_pods(1)[0]
    cluster.patch("Node", node, {"spec": {"taints": [NO_SCHEDULE]}})
    # The real controller recounts only when there is a pod to make or to end: until then its status is out of date.
    cluster.patch("DaemonSet", "agent", {"metadata": {"annotations": {"look": "again"}}})
    status = numbers(cluster, desiredNumberScheduled=0, numberMisscheduled=1)
    assert status["currentNumberScheduled"] == 0
    assert cluster.until_pods(1)[0]["metadata"]["uid"] == first["metadata"]["uid"]


def test_a_node_that_no_longer_matches_loses_its_pod(cluster):
    node = cluster.node()
    daemonset(cluster)
    cluster.until_pods(1)
    cluster.patch("Node", node, {"metadata": {"labels": {"pool": None}}})
    cluster.until_pods(0)


def test_a_new_node_gets_a_pod(cluster):
    cluster.node("a")
    daemonset(cluster)
    cluster.until_pods(1)
    cluster.node("b")
    cluster.until_pods(2)


def test_an_unready_pod_is_scheduled_but_not_ready(cluster):
    cluster.node()
    daemonset(cluster, annotations={"conformance/ready": "false"})
    status = numbers(cluster, currentNumberScheduled=1, numberUnavailable=1, desiredNumberScheduled=1)
    assert status["numberReady"] == 0
    assert "numberAvailable" not in status


def test_a_failed_pod_is_deleted_and_made_anew(cluster):
    cluster.node()
    daemonset(cluster)
    first = cluster.until_pods(1)[0]["metadata"]
    cluster.finish(first["name"], "Failed", 1)
    cluster.until_gone("Pod", first["name"])
    cluster.until_pods(1)


def test_a_new_template_replaces_the_pods(cluster):
    cluster.node()
    daemonset(cluster)
    first = cluster.until_pods(1)[0]["metadata"]
    cluster.patch("DaemonSet", "agent", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
    cluster.until_gone("Pod", first["name"])
    again = cluster.until_pods(1)[0]["metadata"]
    assert again["annotations"]["v"] == "2"
    assert again["labels"]["pod-template-generation"] == "2"
    assert again["labels"]["controller-revision-hash"] != first["labels"]["controller-revision-hash"]


def test_on_delete_waits_for_the_deletion(cluster):
    cluster.node()
    template = cluster.template("agent")
    spec = {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": template,
        "updateStrategy": {"type": "OnDelete"},
    }
    cluster.create("DaemonSet", "agent", spec=spec)
    first = cluster.until_pods(1)[0]["metadata"]
    cluster.patch("DaemonSet", "agent", {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}})
    numbers(cluster, observedGeneration=2, numberReady=1)
    assert cluster.until_pods(1)[0]["metadata"]["uid"] == first["uid"]
    cluster.delete("Pod", first["name"])
    cluster.until_gone("Pod", first["name"])
    assert cluster.until_pods(1)[0]["metadata"]["annotations"]["v"] == "2"
