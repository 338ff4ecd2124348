"""Damages an output in the ways in which outputs are damaged on their way to a reader. Deterministic by seed."""

from __future__ import annotations

import random
import re

MUTATIONS = (
    "cut",
    "head",
    "drop-lines",
    "drop-matching",
    "drop-block",
    "double",
    "shuffle",
    "swap-ranks",
    "number",
    "byte",
    "glue",
    "tear",
    "splice",
    "insert",
)
_NUMBER = re.compile(rb"\d+")
_WORDS = (
    b"Socket",
    b"No device found",
    b"plain",
    b"via NET",
    b"[send]",
    b"Destroy",
    b"Using network",
    b"GDR 0",
    b"found",
)


def mutate(data: bytes, mutation: str, seed: int, *, other: bytes) -> bytes:
    """One damaged copy of `data`; `other` is a second output for splices."""
    rng = random.Random(seed)
    if not data:
        return data
    if mutation in {"cut", "head"}:
        at = rng.randrange(len(data))
        return data[:at] if mutation == "cut" else data[at:]
    if mutation == "byte":
        at = rng.randrange(len(data))
        return data[:at] + bytes([rng.randrange(256)]) + data[at + rng.choice([0, 1]) :]
    if mutation == "number":
        return _number(data, rng)
    if mutation == "splice":
        return _splice(data, other, rng)
    return b"\n".join(_lines(data.split(b"\n"), mutation, rng))


def _number(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    match = _NUMBER.search(data, at) or _NUMBER.search(data)
    if match is None:
        return data
    new = rng.choice([b"0", b"1", b"2", b"16", b"999999", str(int(match[0][:12]) + rng.choice([-1, 1])).encode()])
    return data[: match.start()] + new + data[match.end() :]


def _splice(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """The beginning of one output and the end of another."""
    if not other:
        return data
    first, second = (data, other) if rng.random() < 0.5 else (other, data)
    return first[: rng.randrange(len(first))] + second[rng.randrange(len(second)) :]


def _lines(lines: list[bytes], mutation: str, rng: random.Random) -> list[bytes]:
    if mutation == "drop-lines":
        share = rng.choice([0.001, 0.01, 0.1, 0.5])
        return [line for line in lines if rng.random() >= share]
    if mutation == "drop-matching":
        word = rng.choice(_WORDS)
        return [line for line in lines if word not in line or rng.random() < 0.02]
    if mutation == "drop-block":
        start = rng.randrange(len(lines))
        return lines[:start] + lines[start + rng.randrange(1, len(lines) + 1) :]
    if mutation == "double":
        at = rng.randrange(len(lines))
        return lines[:at] + lines[at : at + rng.randrange(1, 50)] + lines[at:]
    if mutation == "shuffle":
        return rng.sample(lines, len(lines))
    if mutation == "swap-ranks":
        return sorted(lines, key=lambda line: (line[:14], rng.random()))
    return _text(lines, mutation, rng)


def _text(lines: list[bytes], mutation: str, rng: random.Random) -> list[bytes]:
    at = rng.randrange(len(lines))
    if mutation == "glue":
        return [*lines[:at], lines[at] + (lines[at + 1] if at + 1 < len(lines) else b""), *lines[at + 2 :]]
    if mutation == "tear":
        cut = rng.randrange(len(lines[at]) + 1)
        return [*lines[:at], lines[at][:cut], *lines[at + 1 :]]
    junk = rng.choice(
        [b"", b"\x00\xff\xfe", b"NCCL INFO ", b"{", b"#", b'{"poolshift":', b" via NET/", b"\x1b[", b"[1,1]<stdout>:"]
    )
    return [*lines[:at], junk, *lines[at:]]
