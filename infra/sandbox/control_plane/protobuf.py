"""Reading objects that kubectl and other Go clients send as protobuf. Answers are always JSON, which they accept.

The wire format is an envelope: four bytes of magic, then a runtime.Unknown that holds apiVersion, kind and the
object's own bytes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from infra.clock import rfc3339, rfc3339_micro
from infra.sandbox.control_plane.resources import kind_of

Object = dict[str, Any]

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
META = "k8s.io.apimachinery.pkg.apis.meta.v1."
INT_OR_STRING = "k8s.io.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY = "k8s.io.apimachinery.pkg.api.resource.Quantity"
RAW = ("k8s.io.apimachinery.pkg.runtime.RawExtension", META + "FieldsV1")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class BadProtobuf(ValueError):
    """Bytes that are no object of ours."""


@cache
def _messages() -> dict[str, dict[str, list[str]]]:
    raw = files("infra.sandbox.control_plane.data").joinpath("protobuf.json").read_bytes()
    loaded: dict[str, dict[str, list[str]]] = orjson.loads(raw)
    return loaded


def read(body: bytes) -> Object:
    """The object in a protobuf body. BadProtobuf if it is none, or of a kind that is not known."""
    if not body.startswith(MAGIC):
        raise BadProtobuf("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    try:
        envelope = {number: value for number, _, value in _fields(body[len(MAGIC) :])}
        meta = {number: value.decode() for number, _, value in _fields(envelope.get(1, b""))}
        version, kind = meta.get(1, ""), meta.get(2, "")
        obj: Object = {"apiVersion": version, "kind": kind, **_struct(_message_of(version, kind), envelope.get(2, b""))}
    except (IndexError, struct.error, UnicodeDecodeError, AttributeError, TypeError) as problem:
        raise BadProtobuf(f"cut or malformed protobuf: {problem}") from None
    return obj


def _message_of(version: str, kind: str) -> str:
    if kind == "DeleteOptions":
        return META + kind
    if kind == "Eviction":
        return "k8s.io.api.policy.v1.Eviction"
    if kind == "Scale":
        return "k8s.io.api.autoscaling.v1.Scale"
    if kind == "TokenRequest":
        return "k8s.io.api.authentication.v1.TokenRequest"
    try:
        schema = kind_of(version, kind).schema
    except KeyError:
        raise BadProtobuf(f'no kind "{kind}" is registered for version "{version}"') from None
    return "k8s.io." + schema.removeprefix("io.k8s.")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Field number, wire type and raw value of each field."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
        elif wire == BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise IndexError("a field ends after the message")
            yield number, wire, data[at : at + size]
            at += size
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            yield number, wire, data[at : at + size]
            at += size
        else:
            raise IndexError(f"unknown wire type {wire}")


def _struct(message: str, data: bytes) -> Object:
    """A message as JSON. Go writes empty strings for unset ones; they are left out."""
    fields = _messages()[message]
    result: Object = {}
    for number, wire, raw in _fields(data):
        known = fields.get(str(number))
        if known is None:
            continue
        name, kind, shape = known
        if shape == "map":
            key, value = _entry(kind, raw)
            result.setdefault(name, {})[key] = value
        elif shape == "list":
            result.setdefault(name, []).append(_value(kind, wire, raw))
        elif name:
            value = _value(kind, wire, raw)
            if value != "":
                result[name] = value
        else:
            result.update(_struct(kind, raw))
    return result


def _entry(kind: str, data: bytes) -> tuple[str, Any]:
    key, value = "", "" if kind == "string" else None
    for number, wire, raw in _fields(data):
        if number == 1:
            key = raw.decode()
        else:
            value = _value(kind, wire, raw)
    return key, value


def _value(kind: str, wire: int, raw: Any) -> Any:
    if kind == "string":
        return raw.decode()
    if kind == "bool":
        return bool(raw)
    if kind in ("int32", "int64"):
        return raw - 2**64 if raw >= 2**63 else raw
    if kind == "double":
        return struct.unpack("<d", raw)[0]
    if wire == VARINT:
        return raw
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    return _well_known(kind, raw)


def _well_known(kind: str, raw: bytes) -> Any:
    if kind in (META + "Time", META + "MicroTime"):
        parts = {number: value for number, _, value in _fields(raw)}
        if not parts:
            return None
        seconds = parts.get(1, 0)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=seconds - 2**64 if seconds >= 2**63 else seconds, microseconds=parts.get(2, 0) // 1000
        )
        return rfc3339(moment) if kind.endswith(".Time") else rfc3339_micro(moment)
    parts = {number: value for number, _, value in _fields(raw)}
    if kind == QUANTITY:
        return parts.get(1, b"0").decode()
    if kind == INT_OR_STRING:
        return parts.get(3, b"").decode() if parts.get(1) else _value("int32", VARINT, parts.get(2, 0))
    if kind in RAW:
        return orjson.loads(parts.get(1, b"null"))
    if kind == "k8s.io.api.authorization.v1.ExtraValue":
        return [value.decode() for _, _, value in _fields(raw)]
    return _struct(kind, raw)
