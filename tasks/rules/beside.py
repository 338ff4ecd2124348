"""What stands in an output besides that which gave it its kind: it passes only as a whole. Pure."""

from __future__ import annotations

from infra.fabrics import Fabric
from infra.model.reading import Kind, Reading, ToolReading
from infra.model.verdict import Finding, Level
from tasks.rules.reading_verdict import Answer, bad_end
from tasks.rules.tool_verdict import answer_tool
from tasks.rules.wording import plural


def answers_beside(reading: Reading, fabric: Fabric | None = None) -> list[Answer]:
    """A bad end, reports that are not judged, and what other tools printed: it is broken, or not shown to be good."""
    found: list[Answer] = []
    if said := bad_end(reading):
        found.append(Answer(verdict="failed" if said.level is Level.BLOCK else "suspicious", findings=(said,)))
    if reading.payload is not None and reading.payload.devices and reading.kind is not Kind.DEVICES:
        reports = plural(len(reading.payload.devices), "device report")
        found.append(_not_judged(reading, reports, "Give the device reports alone"))
    for tool in reading.beside:
        answer = answer_tool(tool, fabric=fabric)
        if answer.verdict in {"failed", "degraded"}:
            found.append(Answer(verdict=answer.verdict, findings=answer.findings))
        elif answer.verdict != "pass" and not _chatter(tool, reading):
            found.append(_not_judged(reading, tool.tool, f"Give what {tool.tool} printed alone"))
    return found


def _not_judged(reading: Reading, what: str, remedy: str) -> Answer:
    main = reading.tool.tool if reading.tool is not None else reading.kind.value
    said = f"stands in the same output as {main}, and nothing here shows that it is good"
    return Answer(
        findings=(Finding(level=Level.WARN, code="not-judged", object=what, observed=said, remedy=remedy),),
    )


def _chatter(tool: ToolReading, reading: Reading) -> bool:
    """Lines of a log that asks for no answer: libfabric's within a run, a device plugin's that complains of nothing."""
    if tool.tool == "libfabric-log":
        return tool.cause is None or bool(reading.nccl is not None and reading.nccl.ranks)
    return tool.tool == "device-plugin" and tool.healthy is not False
