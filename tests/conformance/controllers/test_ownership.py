"""Owners and dependents: background, foreground and orphan deletion, and what goes when an owner is gone."""


def reference(owner, **more):
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        **more,
    }


def test_background_deletion_takes_the_owner_first(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 2)
    cluster.until_pods(2)
    answer = cluster.delete("Deployment", "web", propagationPolicy="Background")
    assert (answer.status, answer.body["status"]) == (200, "Success")
    assert cluster.get("Deployment", "web") is None
    cluster.eventually(lambda: not cluster.list("ReplicaSet") and not cluster.list("Pod"))


def test_foreground_deletion_waits_for_the_dependents(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 1, template={"annotations": {"conformance/linger": ""}})
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    answer = cluster.delete("ReplicaSet", "web", propagationPolicy="Foreground")
    assert answer.status == 200
    assert answer.body["kind"] == "ReplicaSet"
    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in answer.body["metadata"]
    cluster.until("Pod", name, lambda p: "deletionTimestamp" in p["metadata"])
    assert cluster.get("ReplicaSet", "web") is not None
    cluster.delete("Pod", name, gracePeriodSeconds=0)
    cluster.until_gone("ReplicaSet", "web")


def test_foreground_deletion_makes_no_new_pods(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 2, template={"annotations": {"conformance/linger": ""}})
    first, second = (pod["metadata"]["name"] for pod in cluster.until_pods(2))
    cluster.delete("ReplicaSet", "web", propagationPolicy="Foreground")
    cluster.until("Pod", first, lambda p: "deletionTimestamp" in p["metadata"])
    cluster.delete("Pod", first, gracePeriodSeconds=0)
    cluster.until_gone("Pod", first)
    assert [pod["metadata"]["name"] for pod in cluster.list("Pod")] == [second]
    cluster.delete("Pod", second, gracePeriodSeconds=0)
    cluster.until_gone("ReplicaSet", "web")


def test_orphaning_leaves_the_dependents_without_owner(cluster):
    cluster.node()
    cluster.workload("ReplicaSet", "web", 1)
    name = cluster.until_pods(1)[0]["metadata"]["name"]
    assert cluster.delete("ReplicaSet", "web", propagationPolicy="Orphan").status == 200
    cluster.until_gone("ReplicaSet", "web")
    pod = cluster.until("Pod", name, lambda p: not p["metadata"].get("ownerReferences"))
    assert "deletionTimestamp" not in pod["metadata"]


def test_an_owner_of_another_uid_is_no_owner(cluster):
    owner = cluster.create("ConfigMap", "owner")
    stale = reference(owner) | {"uid": "11111111-2222-3333-4444-555555555555"}
    cluster.create("ConfigMap", "child", ownerReferences=[stale])
    cluster.until_gone("ConfigMap", "child")


def test_the_last_of_two_owners_takes_the_dependent_along(cluster):
    owners = [cluster.create("ConfigMap", name) for name in ("one", "two")]
    cluster.create("ConfigMap", "child", ownerReferences=[reference(owner) for owner in owners])
    cluster.delete("ConfigMap", "one")
    child = cluster.until("ConfigMap", "child", lambda c: len(c["metadata"]["ownerReferences"]) == 1)
    assert child["metadata"]["ownerReferences"][0]["name"] == "two"
    cluster.delete("ConfigMap", "two")
    cluster.until_gone("ConfigMap", "child")


def test_foreground_deletion_does_not_wait_for_a_dependent_that_does_not_block(cluster):
    owner = cluster.create("ConfigMap", "owner")
    cluster.create("ConfigMap", "child", ownerReferences=[reference(owner)], finalizers=["example.com/hold"])
    cluster.delete("ConfigMap", "owner", propagationPolicy="Foreground")
    cluster.until_gone("ConfigMap", "owner")
    cluster.patch("ConfigMap", "child", {"metadata": {"finalizers": None}})
    cluster.until_gone("ConfigMap", "child")


def test_foreground_deletion_waits_for_a_dependent_that_blocks(cluster):
    owner = cluster.create("ConfigMap", "owner")
    blocking = reference(owner, blockOwnerDeletion=True)
    cluster.create("ConfigMap", "child", ownerReferences=[blocking], finalizers=["example.com/hold"])
    cluster.delete("ConfigMap", "owner", propagationPolicy="Foreground")
    cluster.until("ConfigMap", "child", lambda c: "deletionTimestamp" in c["metadata"])
    assert cluster.get("ConfigMap", "owner") is not None
    cluster.patch("ConfigMap", "child", {"metadata": {"finalizers": None}})
    cluster.until_gone("ConfigMap", "owner")


def test_a_namespace_takes_everything_along(cluster):
    cluster.node()
    cluster.workload("Deployment", "web", 1)
    cluster.until_pods(1)
    cluster.create("ConfigMap", "data")
    answer = cluster.delete("Namespace", cluster.namespace)
    assert (answer.status, answer.body["kind"]) == (200, "Namespace")
    assert answer.body["status"]["phase"] == "Terminating"
    cluster.until_gone("Namespace", cluster.namespace)
    assert cluster.get("ConfigMap", "data") is None


def test_a_terminating_namespace_takes_no_new_objects(cluster):
    cluster.create("ConfigMap", "held", finalizers=["example.com/hold"])
    cluster.delete("Namespace", cluster.namespace)
    answer = cluster.call("POST", cluster.path("ConfigMap"), cluster.object("ConfigMap", "late"))
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    assert answer.body["message"] == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {cluster.namespace} '
        "because it is being terminated"
    )
    cluster.patch("ConfigMap", "held", {"metadata": {"finalizers": None}})
    cluster.until_gone("Namespace", cluster.namespace)


def test_an_eviction_in_a_terminating_namespace_is_forbidden(cluster):
    cluster.node()
    cluster.running_pod("p", annotations={"conformance/linger": ""})
    cluster.delete("Namespace", cluster.namespace)
    answer = cluster.evict("p")
    assert (answer.status, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    cluster.delete("Pod", "p", gracePeriodSeconds=0)
