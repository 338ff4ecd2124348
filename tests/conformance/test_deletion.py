"""Deletion: answers, grace, finalizers, preconditions, propagation, namespaces."""

from __future__ import annotations

import pytest

MERGE = "application/merge-patch+json"
FINALIZER = "x.example/hold"


def delete(ns, path, **options):
    return ns.api.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else None)


def test_delete_of_a_config_map_answers_with_a_status(ns):
    made = ns.config_map("a")

    status, _, body = delete(ns, ns.path("configmaps", "a"))

    assert status == 200
    assert (body["kind"], body["status"]) == ("Status", "Success")
    assert body["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}


def test_delete_of_a_pod_answers_with_the_pod(ns):
    ns.running_pod("p", grace=30)

    status, _, body = delete(ns, ns.path("pods", "p"))

    assert (status, body["kind"]) == (200, "Pod")
    assert body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert body["metadata"]["generation"] == 2
    assert ns.api.ok("GET", ns.path("pods", "p"))["metadata"]["deletionTimestamp"]


def test_delete_of_a_missing_object_is_404(ns):
    assert delete(ns, ns.path("pods", "none"))[0] == 404


def test_a_pod_that_was_never_bound_goes_at_once(ns):
    ns.pod("p")

    delete(ns, ns.path("pods", "p"))

    assert ns.api.request("GET", ns.path("pods", "p"))[0] == 404


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_goes_at_once(ns, phase):
    ns.running_pod("p")
    ns.report("p", phase)

    delete(ns, ns.path("pods", "p"))

    assert ns.api.request("GET", ns.path("pods", "p"))[0] == 404


def test_grace_is_shortened_but_never_stretched(ns):
    ns.running_pod("p")

    assert delete(ns, ns.path("pods", "p"), gracePeriodSeconds=5)[2]["metadata"]["deletionGracePeriodSeconds"] == 5
    status, _, longer = delete(ns, ns.path("pods", "p"), gracePeriodSeconds=60)
    assert (status, longer["metadata"]["deletionGracePeriodSeconds"]) == (200, 5)
    shorter = delete(ns, ns.path("pods", "p"), gracePeriodSeconds=2)[2]
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 2


def test_a_second_delete_without_grace_changes_nothing(ns):
    ns.running_pod("p")
    first = delete(ns, ns.path("pods", "p"))[2]

    second = delete(ns, ns.path("pods", "p"))[2]

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


def test_grace_zero_on_a_terminating_pod_is_two_events(ns):
    ns.running_pod("p")
    marked = delete(ns, ns.path("pods", "p"))[2]

    delete(ns, ns.path("pods", "p"), gracePeriodSeconds=0)

    query = {"resourceVersion": marked["metadata"]["resourceVersion"]}
    seen = ns.api.watch(ns.path("pods"), query, until=lambda found: len(found) >= 2)
    assert [each["type"] for each in seen] == ["MODIFIED", "DELETED"]
    assert seen[0]["object"]["metadata"]["deletionGracePeriodSeconds"] == 0


def test_negative_grace_becomes_one_second(ns):
    ns.running_pod("p")

    assert delete(ns, ns.path("pods", "p"), gracePeriodSeconds=-1)[2]["metadata"]["deletionGracePeriodSeconds"] == 1


def test_a_finalizer_holds_an_object(ns):
    ns.config_map("a", finalizers=[FINALIZER])

    status, _, body = delete(ns, ns.path("configmaps", "a"))

    assert (status, body["kind"]) == (200, "ConfigMap")
    assert body["metadata"]["deletionTimestamp"]
    assert body["metadata"]["deletionGracePeriodSeconds"] == 0
    assert ns.api.ok("GET", ns.path("configmaps", "a"))


def test_the_last_finalizer_lets_it_go_with_one_event_that_still_shows_it(ns):
    ns.config_map("a", finalizers=[FINALIZER])
    marked = delete(ns, ns.path("configmaps", "a"))[2]

    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"metadata": {"finalizers": None}}, content_type=MERGE)

    assert ns.api.request("GET", ns.path("configmaps", "a"))[0] == 404
    query = {"resourceVersion": marked["metadata"]["resourceVersion"]}
    seen = ns.api.watch(ns.path("configmaps"), query, until=lambda found: len(found) >= 1)
    assert [each["type"] for each in seen] == ["DELETED"]
    assert seen[0]["object"]["metadata"]["finalizers"] == [FINALIZER]


