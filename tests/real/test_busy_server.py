"""A server that turns requests away to protect itself: its own 429 is waited out, and never taken for a budget's."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.clock import SystemClock
from infra.errors import Unreachable
from infra.kube.api import MERGE_PATCH, Kube, connect
from infra.model.spec import Cluster

LEVELS = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
ACCOUNT = {"kind": "ServiceAccount", "serviceAccount": {"namespace": "poolshift", "name": "poolshift"}}
EVERYTHING = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
HELD_SECONDS = 8


class Turning(http.server.BaseHTTPRequestHandler):
    """Answers as kube-apiserver 1.36 was seen to, `left` times, then takes the request."""

    left: list[str]
    seen: list[str]
    with_time = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(self.command)
        turned_away = bool(self.left)
        body = self.left.pop().encode() if turned_away else b'{"kind":"Any"}'
        self.send_response(429 if turned_away else 201)
        if turned_away and self.with_time:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def turning(tmp_path: Path, left: list[str], *, with_time: bool = True) -> Iterator[tuple[Kube, list[str]]]:
    seen: list[str] = []
    handler = type("Handler", (Turning,), {"left": left, "seen": seen, "with_time": with_time})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"{{clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{server.server_port}'}}}}], "
        "users: [{name: u, user: {}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    kube = connect(Cluster(kubeconfig=str(path)))
    try:
        yield kube, seen
    finally:
        kube.client.rest_client.pool_manager.clear()
        server.shutdown()
        server.server_close()
        thread.join()


TURNED_AWAY = "Too many requests, please try again later.\n"
BY_BUDGET = json.dumps(
    {
        "kind": "Status",
        "code": 429,
        "reason": "TooManyRequests",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}], "retryAfterSeconds": 1},
    }
)
BY_WEBHOOK = json.dumps({"kind": "Status", "code": 429, "message": 'admission webhook "x" denied the request: later'})


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries take no time."""
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds: None)


@pytest.mark.usefixtures("no_waiting")
def test_what_the_server_turned_away_is_sent_again_whatever_it_is(tmp_path: Path) -> None:
    with turning(tmp_path, [TURNED_AWAY] * 8) as (kube, seen):
        kube.request("POST", "/api/v1/namespaces/a/configmaps", body={}, retry=False)
    assert seen == ["POST"] * 9


@pytest.mark.parametrize(("answer", "with_time"), [(BY_BUDGET, True), (BY_WEBHOOK, False)])
def test_a_429_that_is_somebodys_answer_is_not_sent_again(tmp_path: Path, answer: str, with_time: bool) -> None:
    with turning(tmp_path, [answer] * 8, with_time=with_time) as (kube, seen):
        with pytest.raises(Unreachable):
            kube.request("POST", "/api/v1/namespaces/a/pods/p/eviction", body={})
        assert seen == ["POST"]


@pytest.mark.usefixtures("no_waiting")
def test_patience_with_a_busy_server_ends(tmp_path: Path) -> None:
    with turning(tmp_path, [TURNED_AWAY] * 10_000) as (kube, seen):
        kube.patience.seconds = 0.1
        with pytest.raises(Unreachable, match="429"):
            kube.request("POST", "/api/v1/namespaces/a/configmaps", body={})
    assert len(seen) > 1


@contextmanager
def one_at_a_time(kube: Kube) -> Iterator[None]:
    """The server takes one request of the account at a time, and turns the others away."""
    limits = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    level = {"type": "Limited", "limited": {**limits, "limitResponse": {"type": "Reject"}}}
    flow = {
        "priorityLevelConfiguration": {"name": "narrow"},
        "matchingPrecedence": 2,
        "rules": [{"subjects": [ACCOUNT], "resourceRules": [EVERYTHING]}],
    }
    kube.request("POST", LEVELS, body={"metadata": {"name": "narrow"}, "spec": level})
    kube.request("POST", FLOWS, body={"metadata": {"name": "narrow"}, "spec": flow})
    try:
        yield
    finally:
        kube.delete(f"{FLOWS}/narrow")
        kube.delete(f"{LEVELS}/narrow")


@contextmanager
def slow_admission(kube: Kube) -> Iterator[None]:
    """ConfigMaps labelled hold=seat take HELD_SECONDS to create: somebody listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook = {
            "name": "slow.example.test",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": HELD_SECONDS,
            "clientConfig": {"url": f"https://127.0.0.1:{silent.getsockname()[1]}/"},
            "objectSelector": {"matchLabels": {"hold": "seat"}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            ],
        }
        kube.request("POST", WEBHOOKS, body={"metadata": {"name": "slow"}, "webhooks": [hook]})
        try:
            yield
        finally:
            kube.delete(f"{WEBHOOKS}/slow")


def spread(kube: Kube) -> None:
    """24 pods of one Deployment with a budget, on all nodes."""
    labels = {"app": "busy"}
    pod = {
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "10m"}}}],
    }
    spec = {
        "replicas": 24,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    budget = {"maxUnavailable": "50%", "selector": {"matchLabels": labels}}
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "busy"}})
    base = "/apis/policy/v1/namespaces/busy/poddisruptionbudgets"
    kube.request("POST", base, body={"metadata": {"name": "busy"}, "spec": budget})
    base = "/apis/apps/v1/namespaces/busy/deployments"
    deadline = time.monotonic() + 60
    while kube.get("/api/v1/namespaces/busy/serviceaccounts/default") is None and time.monotonic() < deadline:
        time.sleep(0.1)
    kube.request("POST", base, body={"metadata": {"name": "busy"}, "spec": spec})
    while kube.request("GET", f"{base}/busy").get("status", {}).get("readyReplicas") != 24:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def on(kube: Kube, node: str) -> list[str]:
    pods = kube.list("/api/v1/namespaces/busy/pods", {"fieldSelector": f"spec.nodeName={node}"})
    return [pod["metadata"]["name"] for pod in pods]


@pytest.mark.real
def test_a_drain_waits_for_a_server_that_turns_it_away_and_blames_no_budget(healthy: Any) -> None:
    kube, account = healthy.kube, healthy.account("poolshift")
    spread(kube)
    nodes = [node["metadata"]["name"] for node in kube.list("/api/v1/nodes")]
    node = max(nodes, key=lambda name: len(on(kube, name)))
    before = len(on(kube, node))
    assert before > 1
    command = healthy.command("drain", node, "--pod-selector", "app=busy", "--json", kubeconfig=account)
    with one_at_a_time(kube), slow_admission(kube):
        held = {"metadata": {"name": "held", "labels": {"hold": "seat"}}}
        holder = healthy.connect(account)
        holding = threading.Thread(
            target=holder.request, args=("POST", "/api/v1/namespaces/poolshift/configmaps"), kwargs={"body": held}
        )
        holding.start()
        ended = subprocess.run(command, capture_output=True, text=True, env=healthy.env, timeout=240, check=False)
        holding.join()
    kube.request("PATCH", f"/api/v1/nodes/{node}", body={"spec": {"unschedulable": None}}, content_type=MERGE_PATCH)
    left = on(kube, node)
    kube.delete("/api/v1/namespaces/busy")
    kube.delete("/api/v1/namespaces/poolshift/configmaps/held")

    assert ended.returncode == 0, ended.stderr[-3000:]
    told = json.loads(ended.stdout)
    events = healthy.sandbox.plane.requests("system:serviceaccount:poolshift:poolshift")
    turned_away = [e for e in events if e["responseStatus"]["code"] == 429]
    assert turned_away
    assert left == []
    assert told["evictions"]["accepted"] == before
    assert told["evictions"]["refused"] == 0
