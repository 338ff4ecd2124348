"""422 and its causes, where a client or a person relies on them."""

from __future__ import annotations

import copy

import pytest

MERGE = "application/merge-patch+json"
CONTAINER = {"name": "main", "image": "app:1"}


def causes(body):
    return {(each["field"], each["reason"]) for each in body["details"]["causes"]}


def deployment(name="d"):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [copy.deepcopy(CONTAINER)]}}
    spec = {"replicas": 0, "paused": True, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


def stateful_set(name="s"):
    body = deployment(name)
    del body["spec"]["paused"]
    body["spec"]["serviceName"] = name
    return body


def job(**spec):
    template = {"spec": {"restartPolicy": "Never", "containers": [copy.deepcopy(CONTAINER)]}}
    return {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": template, **spec}}


def pod(**spec):
    return {"metadata": {"name": "p"}, "spec": {"containers": [copy.deepcopy(CONTAINER)], **spec}}


def refused(ns, path, body, method="POST", kind=None):
    status, _, answer = ns.api.request(method, path, body, content_type=kind)
    assert (status, answer.get("reason")) == (422, "Invalid"), answer
    return answer


def test_a_bad_name_is_refused_in_words(ns):
    answer = refused(ns, ns.path("configmaps"), {"metadata": {"name": "Bad_Name"}})

    assert causes(answer) == {("metadata.name", "FieldValueInvalid")}
    assert answer["message"].startswith(
        'ConfigMap "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 subdomain '
    )
    assert (answer["details"]["name"], answer["details"]["kind"]) == ("Bad_Name", "ConfigMap")


def test_a_bad_namespace_name_is_refused(api):
    status, _, answer = api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a.b"}})

    assert status == 422
    assert 'Namespace "a.b" is invalid: metadata.name: Invalid value: "a.b": ' in answer["message"]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"a b": "x"}, "name part must consist of alphanumeric characters"),
        ({"a": "x y"}, "a valid label must be an empty string or consist of alphanumeric characters"),
        ({"a": "x" * 64}, "must be no more than 63"),
    ],
)
def test_bad_labels_are_refused(ns, labels, text):
    answer = refused(ns, ns.path("configmaps"), {"metadata": {"name": "a", "labels": labels}})

    assert ("metadata.labels", "FieldValueInvalid") in causes(answer)
    assert text in answer["message"]


def test_two_controllers_are_refused(ns):
    owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
    owners = [{**owner, "name": name, "uid": f"{name}-uid"} for name in "ab"]

    answer = refused(ns, ns.path("configmaps"), {"metadata": {"name": "a", "ownerReferences": owners}})

    assert "Only one reference can have Controller set to true" in answer["message"]


def test_an_owner_without_a_uid_is_refused(ns):
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a"}

    answer = refused(ns, ns.path("configmaps"), {"metadata": {"name": "a", "ownerReferences": [{**owner, "uid": ""}]}})

    assert ("metadata.ownerReferences.uid", "FieldValueInvalid") in causes(answer)


def test_a_pod_without_containers_is_refused(ns):
    answer = refused(ns, ns.path("pods"), pod(containers=[]))

    assert ("spec.containers", "FieldValueRequired") in causes(answer)


def test_a_container_without_a_name_or_image_is_refused(ns):
    answer = refused(ns, ns.path("pods"), pod(containers=[{}]))

    assert {("spec.containers[0].name", "FieldValueRequired"), ("spec.containers[0].image", "FieldValueRequired")} <= (
        causes(answer)
    )


def test_a_mount_of_no_volume_is_refused(ns):
    container = {**CONTAINER, "volumeMounts": [{"name": "none", "mountPath": "/x"}]}

    answer = refused(ns, ns.path("pods"), pod(containers=[container]))

    assert ("spec.containers[0].volumeMounts[0].name", "FieldValueNotFound") in causes(answer)


