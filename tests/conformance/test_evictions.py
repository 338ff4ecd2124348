"""The eviction subresource in all its answers."""

from __future__ import annotations

import pytest

OTHER_UID = "11111111-1111-1111-1111-111111111111"
STATUS_PATCH = "application/merge-patch+json"
LABELS = {"app": "web"}


def evict(ns, name, body=None, **options):
    body = body or {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body = {**body, "deleteOptions": options}
    return ns.api.request("POST", ns.path("pods", name) + "/eviction", body)


def budget_path(ns, name="b"):
    return ns.path("poddisruptionbudgets", name, "policy/v1")


def allowed(ns, count, name="b"):
    return ns.api.until(budget_path(ns, name), lambda body: body["status"]["disruptionsAllowed"] == count)


def test_an_accepted_eviction_is_201(ns):
    ns.running_pod("p")

    status, _, body = evict(ns, "p")

    assert (status, body["kind"], body["status"]) == (201, "Status", "Success")


def test_an_evicted_pod_terminates_and_says_why(ns):
    ns.running_pod("p", grace=20)

    evict(ns, "p")

    pod = ns.api.ok("GET", ns.path("pods", "p"))
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 20
    assert pod["metadata"]["generation"] == 2
    condition = next(each for each in pod["status"]["conditions"] if each["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert condition["message"] == "Eviction API: evicting"


def test_an_open_budget_is_charged(ns):
    ns.running_pod("p", labels=LABELS)
    ns.running_pod("q", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    allowed(ns, 1)

    assert evict(ns, "p")[0] == 201

    assert ns.api.ok("GET", budget_path(ns))["status"]["disruptionsAllowed"] == 0


def test_a_closed_budget_is_429_with_its_cause_and_no_retry_after(ns):
    ns.running_pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.api.until(budget_path(ns), lambda body: body["status"]["currentHealthy"] == 1)

    status, headers, body = evict(ns, "p")

    assert (status, body["reason"]) == (429, "TooManyRequests")
    assert body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
        }
    ]
    assert "retry-after" not in headers
    assert "retryAfterSeconds" not in body["details"]


def test_a_budget_that_cannot_be_counted_is_429_with_retry_after(ns):
    """Its pod belongs to a kind that has no scale, so the controller never gets to note the generation it has seen."""
    owner = ns.config_map("owner")["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"], "controller": True}
    pod = {"metadata": {"name": "p", "labels": LABELS, "ownerReferences": [reference]}}
    spec = {"schedulerName": "nobody", "nodeName": "nowhere", "containers": [{"name": "main", "image": "none"}]}
    ns.api.ok("POST", ns.path("pods"), {**pod, "spec": spec})
    ns.report("p", "Running")
    ns.budget("b", LABELS, wait=False, maxUnavailable=1)
    ns.api.until(budget_path(ns), lambda body: body["status"].get("conditions"))

    status, headers, body = evict(ns, "p")

    assert (status, body["reason"]) == (429, "TooManyRequests")
    assert (headers["retry-after"], body["details"]["retryAfterSeconds"]) == ("10", 10)
    assert body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b is still being processed by the server.",
        }
    ]


