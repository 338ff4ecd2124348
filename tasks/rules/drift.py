"""Has a pool slid away from what it reached itself before, although every floor still holds? Pure.

Compared is with the best level that the pool held over several measurements in a row: against the one before, or the
mean of all, a pool that loses one percent a week never drifts. One lucky measurement is no level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from infra.model.evidence import Evidence
from infra.model.measurement import Steps, Sweep
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.wording import and_more, plural, size

CHECK = "drift"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure that is compared with itself over time. Only equal ones are: as many nodes, of one machine type."""

    name: str
    unit: str
    probe: str
    mode: str
    machine_type: str
    nodes: int
    arguments: tuple[str, ...] = ()

    @property
    def falls(self) -> bool:
        """Bandwidth gets worse downwards, a step time upwards."""
        return self.unit == "GB/s"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measurement of a figure, and what ran."""

    at: str
    value: float
    versions: Mapping[str, str]
    image: str


def judge(pool: str, past: Sequence[Evidence], now: Sequence[Evidence], *, share: float, points: int) -> Verdict:
    """Fail when a figure is worse by more than `share` than the level that the pool held before.

    Args:
        pool: in words.
        past: the pool's earlier evidence, oldest first.
        now: the newest.
        share: of the level, e.g. 0.1.
        points: how many measurements in a row make a level. With fewer a figure is unmeasured.

    """
    known, found = figures(past), figures(now)
    findings: list[Finding] = []
    short = [f"{e.probe} ({e.mode}) broke off or was altered" for e in now if not e.complete or not e.intact]
    for figure, measured in found.items():
        earlier = [p for p in known.get(figure, ()) if p.at < measured[-1].at]
        if len(earlier) < points:
            short.append(f"{figure.name}: {len(earlier)} of {points} earlier measurements")
        elif (finding := _slid(pool, figure, earlier, measured[-1], share, points)) is not None:
            findings.append(finding)
    short += [f"{figure.name}: not measured this time" for figure in _left_out(known, found)]
    limit = f"at most {share:.0%} worse than the pool's own best level over {points} measurements"
    if findings:
        return _verdict(Outcome.FAIL, limit, f"{findings[0].object}: {findings[0].observed}", tuple(findings))
    if short or not found:
        reason = f"not comparable with the past: {and_more(short, 3)}" if short else "nothing was measured"
        return _verdict(Outcome.UNMEASURED, limit, reason)
    return _verdict(Outcome.PASS, limit, f"{plural(len(found), 'figure')} as good as before")


def _left_out(known: Mapping[Figure, Sequence[Point]], found: Mapping[Figure, Sequence[Point]]) -> list[Figure]:
    """What the last measurement of the same kind had and this one lacks: where it is lost, it may be what slid."""
    last: dict[Figure, str] = {}
    for figure, points in known.items():
        last[_kind(figure)] = max(last.get(_kind(figure), ""), points[-1].at)
    now = {_kind(figure) for figure in found}
    return [f for f, points in known.items() if f not in found and _kind(f) in now and points[-1].at == last[_kind(f)]]


def _kind(figure: Figure) -> Figure:
    """The measurement that a figure is of, whatever the size."""
    return replace(figure, name="")


def figures(evidence: Sequence[Evidence]) -> dict[Figure, list[Point]]:
    """Every figure with its measurements, in the order of the evidence. What broke off or was altered is left out."""
    found: dict[Figure, list[Point]] = {}
    for item in evidence:
        if not item.complete or not item.intact:
            continue
        for figure, value in _values(item):
            point = Point(at=item.measured, value=value, versions=item.versions, image=item.image)
            found.setdefault(figure, []).append(point)
    return found


def _values(item: Evidence) -> list[tuple[Figure, float]]:
    where = f"{item.probe} ({item.mode}), {plural(len(item.nodes), 'node')}"
    if item.reading.get("seconds"):
        steps = Steps.from_dict(item.reading)
        figure = Figure(
            name=f"median step of {where}", unit="s", probe=item.probe, mode=item.mode, machine_type=item.machine_type,
            nodes=len(item.nodes), arguments=item.arguments,
        )  # fmt: skip
        return [(figure, median(steps.seconds))] if steps.complete and steps.seconds else []
    sweep = Sweep.from_dict(item.reading)
    if not sweep.complete:
        return []
    by_size: dict[int, list[float]] = {}
    for row in sweep.rows:
        by_size.setdefault(row.size_bytes, []).append(row.busbw_gb_s)
    return [
        (
            Figure(
                name=f"bus bandwidth at {size(bytes_)} of {where}", unit="GB/s", probe=item.probe, mode=item.mode,
                machine_type=item.machine_type, nodes=len(item.nodes),
            ),
            median(rates),
        )
        for bytes_, rates in sorted(by_size.items())
    ]  # fmt: skip


def _slid(
    pool: str, figure: Figure, earlier: Sequence[Point], newest: Point, share: float, points: int
) -> Finding | None:
    level, held = _level(figure, earlier, points)
    if _worse(figure, newest.value, level) <= share:
        return None
    since = newest.at
    for point in reversed(earlier):
        if _worse(figure, point.value, level) <= share:
            break
        since = point.at
    return Finding(
        level=Level.BLOCK,
        code="drift",
        object=pool,
        observed=f"{figure.name}: {newest.value:.3g} {figure.unit}, "
        f"{_worse(figure, newest.value, level):.0%} worse than {level:.3g} {figure.unit}, "
        f"which it held from {held[0].at} to {held[-1].at}",
        expected=f"at most {share:.0%} worse",
        since=since,
        remedy=_changed(held[-1], newest),
    )


def _level(figure: Figure, earlier: Sequence[Point], points: int) -> tuple[float, Sequence[Point]]:
    """The best median over `points` measurements in a row, and those measurements."""
    rows = [earlier[i : i + points] for i in range(len(earlier) - points + 1)]
    levels = [(median(p.value for p in row), row) for row in rows]
    return (max if figure.falls else min)(levels, key=lambda level: level[0])


def _worse(figure: Figure, value: float, level: float) -> float:
    return (level - value) / level if figure.falls else (value - level) / level


def _changed(before: Point, now: Point) -> str:
    """What ran then and what runs now, where they differ: the first place to look."""
    names = sorted({*before.versions, *now.versions})
    changes = [
        f"{name} {before.versions.get(name, '?')} -> {now.versions.get(name, '?')}"
        for name in names
        if before.versions.get(name) != now.versions.get(name)
    ]
    changes += [f"image {before.image} -> {now.image}"] if before.image != now.image else []
    if changes:
        return f"changed since: {', '.join(changes)}"
    return "no version that is recorded changed: find the node with a probe of each pair"


def _verdict(outcome: Outcome, limit: str, reason: str, findings: tuple[Finding, ...] = ()) -> Verdict:
    return Verdict(
        check=CHECK,
        outcome=outcome,
        limit=limit,
        statistic="median of each measurement",
        reason=reason,
        findings=findings,
    )
