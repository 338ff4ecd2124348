"""One live pool, looked at again: devices always, the transport on idle nodes; and since when it fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from infra import connect as clouds
from infra.clock import parse_time, rfc3339
from infra.errors import PoolshiftError
from infra.kube import api, leases, records
from infra.kube.api import Kube
from infra.model.pools import Pool
from infra.model.spec import EksPool, ExternalPool, GkePool, RevalidationSpec
from infra.model.verdict import Finding, Level, Outcome, Verdict, worst
from tasks import ledgers, readiness
from tasks import validate as validation
from tasks.identity import pool_identity, pool_words
from tasks.rules import drift
from tasks.rules.gate import TRANSPORT
from tasks.rules.story_refused import causes
from tasks.rules.wording import age, plural
from tasks.run import Say
from tasks.spending import Spending
from tasks.validate import Validation

Part = EksPool | GkePool | ExternalPool


def look(spec: RevalidationSpec, part: Part, say: Say, spent: float = 0.0) -> dict[str, Any]:
    """Judge one pool; an error of one pool is that pool's unmeasured verdict and does not hide the others.

    `spent` are GPU-minutes that pools before this one took of the spec's budget, which is one for all of them;
    "gpu_minutes" of the answer is what this one took. A probe that ended in an error counts with its estimate.

    Raises:
        BadSpec: the spec's cluster cannot be opened at all, which is true of every pool.

    """
    kube = api.connect(spec.cluster)
    try:
        pool = clouds.connect(spec.cluster, part).find(part)
        reason = f"{pool_words(part)} is not found in the cloud"
        verdict = readiness.look(kube, pool) if pool else _unmeasured("readiness", reason)
    except PoolshiftError as error:
        pool, verdict = None, _unmeasured("readiness", error.wording())
    say(f"{pool_words(part)}: {verdict.outcome.value}, {verdict.reason}")
    proof, note = Validation(verdicts=()), ""
    spending = Spending(kube=kube, run=spec.name, budget=spec.validation.budget_gpu_minutes, spent=spent)
    if spec.probe_idle_nodes:
        proof, note = _probe(kube, spec, part, pool, say, spending)
    for found in proof.verdicts:
        say(f"{pool_words(part)} {found.check}: {found.outcome.value}, {found.reason}")
    if note:
        say(f"{pool_words(part)}: {note}")
    shown = _result(kube, spec, part, [verdict, *proof.verdicts], proof, note, say)
    return {**shown, "gpu_minutes": round(spending.counted - spent, 3)}


def _probe(
    kube: Kube, spec: RevalidationSpec, part: Part, pool: Pool | None, say: Say, spending: Spending
) -> tuple[Validation, str]:
    """The transport on nodes that nobody computes on, while we hold the pool's Lease.

    A pool that a run holds, and a probe that ends in an error, are unmeasured. With fewer than two idle nodes there
    is nothing to measure: no verdict, and a note that says so.
    """
    if pool is None:
        return Validation(verdicts=()), "transport not measured: the pool could not be looked at"
    try:
        idle = validation.idle(kube, pool)
        if len(idle) < 2:
            return Validation(verdicts=()), f"transport not measured: {plural(len(idle), 'idle node')}"
        records.ensure_namespace(kube)
        spec_hash = records.spec_hash(spec.model_dump_json())
        with leases.hold(kube, [pool_identity(part)], spec.name) as held:
            # Nothing is made once the lease is lost; a probe's clean-up of its own Job goes on.
            guarded = kube.guarded(leases.lost)
            found = validation.repeat_proof(guarded, pool, spec, spec.name, spec_hash, kube.clock, say, spending)
            for lease in held:
                lease.check()
    except PoolshiftError as error:
        return Validation(verdicts=(_unmeasured(TRANSPORT, error.wording()),)), ""
    gone = "transport not measured: fewer than two nodes stayed idle"
    return found, "" if found.verdicts else gone


def _result(
    kube: Kube,
    spec: RevalidationSpec,
    part: Part,
    verdicts: list[Verdict],
    proof: Validation,
    note: str,
    say: Say,
) -> dict[str, Any]:
    """The pool's answer, kept in the ledger. A ledger that fails is one more unmeasured verdict and hides nothing."""
    identity, simulated = pool_identity(part), kube.sandbox is not None
    moments, drifted = _since_cluster(verdicts), None
    try:
        if proof.evidence:
            before = ledgers.past(identity, simulated=simulated)
            drifted = drift.judge(
                pool_words(part), before, proof.evidence, share=spec.drift.share, points=spec.drift.points
            )
            say(f"{pool_words(part)} {drift.CHECK}: {drifted.outcome.value}, {drifted.reason}")
            if drifted.outcome is not Outcome.UNMEASURED:  # a young pool has no past, which is no defect of it
                verdicts = [*verdicts, drifted]
        note = f"{note}; {_last_proof(kube, identity, simulated=simulated)}" if note else ""
        moments = _since_cluster(verdicts) + _since_ledger(identity, verdicts, simulated=simulated)
        now = rfc3339(kube.clock.now())
        ledgers.keep(
            spec.name,
            identity,
            now,
            verdicts=verdicts,
            evidence=proof.evidence,
            raw=proof.raw,
            spec_hash=records.spec_hash(spec.model_dump_json()),
            simulated=simulated,
            kube=kube,
            origin=now,
        )
    except PoolshiftError as error:
        verdicts = [*verdicts, _unmeasured("ledger", f"not kept: {error.wording()}")]
        say(f"{pool_words(part)}: {verdicts[-1].reason}")
    since = min(moments, default="")
    words = f"{since} ({age(parse_time(since), kube.clock.now())})" if since else ""
    shape = _shape(part, verdicts, words, note, simulated=simulated)
    return {**shape, "drift": drifted.to_dict() if drifted else None}


