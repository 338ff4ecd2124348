"""What several steps of one run ask: its pools, what earlier steps left, and where evidence is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.clock import rfc3339
from infra.errors import NotFound
from infra.kube import records
from infra.model.evidence import Evidence
from infra.model.pools import Pool
from infra.model.record import StepState
from infra.model.spec import EksPool, ExternalPool, GkePool
from infra.model.verdict import Gate, Outcome, Verdict, worst
from tasks import ledgers, one_run
from tasks.identity import pool_identity, pool_words
from tasks.rules.wording import gate_words
from tasks.run import Done, Run

# Notes of the record that several steps read.
MOVING, LEAVING = "moving", "leaving"
SOURCE_PRIOR, TARGET_PRIOR = "cloud-prior-source", "cloud-prior-target"
LISTED = 200  # findings and names kept in the record

_CSI = {"eks": "fsx.csi.aws.com", "gke": "lustre.csi.storage.gke.io"}


def source_of(run: Run) -> Pool:
    """The source pool. Raises NotFound."""
    pool = run.source_pool()
    if pool is None:
        raise NotFound(pool_words(run.spec.source), "not found in the cloud", remedy="correct source in the spec")
    return pool


def target_of(run: Run) -> Pool:
    """The target pool, which this run has made. Raises NotFound."""
    pool = run.target_pool()
    if pool is None:
        raise NotFound(
            pool_words(run.spec.target),
            "was made and is gone",
            remedy=f"somebody deleted it: poolshift rollback SPEC, then start again ({run.name})",
        )
    return pool


def csi_of(run: Run, pool: Pool) -> str:
    """The CSI driver that the target's nodes must have registered; "" where it mounts no Lustre."""
    return _CSI.get(pool.kind, "") if getattr(run.spec.target, "lustre", None) else ""


def notes_of(run: Run) -> Mapping[str, Any]:
    """The notes of the run's record. Raises Unmeasured when one of them cannot be read: it would pass for absent."""
    record = records.read(run.kube, run.name)
    if record is None:
        return {}
    records.require_notes(run.kube, record)
    return record.notes


def noted(run: Run, note: str) -> Mapping[str, Any]:
    """A note of the run's record; empty when there is none. Raises Unmeasured."""
    found = notes_of(run).get(note)
    return found if isinstance(found, dict) else {}


def under_way(run: Run) -> bool:
    """Has any work been fenced or moved by this run? Raises Unmeasured."""
    return MOVING in notes_of(run)


def evidence_in(data: Mapping[str, Any]) -> list[Evidence]:
    """The evidence that a step left."""
    return [Evidence.from_dict(item) for item in data.get("evidence") or ()]


def verdicts_in(data: Mapping[str, Any]) -> list[Verdict]:
    """The verdicts that a step left."""
    return [Verdict.from_dict(item) for item in data.get("verdicts") or ()]


def gate_dict(found: Gate) -> dict[str, Any]:
    """A gate as a record keeps it."""
    return {
        "outcome": found.outcome,
        "required": list(found.required),
        "missing": list(found.missing),
        "verdicts": [v.to_dict() for v in found.verdicts],
    }


def gate_in(data: Mapping[str, Any], name: str) -> Gate:
    """The gate back from its record; one that lost its verdicts is unmeasured, never a pass."""
    return Gate(name=name, required=tuple(data.get("required") or ("gate",)), verdicts=tuple(verdicts_in(data)))


def judged(verdicts: Iterable[Verdict], summary: str) -> Done:
    """A step's end by its verdicts: done only when every one is pass."""
    listed = list(verdicts)
    outcome = worst(v.outcome for v in listed)
    return Done(
        summary=summary,
        state=StepState.DONE if outcome is Outcome.PASS else StepState.HELD,
        data={"outcome": outcome, "verdicts": [v.to_dict() for v in listed]},
    )


def gate_done(found: Gate) -> Done:
    """A step's end by a gate."""
    return Done(
        summary=gate_words(found),
        state=StepState.DONE if found.outcome is Outcome.PASS else StepState.HELD,
        data=gate_dict(found),
    )


def keep(
    run: Run,
    verdicts: Iterable[Verdict],
    evidence: Iterable[Evidence] = (),
    raw: Mapping[str, bytes] | None = None,
    pool: EksPool | GkePool | ExternalPool | None = None,
) -> None:
    """Into the ledger, before the step counts as done. The pool is named as revalidation names it."""
    items = tuple(evidence)
    ledgers.keep(
        run.name,
        pool_identity(pool or run.spec.target),
        rfc3339(run.clock.now()),
        verdicts=verdicts,
        evidence=items,
        raw=raw,
        spec_hash=run.hash,
        simulated=run.simulated,
        kube=run.kube,
        origin=one_run.origin_of(records.read(run.kube, run.name)) if items else "",
    )


def say_past_budget(run: Run, pod: str, budget: str) -> None:
    """A pod whose deletion past its budget is about to be asked for, into the ledger before that: it is never silent.

    A run that ends at this moment may not send it any more, so the entry does not say that it was.
    """
    why = f"drain.force.delete_after: budget {budget} refused it for so long, its deletion past it is asked for"
    facts = {"by": "spec", "why": why}
    at, pool = rfc3339(run.clock.now()), pool_identity(run.spec.source)
    ledgers.decide(run.name, pool, at, "forced", pod, facts, run.simulated, run.kube)
