"""One kept connection per thread, for the thousands of small writes of a drain.

The official client's pool costs about three times as much processor time per request (measured: 1,170 against 400 µs
side by side), which at hundreds of evictions a second is what limits a drain. Addresses, certificates and tokens are
the client's own; where its configuration asks for more (a proxy, another TLS name), its pool is used.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from infra.errors import Unreachable
from infra.kube.api import JSON, Kube

IDLE = 5.0  # wall-clock seconds after which a kept connection may have been closed by the other side


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A kept connection and when it was last used."""

    connection: http.client.HTTPConnection
    used: float


class Lines:
    """Connections to one cluster, one per calling thread. `close` ends the caller's own."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._local = threading.local()
        configuration = kube.client.configuration
        self._plain = not (getattr(configuration, "proxy", None) or getattr(configuration, "tls_server_name", None))
        self._server = urlsplit(kube.server)
        self._tls = _tls(kube) if self._plain and self._server.scheme == "https" else None

    def send(self, method: str, path: str, body: bytes, timeout: float) -> tuple[int, str | None, bytes]:
        """(status, Retry-After, body) of one request. Raises Unreachable when there is no answer: it may have acted."""
        if not self._plain:
            reply = self._kube.open(method, path, body=body, timeout=timeout)
            return reply.status, reply.headers.get("Retry-After"), reply.data
        headers = {"Accept": JSON, "User-Agent": "poolshift", "Content-Type": JSON}
        self._kube.client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        self._kube.requests += 1
        connection = self._connection(timeout)
        try:
            connection.request(method, self._server.path + path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except (http.client.HTTPException, OSError) as cause:
            self.close()
            raise Unreachable(
                f"Kubernetes API {self._kube.server}", f"no answer to {method} {path}: {type(cause).__name__}: {cause}"
            ) from cause
        self._local.line = Line(connection=connection, used=monotonic())
        return response.status, response.headers.get("Retry-After"), data

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
        host = self._server.hostname or ""
        if self._tls is not None:
            fresh: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, self._server.port, timeout=timeout, context=self._tls
            )
        else:
            fresh = http.client.HTTPConnection(host, self._server.port, timeout=timeout)
        self._local.line = Line(connection=fresh, used=monotonic())
        return fresh


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