def test_requests_over_limits_are_refused(ns):
    container = {**CONTAINER, "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}

    answer = refused(ns, ns.path("pods"), pod(containers=[container]))

    assert causes(answer) == {("spec.containers[0].resources.requests", "FieldValueInvalid")}
    assert "must be less than or equal to cpu limit of 1" in answer["message"]


def test_devices_need_equal_requests_and_limits(ns):
    container = {**CONTAINER, "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    answer = refused(ns, ns.path("pods"), pod(containers=[container]))
    assert "Limit must be set for non overcommitable resources" in answer["message"]

    container["resources"] = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}
    answer = refused(ns, ns.path("pods"), pod(containers=[container]))
    assert "must be equal to nvidia.com/gpu limit of 2" in answer["message"]


def test_an_unknown_restart_policy_is_refused(ns):
    answer = refused(ns, ns.path("pods"), pod(restartPolicy="Sometimes"))

    assert ("spec.restartPolicy", "FieldValueNotSupported") in causes(answer)


def test_a_running_pod_cannot_change_its_resources(ns):
    ns.pod("p")
    body = {"spec": {"schedulerName": "other"}}

    answer = refused(ns, ns.path("pods", "p"), body, "PATCH", MERGE)

    assert causes(answer) == {("spec", "FieldValueForbidden")}
    assert "pod updates may not change fields other than `spec.containers[*].image`" in answer["message"]


def test_a_running_pod_can_change_its_image_and_gains_tolerations(ns):
    ns.pod("p")
    operations = [
        {"op": "replace", "path": "/spec/containers/0/image", "value": "app:2"},
        {"op": "add", "path": "/spec/tolerations/-", "value": {"key": "x", "operator": "Exists"}},
    ]

    made = ns.api.ok("PATCH", ns.path("pods", "p"), operations, content_type="application/json-patch+json")

    assert made["spec"]["containers"][0]["image"] == "app:2"
    assert made["metadata"]["generation"] == 2


def test_a_deployment_without_a_selector_is_refused(ns):
    body = deployment()
    del body["spec"]["selector"]

    answer = refused(ns, ns.path("deployments", group="apps/v1"), body)

    assert ("spec.selector", "FieldValueRequired") in causes(answer)


def test_a_selector_that_misses_its_template_is_refused(ns):
    body = deployment()
    body["spec"]["selector"] = {"matchLabels": {"app": "other"}}

    answer = refused(ns, ns.path("deployments", group="apps/v1"), body)

    assert causes(answer) == {("spec.template.metadata.labels", "FieldValueInvalid")}
    assert "`selector` does not match template `labels`" in answer["message"]
    assert answer["details"]["group"] == "apps"


def test_a_deployments_selector_is_immutable(ns):
    ns.api.ok("POST", ns.path("deployments", group="apps/v1"), deployment())
    labels = {"app": "d", "x": "y"}
    body = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}

    answer = refused(ns, ns.path("deployments", "d", "apps/v1"), body, "PATCH", MERGE)

    assert causes(answer) == {("spec.selector", "FieldValueInvalid")}
    assert "field is immutable" in answer["message"]


def test_negative_replicas_are_refused(ns):
    body = deployment()
    body["spec"]["replicas"] = -1

    answer = refused(ns, ns.path("deployments", group="apps/v1"), body)

    assert ("spec.replicas", "FieldValueInvalid") in causes(answer)
    assert "must be greater than or equal to 0" in answer["message"]


def test_a_deployments_pods_always_restart(ns):
    body = deployment()
    body["spec"]["template"]["spec"]["restartPolicy"] = "Never"

    answer = refused(ns, ns.path("deployments", group="apps/v1"), body)

    assert causes(answer) == {("spec.template.spec.restartPolicy", "FieldValueNotSupported")}


def test_a_stateful_set_changes_only_some_fields(ns):
    ns.api.ok("POST", ns.path("statefulsets", group="apps/v1"), stateful_set())

    answer = refused(ns, ns.path("statefulsets", "s", "apps/v1"), {"spec": {"serviceName": "x"}}, "PATCH", MERGE)

    assert causes(answer) == {("spec", "FieldValueForbidden")}
    assert "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template'" in answer["message"]


def test_a_job_needs_a_restart_policy(ns):
    body = job()
    del body["spec"]["template"]["spec"]["restartPolicy"]

    answer = refused(ns, ns.path("jobs", group="batch/v1"), body)

    assert causes(answer) == {("spec.template.spec.restartPolicy", "FieldValueRequired")}
    assert 'Required value: valid values: "OnFailure", "Never"' in answer["message"]


def test_an_indexed_job_needs_completions(ns):
    answer = refused(ns, ns.path("jobs", group="batch/v1"), job(completionMode="Indexed", parallelism=2))

    assert ("spec.completions", "FieldValueRequired") in causes(answer)


def test_a_jobs_template_is_immutable(ns):
    ns.api.ok("POST", ns.path("jobs", group="batch/v1"), job())
    operations = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "app:2"}]

    path = ns.path("jobs", "j", "batch/v1")
    answer = refused(ns, path, operations, "PATCH", "application/json-patch+json")

    assert causes(answer) in ({("spec.template.spec", "FieldValueInvalid")}, {("spec.template", "FieldValueInvalid")})
    assert "field is immutable" in answer["message"]


def test_a_suspended_job_may_be_placed_elsewhere(ns):
    ns.api.ok("POST", ns.path("jobs", group="batch/v1"), job())
    pod_spec = {"nodeSelector": {"pool": "new"}, "tolerations": [{"key": "x", "operator": "Exists"}]}

    made = ns.api.ok(
        "PATCH", ns.path("jobs", "j", "batch/v1"), {"spec": {"template": {"spec": pod_spec}}}, content_type=MERGE
    )

    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "new"}


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec", "minAvailable and maxUnavailable cannot be both set"),
        ({"minAvailable": -1}, "spec.minAvailable", "must be greater than or equal to 0"),
        ({"minAvailable": "101%"}, "spec.minAvailable", "must not be greater than 100%"),
        ({"maxUnavailable": "half"}, "spec.maxUnavailable", "a valid percent string"),
    ],
)
def test_a_bad_budget_is_refused(ns, spec, field, text):
    body = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, **spec}}

    answer = refused(ns, ns.path("poddisruptionbudgets", group="policy/v1"), body)

    assert (field, "FieldValueInvalid") in causes(answer)
    assert text in answer["message"]


