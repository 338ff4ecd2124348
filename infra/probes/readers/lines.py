"""From a byte stream to blocks of clean whole lines, whatever carried them.

Handled here, once, for every reader: byte-order marks, UTF-16 (a PowerShell redirect), CR and CRLF, colour codes,
gzip, bzip2 and xz, one JSON object per line around the text (docker, Cloud Logging, CloudWatch), quotes around it (JSON
over many lines, CSV, logfmt), lines without end.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import orjson

BLOCK = 1 << 20
MAX_LINE = 4 << 20  # bytes; a longer "line" is cut, so that memory stays bounded

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_TEXT_KEYS = ("log", "message", "msg", "textPayload", "@message", "MESSAGE")
_WRAPPED = tuple(f'"{key}":'.encode() for key in _TEXT_KEYS)
_OBJECT = re.compile(rb'\{\s*"')
# A whole quoted text that begins with NCCL's own beginning of a line, behind a launcher's tag or a time at most.
_QUOTED = re.compile(
    rb'(?<!\\)"(?=[^"\\\n]{0,400}?NCCL )((?:[^"\\\n]{0,80}?[\s>:|\]])??[\w.\-]{1,253}:(?:\d+|[Xx*]+)(?::\d+)? \[\d+\] '
    rb'(?:[^"\\\n]|\\.|"")*)"(?!\w)'
)
# Two words, and not the names of fields: a text that may be a message, and no name, number or time. Or a pod's reason.
_PROSE = re.compile(rb"(?<![^\s=])[^\s=A-Za-z]*[A-Za-z][^\s=]* +[A-Za-z(][^\s=]*(?=\s|$)|(?:Killed|Evicted|Exceeded)\b")
_SAID = re.compile(rb'"((?:[^"\\\n]|\\.)*)"?|([^"\n]+)')


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines. `torn`: this is the last one with text, and it ends inside a line.

    `damage`, on a last block without text: how the packed file is broken that the text before comes from.
    """

    data: bytes
    torn: bool = False
    damage: str = ""


class _Damaged(Exception):
    """A packed file breaks; the message says which kind of file, how and where."""


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Inflate:
    """zlib's decompressor for gzip, with the manners of the other two: what was not read yet stays inside."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._full = False  # the last piece was as long as it might be: more may wait in the window

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not (self._full or self._inflate.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self._full = len(piece) == max_length
        return piece


# The first bytes, the format's name, and what unpacks one stream of it.
_PACKED: tuple[tuple[bytes, str, Callable[[], _Unpacker]], ...] = (
    (b"\x1f\x8b", "gzip", _Inflate),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMADecompressor),
)


def blocks(stream: BinaryIO) -> Iterator[Block]:
    """Yield the stream as blocks of clean lines, each ending with a newline except a torn last one."""
    rest, damage = b"", ""
    source = _decoded(stream)
    while True:
        try:
            chunk = next(source, None)
        except _Damaged as broken:
            chunk, damage = None, str(broken)
        if chunk is None:
            break
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
    if damage:
        yield Block(b"", damage=damage)


def _decoded(stream: BinaryIO) -> Iterator[bytes]:
    """Chunks of UTF-8 (or plain bytes), unzipped, without a byte-order mark."""
    first = stream.read(BLOCK)
    source = _chunks(first, stream)
    # Of a file that was cut behind its second byte, those two must do.
    kinds = [kind for kind in _PACKED if len(first) > 1 and first.startswith(kind[0][: len(first)])]
    if kinds:
        source = _unpacked(source, *kinds[0][1:])
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


def _unpacked(source: Iterator[bytes], name: str, make: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """Unpack piece by piece, one stream behind the other. Raises _Damaged where one breaks, or does not end."""
    unpack, begun, given = make(), False, 0
    for chunk in source:
        data, given = chunk, given + len(chunk)
        while data or (begun and not unpack.needs_input):
            begun = True
            try:
                piece = unpack.decompress(data, BLOCK)
            except (zlib.error, OSError, EOFError, lzma.LZMAError) as cause:
                place = f"between its bytes {given - len(chunk):,} and {given:,}"
                raise _Damaged(f"the {name} file is damaged {place} ({cause})") from cause
            yield piece
            data = b""
            if unpack.eof:
                data, begun = unpack.unused_data, False
                unpack = make()
    if begun:
        raise _Damaged(f"the {name} file is cut: it stops at byte {given:,}, and its end is missing")


def _clean(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\xe2" in data and b"\xe2\x94\x82" in data:  # the frame that a terminal program draws around a log
        data = data.replace(b"\xe2\x94\x82", b" ")
    if b'"' not in data:
        return data
    if any(key in data for key in _WRAPPED):
        data = b"\n".join(_unwrapped(line) for line in data.split(b"\n"))
    if b"NCCL " not in data:
        return data
    # Envelopes that name the text otherwise, `{"data": …}`, `[time, {"x": …}]`; then whatever else quotes it.
    data = _rewritten(data, _OBJECT, _said_within) if b"{" in data else data
    return _rewritten(data, _QUOTED, _quoted)


def _rewritten(data: bytes, mark: re.Pattern[bytes], said: Callable[[bytes], bytes | None]) -> bytes:
    """The same with what is `said` in place of lines of NCCL's that have the mark; None leaves a line as it is."""
    parts, done = [], 0
    for match in mark.finditer(data):
        if match.start() < done:
            continue
        start, end = data.rfind(b"\n", done, match.start()) + 1 or done, data.find(b"\n", match.start())
        end = len(data) if end < 0 else end
        line = data[start:end]
        text = said(line) if b"NCCL " in line and b'"poolshift"' not in line else None
        parts += [data[done:start], line if text is None else text]
        done = end
    return b"".join([*parts, data[done:]]) if parts else data


