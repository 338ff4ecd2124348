"""What a small tool's reading amounts to."""

from __future__ import annotations

from infra.fabrics.fabric import Fabric
from infra.model.reading import ToolReading
from tasks.rules.reading_verdict import Answer


def answer_tool(reading: ToolReading, *, fabric: Fabric | None = None) -> Answer:
    """Figures with their units; healthy or failed only where the tool itself says so."""
    verdict = "undetermined"
    if reading.healthy is False:
        verdict = "failed"
    elif reading.suspicious:
        verdict = "suspicious"
    fields = {
        "tool": reading.tool,
        **reading.figures,
        "complete": reading.complete,
        "healthy": reading.healthy,
        "cause": reading.cause,
        "suspicious": bool(reading.suspicious),
    }
    return Answer(fields=fields, verdict=verdict)