def test_an_unknown_eviction_policy_is_refused(ns):
    body = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "unhealthyPodEvictionPolicy": "Never"}}

    answer = refused(ns, ns.path("poddisruptionbudgets", group="policy/v1"), body)

    assert ("spec.unhealthyPodEvictionPolicy", "FieldValueNotSupported") in causes(answer)


def test_a_taint_needs_a_known_effect_and_is_unique(api):
    name = "conformance-bad-taints"
    for taints in ([{"key": "a", "effect": "Sometimes"}], [{"key": "a", "effect": "NoSchedule"}] * 2):
        body = {"metadata": {"name": name}, "spec": {"taints": taints}}
        status, _, answer = api.request("POST", "/api/v1/nodes", body)
        assert (status, answer["reason"]) == (422, "Invalid"), answer


def test_a_node_keeps_its_provider_id(ns):
    name = "conformance-provider"
    ns.api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": {"providerID": "aws:///a"}})

    answer = refused(ns, f"/api/v1/nodes/{name}", {"spec": {"providerID": "aws:///b"}}, "PATCH", MERGE)
    ns.api.request("DELETE", f"/api/v1/nodes/{name}")

    assert causes(answer) == {("spec.providerID", "FieldValueForbidden")}


def test_an_immutable_config_map_stays(ns):
    ns.api.ok("POST", ns.path("configmaps"), {"metadata": {"name": "a"}, "data": {"k": "v"}, "immutable": True})

    answer = refused(ns, ns.path("configmaps", "a"), {"data": {"k": "w"}}, "PATCH", MERGE)

    assert causes(answer) == {("data", "FieldValueForbidden")}
    assert "field is immutable when `immutable` is set" in answer["message"]


def test_a_bad_config_key_is_refused(ns):
    answer = refused(ns, ns.path("configmaps"), {"metadata": {"name": "a"}, "data": {"a/b": "v"}})

    assert causes(answer) == {("data[a/b]", "FieldValueInvalid")}


def test_a_service_keeps_its_address(ns):
    body = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    made = ns.api.ok("POST", ns.path("services"), body)
    assert made["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert made["spec"]["clusterIPs"] == [made["spec"]["clusterIP"]]

    status, _, _ = ns.api.request(
        "PATCH", ns.path("services", "s"), {"spec": {"clusterIP": "10.96.77.77"}}, content_type=MERGE
    )
    assert status == 422


def test_a_headless_service_has_no_address(ns):
    body = {"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}}}

    made = ns.api.ok("POST", ns.path("services"), body)

    assert (made["spec"]["clusterIP"], made["spec"]["clusterIPs"]) == ("None", ["None"])


def test_a_missing_priority_class_is_403(ns):
    status, _, answer = ns.api.request("POST", ns.path("pods"), pod(priorityClassName="none"))

    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "no PriorityClass with name none was found" in answer["message"]


def test_a_system_priority_is_resolved(ns):
    made = ns.pod("p", priorityClassName="system-node-critical")

    assert made["spec"]["priority"] == 2000001000


def test_an_event_must_be_about_its_own_namespace(ns):
    body = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "other", "kind": "Pod", "name": "p"}}

    answer = refused(ns, ns.path("events"), body)

    assert causes(answer) == {("involvedObject.namespace", "FieldValueInvalid")}


def test_a_claim_needs_an_access_mode_and_a_size(ns):
    answer = refused(ns, ns.path("persistentvolumeclaims"), {"metadata": {"name": "c"}, "spec": {}})

    assert ("spec.accessModes", "FieldValueRequired") in causes(answer)
    assert any(field.startswith("spec.resources") for field, _ in causes(answer))


def test_a_claims_spec_is_immutable(ns):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    ns.api.ok("POST", ns.path("persistentvolumeclaims"), {"metadata": {"name": "c"}, "spec": spec})

    path = ns.path("persistentvolumeclaims", "c")
    answer = refused(ns, path, {"spec": {"accessModes": ["ReadWriteMany"]}}, "PATCH", MERGE)

    assert causes(answer) == {("spec", "FieldValueForbidden")}
    assert "spec is immutable after creation except resources.requests" in answer["message"]


def test_a_role_binding_keeps_its_role(ns):
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    path = ns.path("rolebindings", group="rbac.authorization.k8s.io/v1")
    ns.api.ok("POST", path, {"metadata": {"name": "r"}, "roleRef": reference})

    answer = refused(ns, f"{path}/r", {"roleRef": {**reference, "name": "edit"}}, "PATCH", MERGE)

    assert causes(answer) == {("roleRef", "FieldValueInvalid")}
    assert "cannot change roleRef" in answer["message"]


def test_several_causes_are_listed_together(ns):
    body = deployment()
    body["spec"]["replicas"] = -1
    body["spec"]["selector"] = {"matchLabels": {"app": "other"}}

    answer = refused(ns, ns.path("deployments", group="apps/v1"), body)

    assert len(answer["details"]["causes"]) == 2
    assert answer["message"].startswith('Deployment.apps "d" is invalid: [spec.replicas: Invalid value: -1: ')
