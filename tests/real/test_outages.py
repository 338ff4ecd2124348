"""An API server that goes away under a run and comes back: the client waits, and sends nothing twice."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import Forbidden, Unreachable
from infra.kube.api import Kube, connect
from infra.model.spec import Cluster
from infra.ports import free_port


class Answers(http.server.BaseHTTPRequestHandler):
    """Says yes to everything and counts it."""

    seen: list[str]

    refusals: list[int]

    def do_GET(self) -> None:
        self.seen.append(self.command)
        self.send_response(self.refusals.pop() if self.refusals else 200)
        body = b'{"kind":"Any"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, *_: object) -> None:
        pass


class Server:
    """Stands for an API server whose process can be stopped and started on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.seen: list[str] = []
        self.refusals: list[int] = []
        self.running: http.server.HTTPServer | None = None

    def start(self) -> None:
        handler = type("Counting", (Answers,), {"seen": self.seen, "refusals": self.refusals})
        self.running = http.server.HTTPServer(("127.0.0.1", self.port), handler)
        threading.Thread(target=self.running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        if self.running is not None:
            self.running.shutdown()
            self.running.server_close()
            self.running = None


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def kube(server: Server, tmp_path: Path) -> Kube:
    path = tmp_path / "kubeconfig"
    path.write_text(
        f"{{clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{server.port}'}}}}], "
        "users: [{name: u, user: {}}], contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    return connect(Cluster(kubeconfig=str(path)))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_comes_back_is_waited_for(server: Server, kube: Kube, method: str) -> None:
    server.start()
    kube.request("GET", "/api/v1/nodes")
    server.stop()
    back = threading.Timer(0.3, server.start)
    back.start()
    kube.request(method, "/api/v1/pods", body={} if method == "POST" else None)
    back.join()
    assert server.seen == ["GET", method]


def test_a_server_that_is_back_but_does_not_know_its_roles_yet_is_asked_again(server: Server, kube: Kube) -> None:
    """Recorded: for a moment after its start kube-apiserver answers 403 to everybody but administrators."""
    server.start()
    kube.request("GET", "/api/v1/nodes")
    server.stop()
    server.refusals.append(403)
    back = threading.Timer(0.2, server.start)
    back.start()
    kube.request("POST", "/api/v1/pods", body={})
    back.join()
    assert server.seen == ["GET", "POST", "POST"]


def test_a_refusal_without_an_outage_before_it_is_final(server: Server, kube: Kube) -> None:
    server.start()
    kube.request("GET", "/api/v1/nodes")
    server.refusals.append(403)
    with pytest.raises(Forbidden):
        kube.request("GET", "/api/v1/nodes")


def test_a_server_that_never_answered_is_given_up_soon(kube: Kube) -> None:
    with pytest.raises(Unreachable, match="no answer to POST"):
        kube.request("POST", "/api/v1/pods", body={})


def test_patience_is_for_the_outage_and_not_for_each_request(server: Server, kube: Kube) -> None:
    kube.patience.seconds = 0.2
    server.start()
    kube.request("GET", "/api/v1/nodes")
    server.stop()
    with pytest.raises(Unreachable):
        kube.request("POST", "/api/v1/pods", body={})
    tries = kube.requests
    with pytest.raises(Unreachable):
        kube.request("POST", "/api/v1/pods", body={})
    assert kube.requests == tries + 1
