"""Requests to a Kubernetes API: the official client's configuration and connections, plain JSON in and out.

Lists are parsed with orjson and never deserialised into typed objects: for 20,000 pods that is 1.6 s instead of
14 s. The client's own retries are off, because an eviction's 429 is an answer and not an accident; what may be
retried (reads that were cut, 429 of the server's own priority and fairness, 500, 502-504) is, within bounds
(`infra.kube.patience`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from infra.clock import Clock, SystemClock
from infra.errors import BadSpec, Conflict, NotFound, Refused, Unreachable
from infra.kube.kubeconfig import SandboxInfo, reach
from infra.kube.patience import Patience
from infra.kube.refusals import not_kubernetes, translate

if TYPE_CHECKING:
    from kubernetes import client as k8s
    from urllib3 import BaseHTTPResponse

    from infra.model.spec import Cluster

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
FIELD_MANAGER = "poolshift"
CONNECTIONS = 32
PAGE = 500  # what kubectl asks for; larger pages make the server hold more at once
CREDENTIAL_SECONDS = 1.0  # wall-clock: clients renew a token minutes before it ends


@dataclass(kw_only=True)
class Kube:
    """One cluster. Shared by threads. Objects are plain dicts as the API returns them."""

    client: k8s.ApiClient
    server: str
    context: str
    namespace: str
    clock: Clock
    sandbox: SandboxInfo | None = None
    requests: int = 0
    patience: Patience = field(default_factory=Patience)
    barred: Callable[[], str] = lambda: ""
    """Why nothing may be written any more, or "". Asked right before each write, of `request` and of `inside`, and by
    the workers of a drain; reads go on, and what this process has made itself it may take away (`delete`)."""
    _credentials: Mapping[str, str] = field(default_factory=dict)
    _credentials_asked: float = float("-inf")
    _renewing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def guarded(self, barred: Callable[[], str]) -> Kube:
        """The same cluster over the same connections, for writes that end when `barred` says so.

        A part of the work holds a lease that it may lose; who renews that lease writes by the unguarded one. Counts its
        requests on its own.
        """
        return replace(self, requests=0, barred=barred, patience=replace(self.patience))

    def check(self, what: str) -> None:
        """Raise Refused where nothing may be written any more; `what` was not sent."""
        if why := self.barred():
            raise Refused(what, why, remedy="see who runs now: poolshift status")

    def credentials(self) -> Mapping[str, str]:
        """The headers that say who we are: the client's own, which it renews before they expire.

        It looks through the whole environment each time it is asked (about 0.3 ms, as much as an eviction costs), so
        it is asked once a second, and after a 401; by one thread, while the others go on with what they have: a plugin
        may take its time, or ask a person. Raises Unreachable where they cannot be renewed.
        """
        if self._is_fresh() or not self._renewing.acquire(blocking=not self._credentials):
            return self._credentials
        try:
            return self._credentials if self._is_fresh() else self._renewed()
        finally:
            self._renewing.release()

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._credentials_asked < CREDENTIAL_SECONDS

    def _renewed(self) -> Mapping[str, str]:
        fresh: dict[str, str] = {}
        try:
            self.client.update_params_for_auth(fresh, [], ["BearerToken"], "", "GET", None)
        except Exception as cause:  # a plugin that the kubeconfig names may raise anything
            raise Unreachable(
                f"credentials of context {self.context or 'in the cluster'}",
                f"cannot be renewed: {type(cause).__name__}: {cause}",
                remedy="kubectl auth whoami",
            ) from cause
        self._credentials, self._credentials_asked = fresh, time.monotonic()
        return fresh

    def refused(self) -> None:
        """The server does not know who we are (401): the next request asks for credentials anew."""
        self._credentials_asked = float("-inf")

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: float = 60.0,
        retry: bool | None = None,
    ) -> dict[str, Any]:
        """Send one request and return the JSON object of the answer.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: from the root, "/api/v1/nodes/a".
            body: anything orjson can write; for PATCH choose `content_type`.
            params: query parameters; None values are left out.
            content_type: of the body.
            timeout: wall-clock seconds for the whole answer.
            retry: try again on no answer, 429 without a budget's cause, 500, 502, 503, 504; default: reads only.
                What a server that is away never received, or turned away unread since it is busy (429 with
                Retry-After), is sent again in any case, until `patience` is at its end.

        Raises:
            NotFound, Forbidden, Conflict: 404, 403, 409.
            Refused: a write that may not be made any more (`barred`); it was not sent.
            Unreachable: no answer, 408, 429, 5xx, or none of a Kubernetes API. `.status` tells which.
            ApiError: any other refusal (400, 405, 410, 415, 422, …).

        """
        payload = None if body is None else orjson.dumps(body)

        def ask() -> dict[str, Any]:
            if method != "GET":
                self.check(f"{method} {path}")
            response = self.open(method, path, body=payload, params=params, content_type=content_type, timeout=timeout)
            return _object(response, method, path, paged="limit" in (params or {}))

        return self.patience.insist(ask, again=method == "GET" if retry is None else retry)

    def open(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: float | tuple[float, float] = 60.0,
        preload: bool = True,
        accept: str = JSON,
    ) -> BaseHTTPResponse:
        """The raw answer; with `preload=False` a stream that the caller must `release_conn()` or `close()`.

        Raises Unreachable when there is no answer. HTTP errors are left to the caller.
        """
        import urllib3

        query = urlencode({k: _param(v) for k, v in (params or {}).items() if v is not None})
        url = f"{self.server}{path}{'?' + query if query else ''}"
        headers = {"Accept": accept, "User-Agent": "poolshift", **self.credentials()}
        if body is not None:
            headers["Content-Type"] = content_type
        connect, read = timeout if isinstance(timeout, tuple) else (min(10.0, timeout), timeout)
        self.requests += 1
        try:
            response: BaseHTTPResponse = self.client.rest_client.pool_manager.request(
                method,
                url,
                body=body,
                headers=headers,
                timeout=urllib3.Timeout(connect=connect, read=read),
                retries=False,
                preload_content=preload,
            )
        except urllib3.exceptions.HTTPError as cause:
            raise Unreachable(
                f"Kubernetes API {self.server}",
                f"no answer to {method} {path}: {_root(cause)}",
                remedy=f"kubectl --context {self.context or 'CONTEXT'} get --raw /readyz",
            ) from cause
        self.patience.answered()
        if response.status == 401:
            self.refused()
        return response

    def list(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Every item of a collection, page by page. Raises ApiError (410) when the listing expired under us."""
        for page in self.pages(path, params):
            yield from page.get("items") or ()

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The List objects themselves, `PAGE` items each; the last carries the resourceVersion to watch from."""
        token: str | None = None
        while True:
            page = self.request("GET", path, params={**(params or {}), "limit": PAGE, "continue": token})
            yield page
            token = (page.get("metadata") or {}).get("continue") or None
            if token is None:
                return

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None where it is absent."""
        try:
            return self.request("GET", path)
        except NotFound:
            return None

    def apply(self, path: str, obj: Mapping[str, Any], *, force: bool = True) -> dict[str, Any]:
        """Server-side apply under our field manager. Idempotent."""
        params = {"fieldManager": FIELD_MANAGER, "force": force}
        return self.request("PATCH", path, body=obj, params=params, content_type=APPLY_PATCH, retry=True)

    def delete(
        self, path: str, *, uid: str | None = None, propagation: str | None = "Background", made: bool = False
    ) -> None:
        """Ask for deletion; absent, or present under another UID, is success.

        `made`: this very process has made the one of that UID. It goes even where nothing else may be written.
        """
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation:
            body["propagationPolicy"] = propagation
        if uid:
            body["preconditions"] = {"uid": uid}
        kube = self.guarded(lambda: "") if made and uid else self
        try:
            kube.request("DELETE", path, body=body, retry=True)
        except NotFound:
            return
        except Conflict:
            if uid is None:
                raise

    def text(self, path: str, params: Mapping[str, Any] | None = None, *, timeout: float = 60.0) -> bytes:
        """A plain-text answer (pod logs). Tried again, and errors, as in `request`."""

        def ask() -> bytes:
            return _data(self.open("GET", path, params=params, timeout=timeout, accept="*/*"), "GET", path)

        return self.patience.insist(ask, again=True)


