"""What Prefect's UI shows of a finished step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.model.record import StepRecord
from infra.model.verdict import Finding


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A title, Markdown below it, and rows of a table; both may be empty."""

    title: str
    markdown: str
    rows: tuple[Mapping[str, Any], ...] = ()


def describe(run: str, record: StepRecord) -> Artifact:
    """Any step: its summary and findings; gates with their verdicts as rows. Waves have a table of their own."""
    lines = [f"## {record.step.value}: {record.state.value}", "", record.summary, ""]
    raw = list(record.data.get("findings") or ())
    raw += [f for v in record.data.get("verdicts") or () for f in v.get("findings") or ()]
    lines += [f"- **{f.level.value} {f.code}** {f.wording()}" for f in map(Finding.from_dict, raw[:40])]
    rows = tuple(
        {key: v.get(key, "") for key in ("check", "outcome", "observed", "limit", "statistic", "reason")}
        for v in record.data.get("verdicts") or ()
    )
    return Artifact(title=f"{run}: {record.step.value}", markdown="\n".join(lines), rows=rows)
