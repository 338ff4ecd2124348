"""The node agent's client: JSON over aiohttp, and watches that never miss an object."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import orjson

from infra.sandbox.access import MERGE_PATCH, Access, Answer

Object = dict[str, Any]
CONNECTIONS = 24
FAILED_TRIES = 5  # of a request to which the server says 500
WATCH_SECONDS = 600  # the server ends a watch by itself; the next one goes on from the same version
RETRY_SECONDS = 0.2  # wall-clock: a server that is away is not simulated time
LONGEST_RETRY_SECONDS = 2.0
AGAIN = (408, 429, 500, 502, 503, 504)


class AsyncApi:
    """Requests that wait for a server that is away or busy. Raises `Answer` for every other refusal."""

    def __init__(self, access: Access) -> None:
        self.access = access
        context = access.ssl_context()
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=context if context else False)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=access.headers(),
            timeout=aiohttp.ClientTimeout(total=None, connect=30, sock_read=120),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """Send one request; the JSON object of the answer."""
        payload = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": content_type}
        for attempt in itertools.count():
            try:
                async with self._session.request(
                    method, self.access.url + path, data=payload, params=params, headers=headers
                ) as response:
                    data = await response.read()
                    if response.status < 400:
                        return _object(data)
                    final = response.status not in AGAIN or (response.status == 500 and attempt >= FAILED_TRIES)
                    if final:
                        message = str(_object(data).get("message", ""))[:300]
                        raise Answer(method, path, response.status, message)
            except (aiohttp.ClientError, TimeoutError):
                pass  # the server is away: a kubelet waits for it, however long
            await asyncio.sleep(min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * 2**attempt))
        raise AssertionError("unreachable: the loop returns or raises")

    async def patch(self, path: str, body: object) -> Object | None:
        """A merge patch; None if the object is gone."""
        try:
            return await self.request("PATCH", path, body, content_type=MERGE_PATCH)
        except Answer as answer:
            if answer.status == 404:
                return None
            raise

    async def watch(self, path: str, on_event: Callable[[str, Object], None], *, selector: str = "") -> None:
        """List and then follow, for ever. A list reports all objects as ADDED, and the vanished as DELETED."""
        known: dict[str, Object] = {}
        while True:
            try:
                version = await self._list(path, selector, known, on_event)
                while version:
                    version = await self._follow(path, selector, version, known, on_event)
            except (aiohttp.ClientError, TimeoutError, Answer):
                await asyncio.sleep(RETRY_SECONDS)

    async def _list(
        self, path: str, selector: str, known: dict[str, Object], on_event: Callable[[str, Object], None]
    ) -> str:
        params = {"labelSelector": selector} if selector else {}
        document = await self.request("GET", path, params=params)
        seen = {item["metadata"]["uid"]: item for item in document.get("items") or []}
        for uid in [uid for uid in known if uid not in seen]:
            on_event("DELETED", known.pop(uid))
        for uid, item in seen.items():
            old = known.get(uid)
            known[uid] = item
            if old is None or old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                on_event("ADDED" if old is None else "MODIFIED", item)
        return str(document["metadata"]["resourceVersion"])

    async def _follow(
        self,
        path: str,
        selector: str,
        version: str,
        known: dict[str, Object],
        on_event: Callable[[str, Object], None],
    ) -> str:
        """One watch. Returns the version to go on from, or "" to list again."""
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        if selector:
            params["labelSelector"] = selector
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SECONDS + 60)
        async with self._session.get(self.access.url + path, params=params, timeout=timeout) as response:
            if response.status >= 400:
                return ""
            async for line in _lines(response):
                event = orjson.loads(line)
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    return ""
                version = item["metadata"]["resourceVersion"]
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    known.pop(item["metadata"]["uid"], None)
                else:
                    known[item["metadata"]["uid"]] = item
                on_event(kind, item)
        return version


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def _object(data: bytes) -> Object:
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
