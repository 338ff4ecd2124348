"""What the scheduler says when no node will do, in the real scheduler's words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

NO_NODES = "no nodes available to schedule pods"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_NO_HELP = "Preemption is not helpful for scheduling"


@dataclass
class Diagnosis:
    """Why each node was turned down."""

    nodes: int
    early: str = ""
    """What rules out every node before any is looked at, "" when nothing does."""
    reasons: Counter[str] = field(default_factory=Counter)
    helpless: int = 0
    """Nodes where removing pods would change nothing."""

    def add(self, reasons: list[str], *, would_help: bool) -> None:
        """One node, with what keeps the pod off it and whether removing pods would help."""
        self.reasons.update(reasons)
        self.helpless += not would_help

    def message(self, preemption_policy: str = "PreemptLowerPriority") -> str:
        """The text of the PodScheduled condition and of the FailedScheduling event."""
        if not self.nodes:
            return NO_NODES
        text = f"0/{self.nodes} nodes are available:"
        if self.early:
            text += f" {self.early}."
        elif self.reasons:
            text += f" {_histogram(self.reasons)}."
        if preemption_policy == "Never":
            return f"{text} preemption: not eligible due to preemptionPolicy=Never.."
        helpless = self.nodes if self.early else self.helpless
        outcomes = Counter({_NO_HELP: helpless, _NO_VICTIMS: self.nodes - helpless})
        return f"{text} preemption: 0/{self.nodes} nodes are available: {_histogram(outcomes)}."


def _histogram(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items() if count))
