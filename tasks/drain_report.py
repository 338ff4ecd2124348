"""What a stand-alone drain is asked, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from infra.model.verdict import Finding
from infra.model.workload import Selector
from tasks.move_report import pod_end_dict
from tasks.rules.outcome import End, PodEnd, Tally, worst_end


@dataclass(frozen=True, kw_only=True)
class DrainOptions:
    """As kubectl drain's flags of the same names. `timeout` zero: no limit; `grace` None: each pod's own.

    `take_over`: go on where another stand-alone drain still marks these nodes; its cordons become this one's.
    """

    grace: int | None = None
    timeout: timedelta = timedelta(0)
    pod_selector: Selector | None = None
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False
    force: bool = False
    dry_run: bool = False
    take_over: bool = False
    evictions_per_second: float = 500.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """A node before the first eviction: how many of its pods may leave, and what blocks it."""

    pods: int
    blocked: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: would it be drained, how many pods would leave or are held up, and by what."""
        by = [{"object": f.object, "code": f.code} for f in self.blocked]
        return {"drain": not by, "pods": self.pods, "blocked_by": by}


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """How a stand-alone drain ended. `plan`: its nodes before the first eviction; blocked ones were not touched.

    `selected`: by --pod-selector, so that a drained node may hold other pods, and is not proven empty.
    """

    end: End
    nodes: dict[str, End]
    plan: Mapping[str, NodePlan]
    warnings: tuple[Finding, ...]
    left: tuple[PodEnd, ...]
    unproven: tuple[Finding, ...]
    restored: tuple[str, ...]
    tally: Tally
    requests: int
    seconds: float
    dry_run: bool = False
    selected: bool = False
    simulated: bool = False

    @property
    def blocked(self) -> tuple[Finding, ...]:
        """What keeps nodes from being touched."""
        return tuple(dict.fromkeys(f for node in self.plan.values() for f in node.blocked))

    @property
    def leaving(self) -> int:
        """Pods that leave, of nodes that nothing blocks."""
        return sum(node.pods for node in self.plan.values() if not node.blocked)

    @property
    def held_up(self) -> int:
        """Pods that could leave but for what blocks their node."""
        return sum(node.pods for node in self.plan.values() if node.blocked)

    @property
    def exit_code(self) -> int:
        """What became of the nodes that were begun: 4 unknown, 1 failed. With all of them drained: 5 if the rules
        refused others, else 0. A dry run says the same of what would be begun.
        """
        return {End.DRAINED: 5 if self.refused else 0, End.FAILED: 1, End.UNKNOWN: 4}[self.begun]

    @property
    def begun(self) -> End:
        """How it ended for the nodes that the rules let be begun."""
        return worst_end(end for name, end in self.nodes.items() if name not in self.refused)

    @property
    def refused(self) -> tuple[str, ...]:
        """Nodes that the rules refused: nothing was changed on them."""
        return tuple(name for name, node in self.plan.items() if node.blocked)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "end": self.end.value,
            "dry_run": self.dry_run,
            "selected_pods_only": self.selected,
            "nodes": {name: end.value for name, end in self.nodes.items()},
            "blocked": [f.to_dict() for f in self.blocked],
            "warnings": [f.to_dict() for f in self.warnings],
            "left": [pod_end_dict(p) for p in self.left],
            "unproven": [f.to_dict() for f in self.unproven],
            "pods": self.leaving,
            "held_up": self.held_up,
            "refused": list(self.refused),
            "plan": {name: node.to_json() for name, node in self.plan.items()},
            "restored": list(self.restored),
            "evictions": asdict(self.tally),
            "requests": self.requests,
            "seconds": round(self.seconds, 2),
            "simulated": self.simulated,
        }
