"""A real kubectl against the embedded control plane."""

from __future__ import annotations

import json
import threading
import urllib.request

import pytest

from infra.clock import SystemClock, rfc3339

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: main, image: "registry.example/web:1", ports: [{containerPort: 80}]}]
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {pool: old}}
status:
  conditions: [{type: Ready, status: "True", lastHeartbeatTime: "%s", lastTransitionTime: "%s"}]
  allocatable: {cpu: "8", memory: 32Gi, pods: "110"}
  capacity: {cpu: "8", memory: 32Gi, pods: "110"}
"""
BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
"""


def request(url, method, path, body=None, kind="application/merge-patch+json"):
    data = json.dumps(body).encode() if body is not None else None
    call = urllib.request.Request(url + path, data=data, method=method, headers={"Content-Type": kind})
    with urllib.request.urlopen(call, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.fixture
def node(kubectl):
    """A Ready node that nobody has to keep alive for the length of a test; it goes with the test."""
    made = []

    def make(name):
        now = rfc3339(SystemClock().now())
        kubectl("create", "-f", "-", stdin=NODE % (name, now, now))
        made.append(name)

    yield make
    for name in made:
        kubectl("delete", "node", name, "--wait=false")


def report_running(url, namespace):
    """Say that every bound pod runs and is ready."""
    for pod in request(url, "GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
        if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
            ready = {"type": "Ready", "status": "True"}
            body = {"status": {"phase": "Running", "conditions": [*pod["status"].get("conditions", []), ready]}}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
            request(url, "PATCH", path, body)


def until(condition):
    """Ask until the answer is true; the embedded controllers need a moment of their own."""
    for _ in range(200):
        found = condition()
        if found:
            return found
        threading.Event().wait(0.05)
    raise AssertionError("the expected state did not come")


def pods(kubectl):
    return json.loads(kubectl("get", "pods", "-o", "json").stdout)["items"]


def test_get_shows_columns(kubectl):
    out = kubectl("get", "namespaces").stdout

    assert out.split("\n")[0].split() == ["NAME", "STATUS", "AGE"]
    assert {"default", "kube-system", "kube-node-lease", "kube-public"} <= set(out.split())


def test_api_resources_and_explain(kubectl):
    out = kubectl("api-resources", "--namespaced=true", "-o", "name").stdout.split()
    assert {"pods", "deployments.apps", "poddisruptionbudgets.policy", "leases.coordination.k8s.io"} <= set(out)

    assert "KIND:       Deployment" in kubectl("explain", "deployment.spec.replicas").stdout


def test_apply_validates_without_being_told_not_to(kubectl):
    assert "created" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT).stdout
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT).stdout
    assert "configured" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("web:1", "web:2")).stdout

    wrong = kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replicsa: 2"), check=False)
    assert wrong.returncode == 1
    assert 'strict decoding error: unknown field "spec.replicsa"' in wrong.stderr


def test_server_side_apply_and_its_conflict(kubectl):
    kubectl("apply", "--server-side", "--field-manager=one", "-f", "-", stdin=DEPLOYMENT)

    other = DEPLOYMENT.replace("replicas: 2", "replicas: 3")
    refused = kubectl("apply", "--server-side", "--field-manager=two", "-f", "-", stdin=other, check=False)
    assert refused.returncode == 1
    assert 'conflict with "one": .spec.replicas' in refused.stderr

    kubectl("apply", "--server-side", "--field-manager=two", "--force-conflicts", "-f", "-", stdin=other)
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}").stdout == "3"


def test_describe_tells_the_story(kubectl):
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)

    out = until(
        lambda: (text := kubectl("describe", "deployment", "web").stdout) and "ScalingReplicaSet" in text and text
    )

    assert "2 desired" in out
    assert "25% max unavailable, 25% max surge" in out