def _quoted(line: bytes) -> bytes:
    """Quoted texts of NCCL's as lines of their own, and behind them what else is said in the line."""
    others = (_unescaped(said[1]) if said[2] is None else said[2] for said in _SAID.finditer(_QUOTED.sub(b"", line)))
    return b"\n".join([*(_unescaped(quoted[1]) for quoted in _QUOTED.finditer(line)), *filter(_PROSE.search, others)])


def _unescaped(text: bytes) -> bytes:
    """As JSON or logfmt escape it, else as CSV does."""
    try:
        said = orjson.loads(b'"' + text + b'"')
    except orjson.JSONDecodeError:
        return text.replace(b'""', b'"')
    return str(said).rstrip("\n").encode("utf-8", errors="replace")


def _said_within(line: bytes) -> bytes | None:
    """NCCL's line in a JSON object that ends this line, and what else is said in it; None where there are several."""
    begin, end = line.find(b"{"), line.rfind(b"}") + 1
    try:
        envelope = orjson.loads(line[begin:end]) if end else {}
    except orjson.JSONDecodeError:
        return None
    texts = _texts(envelope.values())
    told = [text for text in texts if b"NCCL " in text]
    if len(told) != 1:
        return None
    return b"\n".join([*told, *(text for text in texts if text is not told[0] and _PROSE.search(text))])


def _unwrapped(line: bytes) -> bytes:
    """The texts inside a log shipper's JSON envelope, else the line itself."""
    bare = line.strip()
    if not (bare.startswith(b"{") and bare.endswith(b"}")) or b'"poolshift"' in bare:
        return line
    try:
        envelope = orjson.loads(bare)
    except orjson.JSONDecodeError:
        return line
    texts = _texts(envelope[key] for key in _TEXT_KEYS if key in envelope)
    return b"\n".join(texts) if texts else line


def _texts(values: Iterable[object]) -> list[bytes]:
    """Distinct texts among them, without the newline that ends them."""
    texts = (value.rstrip("\n").encode("utf-8", errors="replace") for value in values if isinstance(value, str))
    return list(dict.fromkeys(texts))


def from_text(text: str | bytes) -> BinaryIO:
    """A text as a stream, for tests and for callers that hold the output already."""
    return io.BytesIO(text.encode("utf-8", errors="surrogateescape") if isinstance(text, str) else text)
