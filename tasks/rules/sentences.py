"""The rules' answers as the engine needs them: leave, stay, or held with a reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from infra.model.spec import Drain
from infra.model.workload import Pod
from tasks.rules.decision import Act, Allowed, Context, Decision
from tasks.rules.drain import decide
from tasks.rules.outcome import Fate, Sentence

STAYS, LEAVES = Sentence(fate=Fate.STAY), Sentence(fate=Fate.LEAVE)


def allowed_by(drain: Drain) -> Allowed:
    """The spec's opt-ins as the rules read them."""
    force = drain.force
    return Allowed(
        bare_pods=force.bare_pods,
        empty_dir=force.empty_dir,
        do_not_disrupt=force.do_not_disrupt,
        surge=drain.surge,
    )


def judge_with(
    context: Context, held: Mapping[str, Sentence] | None = None, *, past_budgets: bool = False
) -> Callable[[Pod], Sentence]:
    """The engine's question for a pod as it is now.

    A budget that is closed for now is the engine's own business. One that never opens holds its pods at once, unless
    the spec opens a way past budgets (`past_budgets`).
    """

    def sentence(pod: Pod) -> Sentence:
        if held and pod.uid in held:
            return held[pod.uid]
        return sentence_of(decide(pod, context), past_budgets=past_budgets)

    return sentence


def sentence_of(decisions: tuple[Decision, ...], *, past_budgets: bool = False) -> Sentence:
    """The rules' answers as the engine needs them."""
    kept = [d for d in decisions if not (past_budgets and d.code in ("pdb-never", "pdb-unhealthy-pods"))]
    block = next((d for d in kept if d.act is Act.BLOCK), None)
    if block is not None:
        return Sentence(fate=Fate.HELD, code=block.code, reason=block.reason, remedy=block.remedy)
    return STAYS if any(d.act is Act.SKIP for d in kept) else LEAVES
