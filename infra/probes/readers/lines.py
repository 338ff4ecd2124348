"""From a byte stream to blocks of clean whole lines, whatever carried them.

Handled here, once, for every reader: byte-order marks, UTF-16 (a PowerShell redirect), CR and CRLF, colour codes,
gzip, bzip2 and xz, one JSON object per line around the text (docker, Cloud Logging, CloudWatch), lines without end.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import orjson

BLOCK = 1 << 20
MAX_LINE = 4 << 20  # bytes; a longer "line" is cut, so that memory stays bounded

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_TEXT_KEYS = ("log", "message", "msg", "textPayload", "@message", "MESSAGE")
_WRAPPED = tuple(f'"{key}":'.encode() for key in _TEXT_KEYS)
_OBJECT = re.compile(rb'\{\s*"')


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines. `torn`: this is the last block and it ends inside a line."""

    data: bytes
    torn: bool = False


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_PACKED: tuple[tuple[bytes, Callable[[], _Unpacker]], ...] = (
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", lzma.LZMADecompressor),
)


def blocks(stream: BinaryIO) -> Iterator[Block]:
    """Yield the stream as blocks of clean lines, each ending with a newline except a torn last one."""
    rest = b""
    for chunk in _decoded(stream):
        data = rest + chunk if rest else chunk
        if b"\r" in data:
            # A lone CR at the end may be half of a CRLF: it waits for the next chunk.
            held = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n")
            data = data[:-1].replace(b"\r", b"\n") + b"\r" if held else data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end == 0:
            if len(data) <= MAX_LINE:
                rest = data
                continue
            data, end = data[:MAX_LINE] + b"\n", MAX_LINE + 1
        rest = data[end:]
        if len(rest) > MAX_LINE:
            rest = rest[:MAX_LINE]
        yield Block(_clean(data[:end]))
    last = _clean(rest.removesuffix(b"\r"))
    if last.strip():
        # A whole JSON object is a whole line, whoever left out the newline behind it.
        yield Block(last, torn=not rest.endswith(b"\r") and not last.rstrip().endswith(b"}"))


def _decoded(stream: BinaryIO) -> Iterator[bytes]:
    """Chunks of UTF-8 (or plain bytes), unzipped, without a byte-order mark."""
    first = stream.read(BLOCK)
    source = _chunks(first, stream)
    packed = next((make for magic, make in _PACKED if first.startswith(magic)), None)
    if first.startswith(b"\x1f\x8b") or packed is not None:
        source = _unpacked(source, packed) if packed is not None else _unzipped(source)
        first = next(source, b"")
        source = _chained(first, source)
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        for chunk in source:
            yield decoder.decode(chunk).encode("utf-8", errors="replace")
        return
    for number, chunk in enumerate(source):
        yield chunk.removeprefix(codecs.BOM_UTF8) if number == 0 else chunk


def _chunks(first: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """All but the first end where a line ends, if one does soon: that saves copies to fresh memory."""
    chunk = first
    while chunk:
        yield chunk
        chunk = stream.read(BLOCK)
        chunk += stream.readline(BLOCK)


def _chained(first: bytes, source: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from source


def _unzipped(source: Iterator[bytes]) -> Iterator[bytes]:
    """Inflate piece by piece; a damaged or cut archive ends the text where it breaks."""
    inflate = zlib.decompressobj(wbits=31)
    for chunk in source:
        data = chunk
        while data:
            try:
                yield inflate.decompress(data, BLOCK)
            except zlib.error:
                return
            data = inflate.unconsumed_tail
            if inflate.eof:
                data = inflate.unused_data
                inflate = zlib.decompressobj(wbits=31)


def _unpacked(source: Iterator[bytes], make: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """The same for bzip2 and xz, which may hold several streams one behind the other, too."""
    unpack = make()
    for chunk in source:
        data = chunk
        while data or not (unpack.needs_input or unpack.eof):
            try:
                yield unpack.decompress(data, BLOCK)
            except (OSError, EOFError, lzma.LZMAError):
                return
            data = b""
            if unpack.eof:
                data = unpack.unused_data
                unpack = make()


def _clean(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\xe2" in data and b"\xe2\x94\x82" in data:  # the frame that a terminal program draws around a log
        data = data.replace(b"\xe2\x94\x82", b" ")
    if b"{" not in data:
        return data
    if any(key in data for key in _WRAPPED):
        data = b"\n".join(_unwrapped(line) for line in data.split(b"\n"))
    return _opened(data)


def _opened(data: bytes) -> bytes:
    """The text of envelopes that name it otherwise, as far as NCCL wrote it: `{"data": …}`, `[time, {"x": …}]`."""
    parts, done = [], 0
    for match in _OBJECT.finditer(data):
        if match.start() < done:
            continue
        start, end = data.rfind(b"\n", done, match.start()) + 1 or done, data.find(b"\n", match.start())
        end = len(data) if end < 0 else end
        line = data[start:end]
        if b"NCCL " in line and b'"poolshift"' not in line and (text := _said_within(line)) is not None:
            parts += [data[done:start], text]
        else:
            parts.append(data[done:end])
        done = end
    return b"".join([*parts, data[done:]]) if parts else data


def _said_within(line: bytes) -> bytes | None:
    """The text with NCCL's line in a JSON object that ends this line; None where there is none, or several."""
    begin, end = line.find(b"{"), line.rfind(b"}") + 1
    try:
        envelope = orjson.loads(line[begin:end])
    except orjson.JSONDecodeError:
        return None
    told = [value for value in envelope.values() if isinstance(value, str) and "NCCL " in value]
    return told[0].rstrip("\n").encode("utf-8", errors="replace") if len(told) == 1 else None


def _unwrapped(line: bytes) -> bytes:
    """The text inside a log shipper's JSON envelope, else the line itself."""
    bare = line.strip()
    if not (bare.startswith(b"{") and bare.endswith(b"}")) or b'"poolshift"' in bare:
        return line
    try:
        envelope = orjson.loads(bare)
    except orjson.JSONDecodeError:
        return line
    for key in _TEXT_KEYS:
        text = envelope.get(key)
        if isinstance(text, str):
            return text.rstrip("\n").encode("utf-8", errors="replace")
    return line


def from_text(text: str | bytes) -> BinaryIO:
    """A text as a stream, for tests and for callers that hold the output already."""
    return io.BytesIO(text.encode("utf-8", errors="surrogateescape") if isinstance(text, str) else text)
