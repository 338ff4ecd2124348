"""How the move of a gang ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.kube import switches
from infra.kube.api import Kube
from infra.model.endings import FAILED, end_of, is_over
from infra.model.verdict import Finding, Level
from tasks.rules.gang_notes import root_of, still_wanted
from tasks.rules.outcome import End
from tasks.rules.wording import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class GangEnd:
    """How a gang's move ended. `checkpoint` is the one that was seen, `was` the newest before we asked (RFC 3339).

    `ended`: how the gang itself came to its end once it was started again, "" where it runs.
    """

    workload: str
    end: End
    code: str = ""
    reason: str = ""
    ranks: int = 0
    asked: str = ""
    checkpoint: str = ""
    was: str = ""
    stopped: str = ""
    running: str = ""
    ended: str = ""

    @property
    def harm(self) -> Finding | None:
        """We have stopped it and it does not run: nothing else may move before a person has looked."""
        if not self.stopped or self.running or self.ended:
            return None
        remedy = _REMEDIES.get(self.code, "mend what keeps its pods from running, then run again: it goes on from here")
        return Finding(
            level=Level.BLOCK,
            code=self.code,
            object=self.workload,
            observed=f"was stopped at {self.stopped}; {self.reason}",
            expected=f"{plural(self.ranks, 'rank')} Running on the target",
            remedy=remedy,
        )


_REMEDIES = {
    "gang-failed": "see why in its events and logs; delete it or make it anew, then run again",
    "gang-gone": "make it anew for the target if it is still wanted, then run again",
}


class Failed(Exception):
    """A move that cannot go on."""

    def __init__(self, code: str, reason: str, end: End = End.FAILED) -> None:
        self.code, self.reason, self.end = code, reason, end
        super().__init__(reason)


def end_since(kube: Kube, noted: Mapping[str, Any], running: int) -> str | None:
    """How a gang that was started again came to its end, "" where `running` pods are all that it needs; None: neither.

    To be asked while none of its pods is on its way. Raises Failed where it has failed, or is gone.
    """
    kind, namespace, name = root_of(noted)
    raw = switches.read(kube, kind, namespace, name)
    if raw is None:
        raise Failed("gang-gone", "is gone since it was started again, and nobody saw how it ended", End.UNKNOWN)
    ended = end_of(raw)
    if ended == FAILED:
        raise Failed("gang-failed", "has failed since it was started again")
    if is_over(raw):
        return ended
    return "" if 0 < still_wanted(raw, noted) <= running else None
