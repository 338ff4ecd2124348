"""Golden cases: real outputs of real tools, and how an answer is compared with what must be read from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    input: Path
    expect: Mapping[str, Any]


def cases(*kinds: str, folder: Path = FOLDER) -> Iterator[Case]:
    for directory in sorted(folder.iterdir()):
        case = json.loads((directory / "case.json").read_text())
        if case["kind"] in kinds:
            yield Case(directory.name, case["kind"], next(directory.glob("input.*")), case["expect"])


def differences(expect: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """Only keys in `expect` count; numbers within 1e-3; `KEY_alt` is accepted too; forbidden claims are looked up."""
    found = []
    for key, wanted in expect.items():
        if key in {"notes", "must_not_report"} or key.endswith("_alt"):
            continue
        given = answer.get(key)
        if not equal(wanted, given) and not (f"{key}_alt" in expect and equal(expect[f"{key}_alt"], given)):
            found.append(f"{key}: expected {wanted!r}, got {given!r}")
    claims = list(values(answer))
    found += [f"must not report {claim!r}" for claim in expect.get("must_not_report", ()) if claim in claims]
    return found


def equal(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(given, bool):
        return wanted is given
    if isinstance(wanted, int | float) and isinstance(given, int | float):
        return math.isclose(wanted, given, rel_tol=1e-3, abs_tol=1e-12)
    if isinstance(wanted, list) and isinstance(given, list | tuple):
        return len(wanted) == len(given) and all(equal(w, g) for w, g in zip(wanted, given, strict=True))
    if isinstance(wanted, dict) and isinstance(given, dict):
        return all(equal(w, given.get(k)) for k, w in wanted.items())
    return bool(wanted == given)


def values(answer: Any) -> Iterator[Any]:
    """Every claim: string values at any depth, and counts under a name."""
    if isinstance(answer, dict):
        for key, value in answer.items():
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                yield key
            yield from values(value)
    elif isinstance(answer, list | tuple):
        for item in answer:
            yield from values(item)
    else:
        yield answer
