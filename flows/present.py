"""Results for people and for programs: each command's answer, as text or as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import console
from tasks.progress import complete
from tasks.rules.folding import alike
from tasks.rules.outcome import waits_words
from tasks.rules.wording import and_more, plural

if TYPE_CHECKING:
    from infra.model.verdict import Finding
    from tasks.audit import Audit
    from tasks.blockers import BlockersResult
    from tasks.drain import DrainReport
    from tasks.observe import Standing
    from tasks.rejudge import Rejudged
    from tasks.rules.plan import Plan
    from tasks.verifying import Checked


def plan(found: Plan, *, as_json: bool, verbose: bool = False) -> None:
    """The plan: findings, requests, waves, cost, and what migrate would do with it."""
    if as_json:
        console.show_json(found.to_dict())
        return
    console.out().print(complete(found.text(folded=not verbose)), markup=False)


def migration(result: dict[str, Any], *, as_json: bool) -> None:
    """How a migration ended."""
    if as_json:
        console.show_json(result)
        return
    mark = " (simulated)" if result.get("simulated") else ""
    console.say(f"done{mark}: {result.get('summary', '')}")
    if result.get("report"):
        console.say(f"report: {result['report']}")


def revalidation(result: dict[str, Any], *, as_json: bool) -> None:
    """One row per pool, and the findings below."""
    if as_json:
        console.show_json(result)
        return
    mark = " (simulated)" if any(pool.get("simulated") for pool in result["pools"]) else ""
    rows = [
        {"pool": p["pool"], "verdict": p["outcome"], "failing since": p["since"] or "-", "reason": p["summary"]}
        for p in result["pools"]
    ]
    console.show_table(rows, f"Revalidation {result['run']}{mark}")
    for pool in result["pools"]:
        for remedy in pool.get("next") or ():
            console.say(complete(f"  next for {pool['pool']}: {remedy}"))


def rollback(result: dict[str, Any], *, as_json: bool) -> None:
    """How much was put back; each thing was said as it was done."""
    if as_json:
        console.show_json(result)
        return
    console.say(result["summary"])


def status(found: Sequence[Standing], *, as_json: bool) -> None:
    """Every run with its steps."""
    if as_json:
        console.show_json([standing.to_dict() for standing in found])
        return
    if not found:
        console.say("no run in this cluster")
    for standing in found:
        late = standing.unrenewed
        held = [who + _late(who, late.get(who)) for who in standing.holders]
        holder = f"; held by {', '.join(held)}" if held else ""
        mark = " (simulated)" if standing.simulated else ""
        title = f"{standing.run}{mark}: {standing.source} -> {standing.target}, {standing.at}{holder}"
        if not standing.steps:
            console.out().print(title, markup=False)
        console.show_table(standing.steps, title)
        console.show_table(standing.slices, "Slices")
        console.show_findings(standing.unreadable)
        for line in _now(standing):
            console.out().print(line, markup=False)


def answered(run: str, said: str, *, as_json: bool) -> None:
    """What a run was asked, and what it will do."""
    said = complete(said)
    if as_json:
        console.show_json({"run": run, "answer": said})
        return
    console.say(said)


def written(path: Path, *, as_json: bool) -> None:
    """Where the report is."""
    if as_json:
        console.show_json({name: str(path.with_suffix(f".{name}")) for name in ("html", "md", "json")})
        return
    console.say(f"report: {path}")


def lines(found: Checked | BlockersResult, *, as_json: bool) -> None:
    """An answer in its own lines: is the ledger what was written, or what would a drain meet."""
    if as_json:
        console.show_json(found.to_json())
        return
    console.out().print("\n".join(found.lines()), markup=False)


def rejudged(found: Rejudged, *, as_json: bool) -> None:
    """Each check as the run saw it, and as it is seen under the new limits."""
    if as_json:
        console.show_json(found.to_json())
        return
    mark = " (simulated)" if found.simulated else ""
    rows = [
        {
            "check": p.now.check,
            "measured": p.measured,
            "then": p.before.outcome.value if p.before else "-",
            "now": p.now.outcome.value,
            "observed": p.now.observed or p.now.reason,
            "limit then": (p.before.limit if p.before else "") or "-",
            "limit now": p.now.limit or "-",
        }
        for p in found.pairs
    ]
    console.show_table(rows, f"Run {found.run}, judged again{mark}")
    if found.of:
        console.say(f"judged: {found.of.wording()}")
    changed = sum(p.changed for p in found.pairs)
    why = f", by {and_more(found.decided_by, 4)}: every measurement of the run counts" if found.decided_by else ""
    console.say(f"under this spec: {found.outcome.value}{why}")
    console.say(
        f"{changed} of {plural(len(found.pairs), 'verdict')} differ from the run's own, which stay in the ledger"
    )
    if found.missing:
        console.say(f"asked for and not in this run's evidence: {', '.join(found.missing)}")


def _now(standing: Standing) -> list[str]:
    """What holds a run, and where its waves stand: emptied nodes, percent, and which budget is waited for."""
    found, lines = standing.progress, []
    if standing.wish:
        lines.append(complete(f"  {standing.wish}; poolshift resume {standing.run} takes it back"))
    if found:
        lines.append(f"  {found.get('words', '')} (at {found.get('at', '')})")
        lines += [
            f"    {waits_words(str(w.get('why') or w.get('budget')), int(w.get('pods') or 1))}"
            for w in found.get("waits", [])
        ]
    lines += [complete(f"  {words}") for words in standing.next]
    if standing.report:
        lines.append(f"  report: {standing.report}")
    return lines


def _late(holder: str, seconds: int | None) -> str:
    """Of a process that holds a pool: is it still there?"""
    from tasks.observe import is_gone

    if is_gone(holder):
        return " (that process is gone)"
    return f" (not renewed for {seconds} s)" if seconds is not None else ""


def audit(found: Audit, *, as_json: bool) -> None:
    """Verdict and findings of an audit."""
    if as_json:
        console.show_json(found.to_json())
        return
    console.out().print(found.wording(), markup=False)
    _findings(found.findings)


def drain(found: DrainReport, *, as_json: bool) -> None:
    """How each node ended, what did not leave and why, and what was put back."""
    if as_json:
        console.show_json(found.to_json())
        return
    # What blocks was told before the first eviction; with a dry run this is the answer.
    warnings = alike(found.warnings)
    _findings((*(found.blocked if found.dry_run else ()), *warnings[:20], *found.unproven))
    if len(warnings) > 20:
        console.say(f"and {len(warnings) - 20} more warnings: --json shows all")
    for left in found.left:
        console.say(f"pod {left.pod.key} on {left.pod.node}: {left.end.value}: {left.reason}")
        if left.remedy:
            console.say(f"  next: {left.remedy}")
    if found.dry_run:
        free = [name for name, node in found.plan.items() if not node.blocked]
        stuck = [name for name, node in found.plan.items() if node.blocked]
        said = [f"{plural(found.leaving, 'pod')} would leave {and_more(free, 5)}"] if free else []
        if stuck:
            but = f"{plural(found.held_up, 'pod')} could leave but for it"
            said.append(f"nothing would leave {and_more(stuck, 5)} until what blocks is gone ({but})")
        console.say(f"dry run: {'; '.join(said)}; nothing was changed")
        return
    for name, end in sorted(found.nodes.items()):
        words = (
            "the selected pods are gone; others may be on it"
            if found.selected and end.value == "drained"
            else end.value
        )
        if name in found.refused:
            words = "refused; nothing was changed: not cordoned by this drain, no pod evicted"
        elif end.value == "drained" and name in found.restored:
            words = "was emptied, and takes pods again as before, since others failed"
        console.say(f"node {name}: {words}")
    evictions = f"{plural(found.tally.accepted, 'pod')} evicted, {plural(found.tally.refused, 'refusal')}"
    console.say(f"{_ended(found)}: {evictions}, {plural(found.requests, 'request')}, {found.seconds:.1f} s")
    if found.restored:
        console.say(f"cordoned or not, as before the drain: {', '.join(found.restored)}")
    if len(found.refused) < len(found.plan):  # it was told long ago
        for remedy in [*dict.fromkeys(f.remedy for f in found.blocked if f.remedy)][:5]:
            console.say(f"  next: {remedy}")


def _ended(found: DrainReport) -> str:
    """In a word, and which nodes were not begun: those the rules refused are no failure of the others."""
    if len(found.refused) == len(found.plan):
        return "refused"
    but = f", but {and_more(found.refused, 5)} refused" if found.refused else ""
    return f"{found.begun.value}{but}"


def _findings(found: Sequence[Finding]) -> None:
    """Worst first, those alike as one, and below each what to do next."""
    for finding in sorted(alike(found), key=lambda f: ("block", "warn", "info").index(f.level)):
        console.show_findings([replace(finding, remedy="")])
        if finding.remedy:
            console.out().print(complete(f"        next: {finding.remedy}"), markup=False)
