"""A lease whose holder is cut off from the server: no write under it until it is known to be ours."""

from __future__ import annotations

import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from infra.errors import Refused, Unreachable
from infra.kube import leases
from infra.kube.api import MERGE_PATCH, Kube


class Cable:
    """A TCP connection to the server that can go dead without being closed: bytes are taken and go nowhere."""

    def __init__(self, url):
        self.to = urlsplit(url).hostname, urlsplit(url).port
        self.dead = threading.Event()
        self.sockets = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            far = socket.create_connection(self.to)
            self.sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                self.threads.append(threading.Thread(target=self.carry, args=(one, other)))
                self.threads[-1].start()

    def carry(self, one, other):
        try:
            while data := one.recv(65536):
                if not self.dead.is_set():
                    other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for each in self.sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self.threads:
            thread.join()
        for each in self.sockets:
            each.close()


@pytest.fixture
def cable(url):
    made = Cable(url)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The same proportions, a tenth of a second for five."""
    for name, seconds in (("DURATION", 0.9), ("RENEW_EVERY", 0.1), ("PATIENCE", 0.2), ("AWAY", 1.5)):
        monkeypatch.setattr(leases, name, seconds)
    lease = leases._lease
    monkeypatch.setattr(leases, "_lease", lambda *a: _whole(lease(*a)))


def _whole(lease):
    lease["spec"]["leaseDurationSeconds"] = 1
    return lease


def test_a_connection_that_went_dead_is_noticed_while_the_renewal_hangs_in_it(cable, kube, kube_at):
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "poolshift"}})
    with leases.hold(kube_at(cable.url), ["eks/dead"], "r1") as (held,):
        assert leases.lost() == ""
        cable.dead.set()
        began = time.monotonic()
        while not (why := leases.lost()):
            assert time.monotonic() - began < 5
        assert "not renewed for" in why
        with pytest.raises(Exception, match="not renewed"):
            held.check()


def test_a_short_cut_is_waited_for_and_no_reason_to_stop(cable, kube, kube_at):
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "poolshift"}})
    with leases.hold(kube_at(cable.url), ["eks/cut"], "r1") as (held,):
        cable.dead.set()
        while held.age <= leases.DURATION:
            time.sleep(0.02)
        cable.dead.clear()

        assert leases.lost() == ""
        assert held.age <= leases.DURATION, "it waited until the lease was known to be ours"


def test_a_lease_taken_meanwhile_is_seen_after_the_cut(cable, kube, kube_at):
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "poolshift"}})
    with leases.hold(kube_at(cable.url), ["eks/taken"], "r1") as (held,):
        cable.dead.set()
        path = f"/apis/coordination.k8s.io/v1/namespaces/poolshift/leases/{held.name}"
        kube.request("PATCH", path, body={"spec": {"holderIdentity": "r1/elsewhere/1/boot"}}, content_type=MERGE_PATCH)
        while held.age <= leases.DURATION:
            time.sleep(0.02)
        cable.dead.clear()

        assert "taken over by r1/elsewhere" in leases.lost()


def test_a_lease_that_somebody_deletes_is_lost(kube):
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "poolshift"}})
    with leases.hold(kube, ["eks/gone"], "r1") as (held,):
        kube.delete(f"/apis/coordination.k8s.io/v1/namespaces/poolshift/leases/{held.name}")
        began = time.monotonic()
        while not (why := leases.lost()):
            assert time.monotonic() - began < 5
            time.sleep(0.02)
    assert "deleted" in why


NOT_THE_SERVER = {  # what a load balancer says in its place: HTTP status, body
    "a plain 404": (404, b"default backend - 404"),
    "a 404 in JSON of its own": (404, b'{"error": "no backend"}'),
    "a 200 without a body": (200, b""),
    "a 200 with another object": (200, b'{"status": "ok"}'),
    "a page": (200, b"<html>maintenance</html>"),
}


class Answer:
    """Of an HTTP request."""

    def __init__(self, status, data):
        self.status, self.data, self.headers = status, data, {}


@pytest.fixture
def in_its_place(kube, monkeypatch):
    """While it holds an answer, that is what requests about leases get."""
    kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "poolshift"}})
    kube.patience.seconds = 0.2
    send, said = Kube.open, []

    def answer(this, method, path, **more):
        return Answer(*said[0]) if said and "/leases" in path else send(this, method, path, **more)

    monkeypatch.setattr(Kube, "open", answer)
    return said


@pytest.mark.parametrize("answer", NOT_THE_SERVER.values(), ids=NOT_THE_SERVER)
def test_what_answers_in_the_servers_place_has_taken_no_lease(answer, kube, in_its_place):
    with leases.hold(kube, ["eks/proxied"], "r1") as (held,):
        in_its_place.append(answer)
        while held.age <= 0.4:
            time.sleep(0.02)
        in_its_place.clear()

        assert leases.lost() == ""
        began = time.monotonic()
        while held.age > 0.2:
            assert time.monotonic() - began < 5, "it is renewed again"
            time.sleep(0.02)


@pytest.mark.parametrize("answer", NOT_THE_SERVER.values(), ids=NOT_THE_SERVER)
def test_what_answers_in_the_servers_place_renews_no_lease(answer, kube, in_its_place):
    with leases.hold(kube, ["eks/proxied"], "r1"):
        in_its_place.append(answer)
        began = time.monotonic()
        while not (why := leases.lost()):
            assert time.monotonic() - began < 5
        in_its_place.clear()
    assert "not renewed for" in why


@pytest.mark.parametrize("answer", NOT_THE_SERVER.values(), ids=NOT_THE_SERVER)
def test_what_answers_in_the_servers_place_gives_no_lease(answer, kube, in_its_place):
    in_its_place.append(answer)
    with pytest.raises(Unreachable), leases.hold(kube, ["eks/proxied"], "r1"):
        pass
    in_its_place.clear()
    assert leases._HERE == []


@pytest.mark.parametrize("answer", NOT_THE_SERVER.values(), ids=NOT_THE_SERVER)
def test_a_holder_whose_lease_nobody_could_read_is_not_taken_for_dead(answer, kube, in_its_place):
    path = "/apis/coordination.k8s.io/v1/namespaces/poolshift/leases"
    there = {**leases._lease("pool-eks-theirs", "poolshift", leases.Holder(run="r2", host="h", pid=1), "r2")}
    kube.request("POST", path, body=there)

    class Then:
        """The server goes away as soon as somebody begins to watch the holder."""

        def sleep(self, seconds):
            in_its_place.append(answer)

    with pytest.raises((Unreachable, Refused)):
        leases.acquire(kube, "pool-eks-theirs", "r1", Then())
    in_its_place.clear()
    assert kube.get(f"{path}/pool-eks-theirs")["spec"]["holderIdentity"].startswith("r2/h/1")
