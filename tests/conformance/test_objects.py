"""Create, read, replace, generations, names."""

from __future__ import annotations

import re


def test_create_answers_201_with_the_system_fields(ns):
    status, _, made = ns.api.request("POST", ns.path("configmaps"), {"metadata": {"name": "a"}, "data": {"k": "v"}})

    assert status == 201
    assert (made["kind"], made["apiVersion"]) == ("ConfigMap", "v1")
    metadata = made["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"].isdigit()
    assert metadata["namespace"] == ns.name
    assert "generation" not in metadata


def test_create_of_a_taken_name_is_409_already_exists(ns):
    ns.config_map("a")

    status, _, body = ns.api.request("POST", ns.path("configmaps"), {"metadata": {"name": "a"}})

    assert (status, body["reason"]) == (409, "AlreadyExists")
    assert body["message"] == 'configmaps "a" already exists'
    assert body["details"] == {"name": "a", "kind": "configmaps"}


def test_missing_object_is_404_with_its_name(ns):
    status, _, body = ns.api.request("GET", ns.path("deployments", "none", "apps/v1"))

    assert (status, body["reason"], body["status"]) == (404, "NotFound", "Failure")
    assert body["message"] == 'deployments.apps "none" not found'
    assert body["details"] == {"name": "none", "group": "apps", "kind": "deployments"}


def test_generate_name_draws_five_characters_without_vowels(ns):
    made = ns.api.ok("POST", ns.path("configmaps"), {"metadata": {"generateName": "x-"}})

    assert re.fullmatch(r"x-[bcdfghjklmnpqrstvwxz2456789]{5}", made["metadata"]["name"])
    assert made["metadata"]["generateName"] == "x-"


def test_create_without_a_name_is_422(ns):
    status, _, body = ns.api.request("POST", ns.path("configmaps"), {"metadata": {}})

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["details"]["causes"] == [
        {
            "reason": "FieldValueRequired",
            "message": "Required value: name or generateName is required",
            "field": "metadata.name",
        }
    ]


def test_create_with_a_resource_version_is_500_without_a_reason(ns):
    body = {"metadata": {"name": "a", "resourceVersion": "5"}}

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body)

    assert status == 500
    assert answer["message"] == "resourceVersion should not be set on objects to be created"
    assert "reason" not in answer


def test_create_in_a_missing_namespace_is_404_of_the_namespace(api):
    status, _, body = api.request("POST", "/api/v1/namespaces/nowhere-x/configmaps", {"metadata": {"name": "a"}})

    assert (status, body["reason"]) == (404, "NotFound")
    assert body["message"] == 'namespaces "nowhere-x" not found'


def test_another_namespace_in_the_body_is_400(ns):
    body = {"metadata": {"name": "a", "namespace": "default"}}

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body)

    assert (status, answer["reason"]) == (400, "BadRequest")
    assert "the namespace of the provided object does not match the namespace sent on the request" in answer["message"]


def test_another_api_version_in_the_body_is_400(ns):
    body = {"apiVersion": "apps/v1", "kind": "ConfigMap", "metadata": {"name": "a"}}

    status, _, answer = ns.api.request("POST", ns.path("configmaps"), body)

    assert (status, answer["reason"]) == (400, "BadRequest")


def test_a_body_that_is_no_json_is_400(ns):
    status, _, answer = ns.api.request("POST", ns.path("configmaps"), b"{nonsense")

    assert (status, answer["reason"]) == (400, "BadRequest")


def test_a_body_of_an_unknown_media_type_is_415(ns):
    status, _, answer = ns.api.request("POST", ns.path("configmaps"), b"x", content_type="text/plain")

    assert (status, answer["reason"]) == (415, "UnsupportedMediaType")


def test_yaml_is_read_too(ns):
    text = "metadata:\n  name: a\ndata:\n  k: v\n"

    made = ns.api.ok("POST", ns.path("configmaps"), text, content_type="application/yaml")

    assert made["data"] == {"k": "v"}


def test_replace_with_a_stale_version_is_409(ns):
    first = ns.config_map("a")
    ns.api.ok("PUT", ns.path("configmaps", "a"), {**first, "data": {"a": "2"}})

    status, _, body = ns.api.request("PUT", ns.path("configmaps", "a"), {**first, "data": {"a": "3"}})

    assert (status, body["reason"]) == (409, "Conflict")
    assert body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your changes to '
        "the latest version and try again"
    )


