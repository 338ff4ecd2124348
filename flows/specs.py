"""Read a spec file. A wrong one fails here, before anything is touched, naming field, value and what is allowed."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from infra.errors import BadSpec
from infra.model.spec import MigrationSpec, RevalidationSpec, Strict, describe_errors

Spec = TypeVar("Spec", bound=Strict)
_START = "start from infra/examples/"


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
    except UnicodeDecodeError as cause:
        raise BadSpec(f"spec {path}", "is no UTF-8 text", expected="YAML", remedy=_START) from cause
    except OSError as cause:
        observed = f"cannot be read: {cause.strerror or cause}"
        raise BadSpec(f"spec {path}", observed, expected="a readable file", remedy=_START) from cause
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as cause:
        raise BadSpec(f"spec {path}", f"is no YAML: {' '.join(str(cause).split())}", remedy=_START) from cause


def parse(raw: object, model: type[Spec], origin: str = "spec") -> Spec:
    """Plain data as `model`. Raises BadSpec with one line per wrong field."""
    _is_meant(raw, model, origin)
    if not isinstance(raw, dict):
        holds = "is empty" if raw is None else f"holds a {type(raw).__name__}"
        raise BadSpec(f"spec {origin}", holds, expected="a mapping of fields", remedy=_START)
    try:
        return model.model_validate(raw)
    except ValidationError as cause:
        lines = describe_errors([_as_written(dict(error), model) for error in cause.errors(include_url=False)])
        raise BadSpec(
            f"spec {origin}",
            f"{len(lines)} wrong:" + "".join(f"\n    {line}" for line in lines),
            expected="the fields of infra/model/spec.py, as in infra/examples",
            remedy="correct them and run again; nothing was touched",
        ) from cause


def _is_meant(raw: object, model: type[Strict], origin: str) -> None:
    """Raises BadSpec for the other of the two kinds of spec: its fields would all be wrong, which says little."""
    if not isinstance(raw, dict):
        return
    if model is RevalidationSpec and "pools" not in raw and "target" in raw:
        raise BadSpec(f"spec {origin}", "is a migration's", expected="`pools`", remedy=f"{_START}*-revalidate.yaml")
    if model is MigrationSpec and "pools" in raw and "target" not in raw:
        raise BadSpec(f"spec {origin}", "is a revalidation's", remedy=f"poolshift revalidate {origin}")


def _as_written(error: dict[str, Any], model: type[Strict]) -> dict[str, Any]:
    """Pydantic's error with the path as the file has it, without a union's tag, and the nearest name for an unknown."""
    path: list[int | str] = []
    here: list[type[BaseModel]] = [model]
    for part in error["loc"]:
        tagged = [m for m in here if part in get_args(getattr(m.model_fields.get("kind"), "annotation", None))]
        if tagged and path and path[-1] != part:
            here = tagged
            continue
        path.append(part)
        if isinstance(part, str) and any(part in m.model_fields for m in here):
            here = [n for m in here if part in m.model_fields for n in _models(m.model_fields[part].annotation)]
    changed = {**error, "loc": tuple(path)}
    if error["type"] == "extra_forbidden":
        names = sorted({name for m in here for name in m.model_fields})
        near = get_close_matches(str(path[-1]), names, n=1, cutoff=0.75)
        changed["msg"] = "no such field" + (f"; did you mean {near[0]}?" if near else "")
        changed["input"] = None  # its value is not what is wrong
        changed["ctx"] = {} if near or not names else {"expected": ", ".join(names)}
    return changed


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type names, inside of lists and unions too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]
