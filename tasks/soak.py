"""Soak: time AND replacements Ready AND nothing newly Pending. A blind timer would let a broken pull roll through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import Unreachable
from infra.kube import records
from infra.kube.api import Kube
from infra.model.pools import Pool
from infra.model.spec import Soak
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks import readiness
from tasks.rules import soak as rules
from tasks.rules.wording import span
from tasks.run import Say

BLIND = timedelta(minutes=5)  # how long the cluster may be unreachable before the soak says that it cannot see


def soak(kube: Kube, pool: Pool, moved: Iterable[str], settings: Soak, run: str, say: Say) -> Verdict:
    """Watch the target pool and the moved workloads for `settings.duration`; stop at the first breach.

    `moved` are workloads as KIND/NAMESPACE/NAME. The start is kept in the run record, so a restart goes on with the
    same soak instead of beginning a new one; what happened while nobody looked is judged from the pods' own times.
    """
    clock = kube.clock
    started = _started(kube, run)
    unseen: datetime | None = None
    looks = 0
    wanted = tuple(moved)
    while True:
        now = clock.now()
        try:
            findings = rules.breaches(_workloads(kube, wanted), _pods(kube), pool.node_selector, started)
            findings += [f for f in readiness.look(kube, pool).findings if f.level is Level.BLOCK]
            unseen, looks = None, looks + 1
        except Unreachable as error:
            unseen = unseen or now
            findings = []
            say(f"soak: cannot see the cluster ({error.observed})")
            if now - unseen >= BLIND:
                return _verdict(Outcome.UNMEASURED, now - started, settings, f"cluster unreachable for {span(BLIND)}")
        if findings:
            return _verdict(Outcome.FAIL, now - started, settings, findings[0].wording(), findings)
        if now - started >= settings.duration and unseen is None:
            what = f"{looks} looks, {len(wanted)} workloads at full strength, nothing Pending"
            return _verdict(Outcome.PASS, now - started, settings, what)
        say(f"soak: {span(now - started)} of {span(settings.duration)}, all well")
        clock.sleep(min(settings.interval, settings.duration).total_seconds())


def _started(kube: Kube, run: str) -> datetime:
    found = records.read(kube, run)
    noted = found.notes.get("soak-started") if found else None
    if isinstance(noted, str):
        return parse_time(noted)
    now = kube.clock.now()
    records.write_note(kube, run, "soak-started", rfc3339(now))
    return now


_PATHS: Mapping[str, str] = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}",
    "Job": "/apis/batch/v1/namespaces/{}/jobs/{}",
}


def _workloads(kube: Kube, wanted: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    found = {}
    for name in wanted:
        kind, namespace, own = name.split("/", 2)
        if kind in _PATHS:
            found[name] = kube.get(_PATHS[kind].format(namespace, own))
    return found


def _pods(kube: Kube) -> list[dict[str, Any]]:
    """Pods that wait for a node: the only ones whose number can newly grow."""
    return list(kube.list("/api/v1/pods", {"fieldSelector": "status.phase=Pending"}))


def _verdict(
    outcome: Outcome, lasted: timedelta, settings: Soak, reason: str, findings: Iterable[Finding] = ()
) -> Verdict:
    return Verdict(
        check="soak",
        outcome=outcome,
        observed=span(lasted),
        limit=f"{span(settings.duration)} without a breach",
        statistic="replacements Ready, nothing newly Pending, devices present",
        reason=reason,
        findings=tuple(findings),
    )
