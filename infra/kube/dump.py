"""Items of a kubectl dump, one at a time, so that a dump of 100,000 pods costs no more than its pods.

kubectl prints a List with fixed indentation, and a JSON string holds no raw line break: so the lines that open and
close an item are found by searching for bytes. Anything printed otherwise is parsed as a whole.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from infra.errors import BadFile

_OPEN, _CLOSE = b"\n        {", b"\n        }"
MAKE = "kubectl get nodes,pods,pdb,deploy,rs,sts,ds,jobs,pvc,pv -A -o json > FILE"
# Where Kueue alone starts what it has admitted, where its queues lead is part of the answer.
WHOLE = f"{MAKE}; where Kueue runs, also workloads.kueue.x-k8s.io,localqueues,clusterqueues,resourceflavors"
_LARGE = 32 << 20  # bytes; below this a whole parse is cheaper than care
_MORE = re.compile(rb'"(?:continue": "[^"]|remainingItemCount": [1-9])')  # what a list says that is only a page of one


def items(path: Path) -> Iterator[dict[str, Any]]:
    """Every object of the file. Raises BadFile naming the file and what is wrong with it."""
    try:
        size = path.stat().st_size
        if size > _LARGE:
            yield from _large(path)
            return
        data = path.read_bytes()
    except OSError as cause:
        raise BadFile(
            f"file {path}", f"cannot be read: {cause.strerror or cause}", expected="a readable file", remedy=MAKE
        ) from cause
    yield from parse(data, f"file {path}")


def _large(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if not data[:4096].lstrip().startswith(b"{") or data.find(b'\n    "items": [', 0, 4096) < 0:
            yield from parse(bytes(data), f"file {path}")
            return
        at, first = 0, data.find(_OPEN)
        while (start := data.find(_OPEN, at)) >= 0:
            end = data.find(_CLOSE, start)
            if end < 0:
                raise BadFile(
                    f"file {path}", f"ends within an object that begins at byte {start}", remedy="dump it again"
                )
            at = end + len(_CLOSE)
            where = f"file {path}, byte {start}"
            yield from _flat(_json(data[start:at], where), where)
        if b"]" not in data[at : at + 16] or not data[-64:].rstrip().endswith(b"}"):
            raise BadFile(f"file {path}", f"ends within its list, after byte {at}", remedy="dump it again")
        if _MORE.search(data[: max(first, 0)] + data[at:]):
            raise _page(f"file {path}")


def parse(data: bytes, source: str) -> Iterator[dict[str, Any]]:
    """Every object of a text: a List, one object, several JSON texts in a row, or YAML documents."""
    text = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not text:
        return
    if text[:1] in (b"{", b"["):
        try:
            yield from _flat(orjson.loads(text), source)
        except orjson.JSONDecodeError:
            yield from _several(text.decode(errors="replace"), source)
        return
    yield from _yaml(text, source)


def _several(text: str, source: str) -> Iterator[dict[str, Any]]:
    """JSON texts one after another, as several kubectl calls into one file leave them."""
    import json

    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as cause:
            raise BadFile(source, f"is no JSON: {cause}", remedy="dump it again with -o json") from cause
        yield from _flat(value, source)
        while at < len(text) and text[at].isspace():
            at += 1


def _yaml(text: bytes, source: str) -> Iterator[dict[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for document in yaml.load_all(text, Loader=loader):
            yield from _flat(_plain(document), source)
    except yaml.YAMLError as cause:
        raise BadFile(source, f"is neither JSON nor YAML: {str(cause)[:200]}", remedy=MAKE) from cause


def _plain(value: Any) -> Any:
    """YAML's own time stamps as the text that JSON has."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def _json(data: bytes, source: str) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as cause:
        raise BadFile(source, f"is no JSON: {cause}", remedy="dump it again with -o json") from cause


def _flat(value: Any, source: str) -> Iterator[dict[str, Any]]:
    """Lists within lists, down to objects; items of a PodList carry no kind, so the list's lends it.

    What has no kind is refused: kubectl writes a YAML list's kind after its items, so a cut dump has none, and an
    object that is skipped could be the one that matters.
    """
    if isinstance(value, list):
        for item in value:
            yield from _flat(item, source)
    elif isinstance(value, dict):
        kind = str(value.get("kind", ""))
        if not kind:
            raise BadFile(
                source,
                "holds an object or a list without a kind: it was cut, or is no Kubernetes object",
                remedy="dump it again: kubectl get … -o json",
            )
        if isinstance(value.get("items"), list):
            listed = value.get("metadata")
            if isinstance(listed, dict) and (listed.get("continue") or listed.get("remainingItemCount")):
                raise _page(source)
            for item in value["items"]:
                if isinstance(item, dict) and "kind" not in item and kind.endswith("List") and kind != "List":
                    item = {"kind": kind.removesuffix("List"), "apiVersion": value.get("apiVersion"), **item}
                yield from _flat(item, source)
        else:
            yield value


def _page(source: str) -> BadFile:
    """A server that is asked with a limit answers with the first objects, and with where to go on."""
    return BadFile(
        source,
        "holds one page of a longer list (its metadata say that there is more): what is not here cannot be judged",
        remedy=f"dump it with kubectl, which asks for every page: {MAKE}",
    )
