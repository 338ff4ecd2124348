"""What a preflight check looks at, and how it words what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from infra.model.spec import EksTarget, ExternalPool, GkeTarget, MigrationSpec
from infra.model.survey import Part, Survey
from infra.model.verdict import Finding, Level

# The cloud itself refuses these without harm, or they only explain: a warning is enough.
_SOFT = {Part.QUOTA, Part.OFFERED, Part.ADDRESSES, Part.ADDONS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a check looks at. `server` and `source_nodes` are what Kubernetes says, "" and None where not asked."""

    survey: Survey
    spec: MigrationSpec
    run: str
    now: datetime
    server: str = ""
    source_nodes: int | None = None

    @property
    def target(self) -> EksTarget | GkeTarget | ExternalPool:
        """The pool to be made."""
        return self.spec.target


Check = Callable[[Question], Iterable[Finding]]


def unread(q: Question, part: Part, what: str) -> Finding:
    """The finding for facts that could not be read; blocking, except where the cloud's own refusal does no harm."""
    return Finding(
        level=Level.WARN if part in _SOFT else Level.BLOCK,
        code=f"unread-{part.name.lower()}",
        object=what,
        observed=f"could not be read: {q.survey.unread.get(part, 'it was not asked for')}",
        expected="a reading",
        remedy="mend what the message names (a permission, an id, the network), then plan again",
    )


def zone_of(q: Question) -> str:
    """The one zone of the target, empty where it is not known."""
    if isinstance(q.target, GkeTarget):
        return q.target.zone
    return q.survey.subnet.zone if q.survey.subnet else ""


def tail_of(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]


def warn(code: str, what: str, observed: str, expected: str, remedy: str) -> Finding:
    return Finding(level=Level.WARN, code=code, object=what, observed=observed, expected=expected, remedy=remedy)


def info(code: str, what: str, observed: str, remedy: str) -> Finding:
    return Finding(level=Level.INFO, code=code, object=what, observed=observed, remedy=remedy)
