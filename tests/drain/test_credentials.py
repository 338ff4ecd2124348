"""Who we are is asked of the client now and then, not at every request, and at once when the server doubts it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from infra.errors import Forbidden, Unreachable
from infra.kube.lines import Lines
from infra.kube.pods import Answer, evict
from infra.model.workload import Pod

POD = Pod(namespace="default", name="p", uid="u")


@pytest.fixture
def server():
    """(URL, what came as Authorization, tokens that it takes)."""
    came, taken = [], {"one", "two"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            came.append(self.headers["Authorization"])
            self.send_response(200 if came[-1] in taken else 401)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}", came, taken
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_the_client_is_asked_once_for_many_requests_and_anew_after_a_refusal(kube_at, server):
    url, came, taken = server
    kube, asked = kube_at(url), []

    def renew(configuration):
        asked.append(1)
        configuration.api_key["BearerToken"] = "one" if len(asked) == 1 else "two"

    kube.client.configuration.api_key["BearerToken"] = "none"
    kube.client.configuration.refresh_api_key_hook = renew
    lines = Lines(kube)
    kube.patience = 0

    assert [evict(lines, POD).answer for _ in range(3)] == [Answer.ACCEPTED] * 3
    kube.request("GET", "/x")
    assert (came, len(asked)) == (["one"] * 4, 1)

    taken.discard("one")
    kube._credentials_asked = float("inf")  # however much time passes here
    assert evict(lines, POD).answer is Answer.ERROR
    assert evict(lines, POD).answer is Answer.ACCEPTED
    taken.discard("two")
    with pytest.raises(Forbidden):
        kube.request("GET", "/x")
    lines.close()
    assert (came[4:], len(asked)) == (["one", "two", "two"], 2)


def test_credentials_that_cannot_be_renewed_are_no_answer_and_say_why(kube_at, server):
    url, came, _ = server
    kube = kube_at(url)

    def renew(configuration):
        raise RuntimeError("the plugin is not there")

    kube.client.configuration.api_key["BearerToken"] = "none"
    kube.client.configuration.refresh_api_key_hook = renew
    kube.patience = 0

    assert evict(Lines(kube), POD).answer is Answer.UNANSWERED
    with pytest.raises(Unreachable, match="cannot be renewed: RuntimeError: the plugin is not there"):
        kube.open("GET", "/x")
    assert came == []
