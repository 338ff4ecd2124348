"""What is served, and how what is not served is refused."""

from __future__ import annotations

import json

import pytest

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
SERVED = {
    "v1": {"pods", "pods/eviction", "pods/log", "pods/binding", "pods/status", "nodes", "namespaces", "events"},
    "apps/v1": {"deployments", "deployments/scale", "statefulsets", "daemonsets", "replicasets", "controllerrevisions"},
    "batch/v1": {"jobs", "jobs/status", "cronjobs"},
    "policy/v1": {"poddisruptionbudgets", "poddisruptionbudgets/status"},
    "coordination.k8s.io/v1": {"leases"},
    "storage.k8s.io/v1": {"storageclasses", "csinodes", "csidrivers", "volumeattachments"},
    "scheduling.k8s.io/v1": {"priorityclasses"},
    "rbac.authorization.k8s.io/v1": {"roles", "clusterroles", "rolebindings", "clusterrolebindings"},
    "resource.k8s.io/v1": {"resourceslices", "resourceclaims", "deviceclasses"},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions"},
    "discovery.k8s.io/v1": {"endpointslices"},
    "events.k8s.io/v1": {"events"},
    "autoscaling/v2": {"horizontalpodautoscalers"},
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews"},
}


@pytest.mark.parametrize("group_version", SERVED)
def test_resources_of_a_version_are_listed(api, group_version):
    root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"

    listed = api.ok("GET", root)

    assert (listed["kind"], listed["groupVersion"]) == ("APIResourceList", group_version)
    assert {each["name"] for each in listed["resources"]} >= SERVED[group_version]


def test_groups_are_listed(api):
    listed = api.ok("GET", "/apis")

    assert listed["kind"] == "APIGroupList"
    groups = {each["name"]: each["preferredVersion"]["groupVersion"] for each in listed["groups"]}
    assert groups["apps"] == "apps/v1"
    assert groups["policy"] == "policy/v1"
    assert api.ok("GET", "/api")["versions"] == ["v1"]


def test_one_group_is_shown(api):
    shown = api.ok("GET", "/apis/apps")

    assert (shown["kind"], shown["name"], shown["preferredVersion"]["version"]) == ("APIGroup", "apps", "v1")


def test_pods_say_what_can_be_done_with_them(api):
    resources = {each["name"]: each for each in api.ok("GET", "/api/v1")["resources"]}

    assert resources["pods"]["shortNames"] == ["po"]
    assert resources["pods"]["categories"] == ["all"]
    assert set(resources["pods"]["verbs"]) == {
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    }
    assert resources["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": ["create"],
    }


@pytest.mark.parametrize(("path", "group"), [("/api", ""), ("/apis", "apps")])
def test_discovery_comes_aggregated_too(api, path, group):
    _, headers, listed = api.request("GET", path, headers={"Accept": AGGREGATED})

    assert listed["kind"] == "APIGroupDiscoveryList"
    assert headers["content-type"].replace(" ", "").startswith("application/json;g=apidiscovery.k8s.io;v=v2")
    found = next(each for each in listed["items"] if each["metadata"].get("name", "") == group)
    assert found["versions"][0]["version"] == "v1"


def test_the_version_is_one_that_clients_can_read(api):
    version = api.ok("GET", "/version")

    assert (version["major"], version["minor"].rstrip("+").isdigit()) == ("1", True)
    assert version["gitVersion"].startswith(f"v1.{version['minor']}.")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health_is_ok(api, path):
    status, _, body = api.request("GET", path)

    assert (status, body) == (200, "ok")


def test_openapi_v3_lists_its_documents(api):
    def read(path):
        answer = api.ok("GET", path)
        return json.loads(answer) if isinstance(answer, str) else answer  # not every server says that it is JSON

    assert {"api/v1", "apis/apps/v1"} <= set(read("/openapi/v3")["paths"])
    document = read("/openapi/v3/apis/apps/v1")
    assert "io.k8s.api.apps.v1.Deployment" in document["components"]["schemas"]


def test_an_unknown_resource_is_404(api):
    status, _, body = api.request("GET", "/api/v1/nonsense")

    assert (status, body["kind"], body["reason"]) == (404, "Status", "NotFound")
    assert body["message"] == "the server could not find the requested resource"


def test_an_unknown_version_is_a_status_and_an_unknown_group_plain_text(api):
    status, _, body = api.request("GET", "/apis/apps/v9")
    assert (status, body["kind"], body["reason"]) == (404, "Status", "NotFound")

    status, _, body = api.request("GET", "/apis/nosuch.test")
    assert (status, body) == (404, "404 page not found\n")


def test_a_create_on_an_object_is_405(ns):
    status, _, body = ns.api.request("POST", ns.path("configmaps", "a"), {"metadata": {"name": "a"}})

    assert (status, body["reason"]) == (405, "MethodNotAllowed")


