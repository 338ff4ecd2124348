"""How the move of a gang ended."""

from __future__ import annotations

from dataclasses import dataclass

from infra.model.verdict import Finding, Level
from tasks.rules.outcome import End
from tasks.rules.wording import plural


@dataclass(frozen=True, kw_only=True, slots=True)
class GangEnd:
    """How a gang's move ended. `checkpoint` is the one that was seen, `was` the newest before we asked (RFC 3339)."""

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

    @property
    def harm(self) -> Finding | None:
        """We have stopped it and it does not run: nothing else may move before a person has looked."""
        if not self.stopped or self.running:
            return None
        return Finding(
            level=Level.BLOCK,
            code=self.code,
            object=self.workload,
            observed=f"was stopped at {self.stopped}; {self.reason}",
            expected=f"{plural(self.ranks, 'rank')} Running on the target",
            remedy="mend what keeps its pods from running, then run again: it goes on from here",
        )


class Failed(Exception):
    """A move that cannot go on."""

    def __init__(self, code: str, reason: str, end: End = End.FAILED) -> None:
        self.code, self.reason, self.end = code, reason, end
        super().__init__(reason)
