"""What passes through the API server to a pod: exec to the kubelet of its node, HTTP to the pod's own address."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.call import Call
from infra.sandbox.control_plane.kubelets import NODE, Connections, container_of, kubelet_of
from infra.sandbox.control_plane.store import POD

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
# PodExecOptions as the API names them -> as the kubelet does.
_RENAMED = {"stdin": "input", "stdout": "output", "stderr": "error"}
_CARRIED = ("Content-Type", "Accept", "User-Agent")


class Streams(Connections):
    """Connections to kubelets and to pods, each for one request."""

    keep = False

    async def exec(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """GET pods/NAME/exec as a WebSocket, relayed to the kubelet. 400 without an upgrade."""
        pod = self.store.require(POD, call.namespace, call.name)
        container = container_of(pod, call.query.get("container", ""))
        node_name = pod["spec"].get("nodeName")
        if not node_name:
            raise errors.bad_request(f"pod {call.name} does not have a host assigned")
        node = self.store.get(NODE, None, node_name)
        if node is None:
            raise errors.not_found("", "nodes", node_name)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.bad_request("Upgrade request required")
        url = f"{kubelet_of(node)}/exec/{call.namespace}/{call.name}/{container}"
        params = [(_RENAMED.get(k, k), "1" if k in _RENAMED else v) for k, v in _options(request)]
        try:
            behind = await self.client().ws_connect(url, params=params, protocols=PROTOCOLS, max_msg_size=0)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise errors.internal(f"error dialing backend: {problem}") from None
        front = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
        await front.prepare(request)
        back = asyncio.ensure_future(_relay(front, behind))
        try:
            await _relay(behind, front)
        finally:
            back.cancel()
            await behind.close()
            await front.close()
        return front

    async def proxy(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        """Any method on pods/[SCHEME:]NAME[:PORT]/proxy/PATH. 503 where nobody listens.

        The real server refuses pods on loopback addresses; here they are all there is.
        """
        scheme, name, port = _address(call.name)
        pod = self.store.require(POD, call.namespace, name)
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise errors.not_found("", "pods", name)
        if not port:
            ports = [p["containerPort"] for c in pod["spec"]["containers"] for p in c.get("ports") or ()]
            port = str(ports[0]) if ports else "80"
        url = f"{scheme}://{address}:{port}/{call.sub.partition('/')[2]}"
        headers = {k: v for k in _CARRIED if (v := request.headers.get(k))}
        try:
            sent = self.client().request(
                call.method, url, params=_options(request), data=call.body or None, headers=headers
            )
            async with sent as answer:
                kind = {"Content-Type": answer.headers.get("Content-Type", "text/plain")}
                return web.Response(status=answer.status, body=await answer.read(), headers=kind)
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            text = f"error trying to reach service: {problem}"
            raise errors.ApiError(503, "ServiceUnavailable", text) from None


def _options(request: web.BaseRequest) -> list[tuple[str, str]]:
    return [(key, value) for key, value in request.query.items()]


def _address(name: str) -> tuple[str, str, str]:
    """(scheme, pod, port) of NAME, NAME:PORT or SCHEME:NAME:PORT."""
    parts = name.split(":")
    if len(parts) == 3:
        return parts[0] or "http", parts[1], parts[2]
    return "http", parts[0], parts[1] if len(parts) == 2 else ""


async def _relay(source: Any, sink: Any) -> None:
    """Messages from one end to the other until the source closes or the sink has gone."""
    async for message in source:
        try:
            if message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)
        except ConnectionError:
            return