def test_no_finalizer_is_added_to_a_terminating_object(ns):
    ns.config_map("a", finalizers=[FINALIZER])
    delete(ns, ns.path("configmaps", "a"))

    status, _, body = ns.api.request(
        "PATCH",
        ns.path("configmaps", "a"),
        {"metadata": {"finalizers": [FINALIZER, "x.example/more"]}},
        content_type=MERGE,
    )
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"metadata": {"finalizers": None}}, content_type=MERGE)

    assert (status, body["reason"]) == (422, "Invalid")
    assert body["details"]["causes"][0]["reason"] == "FieldValueForbidden"
    assert "no new finalizers can be added if the object is being deleted, found new finalizers" in body["message"]


def test_a_terminating_object_can_still_be_changed(ns):
    ns.config_map("a", finalizers=[FINALIZER])
    delete(ns, ns.path("configmaps", "a"))

    made = ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"a": "9"}}, content_type=MERGE)
    assert made["data"] == {"a": "9"}
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"metadata": {"finalizers": None}}, content_type=MERGE)


def test_a_wrong_uid_precondition_is_409(ns):
    made = ns.config_map("a")
    other = "11111111-1111-1111-1111-111111111111"

    status, _, body = delete(ns, ns.path("configmaps", "a"), preconditions={"uid": other})

    assert (status, body["reason"]) == (409, "Conflict")
    assert (
        f"the UID in the precondition ({other}) does not match the UID in record ({made['metadata']['uid']})"
        in (body["message"])
    )


def test_a_stale_version_precondition_is_409(ns):
    made = ns.config_map("a")
    ns.api.ok("PATCH", ns.path("configmaps", "a"), {"data": {"a": "2"}}, content_type=MERGE)

    options = {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    status, _, body = delete(ns, ns.path("configmaps", "a"), **options)

    assert (status, body["reason"]) == (409, "Conflict")
    assert "the ResourceVersion in the precondition" in body["message"]


def test_a_dry_run_delete_removes_nothing(ns):
    ns.config_map("a")

    status, _, _ = delete(ns, ns.path("configmaps", "a"), dryRun=["All"])

    assert status == 200
    assert ns.api.ok("GET", ns.path("configmaps", "a"))


def test_an_unknown_propagation_policy_is_422(ns):
    ns.config_map("a")

    status, _, body = delete(ns, ns.path("configmaps", "a"), propagationPolicy="Sideways")

    assert (status, body["reason"]) == (422, "Invalid")


def test_orphan_and_foreground_are_finalizers(ns):
    ns.config_map("a", finalizers=[FINALIZER])
    ns.config_map("b", finalizers=[FINALIZER])

    orphaned = delete(ns, ns.path("configmaps", "a"), propagationPolicy="Orphan")[2]
    foreground = delete(ns, ns.path("configmaps", "b"), propagationPolicy="Foreground")[2]
    for name in "ab":
        ns.api.request("PATCH", ns.path("configmaps", name), {"metadata": {"finalizers": None}}, content_type=MERGE)

    assert set(orphaned["metadata"]["finalizers"]) == {FINALIZER, "orphan"}
    assert set(foreground["metadata"]["finalizers"]) == {FINALIZER, "foregroundDeletion"}


def test_a_job_deleted_without_a_policy_warns_that_its_pods_stay(ns):
    container = {"name": "main", "image": "app:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    ns.api.ok(
        "POST",
        ns.path("jobs", group="batch/v1"),
        {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": template}},
    )

    _, headers, _ = delete(ns, ns.path("jobs", "j", "batch/v1"))

    assert "child pods are preserved by default when jobs are deleted" in headers["warning"]


def test_a_terminating_namespace_refuses_content_and_can_be_deleted_again(ns):
    ns.config_map("held", finalizers=[FINALIZER])
    path = f"/api/v1/namespaces/{ns.name}"

    status, _, body = delete(ns, path)
    assert status == 200
    assert body["status"]["phase"] == "Terminating"
    status, _, refused = ns.api.request("POST", ns.path("configmaps"), {"metadata": {"name": "late"}})
    assert (status, refused["reason"]) == (403, "Forbidden")
    assert refused["message"] == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {ns.name} because it is being '
        "terminated"
    )
    assert refused["details"]["causes"] == [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {ns.name} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    assert delete(ns, path)[0] == 200
    ns.api.until(ns.path("configmaps", "held"), lambda held: held["metadata"].get("deletionTimestamp"))
    ns.api.ok("PATCH", ns.path("configmaps", "held"), {"metadata": {"finalizers": None}}, content_type=MERGE)
    ns.api.until(path, bool, gone=True)