def _data(response: BaseHTTPResponse, method: str, path: str) -> bytes:
    """The body of a success; an HTTP error is raised as ours."""
    if response.status >= 400:
        raise translate(method, path, response.status, response.data, response.headers.get("Retry-After"))
    return response.data


def _object(response: BaseHTTPResponse, method: str, path: str, *, paged: bool) -> dict[str, Any]:
    """The object that the API server answers with. Raises Unreachable for what only looks like an answer of its.

    While it is away, what stands before it may say 200 to anything, with no body or one of its own: read as a list
    without items, that would prove a full node empty.
    """
    data = _data(response, method, path)
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        raw = None
    known = isinstance(raw, dict) and bool(raw.get("kind"))
    if not known or (raw["kind"] == "Status" and method in ("GET", "PATCH", "PUT")):
        raise not_kubernetes(f"{method} {path}", f"{response.status} {data[:80]!r}")
    if paged and not isinstance(raw.get("items", False), list | None):
        raise not_kubernetes(f"{method} {path}", f"{response.status}, a {raw['kind']} without items")
    found: dict[str, Any] = raw
    return found


def _param(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _root(error: BaseException) -> str:
    """The innermost reason in a chain of urllib3's wrappers."""
    reason = getattr(error, "reason", None)
    return _root(reason) if isinstance(reason, BaseException) else f"{type(error).__name__}: {error}"


def connect(cluster: Cluster) -> Kube:
    """Open the cluster that the spec names.

    Raises:
        BadSpec: no kubeconfig, an unreadable one, no such context (the message lists those there are), or one that
            asks for what the client would leave out in silence: we would be somebody else, or nobody.

    """
    from kubernetes import client as k8s

    reached = reach(cluster)
    configuration = reached.configuration
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False
    try:
        client = k8s.ApiClient(configuration)
    except ImportError as cause:  # only a SOCKS proxy needs more than the client brings
        raise BadSpec(
            f"proxy of {configuration.host}", f"is SOCKS: {cause}", remedy=f"{sys.executable} -m pip install pysocks"
        ) from cause
    return Kube(
        client=client,
        server=configuration.host.rstrip("/"),
        context=reached.context,
        namespace=cluster.namespace,
        clock=reached.sandbox.clock if reached.sandbox else SystemClock(),
        sandbox=reached.sandbox,
    )
