"""Requests to a Kubernetes API: the official client's configuration and connections, plain JSON in and out.

Lists are parsed with orjson and never deserialised into typed objects: for 20,000 pods that is 1.6 s instead of
14 s. The client's own retries are off, because an eviction's 429 is an answer and not an accident; what may be
retried (reads that were cut, 429 of the server's own priority and fairness, 500, 502-504) is retried here with bounds.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import orjson

from infra.clock import Clock, ScaledClock, SystemClock, parse_time
from infra.errors import BadSpec, Conflict, Forbidden, NotFound, PoolshiftError, Status, Unreachable

if TYPE_CHECKING:
    from kubernetes import client as k8s
    from urllib3 import BaseHTTPResponse

    from infra.model.spec import Cluster

Answer = TypeVar("Answer")
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
EXTENSION = "poolshift.dev/sandbox"
FIELD_MANAGER = "poolshift"
CONNECTIONS = 32
PAGE = 500  # what kubectl asks for; larger pages make the server hold more at once
READ_TRIES = 5
OUTAGE_SECONDS = 120.0  # wall-clock: an API server that is replaced is away for less
CREDENTIAL_SECONDS = 1.0  # wall-clock: clients renew a token minutes before it ends
RBAC_SECONDS = 10.0  # wall-clock: a server that has just started refuses whom it will know a moment later


class ApiError(PoolshiftError):
    """An answer of the API server that is not a success and has no class of its own. See `.status`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxInfo:
    """Present when the kubeconfig says that the cluster is poolshift's own simulation."""

    scenario: str
    control_plane: str
    clock: Clock
    aws_endpoint: str = ""
    gke_endpoint: str = ""


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
    patience: float = OUTAGE_SECONDS
    """Wall-clock seconds for which a server that has answered before may be away, over all requests together."""
    _answered: bool = False
    _away_since: float | None = None
    _back_since: float | None = None
    _credentials: Mapping[str, str] = field(default_factory=dict)
    _credentials_asked: float = float("-inf")
    _renewing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

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
                Retry-After), is sent again in any case, until `patience` is spent.

        Raises:
            NotFound, Forbidden, Conflict: 404, 403, 409.
            Unreachable: no answer, 408, 429, 5xx. `.status` tells which.
            ApiError: any other refusal (400, 405, 410, 415, 422, …).

        """
        payload = None if body is None else orjson.dumps(body)

        def ask() -> dict[str, Any]:
            response = self.open(method, path, body=payload, params=params, content_type=content_type, timeout=timeout)
            return _object(_data(response, method, path), method, path)

        return self._insist(ask, again=method == "GET" if retry is None else retry)

    def _insist(self, ask: Callable[[], Answer], *, again: bool) -> Answer:
        """Ask until there is an answer, or a refusal that will not pass. `again`: it may be sent twice in any case."""
        began = time.monotonic()
        for attempt in itertools.count():
            try:
                return ask()
            except PoolshiftError as failure:
                error = failure
            if isinstance(error, Forbidden) and self._is_just_back():
                SystemClock().sleep(0.5)
                continue
            away = self._is_only_away(error)
            busy = _is_busy(error) and time.monotonic() - began < self.patience
            if not (_passing(error) and (again or busy or (away and _was_never_sent(error)))):
                raise error
            if attempt + 1 >= READ_TRIES and not (away or busy):
                raise error
            status = error.status
            SystemClock().sleep(min(5.0, (status and status.retry_after) or 0.1 * 2 ** min(attempt, 6)))
        raise AssertionError("unreachable: the loop returns or raises")

    def _is_only_away(self, error: PoolshiftError) -> bool:
        """No answer from a server that has answered before, and that not for longer than our patience."""
        if not self._answered or error.status is not None:
            return False
        now = time.monotonic()
        self._away_since = self._away_since or now
        return now - self._away_since < self.patience

    def _is_just_back(self) -> bool:
        return self._back_since is not None and time.monotonic() - self._back_since < RBAC_SECONDS

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
        if self._away_since is not None:
            self._back_since = time.monotonic()
        self._answered, self._away_since = True, None
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

    def delete(self, path: str, *, uid: str | None = None, propagation: str | None = "Background") -> None:
        """Ask for deletion; absent, or present under another UID, is success."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation:
            body["propagationPolicy"] = propagation
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", path, body=body, retry=True)
        except NotFound:
            return
        except Conflict:
            if uid is None:
                raise

    def text(self, path: str, params: Mapping[str, Any] | None = None, *, timeout: float = 60.0) -> bytes:
        """A plain-text answer (pod logs). Tried again, and errors, as in `request`."""

        def ask() -> bytes:
            return _data(self.open("GET", path, params=params, timeout=timeout, accept="*/*"), "GET", path)

        return self._insist(ask, again=True)


