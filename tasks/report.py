"""Write a run's report: HTML for people, Markdown beside it, JSON with every fact."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import NotFound, PoolshiftError
from infra.fabrics import ceiling, fabric_of
from infra.kube import api, records
from infra.kube.records import RunRecord
from infra.model.record import Step
from infra.model.spec import Cluster
from tasks import fence, wishes
from tasks.home import home
from tasks.progress import complete
from tasks.rules import story, story_ended, story_figures, story_refused, story_tables
from tasks.rules.slice_rows import rows_of
from tasks.run import Run

FILES = ("report.json", "report.md", "report.html")
TIGHT = frozenset({"state", "took", "measured", "GPU-minutes", "id", "pods"})  # columns that a browser must not fold
WORDS = (
    ("verdict", "pass, fail or unmeasured. What was not measured has not passed, and only pass opens the gate."),
    ("RDMA", "the network cards write into the other node's memory (EFA, RoCE). Without it NCCL falls back to TCP."),
    ("NCCL, rank", "the library by which GPUs exchange data in training; a rank is one GPU's process."),
    ("all-reduce bus bandwidth", "GB/s (10^9 bytes) between the GPUs in the commonest exchange of training, as"
     " nccl-tests counts it; comparable on one number of nodes only."),
    ("GPUDirect, gdr", "the network card reaches GPU memory itself, without a copy through the host."),
    ("pinned", "the probe was told to use the RDMA network; otherwise it took what a job would get."),
    ("GPU-minute", "one GPU held by a probe for one minute."),
    ("wave, gang", "nodes that are emptied together; pods that only work, and therefore move, together."),
    ("drained", "proven to hold no pod that had to leave."),
    ("soak", "time on the new pool, watched, before the old one may go."),
)  # fmt: skip


def write(run: Run, stopped: PoolshiftError | None = None) -> Path:
    """Write the report of a run as it stands; returns the HTML file's path."""
    found = records.read(run.kube, run.name)
    if found is None:
        raise NotFound(f"run {run.name}", "no record in this cluster", remedy="poolshift status")
    ended = _cancelled(run.kube, found)
    return keep(found, simulated=run.simulated, when=_now(run), stopped=stopped, ended=ended)


def from_cluster(cluster: Cluster, name: str, into: str | None) -> Path:
    """The same for any run of a cluster, by name."""
    kube = api.connect(cluster)
    found = records.read(kube, name)
    if found is None:
        names = [r.name for r in records.list_runs(kube)]
        known = f"one of: {', '.join(names)}" if names else "a run; this namespace has none"
        raise NotFound(f"run {name}", "no record in this cluster", expected=known, remedy=what_is_left(name))
    when, ended, simulated = rfc3339(kube.clock.now()), _cancelled(kube, found), kube.sandbox is not None
    if into:
        return render(found, Path(into), simulated=simulated, when=when, ended=ended)
    return keep(found, simulated=simulated, when=when, ended=ended)


def what_is_left(name: str) -> str:
    """Where a run can be read about that no record in the cluster tells of: its last report, its saved output."""
    from infra.ledger import Ledger
    from tasks import ledgers

    last, left = folder(name) / "report.html", []
    if last.is_file():
        left.append(f"read the last report of a run of this name: {last}")
    try:
        if ledgers.exists():
            with Ledger.open(ledgers.location()) as ledger:
                if name in ledger.runs():
                    left.append(f"judge its saved output again: poolshift report {name} --rejudge SPEC")
    except PoolshiftError:
        pass  # a ledger that cannot be read is no next step
    return "; or ".join(left) or "poolshift status"


def write_end(run: Run, record: RunRecord, ended: story_ended.Ending) -> Path:
    """The last report of a run whose record is about to be removed; returns the HTML file's path."""
    return keep(record, simulated=run.simulated, when=_now(run), ended=ended)


def _cancelled(kube: api.Kube, record: RunRecord) -> story_ended.Ending | None:
    """How a person has ended the run by `poolshift cancel`; None where nobody has."""
    wish = record.notes.get(wishes.NOTE)
    if not isinstance(wish, dict) or wish.get("wish") != wishes.Wish.CANCEL:
        return None
    try:
        closed = fence.find_closed(kube, record.name)
    except PoolshiftError:
        closed = None
    return story_ended.cancelled(record.name, wish, record.notes, closed)


def facts(record: RunRecord) -> dict[str, str]:
    """The report's sentences, by name, with its headline and where it is."""
    told = story.tell(record.name, record.steps, when="", simulated=False)
    found = story.facts(record.steps)
    found.setdefault("report", str(folder(record.name) / "report.html"))
    return {"headline": told.headline, **found}


def folder(name: str) -> Path:
    """reports/NAME in poolshift's home, or below $POOLSHIFT_REPORTS: the newest report of that name."""
    root = os.environ.get("POOLSHIFT_REPORTS")
    return (Path(root).expanduser() if root else home() / "reports") / name


def own_folder(record: RunRecord) -> Path:
    """In there the run's own: another cluster's run of the same name, or a later one, does not overwrite it."""
    parts = (record.created.replace("-", "").replace(":", ""), record.uid[:8])
    return folder(record.name) / "-".join(filter(None, parts))


