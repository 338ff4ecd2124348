"""Step 10: the old pool goes, on fresh proof that the new one holds and that nothing is left on the old."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from infra.clock import parse_time
from infra.errors import Unmeasured
from infra.kube import leases, read, records
from infra.model.pools import PoolState
from infra.model.record import Step, StepState
from infra.model.spec import ExternalPool
from infra.model.verdict import Finding, Gate, Level, Outcome, Verdict
from tasks import drain, fence, gangs, planning, pools, swap_record
from tasks.facts import LEAVING, LISTED, SOURCE_PRIOR, TARGET_PRIOR, gate_done, noted
from tasks.identity import pool_words
from tasks.proof import judge
from tasks.rules.wording import and_more, plural, span
from tasks.run import Done, Run, reopen

_RETIRING, _UNDRAINED = "retiring", "nodes-undrained"


def retire(run: Run) -> Done:
    """Step 10. The gate once more; the source proven empty by UID right before each request to delete it."""
    source = run.source_pool()
    begun, made = noted(run, _RETIRING), _made(run)
    pool = run.spec.source
    if source is None and isinstance(pool, ExternalPool) and (standing := _emptied_ones(run)):
        labels = ",".join(pool.selector)
        summary = f"not gone: there is {and_more(standing, 3)} of it without its labels: kubectl get nodes -L {labels}"
        return Done(summary=summary, state=StepState.HELD, data={"outcome": Outcome.UNMEASURED})
    if source is None or (begun and (source.state is PoolState.DELETING or pools.is_other(source, made))):
        return _follow_deletion(run, begun)
    found = _judge_for_retirement(run)
    if found.outcome is not Outcome.PASS:
        return gate_done(found)
    if not run.spec.retire.enabled:
        _give_back(run)
        return Done(summary="kept, empty and fenced, as the spec says", data={"outcome": Outcome.PASS, "kept": True})
    pools.must_be(source, made)
    findings = not_empty(run)
    if any(f.code == _UNDRAINED for f in findings):
        reopen(run, Step.MIGRATE, Step.SOAK)
    if findings:
        return Done(
            summary=f"not empty: {and_more([f.fact() for f in findings], 3)}",
            state=StepState.HELD,
            data={"outcome": _outcome_of(findings), "findings": [f.to_dict() for f in findings[:LISTED]]},
        )
    run.say(f"{pool_words(run.spec.source)} is empty: {plural(source.nodes, 'node')} verified by UID")
    records.write_note(run.kube, run.name, _RETIRING, {"nodes": source.nodes})
    return _follow_deletion(run, {"nodes": source.nodes})


def _follow_deletion(run: Run, begun: Mapping[str, Any]) -> Done:
    """Delete, or go on following a deletion that an earlier process asked for on proof."""

    def prove() -> None:
        _close(run)
        findings = not_empty(run)
        if findings:
            raise Unmeasured(
                pool_words(run.spec.source),
                f"is not proven empty: {and_more([f.fact() for f in findings], 3)}",
                expected="no pod on it",
                remedy="move what is named, then run the same command again; nothing more was deleted",
            )

    pools.retire(run.source, run.spec.source, run.clock, run.say, prove, _made(run), begun=bool(begun))
    _give_back(run)
    what = f"{plural(int(begun['nodes']), 'node')} verified empty, then deleted" if begun else "it is gone"
    return Done(summary=f"{pool_words(run.spec.source)} retired: {what}", data={"outcome": Outcome.PASS, **begun})


def _emptied_ones(run: Run) -> list[str]:
    """Nodes that were emptied and stand: a pool that is known by its nodes' labels alone may be there without them."""
    emptied = set(noted(run, LEAVING).get("nodes") or ())
    return sorted(n.name for n in read.snapshot(run.kube, owners=False, storage=False).nodes if n.uid in emptied)


def _made(run: Run) -> list[str]:
    """`Pool.made` of the pool that was emptied; empty when the record does not say."""
    return [str(each) for each in noted(run, LEAVING).get("made") or ()]


