"""Pod logs: fetched from the kubelet of the pod's node, as the real server does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.kubelets import NODE, Connections, container_of, kubelet_of
from infra.sandbox.control_plane.store import POD

PASSED_ON = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream")


class Logs(Connections):
    """Streams container logs from kubelets."""

    async def open(self, call: Call) -> AsyncIterator[bytes] | None:
        """The log of one container, None when there is none yet. 400 on a wrong container, 500 without a kubelet."""
        pod = self.store.require(POD, call.namespace, call.name)
        container = container_of(pod, call.query.get("container", ""))
        node = self.store.get(NODE, None, pod["spec"].get("nodeName", ""))
        if not pod["spec"].get("nodeName"):
            return None
        if node is None:
            raise errors.not_found("", "nodes", pod["spec"]["nodeName"])
        url = f"{kubelet_of(node)}/containerLogs/{call.namespace}/{call.name}/{container}"
        params = {key: call.query[key] for key in PASSED_ON if key in call.query}
        try:
            response = await self.client().get(url, params=params)
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


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    finally:
        response.release()
