"""One kept connection per thread, for the thousands of small writes of a drain, and the streams of its watches.

The official client's pool costs about three times as much processor time per request (measured: 1,170 against 400 µs
side by side), and per piece of a stream (a TLS record, of which an event of 4.7 KB is four), which at hundreds of
evictions a second is what limits a drain. Addresses, certificates and tokens are the client's own; where its
configuration asks for more (a proxy, another TLS name), its pool is used.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from infra.errors import Unreachable
from infra.kube.api import JSON, Kube

IDLE = 5.0  # wall-clock seconds after which a kept connection may have been closed by the other side


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A kept connection and when it was last used."""

    connection: http.client.HTTPConnection
    used: float


class Stream(Protocol):
    """An answer that is read while it comes. All may raise OSError, ValueError, AttributeError or HTTPError."""

    status: int

    def read1(self, amt: int) -> bytes:
        """What is there, at most so many bytes; nothing at the end."""

    def read(self) -> bytes:
        """All of it."""

    def shutdown(self) -> None:
        """From another thread: end it under its reader."""

    def close(self) -> None:
        """Give the connection back, or up."""


class _Stream:
    """A connection of its own, given up at the end.

    It takes the frames of a chunked answer off itself, as many at once as have come: `http.client` reads each in four
    pieces (measured: 0.8 ms for the events of one evicted pod, of which this leaves a third).
    """

    def __init__(
        self, raw: socket.socket, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._socket, self._connection, self._response = raw, connection, response
        self.status, self.read = response.status, response.read
        self._left = 0  # bytes that the frame at hand still has
        self._rest = b""  # a head of a frame, of which the end has not come yet
        self._over = False

    def read1(self, amt: int) -> bytes:
        if not self._response.chunked:
            return self._response.read1(amt)
        found = b""
        while not found and not self._over:
            piece = self._response.fp.read1(amt)
            self._over = not piece
            found = self._unframed(self._rest + piece)
        return found

    def _unframed(self, data: bytes) -> bytes:
        parts = []
        at = 0
        while at < len(data) and not self._over:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            if end > at:  # else the end of the frame before
                self._left = int(data[at:end].split(b";")[0], 16)
                self._over = self._left == 0
            at = end + 2
        self._rest = data[at:]
        return b"".join(parts)

    def shutdown(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._response.close()
        self._connection.close()
        self._socket.close()


class Lines:
    """Connections to one cluster, one per calling thread. `close` ends the caller's own."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._local = threading.local()
        configuration = kube.client.configuration
        self._plain = not (getattr(configuration, "proxy", None) or getattr(configuration, "tls_server_name", None))
        self._server = urlsplit(kube.server)

    def send(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, str | None, bytes]:
        """(status, Retry-After, body) of one request. Raises Unreachable when there is no answer: it may have acted."""
        if not self._plain:
            reply = self._kube.open(method, path, body=body, timeout=timeout)
            return reply.status, reply.headers.get("Retry-After"), reply.data
        headers, asked = self._headers(), monotonic()
        try:
            connection = self._connection(timeout)
            connection.request(method, self._server.path + path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except (http.client.HTTPException, OSError) as cause:
            self.close()
            raise self._silent(method, path, cause, asked) from cause
        self._answered(response.status)
        self._local.line = Line(connection=connection, used=monotonic())
        return response.status, response.headers.get("Retry-After"), data

    def stream(self, path: str, params: Mapping[str, Any], *, connect: float, silence: float) -> Stream:
        """The answer to a GET, as it comes. Wall-clock seconds; `silence`: without a byte. Raises Unreachable."""
        if not self._plain:
            answer: Stream = self._kube.open("GET", path, params=params, timeout=(connect, silence), preload=False)
            return answer
        headers, connection, asked = self._headers(), None, monotonic()
        try:
            connection = self._fresh(connect)
            connection.connect()
            connection.sock.settimeout(silence)
            raw = connection.sock
            target = f"{self._server.path}{path}?{urlencode({k: v for k, v in params.items() if v is not None})}"
            connection.request("GET", target, None, headers)
            response = connection.getresponse()
        except (http.client.HTTPException, OSError) as cause:
            if connection is not None:
                connection.close()
            raise self._silent("GET", path, cause, asked) from cause
        self._answered(response.status)
        return _Stream(raw, connection, response)

    def close(self) -> None:
        """End the calling thread's connection."""
        line: Line | None = getattr(self._local, "line", None)
        if line is not None:
            line.connection.close()
            self._local.line = None

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        line: Line | None = getattr(self._local, "line", None)
        if line is not None and monotonic() - line.used < IDLE:
            return line.connection
        self.close()
        fresh = self._fresh(timeout)
        self._local.line = Line(connection=fresh, used=monotonic())
        return fresh

    def _fresh(self, timeout: float) -> http.client.HTTPConnection:
        """Raises OSError. Certificates are read for each connection, as the client does: files are renewed in place."""
        host = self._server.hostname or ""
        if self._server.scheme == "https":
            return http.client.HTTPSConnection(host, self._server.port, timeout=timeout, context=_tls(self._kube))
        return http.client.HTTPConnection(host, self._server.port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        """Of one request, which is counted."""
        self._kube.requests += 1
        return {"Accept": JSON, "User-Agent": "poolshift", "Content-Type": JSON, **self._kube.credentials()}

    def _answered(self, status: int) -> None:
        self._kube.patience.answered()
        if status == 401:
            self._kube.refused()

    @property
    def is_just_back(self) -> bool:
        """As of the cluster."""
        return self._kube.patience.is_just_back

    def _silent(self, method: str, path: str, cause: Exception, asked: float) -> Unreachable:
        self._kube.patience.unanswered(asked)
        said = f"no answer to {method} {path}: {type(cause).__name__}: {cause}"
        return Unreachable(f"Kubernetes API {self._kube.server}", said)


def _tls(kube: Kube) -> ssl.SSLContext:
    """As the client's own configuration says."""
    configuration = kube.client.configuration
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif configuration.assert_hostname is False:
        context.check_hostname = False
    return context
