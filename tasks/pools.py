"""Make the target pool, follow it until it stands, and take the source pool away at the end.

Both directions are idempotent: what an earlier process began is found and continued. A cloud's `DEGRADED` or
`CREATE_FAILED` is an answer and is never waited out; silence has a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from infra.clock import Clock, pauses
from infra.errors import CloudError, Conflict, NoCapacity, PoolshiftError, Unmeasured, Unreachable
from infra.kube import leases
from infra.model.contract import Pools
from infra.model.pools import IssueClass, Pool, PoolIssue, PoolState
from infra.model.spec import MigrationSpec
from infra.model.survey import Survey
from infra.model.verdict import Finding
from tasks.rules import preflight as rules
from tasks.rules.wording import plural

Say = Callable[[str], None]
T = TypeVar("T")

POLL = timedelta(seconds=15)
PROVISION_LIMIT = timedelta(minutes=40)  # as long as AWS' own waiter
CAPACITY_PATIENCE = timedelta(minutes=10)  # a stockout that lasts this long while the pool is being made is an answer
RETIRE_LIMIT = timedelta(minutes=90)  # GKE grants pods up to an hour of grace
DELETE_TRIES = 3  # a pool that stands again after so many accepted deletions will not go
SILENCE = timedelta(minutes=5)  # how long an unreachable cloud is asked again

_ORDER = (
    IssueClass.CONFIG,
    IssueClass.QUOTA,
    IssueClass.CAPACITY,
    IssueClass.JOIN,
    IssueClass.DRAIN,
    IssueClass.UNKNOWN,
    IssueClass.TRANSIENT,
)
_REMOVE = "remove what was made: poolshift rollback SPEC --remove-target"
_REMEDIES = {
    IssueClass.CAPACITY: f"wait, use a reservation or another zone; {_REMOVE}",
    IssueClass.QUOTA: f"ask the cloud for a higher quota; {_REMOVE}",
    IssueClass.CONFIG: f"correct the named setting in the spec; {_REMOVE}",
    IssueClass.JOIN: f"read the nodes' console output (role, security groups, bootstrap); {_REMOVE}",
    IssueClass.DRAIN: "see which pods and budgets hold the nodes: kubectl get pods -A -o wide, kubectl get pdb -A",
    IssueClass.UNKNOWN: f"read the cloud's console for this pool; {_REMOVE}",
    IssueClass.TRANSIENT: "run the same command again",
}


def look(pools: Pools, spec: MigrationSpec, run: str, source: Pools | None = None) -> Survey:
    """Read what the preflight judges. `source`: the source pool's own adapter, needed where the kinds differ."""
    seen = pools.survey(spec.source, spec.target, run)
    if seen.source_read or source is None:
        return seen
    return replace(seen, source=source.find(spec.source), source_read=True)


def preflight(pools: Pools, spec: MigrationSpec, run: str, now: datetime) -> list[Finding]:
    """Read and judge: every cloud-side finding at once."""
    return rules.judge(look(pools, spec, run), spec, run, now)


def provision(pools: Pools, target: Any, run: str, clock: Clock, say: Say) -> Pool:
    """Create or adopt the target pool and return it once it is active.

    Raises:
        NoCapacity: the cloud has no machines (stockout, reservation full, quota); nothing else was touched.
        CloudError: the cloud failed in a way that waiting does not mend, with its health code.
        Conflict: the name belongs to somebody else.
        Unmeasured: no outcome within `PROVISION_LIMIT`.
        Refused: a lease of this process is lost; nothing was asked for.

    """

    def create() -> Pool:
        leases.check()
        return pools.create(target, run)

    pool = _patiently(create, clock, say)
    say(f"{pool.kind} pool {pool.name}: {pool.state}, {plural(pool.nodes, 'node')} of {pool.machine_type}")
    started, wait = clock.now(), pauses(POLL.total_seconds())
    starved: datetime | None = None
    said = (pool.state, pool.issues)
    while True:
        if (pool.state, pool.issues) != said:
            say(progress(pool))
            said = (pool.state, pool.issues)
        if pool.state is PoolState.ACTIVE:
            return pool
        now = clock.now()
        short = any(i.issue_class in (IssueClass.CAPACITY, IssueClass.QUOTA) for i in pool.issues)
        starved = (starved or now) if short else None
        if pool.state not in (PoolState.CREATING, PoolState.UPDATING):
            raise failure(pool)
        if starved and now - starved >= CAPACITY_PATIENCE:
            raise failure(pool)
        if now - started >= PROVISION_LIMIT:
            raise Unmeasured(
                _what(pool),
                f"still {pool.state} after {_minutes(now - started)} min: {worded(pool.issues) or 'no issue reported'}",
                expected="active",
                remedy="look at it in the cloud's console; poolshift migrate SPEC goes on waiting",
            )
        clock.sleep(next(wait))
        found = _patiently(lambda: pools.find(target), clock, say)
        if found is None:
            raise CloudError(_what(pool), "disappeared while it was being made", remedy="poolshift migrate SPEC")
        pool = found


