"""The table of what the embedded server does not offer: each row is true of it, and false of the real one."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "infra" / "sandbox" / "control_plane" / "README.md"
STRATEGIC = "application/strategic-merge-patch+json"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def table() -> dict[str, str]:
    """The rows: what -> the answer here."""
    text = README.read_text().split("does and this one does not", 1)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1] for row in rows[2:]}


def is_refused(answer, status, reason):
    """Whether the answer is this refusal; `reason` is None for one in plain text."""
    code, headers, body = answer
    if code != status:
        return False
    return (reason is None) == headers["content-type"].startswith("text/plain") and (
        reason is None or body["reason"] == reason
    )


def streams_of_a_pod(ns):
    ns.pod("p")
    paths = (ns.path("pods", "p") + sub for sub in ("/attach?stdout=true", "/portforward?ports=80"))
    return all(is_refused(ns.api.request("POST", path), 501, "NotImplemented") for path in paths)


def proxies(ns):
    paths = ("/api/v1/nodes/none/proxy/", ns.path("services", "none") + "/proxy/")
    return all(is_refused(ns.api.request("GET", path), 501, "NotImplemented") for path in paths)


def changes_of_a_running_pod(ns):
    ns.pod("p")
    paths = [ns.path("pods", "p") + sub for sub in ("/ephemeralcontainers", "/resize")]
    # What the real one refuses is refused here in its words.
    assert all(is_refused(ns.api.request("POST", path, {}), 405, "MethodNotAllowed") for path in paths)
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "none"}]}}
    patched = ns.api.request("PATCH", paths[0], body, content_type=STRATEGIC)
    return is_refused(patched, 501, "NotImplemented") and is_refused(
        ns.api.request("GET", paths[1]), 501, "NotImplemented"
    )


def everybody_may_do_everything(ns):
    me = ns.api.ok("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})["status"]["userInfo"]
    assert "system:masters" in me["groups"]
    about = {"user": "nobody", "resourceAttributes": {"verb": "delete", "resource": "nodes"}}
    review = ns.api.ok("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": about})
    issued = ns.api.ok("POST", ns.path("serviceaccounts", "default") + "/token", {"spec": {"expirationSeconds": 3600}})
    asked = {"spec": {"token": issued["status"]["token"]}}
    known = ns.api.ok("POST", "/apis/authentication.k8s.io/v1/tokenreviews", asked)["status"].get("authenticated")
    return me["username"] == "sandbox" and review["status"]["allowed"] and not known


def groups_that_are_missing(ns):
    names = ("admissionregistration", "flowcontrol.apiserver", "certificates", "node", "apiregistration")
    return all(is_refused(ns.api.request("GET", f"/apis/{name}.k8s.io/v1"), 404, None) for name in names)


def versions_that_are_missing(ns):
    paths = ("/apis/autoscaling/v1", "/api/v1/componentstatuses")
    return all(is_refused(ns.api.request("GET", path), 404, "NotFound") for path in paths)


def quotas_without_effect(ns):
    ns.api.ok("POST", ns.path("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}})
    if ns.api.flavour == "real":  # enforced from when its controller has written the status
        ns.api.until(ns.path("resourcequotas", "q"), lambda quota: "hard" in quota["status"])
    spec = {"containers": [{"name": "main", "image": "none"}]}
    code, _, _ = ns.api.request("POST", ns.path("pods"), {"metadata": {"name": "p"}, "spec": spec})
    return code == 201


def no_protobuf(ns):
    only = ns.api.request("GET", ns.path("services"), headers={"Accept": PROTOBUF})
    _, headers, _ = ns.api.request("GET", ns.path("services"), headers={"Accept": f"application/json,{PROTOBUF}"})
    assert headers["content-type"].startswith("application/json")
    return is_refused(only, 406, "NotAcceptable")


def paths_that_are_missing(ns):
    return all(is_refused(ns.api.request("GET", p), 404, None) for p in ("/openapi/v2", "/metrics", "/debug/pprof/"))


def values_are_json(ns):
    ns.pod("p", terminationGracePeriodSeconds=5)
    patch = {"spec": {"terminationGracePeriodSeconds": 6}}
    code, _, answer = ns.api.request("PATCH", ns.path("pods", "p"), patch, content_type=STRATEGIC)
    assert (code, answer["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in answer["message"]
    return '"TerminationGracePeriodSeconds"' not in answer["message"]


def controllers_leave_no_managers(ns):
    spec = {"containers": [{"name": "main", "image": "none"}]}
    body = {
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": spec},
        },
    }
    path = ns.path("deployments", group="apps/v1")
    ns.api.ok("POST", path, body)
    seen = ns.api.until(f"{path}/d", lambda found: found["status"].get("observedGeneration") == 1)
    return "kube-controller-manager" not in {entry["manager"] for entry in seen["metadata"]["managedFields"]}


def cel_is_not_evaluated(ns):
    group = f"{ns.name}.test"
    rules = [{"rule": "self.nodes > 1", "message": "two at least"}]
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "properties": {"nodes": {"type": "integer"}},
                "x-kubernetes-validations": rules,
            }
        },
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    definition = {
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    ns.api.ok("POST", definitions, definition)
    path = ns.path("things", group=f"{group}/v1")
    ns.api.until(path, bool)
    thing = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"nodes": 1}}
    code, _, answer = ns.api.request("POST", path, thing)
    ns.api.request("DELETE", f"{definitions}/things.{group}")
    assert code in (201, 422), answer
    return code == 201


ROWS = {
    "attach and port-forward of a pod": streams_of_a_pod,
    "proxy of nodes and services": proxies,
    "ephemeralcontainers and resize of a pod": changes_of_a_running_pod,
    "who asks, and what they may do": everybody_may_do_everything,
    "admission webhooks and policies, flow control, certificates, runtime classes, aggregated APIs": (
        groups_that_are_missing
    ),
    "autoscaling/v1, componentstatuses": versions_that_are_missing,
    "ResourceQuota and LimitRange": quotas_without_effect,
    "answers in protobuf": no_protobuf,
    "/openapi/v2, /metrics, /debug/pprof/": paths_that_are_missing,
    "values in the messages of a 422": values_are_json,
    "managedFields of controllers": controllers_leave_no_managers,
    "CEL rules (x-kubernetes-validations) of custom resources": cel_is_not_evaluated,
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: urllib.parse.quote(row.split(",")[0].split(" (")[0], safe=" "))
def test_the_table_says_what_is_so(ns, row):
    assert ROWS[row](ns) == (ns.api.flavour == "embedded")


def test_every_row_is_tried():
    assert list(table()) == list(ROWS)