def test_label_annotate_taint_and_untaint(kubectl, node):
    node("n1")

    kubectl("label", "node", "n1", "pool=new", "--overwrite")
    kubectl("annotate", "node", "n1", "example.com/why=because")
    kubectl("taint", "node", "n1", "poolshift.dev/fence=yes:NoSchedule")
    made = json.loads(kubectl("get", "node", "n1", "-o", "json").stdout)
    assert made["metadata"]["labels"]["pool"] == "new"
    assert {"key": "poolshift.dev/fence", "value": "yes", "effect": "NoSchedule"} in made["spec"]["taints"]

    kubectl("taint", "node", "n1", "poolshift.dev/fence-")
    made = json.loads(kubectl("get", "node", "n1", "-o", "json").stdout)
    assert all(each["key"] != "poolshift.dev/fence" for each in made["spec"].get("taints", []))


def test_cordon_and_uncordon(kubectl, node):
    node("n1")

    kubectl("cordon", "n1")
    assert "SchedulingDisabled" in kubectl("get", "node", "n1").stdout
    kubectl("uncordon", "n1")
    assert "SchedulingDisabled" not in kubectl("get", "node", "n1").stdout


def test_drain_waits_for_a_budget_and_then_finishes(kubectl, node, url):
    node("n1")
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replicas: 1"))
    kubectl("apply", "-f", "-", stdin=BUDGET)
    until(lambda: pods(kubectl) and all(each["spec"].get("nodeName") for each in pods(kubectl)))
    report_running(url, kubectl.namespace)
    budget = f"/apis/policy/v1/namespaces/{kubectl.namespace}/poddisruptionbudgets/web"
    until(lambda: request(url, "GET", budget)["status"]["currentHealthy"] == 1)

    refused = kubectl("drain", "n1", "--timeout=2s", check=False)
    assert refused.returncode == 1
    assert "Cannot evict pod as it would violate the pod's disruption budget" in refused.stderr

    request(url, "PATCH", budget, {"spec": {"minAvailable": 0}})
    until(lambda: request(url, "GET", budget)["status"].get("disruptionsAllowed") == 1)
    done = kubectl("drain", "n1", "--timeout=10s", "--grace-period=0", "--force")
    assert "drained" in done.stdout
    assert not [each for each in pods(kubectl) if each["spec"].get("nodeName") == "n1"]


def test_wait_sees_a_condition_and_a_deletion(kubectl, url):
    kubectl("run", "p", "--image=registry.example/p:1")
    request(
        url,
        "PATCH",
        f"/api/v1/namespaces/{kubectl.namespace}/pods/p/status",
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    )

    assert "condition met" in kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=5s").stdout
    kubectl("delete", "pod", "p", "--wait=false")
    kubectl("wait", "--for=delete", "pod/p", "--timeout=5s")


def test_scale_rollout_and_delete(kubectl):
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)

    kubectl("scale", "deployment", "web", "--replicas=0")
    until(lambda: not pods(kubectl))
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", "--timeout=10s").stdout
    kubectl("delete", "deployment", "web", "--timeout=10s")
    assert "not found" in kubectl("get", "deployment", "web", check=False).stderr


def test_a_namespace_is_deleted_with_its_content(kubectl):
    kubectl("create", "configmap", "c", "--from-literal=a=b")

    kubectl("delete", "namespace", kubectl.namespace, "--timeout=10s")

    assert "not found" in kubectl("get", "namespace", kubectl.namespace, check=False).stderr


def test_who_am_i_and_what_may_i(kubectl):
    assert kubectl("auth", "can-i", "delete", "nodes").stdout.strip() == "yes"
    assert "sandbox" in kubectl("auth", "whoami").stdout


def test_events_are_listed(kubectl):
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)

    out = until(lambda: (text := kubectl("events").stdout) and "ScalingReplicaSet" in text and text)

    assert "Deployment/web" in out


def test_diff_uses_a_dry_run(kubectl):
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)

    out = kubectl("diff", "-f", "-", stdin=DEPLOYMENT.replace("replicas: 2", "replicas: 5"), check=False)

    assert out.returncode == 1
    assert "+  replicas: 5" in out.stdout
