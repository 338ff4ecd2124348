"""What a validation costs, in GPU-minutes, before and while it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

from infra.probes.catalogue import Probe
from tasks.rules.wording import plural

STARTUP_SECONDS = 30.0  # GPUs are held from scheduling on; an image that is not on the node yet adds its pull


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One probe's estimate. Minutes of GPU held, on a healthy pool."""

    probe: str
    gpu_minutes: float

    @property
    def whole_minutes(self) -> int:
        """As shown: rounded up."""
        return _up(self.gpu_minutes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A validation's estimate, probe by probe."""

    items: tuple[Cost, ...]

    @property
    def gpu_minutes(self) -> float:
        """All probes together."""
        return sum(item.gpu_minutes for item in self.items)

    @property
    def whole_minutes(self) -> int:
        """The sum of what is shown of the probes, so that it adds up; as a budget it is enough."""
        return sum(item.whole_minutes for item in self.items)

    def named(self, side: str) -> Estimate:
        """The same, each probe with the side's name before it."""
        return Estimate(items=tuple(replace(item, probe=f"{side} {item.probe}") for item in self.items))

    def plus(self, other: Estimate) -> Estimate:
        """Both, one after the other."""
        return Estimate(items=(*self.items, *other.items))

    def wording(self) -> str:
        """One line for a plan."""
        parts = ", ".join(f"{item.probe} {item.whole_minutes}" for item in self.items)
        return f"about {plural(self.whole_minutes, 'GPU-minute')} ({parts})"


def estimate(probes: Sequence[Probe], nodes: int, gpus: int) -> Estimate:
    """Of these probes on `nodes` nodes with `gpus` GPUs each."""
    return Estimate(items=tuple(Cost(probe=p.name, gpu_minutes=of(p, nodes, gpus)) for p in probes))


def of(probe: Probe, nodes: int, gpus: int) -> float:
    """One probe, GPU-minutes; 0 for a probe that holds no GPU."""
    gpus = min(gpus, probe.gpus_a_node) if probe.gpus_a_node else gpus
    return nodes * gpus * (probe.seconds + STARTUP_SECONDS) / 60 if probe.gpu else 0.0


def over_budget(probe: Probe, nodes: int, gpus: int, *, left: float, budget: float) -> str:
    """Why the probe may not start, or "". It is the estimate that counts: a probe is not cut in the middle."""
    need = of(probe, nodes, gpus)
    if need <= left:
        return ""
    rest = floor(left * 10) / 10
    return (
        f"{probe.name} needs about {plural(_up(need), 'GPU-minute')}, {rest:g} of {budget:g} are left: raise "
        f"validation.budget_gpu_minutes (--budget)"
    )


def _up(minutes: float) -> int:
    return ceil(round(minutes, 6))  # 24.000000001 is 24
