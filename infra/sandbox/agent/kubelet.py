"""The port of a kubelet: container logs and exec over TLS on loopback, for all simulated nodes at once."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from aiohttp import web

from infra.clock import Clock, parse_time
from infra.sandbox.agent.logs import Log, LogBook, Request
from infra.sandbox.agent.status import ADDRESS

STDOUT, STDERR, ERROR = 1, 2, 3  # channels of an exec stream: the first byte of each message
Command = Callable[[str, str, list[str]], Awaitable[tuple[int, str]]]
"""Runs a command in a pod (namespace, name): its exit status, and what it printed."""
FOLLOW_SECONDS = 0.1  # wall-clock, between two looks at a log that is followed


class Kubelet:
    """Serves GET /containerLogs/… and /exec/{namespace}/{pod}/{container}, as the API server asks for them."""

    def __init__(self, book: LogBook, clock: Clock, alive: Callable[[str, str], bool], command: Command) -> None:
        self._book, self._clock, self._alive, self._command = book, clock, alive, command
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application(middlewares=[_one_request])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, ADDRESS, 0, ssl_context=_self_signed())
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the port."""
        if self._runner:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info
        log = self._book.find(where["namespace"], where["pod"], where["container"])
        if log is not None and request.query.get("previous") == "true":
            log = log.previous
        if log is None:
            name = f"{where['namespace']}/{where['pod']}"
            kind = "previous terminated container" if request.query.get("previous") == "true" else "container"
            text = f"{kind} {where['container']!r} in pod {where['pod']!r} not found: {name} has no log"
            return web.Response(status=400, text=text)
        asked = _request(request.query, self._clock.now())
        entries = log.read(self._clock.now())
        if request.query.get("follow") != "true":
            return web.Response(text=asked.show(entries))
        return await self._follow(request, log, asked, len(entries), asked.show(entries))

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        """Version 4 or 5 of the stream protocol over a WebSocket: stdout, then the status on the error channel."""
        where = request.match_info
        if not self._alive(where["namespace"], where["pod"]):
            return web.Response(status=404, text=f'container not found ("{where["container"]}")')
        stream = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await stream.prepare(request)
        command = request.query.getall("command", [])
        code, printed = await self._command(where["namespace"], where["pod"], command)
        if printed:
            await stream.send_bytes(bytes([STDERR if code else STDOUT]) + printed.encode())
        status: dict[str, object] = {"metadata": {}, "status": "Success"}
        if code:
            cause = {"reason": "ExitCode", "message": str(code)}
            text = f"command terminated with non-zero exit code: exit status {code}"
            status |= {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": text,
                "details": {"causes": [cause]},
            }
        await stream.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
        await stream.close()
        return stream

    async def _follow(
        self, request: web.Request, log: Log, asked: Request, shown: int, first: str
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/plain"
        response.force_close()
        await response.prepare(request)
        await response.write(first.encode())
        where = request.match_info
        while log.ended is None and self._alive(where["namespace"], where["pod"]):
            await asyncio.sleep(FOLLOW_SECONDS)
            shown = await self._more(response, log, asked, shown)
        await self._more(response, log, asked, shown)
        await response.write_eof()
        return response

    async def _more(self, response: web.StreamResponse, log: Log, asked: Request, shown: int) -> int:
        entries = log.read(self._clock.now())
        if len(entries) > shown:
            await response.write("".join(asked.lines(entries[shown:])).encode())
        return len(entries)


@web.middleware
async def _one_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """No kept connections: a TLS connection that is idle at the end is never closed properly."""
    response = await handler(request)
    if not isinstance(response, web.WebSocketResponse):
        response.force_close()
    return response


def _request(values: Mapping[str, str], now: datetime) -> Request:
    since = None
    if values.get("sinceSeconds"):
        since = now - timedelta(seconds=int(values["sinceSeconds"]))
    elif values.get("sinceTime"):
        since = parse_time(values["sinceTime"])
    return Request(
        tail=int(values["tailLines"]) if values.get("tailLines") else None,
        limit_bytes=int(values["limitBytes"]) if values.get("limitBytes") else None,
        timestamps=values.get("timestamps") == "true",
        since=since,
    )


def _self_signed() -> ssl.SSLContext:
    """A server context with a certificate that nobody checks, as the API server does with kubelets by default."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "simulated-kubelet")])
    now = datetime.now(UTC)  # of the certificate: the wall clock's, since TLS looks at that one
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context
