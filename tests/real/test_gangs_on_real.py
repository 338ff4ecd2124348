"""A gang on a real API server: checkpoint by exec through the kubelet, re-homed while suspended, up on the target."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from infra.clock import parse_time, rfc3339
from infra.errors import PoolshiftError
from infra.kube.api import MERGE_PATCH
from infra.kube.inside import post_to
from infra.model.record import PRIOR
from infra.model.spec import Drain
from tasks.drain import move
from tasks.gangs import restore
from tests.real.gang_pools import NEW, OLD, POOL, add_pools, homes, pod_template, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(scope="module")
def pools(stage: Callable[..., Any]) -> Any:
    """Two old nodes and two new ones, with their GPUs allocatable."""
    here = stage("healthy", "eks", "real")
    add_pools(here)
    return here


def job(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {"sandbox.poolshift.dev/checkpoint-seconds": "600"}},
        "spec": {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": pod_template()},
    }


def ranks(kube: Any, name: str = "llm") -> dict[str, str]:
    return homes(kube, f"batch.kubernetes.io/job-name={name}")


def test_a_pinned_gang_is_saved_by_exec_and_comes_up_on_the_target(pools: Any) -> None:
    kube = pools.kube
    kube.request("POST", JOBS, body=job("llm"))
    until(lambda: set(ranks(kube).values()) == set(OLD), "two ranks on the old pool")
    rule = {
        "namespace": "default",
        "name": "llm",
        "checkpoint": {"via": "exec", "command": ["checkpoint"]},
        "rehome": True,
    }
    drain = Drain.model_validate({"workloads": [rule], "waves": {"canary": 0, "size": 2}, "pod_deadline": "4m"})
    said: list[str] = []

    report = move(kube, drain, OLD, NEW, "r1", kube.clock, said.append)

    gang = report.waves[0].gangs[0]
    assert report.ok, (report.to_dict(), said)
    assert gang.checkpoint > gang.asked
    assert set(ranks(kube).values()) == set(NEW)
    assert kube.get(f"{JOBS}/llm")["spec"]["template"]["spec"]["nodeSelector"] == {POOL: "gpu-b"}

    # Stopped by hand it gets back what its owner wrote, which servers before 1.36 allow only without a start time.
    assert restore(kube, "r1") == ()
    kube.request("PATCH", f"{JOBS}/llm", body={"spec": {"suspend": True}}, content_type=MERGE_PATCH)
    until(lambda: not ranks(kube), "its pods gone")
    assert restore(kube, "r1") == ("job default/llm (its template: put back)",)
    found = kube.get(f"{JOBS}/llm")
    assert found["spec"]["template"]["spec"]["nodeSelector"] == {POOL: "gpu-a"}
    assert PRIOR not in found["metadata"].get("annotations", {})


class Saving(BaseHTTPRequestHandler):
    """A training program that saves when it is POSTed to."""

    def do_POST(self) -> None:
        body = f"{rfc3339(self.server.clock.now())}\n".encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_pod_is_posted_to_through_the_servers_proxy(pools: Any) -> None:
    kube, address = pools.kube, own_address()
    server = ThreadingHTTPServer((address, 0), Saving)
    server.clock = kube.clock  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        # Bound to a node that nobody runs, so that its status is ours to write.
        body = {
            "metadata": {"name": "web"},
            "spec": {"nodeName": "nobody", "containers": [{"name": "c", "image": "i"}]},
        }
        kube.request("POST", "/api/v1/namespaces/default/pods", body=body)
        status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
        path = "/api/v1/namespaces/default/pods/web"
        kube.request("PATCH", f"{path}/status", body=status, content_type="application/merge-patch+json")
        asked = kube.clock.now()
        said = post_to(kube, "default", "web", server.server_address[1], "/checkpoint")
        assert abs((parse_time(said.strip()) - asked).total_seconds()) < 60
        with pytest.raises(PoolshiftError):
            post_to(kube, "default", "web", 1, "/checkpoint")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_address() -> str:
    """An address of this machine that is not loopback: the real server proxies to no other."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has only loopback, to which the real server proxies nothing")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this machine has only loopback, to which the real server proxies nothing")
    return found
