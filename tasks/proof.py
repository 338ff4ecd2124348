"""Step 6, and whoever asks the same again before the next irreversible step: is the new pool proven, as of now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from infra.kube import read
from infra.model.pools import Pool
from infra.model.record import Step
from infra.model.verdict import Gate, Outcome, Verdict
from tasks import opening, planning, swap, swap_record
from tasks import readiness as ready
from tasks.facts import csi_of, evidence_in, gate_done, keep, target_of, under_way
from tasks.rules import gate as gates
from tasks.rules.folding import first_clause
from tasks.rules.wording import and_more
from tasks.run import Done, Run, reopen

_CLOSED = "closed-until-proven"


def gate(run: Run) -> Done:
    """Step 6. Every required verdict pass, on evidence that is fresh and of this pool."""
    found = judge(run)
    for verdict in found.verdicts:
        run.say(f"gate {verdict.outcome.value:10s} {verdict.check}: {first_clause(verdict.reason)}")
    keep(run, found.verdicts)
    if any(v.check == _CLOSED for v in found.verdicts):
        reopen(run, Step.READINESS, Step.VALIDATE)
    return gate_done(found)


def judge(run: Run, at: datetime | None = None) -> Gate:
    """The gate as it stands now, from the record's evidence and the pool's nodes as they are at this moment.

    `at`: against which the evidence's age is told; default: now.
    """
    if swap_record.applies(run) and swap_record.begun(run):
        return swap.judge(run)
    pool = target_of(run)
    snapshot = read.snapshot(run.kube, pool.node_selector, owners=False, storage=False)
    found = gates.judge(
        evidence=evidence_in(run.data(Step.VALIDATE)),
        baseline=evidence_in(run.data(Step.BASELINE)),
        readiness=[ready.look(run.kube, pool, csi_of(run, pool))],
        spec=run.spec,
        spec_hash=run.hash,
        pool=pool,
        node_uids=[n.uid for n in planning.nodes_of(snapshot, pool)],
        now=at or run.clock.now(),
        simulated=run.simulated,
    )
    return replace(found, verdicts=(*found.verdicts, *_opened_early(run, pool)))


def _opened_early(run: Run, pool: Pool) -> Iterable[Verdict]:
    """Before work moves, nodes of a pool of ours that somebody has opened to it. They are closed again."""
    if pool.ours != run.name or under_way(run):
        return
    names = opening.find_open(run.kube, pool.node_selector)
    if names:
        opening.close_nodes(run.kube, names, run.name)
        yield Verdict(
            check=_CLOSED,
            outcome=Outcome.UNMEASURED,
            observed=f"somebody opened {and_more(names, 3)} to work",
            limit="closed until proven",
            reason=f"{and_more(names, 3)} took work before the proof; closed again, the next run measures anew",
        )
