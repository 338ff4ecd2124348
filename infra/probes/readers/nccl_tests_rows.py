"""Rows of bandwidth tables: which figure is which, by the captions, else by how many there are."""

from __future__ import annotations

import re

from infra.model.measurement import LARGEST
from infra.model.reading import Row
from infra.probes.readers.nccl_warnings import is_error

ELEMENT_TYPE = rb"(?:u?int(?:8|32|64)|half|float|double|bfloat16|fp8_e[45]m[23]|f8e[45]m[23]|bf16|char|int)"
ELEMENT_WORDS = (b"int", b"half", b"float", b"double", b"fp8_e", b"f8e", b"bf16", b"char")  # one is in each of them
FOOTERS = ("Out of bounds values", "Avg bus bandwidth", "Bitwise mismatches", "# error")
_FIRST_EXPONENT = 1e6
_BITWISE = re.compile(r"Bitwise mismatches\s*:\s*(?:\d+\s*FAILED|0*[1-9]\d*)")
_LAST_WARNING = re.compile(r"#\s*error\s*:\s*(\S.*)")
_UNIT = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_row(match: re.Match[bytes], captions: tuple[str, ...]) -> Row | None:
    """A whole row, or None. Token layouts: facts in the module's tests; captions win over counting."""
    words = match[4].decode("utf-8", "replace").split()
    redop: str | None = None
    if words and words[0].isalpha() and words[0].lower() != "nan":
        redop = words.pop(0)
    # A root (or -1) stands between the operator and the first time. Without captions only the count of figures tells:
    # both halves have as many, so that a root makes it odd.
    if "root" in captions or (not captions and redop is not None and len(words) % 2):
        if not words or not re.fullmatch(r"-?\d+", words[0]):
            return None
        words.pop(0)
    figures = _figures(words)
    side = _side_length(captions, len(figures))
    if side is None:
        return None
    out, inp = side
    deviation = "error" in captions
    if max(int(match[1]), int(match[2])) > LARGEST:
        return None
    first = _half(figures[:out], deviation=deviation) if out else (None, None, None, None)
    second = _half(figures[out : out + inp], deviation=deviation) if inp else (None, None, None, None)
    if first is None or second is None:
        return None
    return Row(
        size_bytes=int(match[1]),
        count=int(match[2]),
        type=match[3].decode(),
        redop=redop,
        time_us=first[0],
        algbw_gb_s=first[1],
        busbw_gb_s=first[2],
        wrong=first[3],
        time_in_place_us=second[0],
        algbw_in_place_gb_s=second[1],
        busbw_in_place_gb_s=second[2],
        wrong_in_place=second[3],
    )


def _figures(words: list[str]) -> list[str]:
    """The figures without a trailing time stamp (option -S: date and time)."""
    if len(words) >= 2 and re.fullmatch(r"\d{4}-\d\d-\d\d", words[-2]) and ":" in words[-1]:
        return words[:-2]
    return words


def _side_length(captions: tuple[str, ...], count: int) -> tuple[int, int] | None:
    """How many figures belong to the out-of-place and to the in-place half; None when the row is not whole."""
    if captions:
        starts = [i for i, word in enumerate(captions) if word == "time"]
        ends = [i for i, word in enumerate(captions) if word in {"#wrong", "#bitdiff", "error", "i_cv%"}]
        if len(starts) == 2:
            length = starts[1] - starts[0]
            tail = (ends[-1] if ends else len(captions) - 1) - starts[1] + 1
            if count == length + tail:
                return length, tail
            return (0, count) if count == tail else None  # a trace replay leaves the out-of-place half blank
        if len(starts) == 1 and ends:
            length = ends[-1] - starts[0] + 1
            return (length, 0) if count == length else None
    return {16: (8, 8), 10: None, 8: (4, 4), 6: (3, 3), 4: None}.get(count)


def _half(words: list[str], *, deviation: bool) -> tuple[float, float, float, float | None] | None:
    """(time, algbw, busbw, wrong) of one half, else None.

    Before 2022-08 the last column is `error`, the largest deviation from the right sum (2e-06 is rounding): 0 says
    that nothing is wrong, anything else counts nothing; the footer's "Out of bounds values" does.
    """
    figures = [number(word) for word in words[:3]]
    if len(figures) < 3 or any(figure is None for figure in figures):
        return None
    time, algbw, busbw = (figure for figure in figures if figure is not None)
    if len(words) == 3:
        return time, algbw, busbw, None
    wrong = words[-1] if len(words) == 4 else words[3]
    if wrong.upper() == "N/A":
        return time, algbw, busbw, None
    count = number(wrong)
    if count is None:
        return None
    # In the newer column %g writes an exponent from a million on only.
    deviation = deviation or ("e" in wrong and count < _FIRST_EXPONENT)
    return time, algbw, busbw, None if deviation and count else count


def number(word: str) -> float | None:
    """A figure as nccl-tests prints it, or None."""
    if not re.fullmatch(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", word):
        return None
    value = float(word)
    return value if value <= LARGEST else None  # 1e400 is no figure of any tool


def parse_lookalike(match: re.Match[str], captions: tuple[str, ...]) -> Row | None:
    """A row of somebody's own benchmark, if its captions name the units; the count checks a size with a suffix."""
    words = match["rest"].split()
    names = list(captions[captions.index("size") + 1 :])
    if len(words) != len(names):
        return None
    values = {name: number(word) for name, word in zip(names, words, strict=True)}
    busbw = _named(values, r"busbw.*gb(?:ps|/s)|busbw_gb_?s|busbw\(gb/s\)")
    algbw = _named(values, r"algbw.*gb(?:ps|/s)|algbw_gb_?s|algbw\(gb/s\)")
    count = values.get("count")
    size = float(match["size"]) * _UNIT[(match["unit"] or "").replace("i", "")]
    if busbw is None or not size <= LARGEST or (count and size / count not in {1, 2, 4, 8}):
        return None
    milli, micro = _named(values, r"time.?\(?ms\)?"), _named(values, r"time.?\(?us\)?")
    time_us = milli * 1e3 if milli is not None else micro
    return Row(
        size_bytes=int(size),
        count=int(count) if count else None,
        type="",
        redop=None,
        time_us=time_us,
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        wrong=None,
    )


def _named(values: dict[str, float | None], pattern: str) -> float | None:
    return next((value for name, value in values.items() if re.fullmatch(pattern, name)), None)


def said_below(text: str) -> tuple[str, str]:
    """What a line below a table says besides its figures: an error, or NCCL's last warning, of which nobody knows."""
    if _BITWISE.search(text):
        return text.lstrip("# ")[:300], ""
    last = _LAST_WARNING.match(text)
    wrong = is_error(last[1]) if last else False
    said = last[1][:300] if last else ""
    return (said if wrong else ""), (f"NCCL warned last of: {said}" if wrong is None else "")


def unpacked_version(number: int) -> str:
    """22809 is 2.28.9."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def short_host(name: str) -> str:
    """A host's name up to its first dot, as nccl-tests prints it: two full names may be of one host."""
    return name if re.fullmatch(r"[\d.]+", name) else name.split(".", 1)[0]