def _last_proof(kube: Kube, identity: str, *, simulated: bool) -> str:
    """Where the transport could not be measured, the age of its last proof is what there is. Raises Unreachable."""
    at = ledgers.last_pass(identity, TRANSPORT, simulated=simulated)
    return f"last proven {at} ({age(parse_time(at), kube.clock.now())} ago)" if at else "never proven, by this ledger"


def _since_cluster(verdicts: Iterable[Verdict]) -> list[str]:
    """Since when what does not pass is as it is, by the cluster's own times."""
    bad = [v for v in verdicts if v.outcome is not Outcome.PASS]
    return [f.since.split(" ")[0] for v in bad for f in v.findings if f.since and f.level is Level.BLOCK]


def _since_ledger(identity: str, verdicts: Iterable[Verdict], *, simulated: bool) -> list[str]:
    """Since when what does not pass has not passed, by our own history. Raises Unreachable."""
    bad = [v for v in verdicts if v.outcome is not Outcome.PASS]
    return [known for v in bad if (known := ledgers.since(identity, v.check, simulated=simulated))]


def _shape(part: Part, verdicts: list[Verdict], since: str, note: str, *, simulated: bool) -> dict[str, Any]:
    outcome = worst(v.outcome for v in verdicts)
    bad = [v for v in verdicts if v.outcome is not Outcome.PASS]
    reasons = [v.reason for v in bad or verdicts]
    return {
        "pool": pool_words(part),
        "outcome": outcome.value,
        "since": since,
        "summary": "; ".join([*reasons, note] if note else reasons),
        "note": note,
        "next": list(dict.fromkeys(f.remedy for f in causes(bad) if f.remedy))[:5],
        "verdicts": [v.to_dict() for v in verdicts],
        "simulated": simulated,
        "markdown": _markdown(part, verdicts, since, note, simulated),
    }


def _markdown(part: Part, verdicts: Iterable[Verdict], since: str, note: str, simulated: bool) -> str:
    lines = [f"# {pool_words(part)}{' (simulated)' if simulated else ''}", ""]
    lines += [f"Failing since **{since}**.", ""] if since else []
    for verdict in verdicts:
        lines.append(f"- **{verdict.check}: {verdict.outcome.value}**. {verdict.reason}")
        lines += [f"  - {_finding(f)}" for f in verdict.findings]
    lines += [f"- {note}"] if note else []
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    return f"{finding.level.value} `{finding.code}` {finding.wording()}"


def _unmeasured(check: str, reason: str) -> Verdict:
    return Verdict(check=check, outcome=Outcome.UNMEASURED, reason=reason)
