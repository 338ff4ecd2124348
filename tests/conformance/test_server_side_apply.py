"""Field managers, server-side apply, conflicts."""

from __future__ import annotations

MERGE = "application/merge-patch+json"


def config(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def deployment(name: str, **spec: object) -> dict:
    labels = {"app": name}
    container = {"name": "main", "image": "app:1", "ports": [{"containerPort": 80}]}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    body = {"selector": {"matchLabels": labels}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": body}


def managers(obj: dict) -> dict[tuple[str, str], dict]:
    """fieldsV1 by manager and operation."""
    return {(each["manager"], each["operation"]): each["fieldsV1"] for each in obj["metadata"].get("managedFields", [])}


def test_apply_creates_with_201_and_owns_what_it_names(ns):
    status, made = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    assert status == 201
    assert managers(made) == {("me", "Apply"): {"f:data": {"f:x": {}}}}
    entry = made["metadata"]["managedFields"][0]
    assert (entry["apiVersion"], entry["fieldsType"]) == ("v1", "FieldsV1")


def test_apply_twice_changes_nothing(ns):
    _, first = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    status, second = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    assert status == 200
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_apply_takes_away_what_it_no_longer_names(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1", y="2"), "me")

    _, made = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    assert made["data"] == {"x": "1"}


def test_apply_leaves_what_others_own(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")
    ns.api.apply(ns.path("configmaps", "a"), config("a", y="2"), "you")

    _, made = ns.api.apply(ns.path("configmaps", "a"), config("a"), "me")

    assert made["data"] == {"y": "2"}


def test_a_field_with_two_owners_stays_when_one_leaves(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "you")

    _, made = ns.api.apply(ns.path("configmaps", "a"), config("a"), "me")

    assert made["data"] == {"x": "1"}
    assert managers(made)["you", "Apply"] == {"f:data": {"f:x": {}}}
    assert managers(made)["me", "Apply"] == {"f:data": {}}


def test_a_conflict_is_409_with_its_cause(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    status, body = ns.api.apply(ns.path("configmaps", "a"), config("a", x="2"), "you")

    assert (status, body["reason"]) == (409, "Conflict")
    assert body["message"] == 'Apply failed with 1 conflict: conflict with "me": .data.x'
    assert body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".data.x"}
    ]


def test_a_conflict_with_an_updater_names_its_version(ns):
    made = ns.api.ok("POST", ns.path("configmaps"), config("a", x="1"), {"fieldManager": "writer"})
    assert made["metadata"]["managedFields"][0]["operation"] == "Update"

    status, body = ns.api.apply(ns.path("configmaps", "a"), config("a", x="2"), "you")

    assert status == 409
    assert body["message"] == 'Apply failed with 1 conflict: conflict with "writer" using v1: .data.x'


def test_several_conflicts_are_listed_by_manager(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1", y="1"), "me")

    status, body = ns.api.apply(ns.path("configmaps", "a"), config("a", x="2", y="2"), "you")

    assert status == 409
    assert body["message"] == 'Apply failed with 2 conflicts: conflicts with "me":\n- .data.x\n- .data.y'
    assert len(body["details"]["causes"]) == 2


def test_force_takes_the_field_over(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    status, made = ns.api.apply(ns.path("configmaps", "a"), config("a", x="2"), "you", force=True)

    assert (status, made["data"]) == (200, {"x": "2"})
    assert managers(made) == {("you", "Apply"): {"f:data": {"f:x": {}}}}


def test_the_same_value_is_no_conflict(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    status, made = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "you")

    assert status == 200
    assert set(managers(made)) == {("me", "Apply"), ("you", "Apply")}


def test_an_update_takes_the_field_from_the_applier(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    made = ns.api.ok(
        "PATCH", ns.path("configmaps", "a"), {"data": {"x": "2"}}, {"fieldManager": "w"}, content_type=MERGE
    )

    assert managers(made) == {("w", "Update"): {"f:data": {"f:x": {}}}}


def test_apply_needs_a_field_manager(ns):
    status, _, body = ns.api.request(
        "PATCH", ns.path("configmaps", "a"), config("a"), content_type="application/apply-patch+yaml"
    )

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["details"]["causes"][0]["field"] == "fieldManager"


def test_apply_refuses_managed_fields(ns):
    body = config("a")
    body["metadata"]["managedFields"] = [{"manager": "x"}]

    status, answer = ns.api.apply(ns.path("configmaps", "a"), body, "me")

    assert status == 400
    assert answer["message"] == "metadata.managedFields must be nil"


def test_apply_of_an_unknown_field_is_500_without_a_reason(ns):
    status, answer = ns.api.apply(ns.path("configmaps", "a"), config("a") | {"nonsense": 1}, "me")

    assert status == 500
    assert "reason" not in answer
    assert ".nonsense: field not declared in schema" in answer["message"]


def test_apply_under_another_name_is_400(ns):
    status, _ = ns.api.apply(ns.path("configmaps", "a"), config("b"), "me")

    assert status == 400


def test_apply_with_a_stale_version_is_409(ns):
    _, first = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="2"), "me")
    body = config("a", x="3")
    body["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"]

    status, answer = ns.api.apply(ns.path("configmaps", "a"), body, "me")

    assert (status, answer["reason"]) == (409, "Conflict")


def test_map_lists_are_owned_by_key_with_defaulted_keys(ns):
    status, made = ns.api.apply(ns.path("deployments", "d", "apps/v1"), deployment("d", replicas=0), "me")

    assert status == 201
    fields = managers(made)["me", "Apply"]["f:spec"]
    assert fields["f:selector"] == {}
    container = fields["f:template"]["f:spec"]["f:containers"]['k:{"name":"main"}']
    assert container["f:ports"] == {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}
    assert container["."] == {}
    assert made["spec"]["template"]["spec"]["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_two_appliers_share_a_list_of_containers(ns):
    path = ns.path("deployments", "d", "apps/v1")
    ns.api.apply(path, deployment("d", replicas=0), "me")
    sidecar = {"containers": [{"name": "side", "image": "side:1"}]}
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": sidecar}},
    }

    status, made = ns.api.apply(path, body, "you")
    assert status == 200
    assert [each["name"] for each in made["spec"]["template"]["spec"]["containers"]] == ["main", "side"]

    body["spec"] = {}
    _, less = ns.api.apply(path, body, "you")
    assert [each["name"] for each in less["spec"]["template"]["spec"]["containers"]] == ["main"]


def test_a_conflict_in_a_list_names_its_element(ns):
    path = ns.path("deployments", "d", "apps/v1")
    ns.api.apply(path, deployment("d", replicas=0), "me")
    other = deployment("d", replicas=0)
    other["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2"

    status, body = ns.api.apply(path, other, "you")

    assert status == 409
    assert body["details"]["causes"][0]["field"] == '.spec.template.spec.containers[name="main"].image'


def test_a_create_records_its_manager_from_the_user_agent(ns):
    made = ns.api.request(
        "POST", ns.path("configmaps"), config("a", x="1"), headers={"User-Agent": "program/v1 (linux)"}
    )[2]

    assert managers(made) == {("program", "Update"): {"f:data": {".": {}, "f:x": {}}}}


def test_a_create_owns_the_defaults_too(ns):
    made = ns.api.ok("POST", ns.path("deployments", group="apps/v1"), deployment("d", replicas=0))

    spec = managers(made)["conformance", "Update"]["f:spec"]
    assert spec["f:strategy"] == {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}}
    assert spec["f:template"]["f:metadata"] == {"f:labels": {".": {}, "f:app": {}}}
    assert spec["f:template"]["f:spec"]["f:containers"]['k:{"name":"main"}']["f:ports"]["."] == {}
    assert "." not in spec["f:template"]["f:spec"]["f:containers"]


def test_the_status_endpoint_is_a_manager_of_its_own(ns):
    ns.pod("p")
    body = {"status": {"message": "hello"}}

    made = ns.api.ok("PATCH", ns.path("pods", "p") + "/status", body, {"fieldManager": "kubelet"}, content_type=MERGE)

    entry = next(each for each in made["metadata"]["managedFields"] if each["manager"] == "kubelet")
    assert (entry["subresource"], entry["operation"]) == ("status", "Update")
    assert entry["fieldsV1"] == {"f:status": {"f:message": {}}}


def test_apply_on_status_touches_nothing_else(ns):
    ns.pod("p")
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "status": {"message": "hello"},
    }

    status, made = ns.api.apply(ns.path("pods", "p") + "/status", body, "agent")

    assert (status, made["status"]["message"]) == (200, "hello")


def test_an_empty_managed_fields_list_resets_it(ns):
    ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me")

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), {"metadata": {"managedFields": [{}]}}, content_type=MERGE)

    assert managers(made) == {}


def test_a_dry_run_apply_stores_nothing(ns):
    status, made = ns.api.apply(ns.path("configmaps", "a"), config("a", x="1"), "me", dryRun="All")

    assert (status, made["data"]) == (201, {"x": "1"})
    assert ns.api.request("GET", ns.path("configmaps", "a"))[0] == 404


def test_apply_reads_yaml(ns):
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '1'}\n"

    status, _, made = ns.api.request(
        "PATCH", ns.path("configmaps", "a"), text, {"fieldManager": "me"}, "application/apply-patch+yaml"
    )

    assert (status, made["data"]) == (201, {"x": "1"})


def test_taints_have_one_owner_as_a_whole_or_by_key(api):
    """spec.taints is atomic to server-side apply, whatever strategic merge says."""
    name = "conformance-apply-taints"
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    }
    _, made = api.apply(f"/api/v1/nodes/{name}", body, "me")
    api.request("DELETE", f"/api/v1/nodes/{name}")

    assert managers(made)["me", "Apply"]["f:spec"] == {"f:taints": {}}
