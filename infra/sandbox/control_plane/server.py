"""The HTTP face: paths to calls, calls to answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from email.utils import format_datetime
from typing import Any

import orjson
from aiohttp import web

from infra.clock import parse_time
from infra.sandbox.control_plane import discovery, errors, openapi, subresources, views
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.definitions import Definitions
from infra.sandbox.control_plane.errors import ApiError
from infra.sandbox.control_plane.logs import Logs
from infra.sandbox.control_plane.reads import Reads
from infra.sandbox.control_plane.store import Store
from infra.sandbox.control_plane.streams import Streams
from infra.sandbox.control_plane.types import Types
from infra.sandbox.control_plane.watch import Hub, Watcher
from infra.sandbox.control_plane.writes import Writes

Object = dict[str, Any]

BODY_LIMIT = 3 * 1024 * 1024
"""Bytes, as the real server's limit on a request body."""
JSON = "application/json"
COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
REVIEWS = frozenset({"authorization.k8s.io", "authentication.k8s.io"})
ACCEPTED = ("application/json", "application/*", "*/*", "application/yaml")

ENDPOINTS_NOTICE = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"

log = logging.getLogger(__name__)


def roomy_request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request whose body may be as large as the real server allows."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_LIMIT)


class Server:
    """Answers requests on a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.types = Types()
        self.hub = Hub(store)
        self.definitions = Definitions(store, self.types)
        self.logs = Logs(store)
        self._streams = Streams(store)
        self._dated = self._date_text = ""
        self._reads = Reads(store, self.types)
        self._writes = Writes(store, self.types)

    async def close(self) -> None:
        """End watches and connections to kubelets."""
        self.hub.close()
        await self.logs.close()
        await self._streams.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request, whatever it is."""
        try:
            return await self._route(request)
        except ApiError as refusal:
            return self._refused(refusal)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as problem:  # a defect of ours becomes a Status, never a dropped connection
            log.exception("request failed: %s %s", request.method, request.path_qs)
            return self._refused(ApiError(500, "InternalError", f"Internal error occurred: {problem!r}"))

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        if not parts or parts[0] not in ("api", "apis"):
            return self._outside(request, parts)
        if parts[0] == "api":
            if len(parts) == 1:
                return self._discover(request, core=True)
            group, version, rest = "", parts[1], parts[2:]
        else:
            if len(parts) == 1:
                return self._discover(request, core=False)
            group = parts[1]
            if group not in self.store.registry.groups():
                return self._plain(404, "404 page not found\n")
            if len(parts) == 2:
                return self._answer(
                    discovery.group(self.store.registry, group) | {"kind": "APIGroup", "apiVersion": "v1"}
                )
            version, rest = parts[2], parts[3:]
        if not rest:
            listed = discovery.resource_list(self.store.registry, group, version)
            if listed is None:
                raise errors.no_such_path()
            return self._answer(listed)
        call = self._call(request, group, version, rest)
        if request.can_read_body:
            call.body = await self._body(request)
        return await self._dispatch(request, call)

    # Reading requests

    def _call(self, request: web.BaseRequest, group: str, version: str, rest: list[str]) -> Call:
        namespace: str | None = None
        if rest[0] == "namespaces" and len(rest) > 2 and not (group == "" and rest[2] in ("status", "finalize")):
            namespace, rest = rest[1], rest[2:]
        kind = self.store.registry.find(group, version, rest[0])
        if kind is None or (namespace is not None and not kind.namespaced):
            raise errors.no_such_path()
        name = rest[1] if len(rest) > 1 else ""
        if kind.namespaced and name and namespace is None:
            raise errors.no_such_path()
        headers = request.headers
        call = Call(
            method=request.method,
            kind=kind,
            namespace=namespace,
            name=name,
            sub="/".join(rest[2:]),
            query=request.query,
            accept=headers.get("Accept", ""),
            content_type=headers.get("Content-Type", ""),
            user_agent=headers.get("User-Agent", ""),
        )
        self._check_accept(call.accept)
        return call

    @staticmethod
    def _check_accept(accept: str) -> None:
        if accept and not any(each in accept for each in ACCEPTED):
            listed = "application/json, application/yaml, application/json;stream=watch"
            raise ApiError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {listed}", {})

    @staticmethod
    async def _body(request: web.BaseRequest) -> bytes:
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {BODY_LIMIT}"
            raise ApiError(413, "RequestEntityTooLarge", text) from None

    # Answering

    async def _dispatch(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        if call.kind.plural == "pods" and call.sub.partition("/")[0] == "proxy":
            return await self._streams.proxy(request, call)
        if call.method == "HEAD":
            call.method = "GET"
        if call.method in ("POST", "PUT", "PATCH", "DELETE"):
            call.check()
        if call.sub and call.sub != "status":
            return await self._subresource(request, call)
        verb = (OBJECT_VERBS if call.name else COLLECTION_VERBS).get(call.method)
        if call.sub == "status":
            if not call.kind.has_status:
                raise errors.no_such_path()
            if verb not in ("get", "update", "patch"):
                raise errors.method_not_allowed()
        elif verb not in call.kind.verbs:
            raise errors.method_not_allowed()
        if verb == "list" and call.query.get("watch") in ("true", "1", "True"):
            return await self._watch(request, call)
        return self._verb(call, verb or "")

    def _verb(self, call: Call, verb: str) -> web.StreamResponse:
        if verb == "create":
            return self._create(call)
        if verb == "list":
            return self._answer(self._reads.list(call), call)
        if verb == "get":
            return self._answer(self._reads.get(call), call)
        if verb == "update":
            existed = self.store.get(call.kind, call.namespace, call.name) is not None
            return self._answer(self._written(call, self._writes.replace(call)), call, 200 if existed else 201)
        if verb == "patch":
            obj, created = self._writes.patch(call)
            return self._answer(self._written(call, obj), call, 201 if created else 200)
        if verb == "delete":
            obj, code = self._reads.delete(call)
            return self._answer(obj, call, code)
        return self._answer(self._reads.delete_collection(call), call)

    def _written(self, call: Call, obj: Object) -> Object:
        return self._reads.render(call, views.shown(call.kind, obj))

    def _create(self, call: Call) -> web.StreamResponse:
        if call.kind.group in REVIEWS:
            return self._answer(subresources.review(call), call, 201)
        if call.kind.plural == "bindings" and not call.kind.group:
            name = call.object().get("metadata", {}).get("name", "")
            return self._answer(subresources.bind(self.store, call, name), call, 201)
        if call.kind.namespaced and call.namespace is None:
            raise errors.method_not_allowed()
        return self._answer(self._written(call, self._writes.create(call)), call, 201)

    async def _subresource(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        if call.sub in ("ephemeralcontainers", "resize") and call.method in ("POST", "DELETE"):
            raise errors.method_not_allowed()
        if call.sub in discovery.not_offered(call.kind):
            raise errors.not_offered(f"{call.kind.plural}/{call.sub}")
        if call.sub.partition("/")[0] not in call.kind.subresources:
            raise errors.no_such_path()
        key = (call.kind.plural, call.sub, call.method)
        if call.sub == "scale":
            if call.method == "GET":
                return self._answer(subresources.read_scale(self.store, call), call)
            if call.method in ("PUT", "PATCH"):
                return self._answer(subresources.write_scale(self.store, call), call)
        elif key == ("pods", "eviction", "POST"):
            return self._answer(subresources.evict(self.store, call), call, 201)
        elif key == ("pods", "binding", "POST"):
            return self._answer(subresources.bind(self.store, call, call.name), call, 201)
        elif key in (("pods", "exec", "GET"), ("pods", "exec", "POST")):
            return await self._streams.exec(request, call)
        elif key == ("pods", "log", "GET"):
            return await self._log(request, call)
        elif key == ("namespaces", "finalize", "PUT"):
            return self._answer(subresources.finalize_namespace(self.store, call), call)
        elif key == ("serviceaccounts", "token", "POST"):
            return self._answer(subresources.token(self.store, call), call, 201)
        elif call.sub == "ephemeralcontainers":
            raise errors.not_offered("pods/ephemeralcontainers")
        raise errors.method_not_allowed()

    async def _log(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        chunks = await self.logs.open(call)
        if chunks is None:
            return web.Response(status=204, headers={"Date": self._date()})
        response = web.StreamResponse(headers={"Content-Type": "text/plain", "Date": self._date()})
        await response.prepare(request)
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _watch(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        query = call.query
        if call.name and not call.query.get("fieldSelector"):
            raise errors.method_not_allowed()
        seconds = float(query["timeoutSeconds"]) if query.get("timeoutSeconds", "").isdigit() else None
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        initial = query.get("sendInitialEvents") in ("true", "1")
        namespace = call.namespace if call.kind.namespaced else None
        watcher = Watcher(call.kind, namespace, self._reads.matcher(call), self._reads.event(call))
        response = web.StreamResponse(headers={"Content-Type": JSON, "Date": self._date()})
        response.enable_chunked_encoding()
        try:
            self.hub.open(watcher, query.get("resourceVersion", ""), initial=initial, bookmarks=bookmarks)
        except ApiError as refusal:
            if refusal.code != 410:
                raise
            # The real server accepts the watch and says in it that the past is gone.
            await response.prepare(request)
            status = {"type": "ERROR", "object": refusal.to_status()}
            await response.write(orjson.dumps(status, option=orjson.OPT_APPEND_NEWLINE))
            return response
        await response.prepare(request)
        with contextlib.suppress(ConnectionResetError):  # the client left first, as watchers do
            await self.hub.run(watcher, response.write, seconds, bookmarks=bookmarks)
            await response.write_eof()
        return response

    # Outside the resources

    def _discover(self, request: web.BaseRequest, *, core: bool) -> web.Response:
        if discovery.AGGREGATED in request.headers.get("Accept", ""):
            body = discovery.aggregated(self.store.registry, core=core)
            kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            return self._response(200, orjson.dumps(body), kind)
        if core:
            return self._answer(discovery.core_versions(request.host))
        return self._answer(discovery.group_list(self.store.registry))

    def _outside(self, request: web.BaseRequest, parts: list[str]) -> web.Response:
        path = "/".join(parts)
        if path in ("healthz", "livez", "readyz", "readyz/ping", "livez/ping"):
            return self._plain(200, "ok")
        if path == "version":
            return self._answer(discovery.version())
        if path == "openapi/v3":
            return self._answer(openapi.index(self.store.registry))
        if path.startswith("openapi/v3/api"):
            group, version = (parts[3], parts[4]) if len(parts) == 5 else ("", parts[-1])
            custom = self.definitions.schemas.get((group, version), {})
            body = openapi.document(self.store.registry, group, version, custom)
            if body is not None:
                return self._answer(body)
        if not parts:
            return self._answer(
                {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
            )
        return self._plain(404, "404 page not found\n")

    # Responses

    def _date(self) -> str:
        moment = self.store.now()
        if moment != self._dated:
            self._dated, self._date_text = moment, format_datetime(parse_time(moment), usegmt=True)
        return self._date_text

    def _answer(self, body: Any, call: Call | None = None, code: int = 200) -> web.Response:
        response = self._response(code, orjson.dumps(body), JSON)
        if call is not None:
            if call.kind.plural == "endpoints":
                call.warnings.append(ENDPOINTS_NOTICE)
            for warning in dict.fromkeys(call.warnings):
                escaped = warning.replace("\\", "\\\\").replace('"', '\\"')
                response.headers.add("Warning", f'299 - "{escaped}"')
        return response

    def _refused(self, refusal: ApiError) -> web.Response:
        response = self._response(refusal.code, orjson.dumps(refusal.to_status()), JSON)
        retry = (refusal.details or {}).get("retryAfterSeconds")
        if retry:
            response.headers["Retry-After"] = str(retry)
        return response

    def _plain(self, code: int, text: str) -> web.Response:
        return self._response(code, text.encode(), "text/plain; charset=utf-8")

    def _response(self, code: int, body: bytes, kind: str) -> web.Response:
        return web.Response(status=code, body=body, headers={"Content-Type": kind, "Date": self._date()})
