"""Kubelets as the API server reaches them: where one listens, and which of a pod's containers is meant."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]

NODE = by_plural("", "v1", "nodes")


class Connections:
    """Made when first needed. Certificates of kubelets are not checked, as on the real server.

    `keep`: whether a connection serves another request after its first.
    """

    keep = True

    def __init__(self, store: Store) -> None:
        self.store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close them."""
        if self._session is not None:
            await self._session.close()

    def client(self) -> aiohttp.ClientSession:
        """What sends requests over them."""
        if self._session is None:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, connect=10),
                connector=aiohttp.TCPConnector(ssl=context, limit=0, force_close=not self.keep),
            )
        return self._session


def container_of(pod: Object, asked: str) -> str:
    """The container that is meant. 400 if it must be named or does not exist."""
    spec, name = pod["spec"], pod["metadata"]["name"]
    names = [each["name"] for each in spec.get("containers", ())]
    if not asked:
        if len(names) == 1:
            return str(names[0])
        listed = " ".join(names)
        text = f"a container name must be specified for pod {name}, choose one of: [{listed}]"
        inits = [each["name"] for each in spec.get("initContainers") or ()]
        if inits:
            text += f" or one of the init containers: [{' '.join(inits)}]"
        raise errors.bad_request(text)
    known = names + [
        each["name"] for group in ("initContainers", "ephemeralContainers") for each in spec.get(group) or ()
    ]
    if asked not in known:
        raise errors.bad_request(f"container {asked} is not valid for pod {name}")
    return asked


def kubelet_of(node: Object) -> str:
    """Where the kubelet of a node listens. 500 without an address."""
    status = node.get("status", {})
    addresses = {each["type"]: each["address"] for each in reversed(status.get("addresses") or ())}
    host = addresses.get("InternalIP") or addresses.get("Hostname")
    if host is None:
        raise errors.internal(f"no preferred addresses found; known addresses: {status.get('addresses') or []}")
    port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port", 10250)
    return f"https://{host}:{port}"
