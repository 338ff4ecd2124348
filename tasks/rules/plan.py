"""The plan as it is shown: what it found, what it would send, in words and as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.model.pools import Request
from infra.model.spec import Strategy
from infra.model.verdict import Finding, Level
from tasks.rules import cost
from tasks.rules.folding import alike, first_causes
from tasks.rules.swap import SwapPlan
from tasks.rules.waves import MovePlan
from tasks.rules.wording import and_more, plural

# Of Markdown: heads, bold, code, fences. What a request's YAML holds is untouched: none of its lines begins so.
_MARKS = re.compile(r"(?m)^#+ |\*\*(?=\S)|(?<=\S)\*\*|^```\w*\n?|(?<=[A-Z] )`|`(?= )")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that `migrate` would do. `requests` are exactly those that it sends."""

    run: str
    source: str
    target: str
    strategy: Strategy
    findings: tuple[Finding, ...]
    requests: tuple[Request, ...]
    moves: MovePlan
    estimate: cost.Estimate
    simulated: bool
    slices: SwapPlan = field(default_factory=SwapPlan)

    @property
    def blocks(self) -> tuple[Finding, ...]:
        """What must be mended first."""
        return tuple(f for f in self.findings if f.level is Level.BLOCK)

    @property
    def exit_code(self) -> int:
        """0: migrate would start; 5: it would refuse."""
        return 5 if self.blocks else 0

    @property
    def summary(self) -> str:
        """One line."""
        if self.blocks:
            first, *others = (f for f in self.shown if f.level is Level.BLOCK)
            return f"refused: {first.wording()}" + (
                f" (and {plural(len(others), 'more blocking finding')})" if others else ""
            )
        warnings = sum(f.level is Level.WARN for f in self.findings)
        return (
            f"{self.strategy.value}{self._slices_words}: {plural(self.moves.pods, 'pod')} "
            f"{self._waves_words}, "
            f"{plural(len(self.moves.gangs), 'gang')} as one, {plural(warnings, 'warning')}, "
            f"validation {self.estimate.wording()}"
        )

    @property
    def _waves_words(self) -> str:
        """A swap goes by its slices; waves are laid out only where both pools stand side by side."""
        return "moved slice by slice" if self.slices.slices else f"in {plural(len(self.moves.waves), 'wave')}"

    @property
    def _slices_words(self) -> str:
        return f" in {plural(len(self.slices.slices), 'slice')}" if self.slices.slices else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, for --json, the record and the artifact."""
        return {
            "run": self.run,
            "source": self.source,
            "target": self.target,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "strategy": self.strategy.value,
            "findings": [f.to_dict() for f in self.findings],
            "requests": [{"verb": r.verb, "object": r.object, "body": _plain(r.body)} for r in self.requests],
            "slices": self.slices.to_dict(),
            "moves": self.moves.to_dict(),
            "gpu_minutes": round(self.estimate.gpu_minutes, 1),
            "simulated": self.simulated,
        }

    def markdown(self, *, folded: bool = False) -> str:
        """The plan for Prefect's UI; `folded`: of each request only its name and length."""
        import yaml

        mark = " (simulated)" if self.simulated else ""
        lines = [f"# Plan {self.run}{mark}", "", f"{self.source} -> {self.target}", "", f"**{self.summary}**", ""]
        if self.findings:
            lines += ["## Findings", ""]
            for each in self.shown:
                lines.append(f"- {each.level.value.upper()} `{each.code}` {replace(each, remedy='').wording()}")
                lines += [f"  - next: {each.remedy}"] if each.remedy else []
            lines.append("")
        if self.slices.slices:
            lines += ["## Slices", "", "Each is proven by the whole gate before the next source node is given up.", ""]
            lines += [f"{each.number}. {each.wording()}" for each in self.slices.slices]
            if self.slices.rest:
                rest = f"{plural(len(self.slices.rest), 'source node')}: {and_more(list(self.slices.rest), 4)}"
                lines += ["", f"Then, with nothing left to make, in waves: {rest}."]
        elif self.moves.waves:
            lines += ["## Waves", ""]
            for wave in self.moves.waves:
                pods = plural(len(wave.pods), "pod") if wave.pods else "no pod to move"
                lines.append(f"{wave.number}. {', '.join(wave.nodes)}: {pods}")
                lines += [f"   - {p.pod} waits for {p.waits_for}" for p in wave.pods if p.waits_for][:10]
        if self.requests:
            lines += ["", "## Requests, as migrate sends them", ""]
        for request in self.requests:
            body = yaml.safe_dump(_plain(request.body), sort_keys=False, allow_unicode=True).rstrip()
            if folded:
                lines.append(
                    f"- {request.verb} {request.object} ({plural(len(body.splitlines()), 'line')}; -v shows them)"
                )
                continue
            lines += [f"### {request.verb} {request.object}", "", "```yaml", body, "```", ""]
        then = "correct what blocks, then: poolshift plan SPEC" if self.blocks else "poolshift migrate SPEC"
        return "\n".join(lines).rstrip() + f"\n\nNothing was written. Next: {then}"

    def text(self, *, folded: bool = True) -> str:
        """The same for a terminal, without Markdown's marks."""
        return _MARKS.sub("", self.markdown(folded=folded))

    @property
    def shown(self) -> list[Finding]:
        """Worst first, those alike as one, without what only follows from a machine type that nobody knows."""
        return alike(first_causes(sorted(self.findings, key=lambda f: list(Level).index(f.level))))


def _plain(data: Any) -> Any:
    """Mappings and tuples as dicts and lists, so that YAML and JSON write them without tags."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return [_plain(item) for item in data]
    return data
