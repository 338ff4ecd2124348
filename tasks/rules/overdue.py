"""What is to be done about a pod that is still there: nothing yet, more than asking, doubt, or giving up. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from infra.errors import PoolshiftError
from infra.model.workload import Budget
from tasks.rules.lanes import Job, Lane
from tasks.rules.outcome import End, Limits

ACCEPTED_FOR = 20.0  # wall-clock seconds past the grace without news of an accepted pod, before the watch is distrusted


class Step(StrEnum):
    """The next step for one pod."""

    WAIT = "wait"
    FORCE = "force"  # delete it past its budget: the spec opens that, and the budget has refused it that long
    GIVE_UP = "give-up"
    DOUBT = "doubt"  # accepted long ago and still there: is the watch silent, or did the server forget?


def next_step(
    job: Job,
    behind: Lane | None,
    budget: Budget | None,
    limits: Limits,
    *,
    now: datetime,
    real: float,
    grace: float,
    forced_is_here: bool,
) -> Step:
    """Judge one pod by the time that has passed.

    Waiting for a turn behind a budget that moves is no delay: the deadline counts from the last pod it let go.

    Args:
        job: the pod, and since when it waits for what it waits for.
        behind: the budget's lane in which it waits; None when it waits for no budget (any more).
        budget: that budget as it is now.
        limits: deadlines on the run's clock.
        now: on the run's clock.
        real: wall-clock seconds, of `time.monotonic`.
        grace: the pod's grace in wall-clock seconds.
        forced_is_here: the pod that was last deleted past that budget has not left yet.

    """
    if job.in_flight or (behind and behind.in_flight):
        return Step.WAIT  # its answer is awaited first
    if behind and _may_force(job, behind, budget, limits, now, forced_is_here=forced_is_here):
        return Step.FORCE
    if now - (behind.idle_since(job.started) if behind else job.started) > limits.pod:
        return Step.GIVE_UP
    if job.accepted and real - job.accepted > ACCEPTED_FOR + grace:
        return Step.DOUBT
    return Step.WAIT


def _may_force(
    job: Job, lane: Lane, budget: Budget | None, limits: Limits, now: datetime, *, forced_is_here: bool
) -> bool:
    """Refused as long as the spec says, and no other pod that was deleted past this budget is still missing."""
    after = limits.delete_after
    if after is None or lane.refused_for(job.started, now) < after:
        return False
    if lane.forced is not None and lane.forced.uid != job.pod.uid and forced_is_here:
        return False
    return lane.over_it(budget, now, after)


def late_end(job: Job, limits: Limits, lost: PoolshiftError | None, words: str) -> tuple[End, str, str]:
    """(end, code, reason) of a pod that is given up. What cannot be seen is unknown."""
    if lost is not None:
        return End.UNKNOWN, "unreachable", f"the cluster cannot be seen: {lost.observed}"
    if job.pod.terminating:
        held = f", held by finalizer {', '.join(job.pod.finalizers)}" if job.pod.finalizers else ""
        return End.FAILED, "stuck-terminating", f"did not end within {limits.pod}{held}"
    return End.FAILED, job.code, words or f"did not leave within {limits.pod}"
