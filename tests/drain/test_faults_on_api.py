"""The engine behind a bad network, with an observer inside the API server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from infra.sandbox.control_plane import ControlPlane
from tasks.drain import DrainOptions, drain_nodes
from tasks.rules.outcome import End


def status(code, message):
    return json.dumps(
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    ).encode()


SEEDS = int(os.environ.get("DRAIN_FAULT_SEEDS", "200"))
BUSY = status(429, "too many requests")
BROKEN = status(500, "etcdserver: request timed out")
# What a load balancer says in the server's place.
STRANGE = [(404, b"default backend - 404"), (200, b""), (200, b"{}"), (200, b"<html>log in</html>"), (302, b"")]


class Observer:
    """Sees every write in the server: no budget may ever have fewer healthy pods than it needs."""

    def __init__(self):
        self.broken, self.wanted = [], {}
        self.store = None

    def __call__(self, event, kind, obj, old):
        if kind.plural != "pods" or not self.wanted:
            return
        app = (obj["metadata"].get("labels") or {}).get("app")
        if app in self.wanted:
            healthy = sum(self.healthy(p, app) for p in self.store.list(kind, "default"))
            if healthy < self.wanted[app]:
                self.broken.append(f"{app}: {healthy} healthy, needs {self.wanted[app]}")

    @staticmethod
    def healthy(pod, app):
        meta = pod["metadata"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions") or ())
        return meta.get("labels", {}).get("app") == app and ready and "deletionTimestamp" not in meta


@pytest.fixture
def observed():
    """(URL, observer) of a control plane whose store tells the observer of every write."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    observer, found = Observer(), []

    async def serve():
        plane = ControlPlane()
        observer.store = plane.store
        plane.store.subscribe(observer)
        found.append(await plane.start())
        ready.set()
        await done.wait()
        await plane.stop()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.close()))
    thread.start()
    ready.wait()
    yield found[0], observer
    loop.call_soon_threadsafe(done.set)
    thread.join()


@pytest.fixture
def url(observed):
    return observed[0]


@pytest.fixture(params=[7])
def faulty(url, request):
    """A proxy before the API: 5 % of requests are answered 429 or 500 or cut, 3 % by the proxy itself, and every watch
    is cut each second.
    """
    server, dice = urlsplit(url), random.Random(request.param)

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        faults = 0

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            watch = "watch=true" in self.path
            fate = dice.random() if not watch else 1.0
            if fate < 0.08:
                Proxy.faults += 1
            if fate < 0.02:
                return self.answer(429, BUSY)
            if fate < 0.035:
                return self.answer(500, BROKEN)
            if 0.05 <= fate < 0.08:
                return self.answer(*dice.choice(STRANGE), kind="text/html")
            connection = http.client.HTTPConnection(server.hostname, server.port, timeout=1.0 if watch else 30)
            with contextlib.closing(connection):
                self.close_connection = True  # unless an answer goes out whole
                with contextlib.suppress(TimeoutError, OSError):
                    self.forward_to(connection, body, watch=watch, cut=fate < 0.05)
            return None

        def forward_to(self, connection, body, *, watch, cut):
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length")}
            connection.request(self.command, self.path, body or None, headers)
            reply = connection.getresponse()
            with contextlib.closing(reply):
                if watch:
                    self.stream(reply)
                elif cut:  # the server does it, and nobody hears
                    reply.read()
                else:
                    self.answer(reply.status, reply.read(), reply.headers.get("Content-Type", "application/json"))
                    self.close_connection = False

        def __getattr__(self, name):
            if name.startswith("do_"):  # every method alike
                return self.forward
            raise AttributeError(name)

        def answer(self, code, body, kind="application/json"):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self, reply):
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            end = time.monotonic() + 1.0
            while time.monotonic() < end and (piece := reply.read1(65536)):
                self.wfile.write(piece)

        def log_message(self, *_):
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{proxy.server_address[1]}", Proxy
    proxy.shutdown()
    thread.join()
    proxy.server_close()


def drained_under_faults(kube_at, build, observed, faulty):
    """More pods than the budgets let go at once, so that they close again and again."""
    for i in range(4):
        build.node(f"old-{i}")
        build.node(f"new-{i}", "new", unschedulable=True)
    for i in range(4):
        build.deployment(f"web-{i}", 8, budget={"maxUnavailable": 3})
    build.until_ready(32)
    for i in range(4):
        build.uncordon(f"new-{i}")
    observed[1].wanted = {f"web-{i}": 5 for i in range(4)}
    url, _ = faulty
    report = drain_nodes(kube_at(url), [f"old-{i}" for i in range(4)], DrainOptions())
    where = {p["spec"].get("nodeName", "")[:3] for p in build.pods()}
    cordoned = {n["metadata"]["name"] for n in build.kube.list("/api/v1/nodes") if n["spec"].get("unschedulable")}
    assert observed[1].broken == []
    # The same result as without faults: every pod has gone once, and nothing of the run is left on the nodes.
    assert report.end is End.DRAINED, report.to_json()
    assert report.tally.gone == 32
    assert where <= {"new", ""}
    assert cordoned == {f"old-{i}" for i in range(4)}
    assert "poolshift.dev/" not in str(list(build.kube.list("/api/v1/nodes")))


def test_under_faults_no_budget_is_broken_and_the_result_is_the_same(kube_at, kubelet, build, observed, faulty):
    drained_under_faults(kube_at, build, observed, faulty)
    assert faulty[1].faults > 0


@pytest.mark.slow
@pytest.mark.parametrize("faulty", range(SEEDS), indirect=True)
def test_under_any_faults_no_budget_is_broken_and_the_result_is_the_same(kube_at, kubelet, build, observed, faulty):
    drained_under_faults(kube_at, build, observed, faulty)
