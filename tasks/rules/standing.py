"""Where an emptying stands, in numbers and words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra.model.workload import Budget
from tasks.rules.lanes import Job
from tasks.rules.outcome import Progress


def standing(
    jobs: Iterable[Job], budgets: Mapping[str, Budget], *, total: int, gone: int, per_second: float
) -> Progress:
    """Count those that still have to go: how many end, and how many wait for which budget."""
    leaving = 0
    waiting: dict[str, tuple[str, int]] = {}
    for job in jobs:
        if job.accepted:
            leaving += 1
        elif job.budget:
            known = waiting.get(job.budget)
            if known is None:
                known = (f"{waits_for(job, budgets) or job.budget}: it holds {job.pod.key}", 0)
            waiting[job.budget] = (known[0], known[1] + 1)
    return Progress(
        total=total,
        gone=gone,
        terminating=leaving,
        waiting=tuple(sorted(((key, words, count) for key, (words, count) in waiting.items()), key=lambda x: -x[2])),
        per_second=per_second,
    )


def waits_for(job: Job, budgets: Mapping[str, Budget]) -> str:
    """Which budget it waits for, with the numbers of now; without one, what the server said last."""
    budget = budgets.get(job.budget)
    if budget is None or job.accepted:
        return job.said
    return f"budget {budget.key} needs {budget.desired} healthy of {budget.expected} and has {budget.healthy}"
