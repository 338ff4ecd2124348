"""What the scheduler says when no node will do, in the real scheduler's words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NO_NODES = "no nodes available to schedule pods"
NEVER = "not eligible due to preemptionPolicy=Never."
STILL_LEAVING = "not eligible due to a terminating pod on the nominated node."
_NO_VICTIMS = "No preemption victims found for incoming pod"
_NO_HELP = "Preemption is not helpful for scheduling"
_NO_CLAIMS = "no new claims to deallocate"
"""What the plugin for dynamic resources adds for a pod that has none."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """Why one node was turned down, and whether removing pods could change that."""

    reasons: tuple[str, ...]
    would_help: bool
    only_room: bool = False
    """Nothing but room is missing, and the node would have enough of it."""


@dataclass
class Diagnosis:
    """Why each node was turned down."""

    nodes: int
    early: str = ""
    """What rules out every node before any is looked at, "" when nothing does."""
    turned: dict[str, Turned] = field(default_factory=dict)
    still_short: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes whose pods of lower priority would not free enough, with what would still be missing."""

    def found(self) -> str:
        """What was found, without a word on preemption: the whole text when preemption has made room."""
        if not self.nodes:
            return NO_NODES
        text = f"0/{self.nodes} nodes are available:"
        if self.early:
            return f"{text} {self.early}."
        reasons = Counter(reason for each in self.turned.values() for reason in each.reasons)
        return f"{text} {_histogram(reasons)}." if reasons else text

    def message(self, ineligible: str = "") -> str:
        """The text of the PodScheduled condition and of the FailedScheduling event.

        `ineligible` says why the pod may not preempt at all, "" when it may.
        """
        if not self.nodes:
            return NO_NODES
        if self.early:
            return f"{self.found()} not found"  # the real one's own slip: what dynamic resources look up is missing
        text = f"{self.found()} {_NO_CLAIMS}, preemption:"
        if ineligible:
            return f"{text} {ineligible}"
        outcomes: Counter[str] = Counter()
        for name, each in self.turned.items():
            if not each.would_help:
                outcomes[_NO_HELP] += 1
            elif name in self.still_short:
                outcomes.update(self.still_short[name])
            else:
                outcomes[_NO_VICTIMS] += 1
        return f"{text} 0/{self.nodes} nodes are available: {_histogram(outcomes)}."


def _histogram(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