def test_replace_without_a_version_is_fine_for_a_config_map(ns):
    ns.config_map("a")

    made = ns.api.ok("PUT", ns.path("configmaps", "a"), {"metadata": {"name": "a"}, "data": {"b": "2"}})

    assert made["data"] == {"b": "2"}


def test_replace_without_a_version_is_422_for_a_budget(ns):
    ns.budget("b", {"app": "x"}, wait=False, minAvailable=1)
    body = {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "x"}}}}

    status, _, answer = ns.api.request("PUT", ns.path("poddisruptionbudgets", "b", "policy/v1"), body)

    assert status == 422
    assert answer["details"]["causes"][0]["field"] == "metadata.resourceVersion"
    assert "must be specified for an update" in answer["message"]


def test_replace_of_a_missing_object_is_404_but_creates_a_lease(ns):
    status, _, _ = ns.api.request("PUT", ns.path("configmaps", "none"), {"metadata": {"name": "none"}})
    assert status == 404

    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    status, _, made = ns.api.request("PUT", ns.path("leases", "l", "coordination.k8s.io/v1"), lease)
    assert (status, made["spec"]["holderIdentity"]) == (201, "me")


def test_replace_under_another_name_is_400(ns):
    ns.config_map("a")

    status, _, body = ns.api.request("PUT", ns.path("configmaps", "a"), {"metadata": {"name": "b"}})

    assert status == 400
    assert body["message"] == "the name of the object (b) does not match the name on the URL (a)"


