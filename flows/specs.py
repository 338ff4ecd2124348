"""Read a spec file. A wrong one fails here, before anything is touched, naming field, value and what is allowed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

from infra.errors import BadSpec
from infra.model.spec import MigrationSpec, RevalidationSpec, Strict, describe_errors

Spec = TypeVar("Spec", bound=Strict)


def load(path: str, model: type[Spec]) -> Spec:
    """YAML or JSON from a file ("-": standard input) as `model`. Raises BadSpec."""
    return parse(_read(path), model, path)


def load_any(path: str) -> MigrationSpec | RevalidationSpec:
    """A migration's spec, or a revalidation's, which alone has `pools`. Raises BadSpec."""
    raw = _read(path)
    if isinstance(raw, dict) and "pools" in raw:
        return parse(raw, RevalidationSpec, path)
    return parse(raw, MigrationSpec, path)


def _read(path: str) -> object:
    import yaml

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text()
    except (OSError, UnicodeDecodeError) as cause:
        raise BadSpec(f"spec {path}", f"cannot be read: {cause}", remedy="start from infra/examples/") from cause
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise BadSpec(f"spec {path}", f"is no YAML: {' '.join(str(cause).split())}") from cause


def parse(raw: object, model: type[Spec], origin: str = "spec") -> Spec:
    """Plain data as `model`. Raises BadSpec with one line per wrong field."""
    from pydantic import ValidationError

    if not isinstance(raw, dict):
        raise BadSpec(f"spec {origin}", f"holds {type(raw).__name__}", expected="a mapping of fields")
    try:
        return model.model_validate(raw)
    except ValidationError as cause:
        lines = describe_errors(list(cause.errors(include_url=False)))
        raise BadSpec(
            f"spec {origin}",
            f"{len(lines)} wrong:\n  " + "\n  ".join(lines) + "\n ",
            expected="the fields of infra/model/spec.py",
            remedy="correct them and run again; nothing was touched",
        ) from cause