def test_two_budgets_are_500_without_a_reason(ns):
    ns.running_pod("p", labels=LABELS)
    ns.budget("a", LABELS, wait=False, minAvailable=0)
    ns.budget("b", LABELS, wait=False, minAvailable=0)

    status, _, body = evict(ns, "p")

    assert status == 500
    assert "reason" not in body
    assert body["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


def test_the_budget_is_charged_before_the_precondition_is_looked_at(ns):
    ns.running_pod("p", labels=LABELS)
    ns.running_pod("q", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    allowed(ns, 1)

    status, _, body = evict(ns, "p", preconditions={"uid": OTHER_UID})
    assert (status, body["reason"]) == (409, "Conflict")

    charged = ns.api.ok("GET", budget_path(ns))["status"]
    assert charged["disruptionsAllowed"] == 0
    assert "p" in charged["disruptedPods"]
    assert evict(ns, "q")[0] == 429


def test_a_closed_budget_answers_before_the_precondition(ns):
    ns.running_pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.api.until(budget_path(ns), lambda body: body["status"]["currentHealthy"] == 1)

    assert evict(ns, "p", preconditions={"uid": OTHER_UID})[0] == 429


def test_a_wrong_uid_is_409_and_the_pod_stays(ns):
    ns.running_pod("p")

    status, _, body = evict(ns, "p", preconditions={"uid": OTHER_UID})

    assert (status, body["reason"]) == (409, "Conflict")
    assert "deletionTimestamp" not in ns.api.ok("GET", ns.path("pods", "p"))["metadata"]


def test_a_right_uid_is_201(ns):
    made = ns.running_pod("p")

    assert evict(ns, "p", preconditions={"uid": made["metadata"]["uid"]})[0] == 201


def test_a_dry_run_changes_neither_pod_nor_budget(ns):
    ns.running_pod("p", labels=LABELS)
    ns.running_pod("q", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    allowed(ns, 1)

    assert evict(ns, "p", dryRun=["All"])[0] == 201
    assert evict(ns, "q", dryRun=["All"])[0] == 201

    assert ns.api.ok("GET", budget_path(ns))["status"]["disruptionsAllowed"] == 1
    assert "deletionTimestamp" not in ns.api.ok("GET", ns.path("pods", "p"))["metadata"]


def test_a_dry_run_against_a_closed_budget_is_429(ns):
    ns.running_pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.api.until(budget_path(ns), lambda body: body["status"]["currentHealthy"] == 1)

    assert evict(ns, "p", dryRun=["All"])[0] == 429


def test_a_pending_pod_is_deleted_without_asking_its_budget(ns):
    ns.pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)

    assert evict(ns, "p")[0] == 201
    assert ns.api.request("GET", ns.path("pods", "p"))[0] == 404


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_deleted_without_asking_its_budget(ns, phase):
    ns.running_pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.report("p", phase)

    assert evict(ns, "p")[0] == 201
    assert ns.api.request("GET", ns.path("pods", "p"))[0] == 404


def test_a_terminating_pod_is_evicted_again_without_asking(ns):
    ns.running_pod("p", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.api.ok("DELETE", ns.path("pods", "p"))

    assert evict(ns, "p")[0] == 201


def test_an_unready_pod_goes_when_the_others_are_enough(ns):
    ns.running_pod("p", labels=LABELS, ready=False)
    ns.running_pod("q", labels=LABELS)
    ns.budget("b", LABELS, minAvailable=1)
    ns.api.until(budget_path(ns), lambda body: body["status"]["currentHealthy"] == 1)

    assert evict(ns, "p")[0] == 201
    assert evict(ns, "q")[0] == 429


def test_an_unready_pod_stays_when_the_others_are_too_few(ns):
    ns.running_pod("p", labels=LABELS, ready=False)
    ns.budget("b", LABELS, minAvailable=1)

    assert evict(ns, "p")[0] == 429


def test_an_unready_pod_always_goes_under_always_allow(ns):
    ns.running_pod("p", labels=LABELS, ready=False)
    ns.budget("b", LABELS, minAvailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")

    assert evict(ns, "p")[0] == 201


def test_an_empty_selector_guards_the_whole_namespace(ns):
    ns.running_pod("p")
    path = ns.path("poddisruptionbudgets", group="policy/v1")
    ns.api.ok("POST", path, {"metadata": {"name": "b"}, "spec": {"selector": {}, "minAvailable": 1}})
    ns.api.until(f"{path}/b", lambda body: body["status"].get("currentHealthy") == 1)

    assert evict(ns, "p")[0] == 429


def test_another_budget_is_not_asked(ns):
    ns.running_pod("p")
    ns.budget("b", LABELS, minAvailable=5)

    assert evict(ns, "p")[0] == 201


def test_negative_grace_becomes_one_second(ns):
    ns.running_pod("p")

    assert evict(ns, "p", gracePeriodSeconds=-1)[0] == 201
    assert ns.api.ok("GET", ns.path("pods", "p"))["metadata"]["deletionGracePeriodSeconds"] == 1


def test_grace_zero_takes_the_pod_out_at_once(ns):
    ns.running_pod("p")

    assert evict(ns, "p", gracePeriodSeconds=0)[0] == 201
    assert ns.api.request("GET", ns.path("pods", "p"))[0] == 404


def test_a_missing_pod_is_404(ns):
    status, _, body = evict(ns, "none")

    assert (status, body["reason"]) == (404, "NotFound")


@pytest.mark.parametrize("version", ["policy/v1", "policy/v1beta1", ""])
def test_old_and_untyped_bodies_are_accepted(ns, version):
    ns.running_pod("p")
    typed = {"apiVersion": version, "kind": "Eviction"} if version else {}

    assert evict(ns, "p", {**typed, "metadata": {"name": "p"}})[0] == 201


def test_an_empty_body_is_400(ns):
    ns.running_pod("p")

    status, _, body = ns.api.request("POST", ns.path("pods", "p") + "/eviction", {})

    assert (status, body["reason"]) == (400, "BadRequest")
    assert body["message"] == "name in URL does not match name in Eviction object"


def test_another_kind_of_body_is_400(ns):
    ns.running_pod("p")

    status, _, body = evict(ns, "p", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})

    assert (status, body["reason"]) == (400, "BadRequest")


def test_a_terminating_namespace_refuses_evictions(ns):
    ns.running_pod("p", grace=600)
    ns.api.ok("DELETE", f"/api/v1/namespaces/{ns.name}")

    status, _, body = evict(ns, "p")
    ns.api.request("DELETE", ns.path("pods", "p"), {"gracePeriodSeconds": 0})

    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_a_get_of_an_eviction_is_405(ns):
    ns.running_pod("p")

    status, _, body = ns.api.request("GET", ns.path("pods", "p") + "/eviction")

    assert (status, body["reason"]) == (405, "MethodNotAllowed")


def test_bare_pods_under_max_unavailable_are_never_evictable(ns):
    ns.running_pod("p", labels=LABELS)
    ns.running_pod("q", labels=LABELS)
    ns.budget("b", LABELS, maxUnavailable=1)

    status = ns.api.until(budget_path(ns), lambda body: body["status"].get("conditions"))["status"]

    assert (status["expectedPods"], status["disruptionsAllowed"]) == (0, 0)
    assert evict(ns, "p")[0] == 429