def translate(method: str, path: str, code: int, body: bytes, retry_after: str | None) -> PoolshiftError:
    """An HTTP error as ours. Bodies that are no Status are cut to 256 characters: they may hold anything."""
    status = read_status(code, body, retry_after)
    what = f"{method} {path}"
    said = f"{code} {status.reason}: {status.message}".strip()
    error: PoolshiftError
    if code == 404:
        error = NotFound(what, said)
    elif code == 403:
        error = Forbidden(what, said, remedy=_permission_remedy(status.message))
    elif code == 401:
        error = Forbidden(what, said, remedy="renew the kubeconfig's credentials, then: kubectl auth whoami")
    elif code == 409:
        error = Conflict(what, said)
    elif code in (408, 429) or code >= 500:
        error = Unreachable(what, said)
    else:
        error = ApiError(what, said)
    error.status = status
    return error


def read_status(code: int, body: bytes, retry_after: str | None) -> Status:
    """Parse a Status object; anything else becomes a Status with a shortened message."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raw = None
    seconds = int(retry_after) if retry_after and retry_after.isdigit() else None
    if not isinstance(raw, dict) or raw.get("kind") != "Status":
        return Status(code=code, message=body[:256].decode(errors="replace").strip(), retry_after=seconds)
    details = raw.get("details") or {}
    return Status(
        code=code,
        reason=raw.get("reason") or "",
        message=raw.get("message") or "",
        causes=tuple(details.get("causes") or ()),
        retry_after=seconds if seconds is not None else details.get("retryAfterSeconds"),
        details=details,
    )


def _permission_remedy(message: str) -> str:
    """From 'User "x" cannot list resource "nodes" in API group "" …' the rule to add."""
    parts = message.split('"')
    if " cannot " in message and len(parts) >= 6:
        verb = message.split(" cannot ", 1)[1].split(" ", 1)[0]
        resource, group = parts[3], parts[5]
        return (
            f'add verb "{verb}" on resource "{resource}" in apiGroup "{group}" to the role of {parts[1]} '
            f"(infra/deploy/rbac.yaml has all rules)"
        )
    return "compare the user's role with infra/deploy/rbac.yaml: kubectl auth can-i --list"


def _passing(error: PoolshiftError) -> bool:
    """May the same request succeed a moment later? A 429 with a budget's cause is an answer, not an accident."""
    if not isinstance(error, Unreachable):
        return False
    status = error.status
    if status is None:
        return True
    if any(cause.get("reason") == "DisruptionBudget" for cause in status.causes):
        return False
    return status.code in (408, 429, 500, 502, 503, 504)


def _is_busy(error: PoolshiftError) -> bool:
    """The server's own priority and fairness turned the request away before anybody looked at it.

    Recorded: 429 in plain text with `Retry-After: 1`. A webhook that answers 429 names no time.
    """
    status = error.status
    return status is not None and status.code == 429 and status.retry_after is not None and _passing(error)


def _was_never_sent(error: PoolshiftError) -> bool:
    """The connection was refused, so the server cannot have acted on the request."""
    import urllib3

    cause: BaseException | None = error.__cause__
    while isinstance(reason := getattr(cause, "reason", None), BaseException):
        cause = reason
    return isinstance(cause, urllib3.exceptions.NewConnectionError)


def _data(response: BaseHTTPResponse, method: str, path: str) -> bytes:
    """The body of a success; an HTTP error is raised as ours."""
    if response.status >= 400:
        raise translate(method, path, response.status, response.data, response.headers.get("Retry-After"))
    return response.data


