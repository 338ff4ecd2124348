"""Evidence: what one probe read, bound to a pool, its node UIDs, the spec and a time, and sealed by a digest.

A reading without its binding proves nothing: nodes are replaced, specs change, a log lies in a folder for a year. The
id is the digest of everything else, so that evidence altered on its way through a ledger is no evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from infra.model.cluster import EMPTY
from infra.model.verdict import Outcome, Verdict, worst


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One probe on one pool.

    Attributes:
        probe: its name in the catalogue.
        mode: "pinned" (what the pool can do) or "workload" (what jobs get).
        pool: the cloud's full name of the pool.
        machine_type: of its nodes.
        nodes: node names, in the order of `node_uids`.
        node_uids: UIDs of the nodes that took part.
        spec_hash: of the migration spec.
        measured: RFC 3339, when the program ended.
        image: in which it ran.
        arguments: the command line, so that two sides can be seen to have run the same.
        complete: the program came to its end and every pod's output was read in full.
        reading: plain JSON, see `infra.model.measurement`.
        verdicts: judged from the raw output, which the ledger keeps under `raw_digest`.
        gpu_minutes: held by its pods.
        simulated: measured in the sandbox.
        id: digest of all of the above.

    """

    probe: str
    mode: str
    pool: str
    machine_type: str
    nodes: tuple[str, ...]
    node_uids: tuple[str, ...]
    spec_hash: str
    measured: str
    image: str = ""
    arguments: tuple[str, ...] = ()
    complete: bool = False
    reading: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    verdicts: tuple[Verdict, ...] = ()
    gpu_minutes: float = 0.0
    raw_digest: str = ""
    versions: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    simulated: bool = False
    id: str = ""

    def seal(self) -> Self:
        """The same with its id set."""
        return replace(self, id=self._digest())

    @property
    def intact(self) -> bool:
        """The id is the digest of the content."""
        return bool(self.id) and self.id == self._digest()

    def verdict(self, check: str) -> Verdict | None:
        """The stored verdict of one check; the worst where it has several."""
        mine = [v for v in self.verdicts if v.check == check]
        return next((v for v in mine if v.outcome is worst(m.outcome for m in mine)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        plain: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["verdicts"] = [v.to_dict() for v in self.verdicts]
        plain["reading"] = _plain(self.reading)
        plain["versions"] = dict(self.versions)
        for name in _LISTS:
            plain[name] = list(plain[name])
        return plain

    def to_json(self) -> str:
        """Canonical JSON: keys sorted, no blanks."""
        return _canonical(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Evidence:
        """Tolerant: unknown keys are dropped, missing ones are empty (which no gate takes)."""
        texts: dict[str, Any] = {k: str(data.get(k, "")) for k in _TEXTS}
        lists: dict[str, Any] = {k: tuple(str(item) for item in _items(data.get(k))) for k in _LISTS}
        return cls(
            **texts,
            **lists,
            complete=data.get("complete") is True,
            reading=_mapping(data.get("reading")),
            verdicts=tuple(_verdict(v) for v in _items(data.get("verdicts"))),
            gpu_minutes=minutes if isinstance(minutes := data.get("gpu_minutes"), int | float) else 0.0,
            versions={str(k): str(v) for k, v in _mapping(data.get("versions")).items()},
            simulated=data.get("simulated") is True,
        )

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """Raises ValueError on text that is no JSON object."""
        data = json.loads(text)
        if not isinstance(data, dict):
            msg = f"evidence is a JSON object, not a {type(data).__name__}"
            raise ValueError(msg)
        return cls.from_dict(data)

    def _digest(self) -> str:
        content = self.to_dict()
        del content["id"]
        return hashlib.sha256(_canonical(content).encode()).hexdigest()[:32]


_TEXTS = (
    "probe",
    "mode",
    "pool",
    "machine_type",
    "spec_hash",
    "measured",
    "image",
    "raw_digest",
    "id",
)


_LISTS = ("nodes", "node_uids", "arguments")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: object) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else ()


def _verdict(raw: object) -> Verdict:
    """A verdict that cannot be read is one that says nothing."""
    try:
        return Verdict.from_dict(dict(_mapping(raw)))
    except (AttributeError, TypeError, ValueError):
        return Verdict(check="", outcome=Outcome.UNMEASURED, reason="cannot be read")


def _canonical(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(data: object) -> Any:
    """Through JSON once, so that tuples and mapping proxies compare and digest as what is read back."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        items = [_plain(item) for item in data]
        return sorted(items, key=str) if isinstance(data, set | frozenset) else items
    return data
