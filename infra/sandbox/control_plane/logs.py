"""Pod logs: fetched from the kubelet of the pod's node, as the real server does."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.resources import by_plural
from infra.sandbox.control_plane.store import POD, Store

Object = dict[str, Any]

NODE = by_plural("", "v1", "nodes")
PASSED_ON = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")
CHUNK = 64 * 1024


class Logs:
    """Streams container logs from kubelets; their certificates are not checked, as on the real server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close connections to kubelets."""
        if self._session is not None:
            await self._session.close()

    async def open(self, call: Call) -> AsyncIterator[bytes] | None:
        """The log of one container, None when there is none yet. 400 on a wrong container, 500 without a kubelet."""
        pod = self._store.require(POD, call.namespace, call.name)
        container = container_of(pod, call.query.get("container", ""))
        node = self._store.get(NODE, None, pod["spec"].get("nodeName", ""))
        if not pod["spec"].get("nodeName"):
            return None
        if node is None:
            raise errors.not_found("", "nodes", pod["spec"]["nodeName"])
        url = f"{kubelet_of(node)}/containerLogs/{call.namespace}/{call.name}/{container}"
        params = {key: call.query[key] for key in PASSED_ON if key in call.query}
        try:
            response = await self._client().get(url, params=params)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise errors.internal(f'Get "{url}": {problem}') from None
        if response.status != 200:
            text = await response.text()
            raise errors.ApiError(
                response.status,
                "BadRequest" if response.status == 400 else "InternalError",
                text.strip() or f"an error on the server ({response.reason}) has prevented the request from succeeding",
            )
        return _chunks(response)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            timeout = aiohttp.ClientTimeout(total=None, connect=10)
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    finally:
        response.release()


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
