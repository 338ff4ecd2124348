"""How the sandbox's own clients reach the Kubernetes API: address, credentials, and a small blocking client.

The node agent, the clouds and the assembly are clients like any other, so they run unchanged on the embedded and
on the real control plane.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

if TYPE_CHECKING:
    import urllib3

MERGE_PATCH = "application/merge-patch+json"


class Answer(Exception):
    """The API answered with an error. `status` is the HTTP code, `message` the Status message."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"{method} {path}: {status} {message}")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the API is, and as whom. `ca` and the client certificate are PEM texts."""

    url: str
    token: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @classmethod
    def from_kubeconfig(cls, document: Mapping[str, Any]) -> Access:
        """From a kubeconfig's current context. Inline data and files are both read."""
        context = _named(document["contexts"], document["current-context"])["context"]
        cluster = _named(document["clusters"], context["cluster"])["cluster"]
        user = _named(document["users"], context["user"]).get("user") or {}
        return cls(
            url=cluster["server"].rstrip("/"),
            token=user.get("token", ""),
            ca=_pem(cluster, "certificate-authority"),
            certificate=_pem(user, "client-certificate"),
            key=_pem(user, "client-key"),
        )

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        base = {"Accept": "application/json", "User-Agent": "poolshift-sandbox"}
        return {**base, "Authorization": f"Bearer {self.token}"} if self.token else base

    def ssl_context(self) -> ssl.SSLContext | None:
        """None for plain HTTP."""
        if not self.url.startswith("https"):
            return None
        context = ssl.create_default_context(cadata=self.ca or None)
        if self.certificate:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.certificate + "\n" + self.key)
                file.flush()
                context.load_cert_chain(file.name)
        return context


class Api:
    """A blocking JSON client. Shared by threads."""

    def __init__(self, access: Access) -> None:
        import urllib3

        self.access = access
        self._pool: urllib3.PoolManager = urllib3.PoolManager(
            maxsize=8, retries=False, ssl_context=access.ssl_context()
        )

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """Send one request; the JSON object of the answer, `{}` if it is none. Raises `Answer` from 400 on."""
        url = f"{self.access.url}{path}{'?' + urlencode(params) if params else ''}"
        payload = None if body is None else orjson.dumps(body)
        headers = {**self.access.headers(), "Content-Type": content_type}
        response = self._pool.request(method, url, body=payload, headers=headers, timeout=30.0)
        if response.status >= 400:
            raise Answer(method, path, response.status, _message(response.data))
        return _object(response.data)

    def list_items(self, path: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The items of a list, in one request."""
        return list(self.request("GET", path, params=params).get("items") or [])

    def close(self) -> None:
        """Close idle connections."""
        self._pool.clear()


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _pem(part: Mapping[str, Any], key: str) -> str:
    if f"{key}-data" in part:
        return base64.b64decode(part[f"{key}-data"]).decode()
    return Path(part[key]).read_text() if key in part else ""


def _object(data: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _message(data: bytes) -> str:
    return str(_object(data).get("message") or data[:200].decode(errors="replace"))
