"""What `poolshift audit -f` is given: dumps of any form and several of them, or one plugin's own log."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.clock import parse_time
from infra.errors import BadFile, Unmeasured
from infra.kube import dump, plugins

DUMP = (
    "kubectl get nodes,daemonsets,pods,events -A -o json > dump.json (with a DRA driver: resourceslices as well), "
    "then: poolshift audit -f dump.json"
)
_PACKED: Sequence[tuple[bytes, Callable[[bytes], bytes]]] = (
    (b"\x1f\x8b", gzip.decompress),
    (b"BZh", bz2.decompress),
    (b"\xfd7zXZ\x00", lzma.decompress),
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # what PowerShell's > writes
_YAML = re.compile(rb"^(- )?(apiVersion|kind|items):", re.MULTILINE)


def objects(paths: Sequence[str]) -> Iterator[Mapping[str, Any]] | None:
    """The objects of all files; None where the only one is no dump. Raises BadFile and Unmeasured, naming the file."""
    read = [(path, content(path)) for path in paths]
    texts = [path for path, data in read if not _holds_objects(data)]
    if texts and len(paths) == 1:
        return None
    if texts:
        raise no_objects(texts[0])
    return (obj for path, data in read for obj in dump.parse(data, f"file {path}"))


def no_objects(path: str) -> Unmeasured:
    """The error for a text of which nothing here can be judged."""
    return Unmeasured(
        f"file {path}",
        "is neither a list of Kubernetes objects nor a device plugin's log",
        expected="what kubectl get -o json prints, or a device plugin's own log",
        remedy=DUMP,
    )


def content(path: str) -> bytes:
    """A file's or, for "-", standard input's text, unpacked and in UTF-8. Raises BadFile."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        unpack = next((unpack for magic, unpack in _PACKED if data.startswith(magic)), bytes)
        data = unpack(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as cause:
        why = getattr(cause, "strerror", None) or cause
        raise BadFile(f"file {path}", f"cannot be read: {why}", expected="a readable file", remedy=DUMP) from cause
    if data.startswith(_UTF16):
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(b"\xef\xbb\xbf")


def _holds_objects(data: bytes) -> bool:
    return data.lstrip()[:1] in (b"{", b"[") or _YAML.search(data[: 1 << 16]) is not None


def by_kind(objects: Iterable[Mapping[str, Any]]) -> tuple[dict[str, list[Mapping[str, Any]]], list[str]]:
    """Each object once, by kind, and what of them cannot be judged.

    Dumps overlap: of one object that is there twice the newer counts, and which one that is must be told by its
    resourceVersion.
    """
    found: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    doubts: list[str] = []
    for obj in objects:
        kind, metadata = str(obj.get("kind")), obj.get("metadata")
        if kind == "Status" and obj.get("status") == "Failure":
            doubts.append(f"an error of the API stands in place of objects: {obj.get('message') or obj.get('reason')}")
        if not isinstance(metadata, Mapping) or not metadata.get("name"):
            doubts += [f"a {kind.lower()} without a name: a rest of one, or cut"] if kind in _JUDGED else []
            continue
        same = found.setdefault(kind, {})
        key = (str(metadata.get("namespace") or ""), str(metadata["name"]))
        other = same.get(key)
        if other is not None and other != obj:
            if not (_version(obj) and _version(other)):
                doubts.append(f"{kind.lower()} {metadata['name']} is there twice, and neither says which is newer")
            elif _version(other) > _version(obj):
                continue
        same[key] = obj
    return {kind: list(same.values()) for kind, same in found.items()}, doubts


def _version(obj: Mapping[str, Any]) -> int:
    text = str(obj["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0


_JUDGED = frozenset({"Node", "DaemonSet", "Pod", "ResourceSlice"})
ODD = (AttributeError, KeyError, TypeError, ValueError, OverflowError)  # what reading odd objects ends in


def first_odd(kinds: Mapping[str, Iterable[Mapping[str, Any]]], cause: Exception) -> BadFile:
    """The error for an object that is not built as Kubernetes builds it: left out, it could be the one that matters."""
    for kind, key in (("Node", "nodes"), ("DaemonSet", "daemonsets"), ("Pod", "pods"), ("ResourceSlice", "slices")):
        for obj in kinds.get(kind, ()):
            try:
                plugins.from_objects(**{"nodes": (), "daemonsets": (), "pods": (), key: (obj,)}, taken=_EPOCH)
            except ODD:
                return _odd(f"{kind.lower()} {obj['metadata']['name']}", cause)
    return _odd("one of the objects", cause)


def _odd(what: str, cause: Exception) -> BadFile:
    return BadFile(what, f"is not built as Kubernetes builds it: {cause}", remedy=f"dump it again: {DUMP}")


_EPOCH = datetime.fromtimestamp(0, UTC)


def newest(kinds: Mapping[str, Iterable[Mapping[str, Any]]]) -> datetime:
    """When a dump was taken, or little before: its newest heartbeat, event, or change of a pod or node; else 1970.

    Ages are told from it. Heartbeats come every five minutes at least, but tools that make dumps fit to be shown
    leave them out.
    """
    statuses = [obj.get("status") or {} for kind in ("Node", "Pod") for obj in kinds.get(kind, ())]
    told = [condition for status in statuses for condition in status.get("conditions") or ()]
    moments = [each.get(field) for each in told for field in ("lastHeartbeatTime", "lastTransitionTime")]
    moments += [e.get(field) for e in kinds.get("Event", ()) for field in ("lastTimestamp", "eventTime")]
    return max((t for t in map(_time, moments) if t is not None), default=_EPOCH)


def _time(text: object) -> datetime | None:
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None