def test_replace_of_another_uid_is_409(ns):
    ns.config_map("a")
    body = {"metadata": {"name": "a", "uid": "11111111-1111-1111-1111-111111111111"}}

    status, _, answer = ns.api.request("PUT", ns.path("configmaps", "a"), body)

    assert (status, answer["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 11111111" in answer["message"]


def test_a_write_that_changes_nothing_keeps_the_version(ns):
    first = ns.config_map("a")

    second = ns.api.ok("PUT", ns.path("configmaps", "a"), first)

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_generation_counts_changes_of_a_deployments_spec_only(ns):
    path = ns.path("deployments", group="apps/v1")
    made = ns.api.ok("POST", path, deployment("d"))
    assert made["metadata"]["generation"] == 1
    merge = "application/merge-patch+json"

    labelled = ns.api.ok("PATCH", f"{path}/d", {"metadata": {"labels": {"x": "y"}}}, content_type=merge)
    assert labelled["metadata"]["generation"] == 1
    scaled = ns.api.ok("PATCH", f"{path}/d", {"spec": {"minReadySeconds": 1}}, content_type=merge)
    assert scaled["metadata"]["generation"] == 2


def test_nodes_and_leases_have_no_generation(api, ns):
    lease = ns.api.ok("POST", ns.path("leases", group="coordination.k8s.io/v1"), {"metadata": {"name": "l"}})
    assert "generation" not in lease["metadata"]
    assert "generation" not in api.ok("GET", "/api/v1/namespaces/default")["metadata"]


def test_deployment_defaults(ns):
    made = ns.api.ok("POST", ns.path("deployments", group="apps/v1"), deployment("d"))

    spec = made["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["dnsPolicy"], pod["schedulerName"]) == (
        "Always",
        "ClusterFirst",
        "default-scheduler",
    )
    assert (pod["terminationGracePeriodSeconds"], pod["securityContext"]) == (30, {})
    container = pod["containers"][0]
    assert (container["imagePullPolicy"], container["terminationMessagePolicy"]) == ("IfNotPresent", "File")
    assert container["resources"] == {}


def test_pod_defaults_and_admission(ns):
    made = ns.pod("p")

    spec = made["spec"]
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert (spec["priority"], spec["preemptionPolicy"], spec["enableServiceLinks"]) == (0, "PreemptLowerPriority", True)
    assert {each["key"] for each in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    assert spec["volumes"][0]["name"].startswith("kube-api-access-")
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["qosClass"] == "BestEffort"
    assert made["metadata"]["generation"] == 1


def test_image_pull_policy_follows_the_tag(ns):
    containers = [
        {"name": "a", "image": "registry.example:5000/app"},
        {"name": "b", "image": "app:latest"},
        {"name": "c", "image": "app:1"},
        {"name": "d", "image": "app@sha256:" + "0" * 64},
    ]
    made = ns.pod("p", containers=containers)

    policies = [each["imagePullPolicy"] for each in made["spec"]["containers"]]
    assert policies == ["Always", "Always", "IfNotPresent", "IfNotPresent"]


def test_quality_of_service_follows_requests_and_limits(ns):
    same = {"cpu": "1", "memory": "1Gi"}
    guaranteed = ns.pod("g", containers=[{"name": "a", "image": "i", "resources": {"limits": same}}])
    burstable = ns.pod("b", containers=[{"name": "a", "image": "i", "resources": {"requests": {"cpu": "1"}}}])

    assert guaranteed["status"]["qosClass"] == "Guaranteed"
    assert guaranteed["spec"]["containers"][0]["resources"]["requests"] == same
    assert burstable["status"]["qosClass"] == "Burstable"


def test_quantities_are_written_back_in_their_canonical_form(ns):
    sent = {"cpu": "1000m", "memory": "2048Mi", "nvidia.com/gpu": 8}
    made = ns.pod("p", containers=[{"name": "a", "image": "i", "resources": {"limits": sent}}])

    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "8"}


def test_a_status_sent_with_create_is_dropped(ns):
    body = deployment("d") | {"status": {"replicas": 7}}

    made = ns.api.ok("POST", ns.path("deployments", group="apps/v1"), body)

    assert "replicas" not in made["status"]


def test_a_fresh_node_carries_the_not_ready_taint(api):
    name = "conformance-node-taint"
    made = api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


def test_a_job_selects_its_pods_by_its_uid(ns):
    made = ns.api.ok("POST", ns.path("jobs", group="batch/v1"), job("j"))

    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert (made["spec"]["backoffLimit"], made["spec"]["completionMode"]) == (6, "NonIndexed")


def test_secret_string_data_becomes_base64(ns):
    made = ns.api.ok("POST", ns.path("secrets"), {"metadata": {"name": "s"}, "stringData": {"k": "v"}})

    assert made["data"] == {"k": "dg=="}
    assert made["type"] == "Opaque"
    assert "stringData" not in made


def test_a_namespace_is_labelled_with_its_name(ns):
    made = ns.api.ok("GET", f"/api/v1/namespaces/{ns.name}")

    assert made["metadata"]["labels"]["kubernetes.io/metadata.name"] == ns.name
    assert made["spec"]["finalizers"] == ["kubernetes"]
    assert made["status"]["phase"] == "Active"


def test_a_dry_run_stores_nothing(ns):
    status, _, made = ns.api.request("POST", ns.path("configmaps"), {"metadata": {"name": "a"}}, {"dryRun": "All"})

    assert status == 201
    assert made["metadata"]["uid"]
    assert ns.api.request("GET", ns.path("configmaps", "a"))[0] == 404


def test_an_unknown_dry_run_value_is_422(ns):
    status, _, body = ns.api.request("POST", ns.path("configmaps"), {"metadata": {"name": "a"}}, {"dryRun": "Some"})

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "dryRun"


def test_the_status_endpoint_changes_the_status_alone(ns):
    ns.pod("p")
    body = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}}

    made = ns.api.ok("PATCH", ns.path("pods", "p") + "/status", body, content_type="application/merge-patch+json")

    assert made["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in made["spec"]


def test_the_main_endpoint_leaves_the_status_alone(ns):
    ns.running_pod("p")
    body = {"metadata": {"labels": {"x": "y"}}, "status": {"phase": "Failed"}}

    made = ns.api.ok("PATCH", ns.path("pods", "p"), body, content_type="application/merge-patch+json")

    assert made["metadata"]["labels"]["x"] == "y"
    assert made["status"]["phase"] == "Running"


def test_a_resource_without_status_has_no_status_endpoint(ns):
    ns.config_map("a")

    assert ns.api.request("GET", ns.path("configmaps", "a") + "/status")[0] == 404


def test_conditions_without_times_show_null(api):
    name = "conformance-node-null"
    api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    body = {"status": {"conditions": [{"type": "Custom", "status": "True"}]}}
    made = api.ok("PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/strategic-merge-patch+json")
    api.request("DELETE", f"/api/v1/nodes/{name}")

    condition = next(each for each in made["status"]["conditions"] if each["type"] == "Custom")
    assert condition["lastHeartbeatTime"] is None
    assert condition["lastTransitionTime"] is None


def deployment(name: str, replicas: int = 0) -> dict:
    labels = {"app": name}
    container = {"name": "main", "image": "registry.example/app:1"}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "paused": True,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def job(name: str) -> dict:
    container = {"name": "main", "image": "registry.example/app:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": template}}
