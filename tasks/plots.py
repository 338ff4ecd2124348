"""The report's pictures as inline SVG: bandwidth by message size, step times side by side, the run's timeline."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.rules.wording import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE, TARGET, LIMIT = "#b4653b", "#1f6f8b", "#8a8a8a"


def curves(sides: Mapping[str, Sequence[tuple[int, float]]], floors: Mapping[int, float], ceiling: float | None) -> str:
    """All-reduce bus bandwidth (GB/s) by message size (bytes), per side, with floors and the physical ceiling."""

    def draw(axes: Axes) -> None:
        sizes = sorted({s for rows in sides.values() for s, _ in rows} | set(floors))
        place = {s: i for i, s in enumerate(sizes)}
        for (name, rows), colour in zip(sides.items(), (SOURCE, TARGET), strict=False):
            ordered = sorted(rows)
            axes.plot([place[s] for s, _ in ordered], [b for _, b in ordered], "o-", color=colour, label=name)
        if floors:
            ordered_floors = sorted(floors.items())
            axes.plot([place[s] for s, _ in ordered_floors], [f for _, f in ordered_floors], "_", color=LIMIT,
                      markersize=24, label="floor")  # fmt: skip
        if ceiling:
            axes.axhline(ceiling, color=LIMIT, linestyle=":", label="physical ceiling")
        axes.set_xticks(range(len(sizes)), [size(s) for s in sizes])
        axes.set_ylabel("bus bandwidth, GB/s")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return _svg(draw, 7.2, 3.4)


def step_times(sides: Mapping[str, Sequence[float]]) -> str:
    """Every measured training step (seconds) of both sides, with the medians."""

    def draw(axes: Axes) -> None:
        for (name, steps), colour in zip(sides.items(), (SOURCE, TARGET), strict=False):
            axes.plot(range(1, len(steps) + 1), steps, ".", color=colour, label=name)
            ordered = sorted(steps)
            axes.axhline(ordered[len(ordered) // 2], color=colour, linewidth=0.8)
        axes.set_xlabel("step")
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return _svg(draw, 7.2, 3.0)


def timeline(rows: Sequence[tuple[str, float, float]]) -> str:
    """Steps as bars: name, start and end in minutes since the run began."""

    def draw(axes: Axes) -> None:
        for index, (_, start, end) in enumerate(rows):
            axes.barh(index, max(end - start, 0.02 * (rows[-1][2] or 1)), left=start, color=TARGET, height=0.6)
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel("minutes")

    return _svg(draw, 7.2, 0.32 * max(4, len(rows)) + 0.6)


def _svg(draw: Any, width: float, height: float) -> str:
    """Run `draw` on fresh axes and return the <svg> element alone, without a date, so equal data is equal text."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "poolshift"
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
