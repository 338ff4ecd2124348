"""Findings, verdicts and gates: the vocabulary of every judgement.

A verdict is pass, fail or unmeasured. Only pass opens a gate. There is no default that passes: a gate without
verdicts is unmeasured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What a check found. Missing, cut, unknown, contradictory, skipped and timed out are all `UNMEASURED`."""

    PASS = "pass"  # noqa: S105 - the field's word
    FAIL = "fail"
    UNMEASURED = "unmeasured"

    @property
    def exit_code(self) -> int:
        """Of a command that ends with it: 0, 3 or 4, as infra/errors.py."""
        return {"pass": 0, "fail": 3, "unmeasured": 4}[self.value]


class Level(StrEnum):
    """How much a finding matters: `BLOCK` refuses, `WARN` is shown, `INFO` explains."""

    BLOCK = "block"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fact for a person.

    `code` is a stable kebab-case contract (tests, dashboards); `object` is written as the field writes it
    ("daemonset kube-system/aws-efa-k8s-device-plugin"); `since` is RFC 3339 or "".
    """

    level: Level
    code: str
    object: str
    observed: str
    expected: str = ""
    remedy: str = ""
    since: str = ""

    def fact(self) -> str:
        """What is the matter, and since when; without what to do about it."""
        return f"{self.object}: {self.observed}" + (f", since {self.since}" if self.since else "")

    def wording(self) -> str:
        """One line: observed, expected, since, remedy."""
        text = f"{self.object}: {self.observed}"
        if self.expected:
            text += f" (expected {self.expected})"
        if self.since:
            text += f", since {self.since}"
        if self.remedy:
            text = f"{text.removesuffix('.')}. {self.remedy}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def block(cls, code: str, object: str, observed: str, expected: str, remedy: str = "") -> Finding:  # noqa: A002
        """What refuses."""
        return cls(level=Level.BLOCK, code=code, object=object, observed=observed, expected=expected, remedy=remedy)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """Tolerant: unknown keys are dropped."""
        known = {k: str(data.get(k, "")) for k in ("code", "object", "observed", "expected", "remedy", "since")}
        return cls(level=Level(data.get("level", "info")), **known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The answer to one question of a gate.

    `check` is a stable kebab-case name ("transport-proof", "bandwidth-floor"); `observed` and `limit` are printed
    with their unit; `statistic` names what was compared ("busbw at 1 GiB, out of place"); `evidence` lists ids of
    the evidence used.
    """

    check: str
    outcome: Outcome
    observed: str = ""
    limit: str = ""
    statistic: str = ""
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    evidence: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Verdict:
        """Tolerant: an unknown outcome is unmeasured, never a pass."""
        known = {k: str(data.get(k, "")) for k in ("check", "observed", "limit", "statistic", "reason")}
        outcome = data.get("outcome")
        return cls(
            outcome=Outcome(outcome) if outcome in set(Outcome) else Outcome.UNMEASURED,
            findings=tuple(Finding.from_dict(f) for f in data.get("findings", ())),
            evidence=tuple(str(e) for e in data.get("evidence", ())),
            **known,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Verdicts that must all be pass before the next irreversible step."""

    name: str
    required: tuple[str, ...]
    verdicts: tuple[Verdict, ...] = field(default=())

    @property
    def outcome(self) -> Outcome:
        """Fail beats unmeasured beats pass; a required check without a verdict is unmeasured; so is an empty gate."""
        present = {v.check for v in self.verdicts}
        return worst([v.outcome for v in self.verdicts] + [Outcome.UNMEASURED] * len(set(self.required) - present))

    @property
    def missing(self) -> tuple[str, ...]:
        """Required checks that nobody answered, sorted."""
        return tuple(sorted(set(self.required) - {v.check for v in self.verdicts}))


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Fail, else unmeasured, else pass; nothing at all is unmeasured."""
    seen = set(outcomes)
    if Outcome.FAIL in seen:
        return Outcome.FAIL
    if Outcome.UNMEASURED in seen or not seen:
        return Outcome.UNMEASURED
    return Outcome.PASS
