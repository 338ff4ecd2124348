"""Lists: selection by index, pages that show one moment, continue tokens that expire."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from infra.sandbox.control_plane import errors
from infra.sandbox.control_plane.resources import Kind
from infra.sandbox.control_plane.selectors import Matcher

if TYPE_CHECKING:
    from infra.sandbox.control_plane.store import Store

Object = dict[str, Any]
Position = tuple[str, str]

TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, kw_only=True)
class Query:
    """What a list asks for. `limit` 0 means all; `version` is None or the moment that the list must show."""

    namespace: str | None
    matcher: Matcher
    limit: int = 0
    token: str = ""
    version: int | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page: its objects, the moment they show, the token of the next page and how many remain (None: unknown)."""

    items: list[Object]
    version: int
    token: str = ""
    remaining: int | None = None


def read_token(token: str) -> tuple[int, Position]:
    """The moment and the last position of a continue token; -1 is "whatever is there now". 400 if it is none."""
    try:
        held = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if held["v"] != "meta.k8s.io/v1":
            raise ValueError(held["v"])
        namespace, _, name = held["start"].rstrip("\x00").rpartition("/")
        return int(held["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        raise errors.bad_request("invalid continue token: continue key is not valid: illegal base64 data") from None


def write_token(version: int, position: Position) -> str:
    """The token that continues after `position` at the moment `version`."""
    namespace, name = position
    held = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{namespace}/{name}\x00"}
    return base64.urlsafe_b64encode(orjson.dumps(held)).decode().rstrip("=")


def page(store: Store, kind: Kind, query: Query) -> Page:
    """One page of a list. 410 when the moment it belongs to is forgotten, 504 when it is still to come."""
    version, after = store.version, None
    if query.version is not None:
        version = query.version
        if version > store.version:
            raise _too_large(version, store.version)
    if query.token:
        version, after = read_token(query.token)
        if version == -1:
            version = store.version
    if version < store.history(kind).compacted:
        raise _expired(query, after)
    if version == store.version:
        return _cut(query, _ordered(store, kind, query, after), version)
    return _cut(query, _as_of(store, kind, replace(query), after, version), version)


def _too_large(asked: int, current: int) -> errors.ApiError:
    cause = errors.Cause(reason="ResourceVersionTooLarge", message="Too large resource version")
    details = {"causes": [cause.to_json()], "retryAfterSeconds": 1}
    return errors.ApiError(504, "Timeout", f"Too large resource version: {asked}, current: {current}", details)


def _expired(query: Query, after: Position | None) -> errors.ApiError:
    if after is None:
        return errors.expired("The resourceVersion for the provided list is too old.")
    refusal = errors.expired(TOO_OLD)
    refusal.continue_token = write_token(-1, after)
    return refusal


def _ordered(store: Store, kind: Kind, query: Query, after: Position | None) -> list[Object]:
    """Current objects after a position, in order, narrowed by what an index knows."""
    matcher = query.matcher
    if matcher.node is not None and kind.key == ("", "pods"):
        pods = store.pods_on(matcher.node) if matcher.node else store.list(kind, query.namespace)
        found = [pod for pod in pods if query.namespace in (None, pod["metadata"]["namespace"])]
        return sorted((pod for pod in found if after is None or position(pod) > after), key=position)
    if after is None:
        return store.list(kind, query.namespace)
    shelf, found = store.shelf(kind), []
    namespaces = shelf.namespaces() if query.namespace is None else [query.namespace]
    for namespace in namespaces:
        if namespace < after[0]:
            continue
        names = shelf.names(namespace)
        start = bisect_right(names, after[1]) if namespace == after[0] else 0
        objects = shelf.by_namespace.get(namespace, {})
        found += [objects[name] for name in names[start:]]
    return found


def _as_of(store: Store, kind: Kind, query: Query, after: Position | None, version: int) -> list[Object]:
    """The objects at an earlier moment: today's, with the changes since then taken back."""
    namespace = query.namespace
    changes = list(store.history(kind).back_to(version))
    if not changes:  # what changed meanwhile was of other kinds
        return _ordered(store, kind, query, after)
    objects = {position(obj): obj for obj in store.list(kind, namespace)}
    for change in changes:
        at = position(change.obj)
        if namespace is not None and at[0] != namespace:
            continue
        if change.old is None:
            objects.pop(at, None)
        else:
            objects[at] = change.old
    return [objects[at] for at in sorted(objects) if after is None or at > after]


def position(obj: Object) -> Position:
    """Where an object stands in the order of lists."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _cut(query: Query, candidates: list[Object], version: int) -> Page:
    matcher, limit = query.matcher, query.limit
    if not limit:
        items = candidates if matcher.empty else [obj for obj in candidates if matcher(obj)]
        return Page(items=items, version=version)
    items = []
    for index, obj in enumerate(candidates):
        if not matcher.empty and not matcher(obj):
            continue
        if len(items) == limit:
            token = write_token(version, position(items[-1]))
            remaining = len(candidates) - index if matcher.empty else None
            return Page(items=items, version=version, token=token, remaining=remaining)
        items.append(obj)
    return Page(items=items, version=version)
