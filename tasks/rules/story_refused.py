"""Why a gate is held: first causes without their consequences, and the one sentence that says it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.fabrics import fabric_of
from infra.model.record import Step
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks.rules.gate import READINESS, TRANSPORT, WORKLOAD
from tasks.rules.story_figures import compared
from tasks.rules.story_tables import Records
from tasks.rules.wording import plural, size

UNTOUCHED = "nothing was moved or deleted"
# Of a plugin that is not up: what follows from it, and would only send a person from one command to the next.
_FOLLOWS = frozenset({"devices-missing", "resource-short"})
_WHAT = {
    "plugin-image-missing": "the image of {object} cannot be pulled",
    "plugin-exec-format": "the image of {object} is built for another architecture",
    "plugin-crash-loop": "{object} keeps crashing",
    "plugin-init-stuck": "{object} does not get past its start",
    "plugin-excludes-nodes": "{object} is kept away",
}


def verdicts_of(data: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts in a step's record."""
    return [Verdict.from_dict(v) for v in data.get("verdicts") or ()]


def causes(verdicts: Iterable[Verdict]) -> list[Finding]:
    """What blocks, first causes only: a pool that is not ready explains what its network then shows."""
    listed = list(verdicts)
    blocks = [f for v in listed for f in v.findings if f.level is Level.BLOCK]
    not_ready = [f for v in listed if v.check == READINESS for f in v.findings if f.level is Level.BLOCK]
    found = not_ready or blocks
    return [f for f in found if f.code not in _FOLLOWS] or found


def without_consequences(findings: Sequence[Finding], verdicts: Iterable[Verdict]) -> list[Finding]:
    """Without what follows from a plugin that is not up on the pool: its own finding says how many those are.

    These are resources that the nodes then lack, and what the network of a job then says.
    """
    listed = list(verdicts)
    ready = [f for v in listed if v.check == READINESS for f in v.findings]
    root = next((f for f in ready if f.level is Level.BLOCK and f.code.startswith("plugin-")), None)
    if root is None:
        return list(findings)
    network = {_key(f) for v in listed if v.check in (TRANSPORT, WORKLOAD) for f in v.findings}
    follows = [
        f
        for f in findings
        if f.level is Level.BLOCK and not f.code.startswith("plugin-") and (f.code in _FOLLOWS or _key(f) in network)
    ]
    if not follows:
        return list(findings)
    verb = "follows" if len(follows) == 1 else "follow"
    words = f"{root.observed}; {plural(len(follows), 'other finding')} {verb} from it"
    return [
        replace(f, observed=words) if _key(f) == _key(root) else f
        for f in findings
        if not any(f is each for each in follows)
    ]


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.code, finding.object, finding.observed


def remedies(data: Mapping[str, Any]) -> list[str]:
    """What to type next about a held step: what it says itself, else what its causes say. Each once, at most five."""
    own = [str(r) for r in data.get("remedies") or ()]
    return list(dict.fromkeys(own or [f.remedy for f in causes(verdicts_of(data)) if f.remedy]))[:5]


def reason(verdict: Verdict) -> str:
    """Why, for a table that has the verdict's findings below it: its first clause, with short names of nodes."""
    return _short(verdict.reason.partition("; ")[0]) if verdict.findings else verdict.reason


def sentence(records: Records, findings: Sequence[Finding]) -> str:
    """What is wrong, on which nodes, since when, what it costs, and what was not touched: one sentence for a gate."""
    data = records[Step.GATE].data if Step.GATE in records else {}
    verdicts = verdicts_of(data)
    found = causes(verdicts)
    bad = next((v for v in verdicts if v.outcome is Outcome.FAIL), None) or next(
        (v for v in verdicts if v.outcome is not Outcome.PASS), None
    )
    if found:
        text = _what(found[0], findings)
    elif bad is not None:
        text = f"the new pool is not proven: {bad.check} is {bad.outcome.value}: {bad.reason.partition('; ')[0]}"
    else:
        text = "the new pool is not proven"
    cost = "; ".join(filter(None, (_network(verdicts), _slowness(records))))
    text = f"{text}: {cost}" if cost else text
    end = "" if Step.MIGRATE in records else f"; {UNTOUCHED}"
    return f"{text[0].upper()}{text[1:]}{end}."


def _what(cause: Finding, findings: Sequence[Finding]) -> str:
    words = _WHAT.get(cause.code)
    if words is None:
        text = _short(f"{cause.object}: {cause.observed}")
    else:
        _, on, where = cause.observed.rpartition(" on ")
        text = words.format(object=cause.object) + (f" on {_short(where)} of the new pool" if on else "")
    old = next((f for f in findings if f.code == f"source-{cause.code}" and f.object == cause.object), None)
    if old is not None and old.since:
        return f"{text}, and on the old pool it has been so {_since(old.since)}"
    return f"{text}, {_since(cause.since)}" if cause.since else text


def _since(since: str) -> str:
    """ "for 271 days (since 2026-03-04)", from "2026-03-04T12:24:57Z (271 days)"."""
    moment, _, rest = since.partition(" (")
    return f"for {rest.removesuffix(')')} (since {moment[:10]})" if rest else f"since {moment}"


def _short(text: str) -> str:
    """Node names without their domain: the findings have them whole."""
    return re.sub(r"\b(ip-[\d-]+)\.[\w.-]+\w", r"\1", text)


def _network(verdicts: Sequence[Verdict]) -> str:
    bad = any(v.check == WORKLOAD and v.outcome is Outcome.FAIL and v.observed.startswith("socket") for v in verdicts)
    return "jobs run over TCP sockets instead of RDMA" if bad else ""


def _slowness(records: Records) -> str:
    """The old pool's share of what its machines should reach, where it was measured below that."""
    old = compared(records).old
    fabric = fabric_of(old.machine_type)
    for at in sorted(old.busbw, reverse=True) if fabric is not None else ():
        expected = fabric.expectation("all-reduce", old.nodes, at) if fabric else None
        if expected is not None:
            have, floor = old.busbw[at], expected.floor_gb_s
            share = f"{100 * have / floor:.0f} % of the bandwidth that {old.machine_type} should at least have"
            measured = f"{have:.1f} of {floor:.1f} GB/s, all-reduce of {size(at)} on {plural(old.nodes, 'node')}"
            return f"the old pool reaches {share} ({measured})" if have < floor else ""
    return ""
