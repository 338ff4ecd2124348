"""Leases as locks, and events in both of their forms."""

from __future__ import annotations

LEASES = "coordination.k8s.io/v1"
MICRO = "2026-01-01T00:00:00.000000Z"


def test_a_lease_keeps_micro_times(ns):
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": MICRO, "renewTime": MICRO}

    made = ns.api.ok("POST", ns.path("leases", group=LEASES), {"metadata": {"name": "l"}, "spec": spec})

    assert made["spec"] == spec


def test_a_renew_time_without_microseconds_is_400(ns):
    body = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}

    status, _, answer = ns.api.request("POST", ns.path("leases", group=LEASES), body)

    assert (status, answer["reason"]) == (400, "BadRequest")


def test_two_takers_of_a_lease_cannot_both_win(ns):
    made = ns.api.ok("POST", ns.path("leases", group=LEASES), {"metadata": {"name": "l"}, "spec": {}})
    path = ns.path("leases", "l", LEASES)
    first, second = ({**made, "spec": {"holderIdentity": who}} for who in ("a", "b"))

    assert ns.api.request("PUT", path, first)[0] == 200
    status, _, body = ns.api.request("PUT", path, second)

    assert (status, body["reason"]) == (409, "Conflict")
    assert ns.api.ok("GET", path)["spec"]["holderIdentity"] == "a"


def test_a_replace_of_a_lease_needs_its_version(ns):
    ns.api.ok("POST", ns.path("leases", group=LEASES), {"metadata": {"name": "l"}, "spec": {}})

    status, _, body = ns.api.request("PUT", ns.path("leases", "l", LEASES), {"metadata": {"name": "l"}, "spec": {}})

    assert status == 422
    assert body["details"]["causes"][0]["field"] == "metadata.resourceVersion"


def test_a_lease_of_no_duration_is_422(ns):
    body = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}

    status, _, answer = ns.api.request("POST", ns.path("leases", group=LEASES), body)

    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.leaseDurationSeconds")


def core_event(ns):
    return {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": ns.name, "apiVersion": "v1"},
        "reason": "Moved",
        "message": "it moved",
        "type": "Normal",
        "source": {"component": "poolshift"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:05Z",
        "count": 2,
    }


def test_a_core_event_is_seen_in_the_newer_form(ns):
    ns.api.ok("POST", ns.path("events"), core_event(ns))

    newer = ns.api.ok("GET", ns.path("events", "e", "events.k8s.io/v1"))

    assert (newer["apiVersion"], newer["kind"]) == ("events.k8s.io/v1", "Event")
    assert newer["regarding"]["name"] == "p"
    assert newer["note"] == "it moved"
    assert (newer["deprecatedCount"], newer["deprecatedSource"]) == (2, {"component": "poolshift"})
    assert "involvedObject" not in newer


def test_a_newer_event_is_seen_in_the_core_form(ns):
    body = {
        "metadata": {"name": "n"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": ns.name, "apiVersion": "v1"},
        "reason": "Moved",
        "note": "it moved",
        "type": "Normal",
        "action": "Move",
        "eventTime": MICRO,
        "reportingController": "poolshift.dev/mover",
        "reportingInstance": "one",
    }
    ns.api.ok("POST", ns.path("events", group="events.k8s.io/v1"), body)

    core = ns.api.ok("GET", ns.path("events", "n"))

    assert core["involvedObject"]["name"] == "p"
    assert (core["message"], core["reportingComponent"], core["eventTime"]) == (
        "it moved",
        "poolshift.dev/mover",
        MICRO,
    )
    assert core["firstTimestamp"] is None


def test_events_are_selected_by_what_they_are_about(ns):
    ns.api.ok("POST", ns.path("events"), core_event(ns))
    path = ns.path("events")

    def count(selector):
        return len(ns.api.ok("GET", path, params={"fieldSelector": selector})["items"])

    assert count("involvedObject.name=p,reason=Moved") == 1
    assert count("involvedObject.name=q") == 0
    assert count("type!=Normal,involvedObject.name=p") == 0
