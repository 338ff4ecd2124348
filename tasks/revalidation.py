"""One live pool, looked at again: devices always, the transport on idle nodes; and since when it fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from infra import connect as clouds
from infra.clock import parse_time, rfc3339
from infra.errors import PoolshiftError, Unreachable
from infra.kube import api, records
from infra.kube.api import Kube
from infra.model.pools import Pool
from infra.model.spec import EksPool, ExternalPool, GkePool, RevalidationSpec
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks import ledgers, readiness
from tasks import validate as validation
from tasks.identity import pool_identity, pool_words
from tasks.rules.wording import age
from tasks.run import Say


def look(spec: RevalidationSpec, part: EksPool | GkePool | ExternalPool, say: Say) -> dict[str, Any]:
    """Judge one pool; an error of one pool is that pool's unmeasured verdict and does not hide the others."""
    try:
        kube = api.connect(spec.cluster)
        pool = clouds.connect(spec.cluster, part).find(part)
        if pool is None:
            verdicts = [_unmeasured("readiness", f"{pool_words(part)} is not found in the cloud")]
            return _result(kube, spec, part, None, verdicts)
        verdicts = [readiness.look(kube, pool)]
        say(f"{pool_words(part)}: {verdicts[0].outcome.value}, {verdicts[0].reason}")
        if spec.probe_idle_nodes:
            verdicts += _probe(kube, spec, pool, say)
        return _result(kube, spec, part, pool, verdicts)
    except Unreachable as error:
        return _shape(part, [_unmeasured("readiness", error.wording())], "", simulated=False)


def _probe(kube: Kube, spec: RevalidationSpec, pool: Pool, say: Say) -> list[Verdict]:
    """The transport on nodes that nobody computes on. Too few of them: said, and not claimed to be measured."""
    spec_hash = records.spec_hash(spec.model_dump_json())
    try:
        found = validation.repeat_proof(kube, pool, spec, spec.name, spec_hash, kube.clock, say)
    except PoolshiftError as error:
        return [_unmeasured("transport-proof", error.wording())]
    for verdict in found.verdicts:
        say(f"{pool.name} {verdict.check}: {verdict.outcome.value}, {verdict.reason}")
    return list(found.verdicts)


def _result(
    kube: Kube,
    spec: RevalidationSpec,
    part: EksPool | GkePool | ExternalPool,
    pool: Pool | None,
    verdicts: list[Verdict],
) -> dict[str, Any]:
    now = rfc3339(kube.clock.now())
    identity = pool.identity if pool else pool_identity(part)
    since = _since(identity, verdicts)
    simulated = kube.sandbox is not None
    ledgers.keep(spec.name, identity, now, verdicts=verdicts, simulated=simulated)
    words = f"{since} ({age(parse_time(since), kube.clock.now())})" if since else ""
    return _shape(part, verdicts, words, simulated=simulated)


def _since(identity: str, verdicts: Iterable[Verdict]) -> str:
    """The earliest of what the cluster's own times say and what our history says; "" when all pass."""
    moments = []
    for verdict in verdicts:
        if verdict.outcome is Outcome.PASS:
            continue
        moments += [f.since.split(" ")[0] for f in verdict.findings if f.since and f.level is Level.BLOCK]
        known = ledgers.since(identity, verdict.check)
        if known:
            moments.append(known)
    return min(moments, default="")


def _shape(
    part: EksPool | GkePool | ExternalPool, verdicts: list[Verdict], since: str, *, simulated: bool
) -> dict[str, Any]:
    outcome = worst(v.outcome for v in verdicts)
    bad = [v for v in verdicts if v.outcome is not Outcome.PASS]
    summary = bad[0].reason if bad else "; ".join(v.reason for v in verdicts)
    return {
        "pool": pool_words(part),
        "outcome": outcome.value,
        "since": since,
        "summary": summary,
        "verdicts": [v.to_dict() for v in verdicts],
        "simulated": simulated,
        "markdown": _markdown(part, verdicts, since, simulated),
    }


def _markdown(part: EksPool | GkePool | ExternalPool, verdicts: Iterable[Verdict], since: str, simulated: bool) -> str:
    lines = [f"# {pool_words(part)}{' (simulated)' if simulated else ''}", ""]
    lines += [f"Failing since **{since}**.", ""] if since else []
    for verdict in verdicts:
        lines.append(f"- **{verdict.check}: {verdict.outcome.value}**. {verdict.reason}")
        lines += [f"  - {_finding(f)}" for f in verdict.findings]
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    return f"{finding.level.value} `{finding.code}` {finding.wording()}"


def _unmeasured(check: str, reason: str) -> Verdict:
    return Verdict(check=check, outcome=Outcome.UNMEASURED, reason=reason)
