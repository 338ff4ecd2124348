"""Scale, binding, logs, finalize, tokens, reviews."""

from __future__ import annotations

MERGE = "application/merge-patch+json"


def deployment(ns, name="d", replicas=0):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}}
    spec = {"replicas": replicas, "paused": True, "selector": {"matchLabels": labels}, "template": template}
    return ns.api.ok("POST", ns.path("deployments", group="apps/v1"), {"metadata": {"name": name}, "spec": spec})


def test_scale_is_read(ns):
    deployment(ns)

    scale = ns.api.ok("GET", ns.path("deployments", "d", "apps/v1") + "/scale")

    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {}
    assert scale["status"] == {"replicas": 0, "selector": "app=d"}


def test_scale_is_patched_and_put(ns):
    made = deployment(ns)
    path = ns.path("deployments", "d", "apps/v1")

    scale = ns.api.ok("PATCH", path + "/scale", {"spec": {"replicas": 2}}, content_type=MERGE)
    assert scale["spec"] == {"replicas": 2}
    assert ns.api.ok("GET", path)["spec"]["replicas"] == 2
    assert ns.api.ok("GET", path)["metadata"]["generation"] == made["metadata"]["generation"] + 1

    scale["spec"]["replicas"] = 1
    del scale["metadata"]["resourceVersion"]
    assert ns.api.ok("PUT", path + "/scale", scale)["spec"] == {"replicas": 1}


def test_a_negative_scale_is_422(ns):
    deployment(ns)
    path = ns.path("deployments", "d", "apps/v1") + "/scale"

    status, _, body = ns.api.request("PATCH", path, {"spec": {"replicas": -1}}, content_type=MERGE)

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "spec.replicas"


def test_a_stale_scale_is_409(ns):
    deployment(ns)
    path = ns.path("deployments", "d", "apps/v1") + "/scale"
    scale = ns.api.ok("GET", path)
    ns.api.ok("PATCH", path, {"spec": {"replicas": 2}}, content_type=MERGE)

    status, _, body = ns.api.request("PUT", path, {**scale, "spec": {"replicas": 3}})

    assert (status, body["reason"]) == (409, "Conflict")


def test_a_binding_assigns_the_node_once(ns):
    ns.pod("p")
    path = ns.path("pods", "p") + "/binding"
    body = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "nowhere"}}

    status, _, answer = ns.api.request("POST", path, body)
    assert (status, answer["kind"], answer["status"]) == (201, "Status", "Success")
    pod = ns.api.ok("GET", ns.path("pods", "p"))
    assert pod["spec"]["nodeName"] == "nowhere"
    assert pod["metadata"]["generation"] == 1
    assert any(each["type"] == "PodScheduled" and each["status"] == "True" for each in pod["status"]["conditions"])

    status, _, answer = ns.api.request("POST", path, body)
    assert (status, answer["reason"]) == (409, "Conflict")
    assert 'pod p is already assigned to node "nowhere"' in answer["message"]


def test_a_binding_without_a_target_is_500(ns):
    ns.pod("p")

    status, _, body = ns.api.request(
        "POST", ns.path("pods", "p") + "/binding", {"metadata": {"name": "p"}, "target": {}}
    )

    assert (status, body["message"]) == (500, "target.name: Required value")
    assert "reason" not in body


def test_the_log_of_an_unbound_pod_is_204(ns):
    ns.pod("p")

    status, _, body = ns.api.request("GET", ns.path("pods", "p") + "/log")

    assert (status, body) == (204, "")


def test_the_log_of_a_missing_pod_is_404(ns):
    assert ns.api.request("GET", ns.path("pods", "none") + "/log")[0] == 404


def test_the_log_of_a_wrong_container_is_400(ns):
    ns.running_pod("p")

    status, _, body = ns.api.request("GET", ns.path("pods", "p") + "/log", params={"container": "other"})

    assert (status, body["reason"]) == (400, "BadRequest")
    assert body["message"] == "container other is not valid for pod p"


def test_the_log_of_one_of_many_containers_needs_a_name(ns):
    ns.pod("p", containers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])

    status, _, body = ns.api.request("GET", ns.path("pods", "p") + "/log")

    assert status == 400
    assert body["message"] == "a container name must be specified for pod p, choose one of: [a b]"


def test_the_log_of_a_kubelet_that_is_away_is_500_without_a_reason(api, ns):
    name = "conformance-log-node"
    api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    status = {
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
        }
    }
    api.ok("PATCH", f"/api/v1/nodes/{name}/status", status, content_type=MERGE)
    ns.pod("p", nodeName=name)
    code, _, body = api.request("GET", ns.path("pods", "p") + "/log")
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert code == 500
    assert "reason" not in body
    assert f'Get "https://127.0.0.1:1/containerLogs/{ns.name}/p/main' in body["message"]


def test_a_token_is_issued_for_a_service_account(ns):
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}

    status, _, answer = ns.api.request("POST", ns.path("serviceaccounts", "default") + "/token", body)

    assert (status, answer["kind"]) == (201, "TokenRequest")
    assert answer["status"]["token"]
    assert answer["spec"]["expirationSeconds"] == 3600


def test_the_administrator_may_do_everything(api):
    attributes = {"namespace": "default", "verb": "create", "resource": "pods"}
    review = {"spec": {"resourceAttributes": attributes}}

    status, _, answer = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)

    assert (status, answer["kind"]) == (201, "SelfSubjectAccessReview")
    assert answer["status"]["allowed"] is True


def test_a_review_of_nothing_is_422(api):
    status, _, _ = api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})

    assert status == 422


def test_an_unknown_subresource_is_404(ns):
    ns.pod("p")

    status, _, body = ns.api.request("GET", ns.path("pods", "p") + "/nonsense")

    assert (status, body["reason"]) == (404, "NotFound")
    assert body["message"] == "the server could not find the requested resource"
