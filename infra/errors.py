"""The short error tree. Adapters translate SDK exceptions into it; nothing above sees an SDK class.

Every error names the object, what was observed, what was expected and what to type next, because it is
read at 3 a.m. by somebody who did not write it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What a Kubernetes API server said: HTTP code, the Status object's words, and Retry-After in seconds."""

    code: int
    reason: str = ""
    message: str = ""
    causes: tuple[Mapping[str, Any], ...] = ()
    retry_after: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


class PoolshiftError(Exception):
    """Base of all errors that poolshift raises on purpose.

    Attributes:
        object: what it is about, as the field writes it ("pod train/llm-0", "node pool eu/gpu-rdma").
        observed: what was found.
        expected: what was needed instead, or "".
        remedy: the command or action to do next, or "".
        status: the API server's answer behind it; None when there was none, or no server was asked.

    """

    exit_code = 1
    status: Status | None = None

    def __init__(self, object: str, observed: str, *, expected: str = "", remedy: str = "") -> None:
        self.object = object
        self.observed = observed
        self.expected = expected
        self.remedy = remedy
        super().__init__(self.wording())

    def wording(self) -> str:
        """One message from the facts: `object: observed; expected …; next: …`."""
        text = f"{self.object}: {self.observed}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f"; next: {self.remedy}"
        return text


def facts_of(wording: str) -> tuple[str, str, str]:
    """An error's message taken apart again: what was found (with its object), what was expected, what to type next."""
    facts, _, remedy = wording.partition("; next: ")
    observed, _, expected = facts.partition("; expected ")
    return observed, expected, remedy


class BadSpec(PoolshiftError):
    """The spec is wrong: nothing was touched."""

    exit_code = 2


class BadFile(BadSpec):
    """A file that the command was given, and that is no spec, cannot be read or is not what it should be."""


class Refused(PoolshiftError):
    """The plan, a lock or a safety rule says no: nothing was changed by the refused action."""

    exit_code = 5


class GateHeld(PoolshiftError):
    """A gate has a failing verdict."""

    exit_code = 3


class Unmeasured(PoolshiftError):
    """Evidence is missing, cut, unknown or contradictory. Never a pass."""

    exit_code = 4


class NotFound(PoolshiftError):
    """The object does not exist (or carries another UID)."""


class Conflict(PoolshiftError):
    """Somebody else changed or holds the object."""


class Forbidden(PoolshiftError):
    """The server knows us and says no; names verb and resource."""


class Unreachable(PoolshiftError):
    """No answer, or an answer that says to try again later (408, 429 without a budget, 502, 503, 504)."""


class NoCapacity(PoolshiftError):
    """The cloud cannot give the machines (stockout, reservation full, quota)."""


class CloudError(PoolshiftError):
    """The cloud refused or failed in a way that waiting does not mend."""