def _object(data: bytes, method: str, path: str) -> dict[str, Any]:
    if not data:
        return {}
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as cause:
        raise Unreachable(f"{method} {path}", f"the answer is no JSON: {data[:80]!r}") from cause
    if not isinstance(raw, dict):
        raise Unreachable(f"{method} {path}", f"the answer is a {type(raw).__name__}, not an object")
    return raw


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
    from kubernetes import config

    path = _kubeconfig_path(cluster)
    configuration = k8s.Configuration()
    context_name, extension = "", None
    if path is None:
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except config.ConfigException as cause:
            raise BadSpec(
                "kubeconfig",
                f"none at {_default_kubeconfig()} and not inside a cluster",
                expected="a kubeconfig with a context for the cluster",
                remedy="name it: --kubeconfig, $KUBECONFIG or cluster.kubeconfig; for a trial: poolshift sandbox",
            ) from cause
    else:
        raw = _read_kubeconfig(path)
        context_name, extension = _context_of(raw, cluster.context, path)
        try:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(path),
                context=context_name,
                client_configuration=configuration,
                persist_config=False,
            )
        except (config.ConfigException, OSError, ValueError) as cause:
            raise BadSpec(
                f"kubeconfig {path}", str(cause), remedy=f"kubectl --kubeconfig {path} config view"
            ) from cause
        _require_identity(raw, context_name, configuration, path)
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False
    sandbox = _sandbox(extension)
    try:
        client = k8s.ApiClient(configuration)
    except ImportError as cause:  # only a SOCKS proxy needs more than the client brings
        raise BadSpec(
            f"proxy of {configuration.host}", f"is SOCKS: {cause}", remedy=f"{sys.executable} -m pip install pysocks"
        ) from cause
    return Kube(
        client=client,
        server=configuration.host.rstrip("/"),
        context=context_name,
        namespace=cluster.namespace,
        clock=sandbox.clock if sandbox else SystemClock(),
        sandbox=sandbox,
    )


def _default_kubeconfig() -> Path:
    return Path(os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or "~/.kube/config").expanduser()


def _kubeconfig_path(cluster: Cluster) -> Path | None:
    if cluster.kubeconfig:
        path = Path(cluster.kubeconfig).expanduser()
        if not path.is_file():
            raise BadSpec(
                "cluster.kubeconfig",
                f"no file {path}",
                expected="the path of a kubeconfig",
                remedy="correct --kubeconfig (cluster.kubeconfig of a spec), or leave it out to use $KUBECONFIG",
            )
        return path
    path = _default_kubeconfig()
    return path if path.is_file() else None


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    import yaml

    try:
        raw = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
        raise BadSpec(f"kubeconfig {path}", f"cannot be read: {cause}") from cause
    if not isinstance(raw, dict) or not raw.get("contexts"):
        raise BadSpec(
            f"kubeconfig {path}", "has no contexts", remedy=f"kubectl --kubeconfig {path} config get-contexts"
        )
    return raw


def _context_of(raw: Mapping[str, Any], wanted: str | None, path: Path) -> tuple[str, Mapping[str, Any] | None]:
    """The context's name and the sandbox extension of its cluster entry, if it has one."""
    contexts = {c.get("name"): c.get("context") or {} for c in raw["contexts"]}
    name = wanted or raw.get("current-context") or ""
    if name not in contexts:
        raise BadSpec(
            f"kubeconfig {path}",
            f"no context {name!r}" if name else "no current context",
            expected="one of " + ", ".join(sorted(str(c) for c in contexts)),
            remedy="correct cluster.context",
        )
    clusters = {c.get("name"): c.get("cluster") or {} for c in raw.get("clusters") or ()}
    for entry in clusters.get(contexts[name].get("cluster"), {}).get("extensions") or ():
        if entry.get("name") == EXTENSION:
            return name, entry.get("extension") or {}
    return name, None


def _require_identity(raw: Mapping[str, Any], context: str, configuration: k8s.Configuration, path: Path) -> None:
    """Raise BadSpec where the client acts as another one than the context says."""
    contexts = {c.get("name"): c.get("context") or {} for c in raw["contexts"]}
    name = contexts[context].get("user")
    user = next((u.get("user") or {} for u in raw.get("users") or () if u.get("name") == name), {})
    what = f"kubeconfig {path}, user {name}"
    if user.get("as"):
        raise BadSpec(
            what,
            f"acts as {user['as']}, which the client library leaves out: we would act as {name}",
            expected="a user that acts for itself",
            remedy=f"name a context with credentials of {user['as']} (cluster.context)",
        )
    plugin = (user.get("exec") or {}).get("command")
    if plugin and not (configuration.api_key or configuration.cert_file):
        raise BadSpec(
            what,
            f"its credential plugin {plugin} gave neither token nor certificate",
            expected="credentials",
            remedy=f"log in, then: kubectl --kubeconfig {path} --context {context} auth whoami",
        )


def _sandbox(extension: Mapping[str, Any] | None) -> SandboxInfo | None:
    if extension is None:
        return None
    clock = extension.get("clock") or {}
    origin = clock.get("origin")
    moment = origin if isinstance(origin, datetime) else parse_time(str(origin))
    return SandboxInfo(
        scenario=str(extension.get("scenario", "")),
        control_plane=str(extension.get("control_plane", "embedded")),
        clock=ScaledClock(origin=moment, started=float(clock["started"]), rate=float(clock["rate"])),
        aws_endpoint=str((extension.get("aws") or {}).get("endpoint", "")),
        gke_endpoint=str((extension.get("gke") or {}).get("endpoint", "")),
    )
