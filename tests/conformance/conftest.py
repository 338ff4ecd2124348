"""One suite, two servers: what a client sees of the Kubernetes API, embedded and real.

`POOLSHIFT_REAL_API=1` adds the real one. Only the server differs, so an assertion that holds on the real one and
fails on ours is a defect of ours.
"""

from __future__ import annotations

import itertools
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import urllib3

from infra.clock import SystemClock

Object = dict[str, Any]

PATIENCE = 30.0
"""Seconds until an expected state counts as not coming: a real control plane shares its cores with a lot."""
WATCH_SECONDS = 10.0


@dataclass
class Api:
    """A server to test, spoken to in plain HTTP and JSON.

    Attributes:
        flavour: embedded | real.
    """

    flavour: str
    url: str
    token: str = ""
    ca: str | None = None
    pool: urllib3.PoolManager = field(init=False)

    def __post_init__(self) -> None:
        context = ssl.create_default_context(cadata=self.ca) if self.ca else None
        self.pool = urllib3.PoolManager(ssl_context=context, maxsize=8)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: dict[str, Any] | None = None,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], Any]:
        """One request: status, headers (names in lower case) and the body, from JSON where it is JSON."""
        response = self._send(method, path, body, params, content_type, headers)
        answer: Any = response.data
        kind = response.headers.get("Content-Type", "")
        if answer and (kind.startswith("application/json") or (answer[:1] == b"{" and "text" not in kind)):
            answer = json.loads(answer)
        elif isinstance(answer, bytes):
            answer = answer.decode()
        return response.status, {key.lower(): value for key, value in response.headers.items()}, answer

    def ok(self, method: str, path: str, body: Any = None, params: dict[str, Any] | None = None, **more: Any) -> Any:
        """A request that has to succeed: its body."""
        status, _, answer = self.request(method, path, body, params, **more)
        assert 200 <= status < 300, (method, path, status, answer)
        return answer

    def apply(self, path: str, body: Object, manager: str, *, force: bool = False, **params: Any) -> tuple[int, Any]:
        """A server-side apply: status and body."""
        query = {"fieldManager": manager, **({"force": "true"} if force else {}), **params}
        status, _, answer = self.request("PATCH", path, body, query, "application/apply-patch+yaml")
        return status, answer

    def watch(self, path: str, params: dict[str, Any], *, until: Callable[[list[Object]], bool]) -> list[Object]:
        """The events of a watch, until they are what was waited for or the time is up."""
        query = {"watch": "true", "timeoutSeconds": int(WATCH_SECONDS), **params}
        events: list[Object] = []
        response = self._send("GET", path, None, query, None, None, stream=True)
        try:
            buffer = b""
            for chunk in response.stream(1024):
                buffer += chunk
                *lines, buffer = buffer.split(b"\n")
                events += [json.loads(line) for line in lines if line]
                if until(events):
                    break
        finally:
            response.close()
        return events

    def until(self, path: str, condition: Callable[[Any], Any], *, gone: bool = False) -> Any:
        """Read until the condition holds (or the object is gone), and return what was read."""
        end = time.monotonic() + PATIENCE
        while True:
            status, _, answer = self.request("GET", path)
            if gone and status == 404:
                return None
            if not gone and status == 200 and condition(answer):
                return answer
            assert time.monotonic() < end, (path, status, answer)
            time.sleep(0.05)

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        params: dict[str, Any] | None,
        content_type: str | None,
        headers: dict[str, str] | None,
        *,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        sent = {"Accept": "application/json", "User-Agent": "conformance/1.0", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            sent["Content-Type"] = content_type or "application/json"
        data = body if isinstance(body, bytes | str | None) else json.dumps(body)
        query = f"?{urllib.parse.urlencode(params)}" if params else ""
        return self.pool.request(
            method,
            self.url + path + query,
            body=data,
            headers=sent,
            retries=False,
            timeout=60,
            preload_content=not stream,
        )


@dataclass(frozen=True)
class Space:
    """A namespace of one test, with short ways to what is in it."""

    api: Api
    name: str

    def path(self, plural: str, name: str = "", group: str = "") -> str:
        """The path of a collection or an object: `path("pods", "a")`, `path("deployments", "a", "apps/v1")`."""
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.name}/{plural}" + (f"/{name}" if name else "")

    def config_map(self, name: str, data: dict[str, str] | None = None, **metadata: Any) -> Any:
        """Create a ConfigMap."""
        body = {"metadata": {"name": name, **metadata}, "data": data or {"a": "1"}}
        return self.api.ok("POST", self.path("configmaps"), body)

    def pod(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Any:
        """Create a pod that no scheduler binds and no kubelet runs."""
        container = {"name": "main", "image": "registry.example/app:1"}
        wanted = {"schedulerName": "nobody", "containers": [container], **spec}
        body = {"metadata": {"name": name, "labels": labels or {"app": name}}, "spec": wanted}
        return self.api.ok("POST", self.path("pods"), body)

    def running_pod(self, name: str, *, ready: bool = True, grace: int = 30, **more: Any) -> Any:
        """Create a pod that is bound to a node that is not there, and say that it runs."""
        self.pod(name, nodeName="nowhere", terminationGracePeriodSeconds=grace, **more)
        return self.report(name, "Running", ready=ready)

    def report(self, name: str, phase: str, *, ready: bool = True) -> Any:
        """Write a pod's status, as a kubelet would."""
        moment = "2026-01-01T00:00:00Z"
        condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": moment}
        status = {"status": {"phase": phase, "conditions": [condition]}}
        kind = "application/strategic-merge-patch+json"
        return self.api.ok("PATCH", self.path("pods", name) + "/status", status, content_type=kind)

    def budget(self, name: str, labels: dict[str, str], *, wait: bool = True, **spec: Any) -> Any:
        """Create a PodDisruptionBudget and wait until its controller has counted."""
        path = self.path("poddisruptionbudgets", group="policy/v1")
        self.api.ok("POST", path, {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, **spec}})
        if not wait:
            return None
        return self.api.until(f"{path}/{name}", lambda body: body["status"].get("observedGeneration") == 1)


@pytest.fixture(
    scope="session", params=["embedded", pytest.param("real", marks=pytest.mark.real)], ids=["embedded", "real"]
)
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """Each server in turn, once a session."""
    if request.param == "real":
        plane = request.getfixturevalue("plane")
        made = Api(flavour="real", url=plane.url, token=plane.token, ca=plane.ca)
        yield made
        made.pool.clear()
        return
    from infra.sandbox.control_plane import run_in_thread

    url, stop = run_in_thread(SystemClock())
    made = Api(flavour="embedded", url=url)
    yield made
    made.pool.clear()
    stop()


_numbers = itertools.count()


@pytest.fixture
def ns(api: Api) -> Iterator[Space]:
    """A namespace of the test's own, with its default service account."""
    space = Space(api, f"c{os.getpid()}-{next(_numbers)}")
    api.ok("POST", "/api/v1/namespaces", {"metadata": {"name": space.name}})
    api.until(space.path("serviceaccounts", "default"), bool)
    api.until(space.path("configmaps", "kube-root-ca.crt"), bool)
    yield space
    api.request("DELETE", f"/api/v1/namespaces/{space.name}")