def test_a_put_on_a_collection_is_405(ns):
    status, _, body = ns.api.request("PUT", ns.path("configmaps"), {"metadata": {"name": "a"}})

    assert (status, body["reason"]) == (405, "MethodNotAllowed")


def test_namespaces_are_not_deleted_in_bulk(api):
    status, _, body = api.request("DELETE", "/api/v1/namespaces", params={"labelSelector": "nobody=has-this"})

    assert (status, body["reason"]) == (405, "MethodNotAllowed")


def test_an_unacceptable_answer_is_406(ns):
    status, _, body = ns.api.request("GET", ns.path("pods"), headers={"Accept": "text/html"})

    assert (status, body["reason"]) == (406, "NotAcceptable")


def columns(table):
    return [each["name"] for each in table["columnDefinitions"]]


def test_pods_as_a_table(ns):
    ns.running_pod("p")

    _, _, table = ns.api.request("GET", ns.path("pods"), headers={"Accept": TABLE})

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    wide = ["IP", "Node", "Nominated Node", "Readiness Gates"]
    assert columns(table) == ["Name", "Ready", "Status", "Restarts", "Age", *wide]
    row = table["rows"][0]
    assert row["cells"][:4] == ["p", "0/1", "Running", "0"]
    assert row["cells"][5:] == ["<none>", "nowhere", "<none>", "<none>"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "p"


def test_a_terminating_pod_says_so_in_the_table(ns):
    ns.running_pod("p")
    ns.api.ok("DELETE", ns.path("pods", "p"))

    _, _, table = ns.api.request("GET", ns.path("pods", "p"), headers={"Accept": TABLE})

    assert table["rows"][0]["cells"][2] == "Terminating"


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}, "ImagePullBackOff"),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}, "ExitCode:3"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ],
)
def test_the_status_column_says_what_is_wrong(ns, reported, shown):
    ns.pod("p", nodeName="nowhere")
    for each in reported.get("containerStatuses", ()):
        each.update(name="main", image="i", imageID="", ready=False, restartCount=0)
    ns.api.ok(
        "PATCH", ns.path("pods", "p") + "/status", {"status": reported}, content_type="application/merge-patch+json"
    )

    _, _, table = ns.api.request("GET", ns.path("pods", "p"), headers={"Accept": TABLE})

    assert table["rows"][0]["cells"][2] == shown


def test_nodes_as_a_table(api):
    name = "conformance-table-node"
    labels = {"node-role.kubernetes.io/gpu": ""}
    api.ok("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": True}})
    _, _, table = api.request("GET", f"/api/v1/nodes/{name}", headers={"Accept": TABLE})
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert columns(table)[:5] == ["Name", "Status", "Roles", "Age", "Version"]
    assert table["rows"][0]["cells"][0] == name
    assert table["rows"][0]["cells"][1] in ("Unknown,SchedulingDisabled", "NotReady,SchedulingDisabled")
    assert table["rows"][0]["cells"][2] == "gpu"


DEPLOYMENT_COLUMNS = ["Name", "Ready", "Up-to-date", "Available", "Age", "Containers", "Images", "Selector"]
BUDGET_COLUMNS = ["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"]


@pytest.mark.parametrize(
    ("plural", "group", "expected"),
    [
        ("deployments", "apps/v1", DEPLOYMENT_COLUMNS),
        ("statefulsets", "apps/v1", ["Name", "Ready", "Age", "Containers", "Images"]),
        (
            "daemonsets",
            "apps/v1",
            [
                "Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age", "Containers",
                "Images", "Selector",
            ],
        ),
        ("replicasets", "apps/v1", ["Name", "Desired", "Current", "Ready", "Age", "Containers", "Images", "Selector"]),
        ("jobs", "batch/v1", ["Name", "Status", "Completions", "Duration", "Age", "Containers", "Images", "Selector"]),
        ("poddisruptionbudgets", "policy/v1", BUDGET_COLUMNS),
        ("leases", "coordination.k8s.io/v1", ["Name", "Holder", "Age"]),
        ("configmaps", "", ["Name", "Data", "Age"]),
        ("secrets", "", ["Name", "Type", "Data", "Age"]),
        ("services", "", ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"]),
        (
            "events",
            "",
            ["Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"],
        ),
        (
            "persistentvolumeclaims",
            "",
            [
                "Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "VolumeAttributesClass", "Age",
                "VolumeMode",
            ],
        ),
    ],
)  # fmt: skip
def test_columns(ns, plural, group, expected):
    _, _, table = ns.api.request("GET", ns.path(plural, group=group), headers={"Accept": TABLE})

    assert columns(table) == expected


def test_a_budget_in_the_table(ns):
    ns.budget("b", {"a": "b"}, wait=False, minAvailable="50%")

    _, _, table = ns.api.request("GET", ns.path("poddisruptionbudgets", "b", "policy/v1"), headers={"Accept": TABLE})

    assert table["rows"][0]["cells"][:4] == ["b", "50%", "N/A", 0]
