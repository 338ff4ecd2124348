"""What may pass a moment later is asked again, whether JSON or a log is read; what will not pass is said at once."""

import http.server
import threading
from contextlib import closing, contextmanager, nullcontext

import pytest
from kubernetes import client as k8s

from infra.clock import SystemClock
from infra.errors import Forbidden, NotFound, Unreachable
from infra.kube import patience
from infra.kube.api import Kube
from infra.kube.lines import Lines
from infra.kube.patience import QUIET_SECONDS, READ_TRIES, Patience
from infra.kube.pods import Answer, evict
from infra.kube.refusals import ApiError
from infra.model.workload import Pod

WHOLE, REFUSED = b'{"kind":"Whole"}', b'{"kind":"Status","reason":"NotFound"}'


class Troubled(http.server.BaseHTTPRequestHandler):
    """Answers by the list `answers`: a status, "cut" in the middle of the body, or "silent"; then with all of it."""

    answers: list
    seen: list

    def do_GET(self):
        self.seen.append(self.path)
        answer = self.answers.pop(0) if self.answers else 200
        if answer == "silent":
            self.close_connection = True
            return
        self.send_response(200 if answer == "cut" else answer)
        if answer == 429:
            self.send_header("Retry-After", "0")
        body = REFUSED if answer == 404 else WHOLE
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:5] if answer == "cut" else body)
        self.close_connection = answer == "cut"

    def do_DELETE(self):
        self.do_GET()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


@contextmanager
def troubled(*answers):
    seen = []
    handler = type("Handler", (Troubled,), {"answers": list(answers), "seen": seen})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    configuration = k8s.Configuration()
    configuration.host, configuration.retries = url, False
    client = k8s.ApiClient(configuration)
    try:
        none = Patience(seconds=0.0)
        yield Kube(client=client, server=url, context="t", namespace="p", clock=SystemClock(), patience=none), seen
    finally:
        client.rest_client.pool_manager.clear()
        server.shutdown()
        thread.join()
        server.server_close()


READS = {"json": lambda kube: kube.request("GET", "/a"), "text": lambda kube: kube.text("/a")}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("trouble", [408, 429, 500, 502, 503, 504, "cut", "silent"])
def test_a_read_that_failed_for_a_moment_is_made_again_and_comes_whole(read, trouble):
    with troubled(trouble) as (kube, seen):
        assert read(kube) in (WHOLE, {"kind": "Whole"})
        assert len(seen) == 2


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(("refusal", "kind"), [(400, ApiError), (403, Forbidden), (404, NotFound)])
def test_a_refusal_is_passed_on_at_once(read, refusal, kind):
    with troubled(refusal) as (kube, seen):
        with pytest.raises(kind):
            read(kube)
        assert len(seen) == 1


@pytest.mark.parametrize("seen", ["an answer over a line", "nobody asked for long", ""])
def test_an_outage_that_has_ended_does_not_count_for_the_next(seen):
    with troubled() as (kube, _), closing(Lines(kube)) as line:
        kube.patience.seconds, alive = 0.4, kube.server
        kube.request("GET", "/a")
        kube.server = "http://127.0.0.1:9"  # nobody listens there
        with pytest.raises(Unreachable):
            kube.request("GET", "/a")
        if seen == "an answer over a line":
            assert line.send("GET", "/a", b"", 5.0)[0] == 200
        elif seen:
            kube.patience._away_seen -= QUIET_SECONDS  # as if so much time had passed
        back = threading.Timer(0.15, setattr, (kube, "server", alive))
        back.start()
        with nullcontext() if seen else pytest.raises(Unreachable):
            kube.request("DELETE", "/a", retry=False)
        back.join()


def test_a_refusal_that_stays_is_passed_on_although_the_server_is_away_and_back_all_the_time(monkeypatch):
    monkeypatch.setattr(patience, "RBAC_SECONDS", patience.RBAC_PAUSE)
    with troubled(200, *["silent", 403] * 20) as (kube, seen):
        kube.patience.seconds = 60.0
        kube.request("GET", "/a")
        with pytest.raises(Forbidden):
            kube.request("GET", "/a")
        assert len(seen) == 1 + 2 * (1 + 1)


@pytest.mark.parametrize("before", ["an outage", ""])
def test_an_eviction_that_a_server_refuses_just_after_an_outage_is_asked_again(before):
    pod = Pod(namespace="d", name="p", uid="u")
    with troubled(200, *["silent"] * bool(before), 403) as (kube, _), closing(Lines(kube)) as line:
        kube.request("GET", "/a")
        if before:
            assert evict(line, pod).answer is Answer.UNANSWERED
        assert evict(line, pod).answer is (Answer.ERROR if before else Answer.FORBIDDEN)


def test_what_stays_cut_is_an_error_and_never_the_part_that_came():
    with troubled(*["cut"] * (READ_TRIES + 3)) as (kube, seen):
        with pytest.raises(Unreachable):
            kube.text("/a")
        assert len(seen) == READ_TRIES