def _close(run: Run) -> None:
    """Fence and cordons as the move left them: whoever took one off since would have new pods land here."""
    source = run.source_pool()
    if source is not None:
        snapshot = read.snapshot(run.kube, source.node_selector, owners=False, storage=False)
        names = [n.name for n in planning.nodes_of(snapshot, source)]
        if mended := fence.mend(run.kube, run.name, (), names):
            run.say(f"somebody had taken our fence or cordon off {and_more(list(mended), 5)}: put back")


def not_empty(run: Run) -> list[Finding]:
    """Why the source pool is not proven empty; as many nodes must be seen as the cloud says there are."""
    source = run.source_pool()
    if source is None:
        return []
    snapshot = read.snapshot(run.kube, source.node_selector, owners=False, storage=False)
    nodes = planning.nodes_of(snapshot, source)
    if len(nodes) < source.nodes:
        return [
            Finding(
                level=Level.BLOCK,
                code="nodes-unseen",
                object=pool_words(run.spec.source),
                observed=f"{plural(len(nodes), 'node')} in Kubernetes",
                expected=f"{source.nodes}, as the cloud says",
                remedy=f"kubectl get nodes -l {','.join(f'{k}={v}' for k, v in source.node_selector.items())}",
            )
        ]
    drained = set(noted(run, LEAVING).get("nodes") or ())
    strange = [n.name for n in nodes if n.uid not in drained]
    if strange:
        return [
            Finding(
                level=Level.BLOCK,
                code=_UNDRAINED,
                object=pool_words(run.spec.source),
                observed=f"{and_more(strange, 3)} came after the drain",
                expected="only nodes that were drained, by UID",
                remedy="poolshift migrate SPEC, which drains them",
            )
        ]
    return [f for f in drain.verify_empty(run.kube, {n.name: n.uid for n in nodes}) if f.level is Level.BLOCK]


def _outcome_of(findings: Iterable[Finding]) -> Outcome:
    unknown = all(f.code in ("nodes-unseen", _UNDRAINED, "emptiness-unverified") for f in findings)
    return Outcome.UNMEASURED if unknown else Outcome.FAIL


def _judge_for_retirement(run: Run) -> Gate:
    """The gate on the same evidence, whose age is told at the time it opened: what came after, the soak has watched.

    The nodes must still be those that were proven, devices are looked at now, and a soak that ended too long ago is
    begun again.
    """
    passed, soaked = run.step(Step.GATE), run.step(Step.SOAK)
    found = judge(run, at=parse_time(passed.finished) if passed and passed.finished else None)
    if soaked is None or not soaked.finished:
        return replace(found, verdicts=(*found.verdicts, Verdict(check="soak", outcome=Outcome.UNMEASURED)))
    age = run.clock.now() - parse_time(soaked.finished)
    if age <= run.spec.gate.max_evidence_age:
        return found
    reopen(run, Step.SOAK)
    stale = Verdict(
        check="soak",
        outcome=Outcome.UNMEASURED,
        reason=f"ended {span(age)} ago; the next run watches again",
    )
    return replace(found, verdicts=(*found.verdicts, stale))


def _give_back(run: Run) -> None:
    """The target becomes an ordinary pool: its nodes' annotations as before, and repaired as the old pool was.

    We made it without repair, so what it was like before us says nothing of how it should live. Templates that were
    changed for it stay so; how each is put back is said.
    """
    for line in gangs.forget_moved(run.kube, run.name):
        run.say(line)
    target = run.target_pool()
    if target is not None:
        snapshot = read.snapshot(run.kube, target.node_selector, owners=False, storage=False)
        fence.unfence(run.kube, run.name, [n.name for n in planning.nodes_of(snapshot, target)])
    prior, source = noted(run, TARGET_PRIOR), noted(run, SOURCE_PRIOR)
    if (
        prior and swap_record.applies(run) and target is not None
    ):  # it grew since: its size is fixed as if it were made so
        prior = {**prior, "min": target.nodes, "max": target.nodes}
    if prior:
        leases.check()
        run.target.unfence(run.spec.target, {**prior, **{key: source[key] for key in ("repair",) if key in source}})
