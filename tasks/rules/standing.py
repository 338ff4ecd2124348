"""Where an emptying stands, in numbers and words. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from infra.model.workload import Budget
from tasks.rules.lanes import Job
from tasks.rules.outcome import Progress


def standing(
    jobs: Iterable[Job],
    budgets: Mapping[str, Budget],
    *,
    total: int,
    gone: int,
    per_second: float,
    rate: str = "",
    at_most: float = 0.0,
    refused: Container[str] = (),
    unseen: str = "",
) -> Progress:
    """Count those that still have to go: how many end, and how many wait for which budget, answer, or for the rate.

    Args:
        jobs: pods on their way out.
        budgets: as they are now.
        total: of all that have to go.
        gone: of them.
        per_second: the pace so far.
        rate: what holds back evictions that no budget holds, in words; "" where nothing does.
        at_most: evictions a second that it lets through; of no account where it holds back none.
        refused: budgets whose status of now the server has refused an eviction on.
        unseen: why all this may be old, "" where it is of now.

    """
    leaving = 0
    waiting: dict[tuple[str, str], tuple[str, int]] = {}
    for job in jobs:
        if job.accepted:
            leaving += 1
            continue
        budget = budgets.get(job.budget)
        if budget is not None and _is_shut(budget, refused):
            key, words = (budget.key, ""), f"{waits_for(job, budgets, rate, refused)}: it holds {job.pod.key}"
        elif _unanswered(job) and job.said:
            key, words = ("", job.said), f"the server answers {job.said!r}: {job.pod.key}"
        elif rate and not job.in_flight:
            key, words = ("", ""), f"{rate}: {job.pod.key}"
        else:
            continue
        first, count = waiting.get(key, (words, 0))
        waiting[key] = (first, count + 1)
    told = ((key, words, count) for (key, _), (words, count) in waiting.items())
    return Progress(
        total=total,
        gone=gone,
        terminating=leaving,
        waiting=tuple(sorted(told, key=lambda x: -x[2])),
        per_second=per_second,
        unseen=unseen,
        at_most=at_most if rate else 0.0,
    )


def waits_for(job: Job, budgets: Mapping[str, Budget], rate: str = "", refused: Container[str] = ()) -> str:
    """Which budget it waits for, with the numbers of now; where none is shut, what the server said last, or the rate.

    A budget that has disruptions left holds nobody, whatever the server said while it had none.
    """
    budget = budgets.get(job.budget)
    if job.accepted:
        return job.said
    if budget is None or not _is_shut(budget, refused):
        return rate if rate and not _unanswered(job) else job.said
    counts = f"budget {budget.key} needs {budget.desired} healthy of {budget.expected} and has {budget.healthy}"
    return counts if _is_shut(budget) else f"{counts}, and is refused although it says {budget.allowed} may go"


def _is_shut(budget: Budget | None, refused: Container[str] = ()) -> bool:
    """Has it none left? One that is not counted lets none go, as the server itself would answer."""
    return budget is not None and (budget.key in refused or not (budget.counted and (budget.allowed or 0) > 0))


def _unanswered(job: Job) -> bool:
    """Did the server turn it away for a reason of its own, so that it is asked again later?"""
    return job.code not in ("waiting", "pdb")