def keep(
    record: RunRecord,
    *,
    simulated: bool,
    when: str,
    stopped: PoolshiftError | None = None,
    ended: story_ended.Ending | None = None,
) -> Path:
    """Write the report into the run's own folder, and a copy as the newest of its name; returns the run's own HTML."""
    own, newest = own_folder(record), folder(record.name)
    html = render(record, own, simulated=simulated, when=when, stopped=stopped, ended=ended)
    for name in FILES if own != newest else ():
        _put(newest / name, (own / name).read_text(encoding="utf-8"))
    return html


def render(
    record: RunRecord,
    where: Path,
    *,
    simulated: bool,
    when: str,
    stopped: PoolshiftError | None = None,
    ended: story_ended.Ending | None = None,
) -> Path:
    """Write report.html, report.md and report.json into `where`. Each is complete or absent, never half written."""
    from jinja2 import Environment, PackageLoader, select_autoescape

    words = stopped.wording() if stopped else ""
    slices = rows_of(record.notes)
    told = story.tell(
        record.name, record.steps, when=when, simulated=simulated, stopped=words, slices=slices, ended=ended
    )
    told = _reaching(told)
    model = {
        **_shallow(told),
        "pictures": _pictures(record, simulated),
        "kinds": story.kinds(story_refused.without_consequences(told.findings, told.verdicts)),
        "words": WORDS,
        "tight": TIGHT,
    }
    environment = Environment(
        loader=PackageLoader("tasks", "templates"), autoescape=select_autoescape(enabled_extensions=("html.j2",))
    )
    environment.filters["reason"] = story_refused.reason
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    where.mkdir(parents=True, exist_ok=True)
    data = {"story": asdict(told), "spec": record.spec, "steps": {s.value: asdict(r) for s, r in record.steps.items()}}
    _put(where / "report.json", json.dumps(data, indent=2, default=str, ensure_ascii=False))
    _put(where / "report.md", environment.get_template("report.md.j2").render(m=model))
    html = where / "report.html"
    _put(html, environment.get_template("report.html.j2").render(m=model))
    return html


def _reaching(told: story.Story) -> story.Story:
    """With the cluster and the spec that this command line was given, in each command to type."""
    findings = tuple(replace(f, remedy=complete(f.remedy)) for f in told.findings)
    return replace(
        told,
        headline=complete(told.headline),
        lead=complete(told.lead),
        next=tuple(map(complete, told.next)),
        findings=findings,
    )


def _put(path: Path, text: str) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _shallow(told: story.Story) -> dict[str, Any]:
    """Fields as they are: the templates read attributes of verdicts and findings."""
    return {name: getattr(told, name) for name in told.__dataclass_fields__}


def _pictures(record: RunRecord, simulated: bool) -> list[Mapping[str, str]]:
    from tasks import plots

    before, after = (story_tables.evidence(record.steps, s) for s in (Step.BASELINE, Step.VALIDATE))
    mark = " Simulated." if simulated else ""
    pictures: list[Mapping[str, str]] = []
    sweeps = {f"{side} pool": story_figures.swept(found) for side, found in (("old", before), ("new", after))}
    shown = {
        f"{name}, {s.nodes} nodes" if s.nodes else name: list(s.busbw.items()) for name, s in sweeps.items() if s.busbw
    }
    if shown:
        pictures.append(
            {
                "title": "Bandwidth",
                "svg": plots.curves(shown, _floors(record), _ceiling(record)),
                "caption": f"All-reduce bus bandwidth by message size, median over rounds.{mark}",
            }
        )
    steps = {"old pool": story_figures.step_seconds(before), "new pool": story_figures.step_seconds(after)}
    timed = {name: values for name, values in steps.items() if values}
    if timed:
        pictures.append(
            {
                "title": "Training step",
                "svg": plots.step_times(timed),
                "caption": f"Every measured step, warm-up dropped; lines are medians.{mark}",
            }
        )
    bars = _timeline(record)
    if bars:
        pictures.append({"title": "Timeline", "svg": plots.timeline(bars), "caption": f"Time of the cluster.{mark}"})
    return pictures


def _floors(record: RunRecord) -> dict[int, float]:
    """The floors that the gate held the new pool to: the spec's, else the machine type's."""
    named = (record.spec.get("gate") or {}).get("min_busbw_gb_s") or {}
    if named:
        return {int(s): float(v) for s, v in named.items()}
    target = record.spec.get("target") or {}
    fabric = fabric_of(str(target.get("machine_type") or ""))
    if fabric is None:
        return {}
    found = {}
    for size_bytes in (record.spec.get("validation") or {}).get("sweep_sizes") or ():
        expected = fabric.expectation("all-reduce", int(target.get("nodes") or 0), int(size_bytes))
        if expected is not None:
            found[int(size_bytes)] = expected.floor_gb_s
    return found


def _ceiling(record: RunRecord) -> float | None:
    target = record.spec.get("target") or {}
    fabric = fabric_of(str(target.get("machine_type") or ""))
    return ceiling(fabric, "all-reduce", int(target.get("nodes") or 0)) if fabric else None


def _timeline(record: RunRecord) -> list[tuple[str, float, float]]:
    spans = [
        (r.step.value, parse_time(r.started), parse_time(r.finished))
        for s in Step
        if (r := record.steps.get(s)) is not None and r.started and r.finished
    ]
    if not spans:
        return []
    zero = min(start for _, start, _ in spans)
    return [(n, (a - zero).total_seconds() / 60, (b - zero).total_seconds() / 60) for n, a, b in spans]


def _now(run: Run) -> str:
    return rfc3339(run.clock.now())