def retire(
    pools: Pools,
    pool: Any,
    clock: Clock,
    say: Say,
    prove: Callable[[], None] = lambda: None,
    made: Sequence[str] | None = None,
    begun: bool = False,
) -> None:
    """Delete the pool and return when the cloud no longer has it.

    `prove` is called right before every request to delete and raises unless the pool is empty at that moment: a first
    deletion may fail in the cloud, and new nodes may have taken pods since. `made` is what the pool that is meant had
    as `Pool.made`, None for the one that stands now: another one, made since under the same name, is let alone. After
    a request (`begun`: an earlier process sent it) such another one shows that ours is gone.

    Raises:
        Conflict: another pool stands under this name.
        CloudError: the cloud could not delete it (DELETE_FAILED), with its reason.
        Unmeasured: not gone within `RETIRE_LIMIT`.

    """
    started = clock.now()
    asked = 0
    said: PoolState | None = None

    def check(standing: Pool) -> None:
        must_be(standing, made or ())
        prove()
        leases.check()  # last: a proof takes its time

    def clear_up() -> None:
        """What was made beside it goes. A pool that stands under its name by then is somebody's new one."""
        leases.check()
        pools.delete(pool, lambda standing: must_be(standing, made or ("gone",)))

    while True:
        found = _patiently(lambda: pools.find(pool), clock, say)
        if found is None:
            _patiently(clear_up, clock, say)
            say(f"pool {pool.name}: gone")
            return
        made = found.made if made is None else made
        if (begun or asked) and is_other(found, made):
            say(f"pool {found.name}: gone; another pool has its name since, which is let alone")
            return
        if found.state != said:
            before = found.state is PoolState.ACTIVE and not asked  # it is about to go, and not back again
            say(f"{progress(found)}, to be deleted" if before else progress(found))
            said = found.state
        failed = found.state is PoolState.DELETE_FAILED and asked
        if failed or (found.state is not PoolState.DELETING and asked == DELETE_TRIES):
            raise CloudError(
                _what(found),
                f"could not be deleted: {worded(found.issues) or 'no reason given'}",
                expected="gone",
                remedy="remove what depends on it, then run the same command again",
            )
        if found.state is not PoolState.DELETING:
            pools.delete(pool, check)
            asked += 1
        if clock.now() - started >= RETIRE_LIMIT:
            raise Unmeasured(
                _what(found),
                f"still {found.state} after {_minutes(clock.now() - started)} min",
                expected="gone",
                remedy="run the same command again; it goes on waiting",
            )
        clock.sleep(POLL.total_seconds())


def is_other(pool: Pool, made: Sequence[str]) -> bool:
    """Is this surely not the pool whose `Pool.made` was `made`?"""
    return bool(pool.made) and bool(made) and not set(pool.made) & set(made)


def must_be(pool: Pool, made: Sequence[str]) -> None:
    """Raise Conflict unless the pool is the one whose `Pool.made` was `made`. Unmeasured: nobody can tell."""
    if not pool.made or not made:
        raise Unmeasured(
            _what(pool),
            f"has no identity beyond its name {'now' if made else 'in the record'}",
            expected="the cloud's own id, which tells it from a pool that was made since under the same name",
            remedy="let the caller read its instance groups (compute.instanceGroupManagers.get), or delete it by hand",
        )
    if is_other(pool, made):
        raise Conflict(
            _what(pool),
            f"is another pool of that name: {', '.join(pool.made)}",
            expected=", ".join(made),
            remedy="it is let alone: see who made it; poolshift status",
        )


def failure(pool: Pool) -> PoolshiftError:
    """The error that a pool's state and issues amount to; the most telling class decides."""
    issues = sorted(pool.issues, key=lambda issue: _ORDER.index(issue.issue_class))
    worst = issues[0].issue_class if issues else IssueClass.UNKNOWN
    kind = NoCapacity if worst in (IssueClass.CAPACITY, IssueClass.QUOTA) else CloudError
    return kind(
        _what(pool),
        f"{pool.state}: {worded(issues) or 'the cloud names no reason'}",
        expected=f"active with {plural(pool.nodes, 'node')}",
        remedy=_REMEDIES[worst],
    )


def worded(issues: Iterable[PoolIssue]) -> str:
    """Code and message of the first three issues, "and N more"."""
    listed = list(issues)
    text = "; ".join(f"{issue.code}: {issue.message}" for issue in listed[:3])
    return f"{text}; and {len(listed) - 3} more" if len(listed) > 3 else text


def progress(pool: Pool) -> str:
    """One line for a person."""
    issues = worded(pool.issues)
    return f"{pool.kind} pool {pool.name}: {pool.state}" + (f" ({issues})" if issues else "")


def _patiently(call: Callable[[], T], clock: Clock, say: Say) -> T:
    """An idempotent call, made again for a while when the cloud does not answer."""
    limit = clock.now() + SILENCE
    while True:
        try:
            return call()
        except Unreachable as error:
            if clock.now() >= limit:
                raise
            say(f"no answer, asking again: {error}")
            clock.sleep(POLL.total_seconds())


def _what(pool: Pool) -> str:
    return f"{pool.kind} pool {pool.name}"


def _minutes(span: timedelta) -> int:
    return round(span.total_seconds() / 60)
