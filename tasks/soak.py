"""Soak: time AND replacements at full strength AND nothing newly Pending; a timer alone sees no broken image.

Only time that somebody watched counts. The start and the last look are in the run record: a restart soon after goes on
with the same soak, a longer gap or a breach begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import Refused, Unreachable
from infra.kube import leases, records
from infra.kube.api import Kube
from infra.model.gangs import GANG_KINDS
from infra.model.pools import Pool
from infra.model.spec import Soak
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks import readiness
from tasks.rules import soak as rules
from tasks.rules.wording import span
from tasks.run import Say

BLIND = timedelta(minutes=5)  # how long nobody may have looked before the time before it no longer counts
_NOTE = "soak"
_PATHS: Mapping[str, str] = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets/{}",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers/{}",
}


def soak(kube: Kube, pool: Pool, moved: Iterable[str], settings: Soak, run: str, say: Say, csi: str = "") -> Verdict:
    """Watch the target pool and the moved workloads for `settings.duration`; stop at the first lasting breach.

    `moved` are workloads as KIND/NAMESPACE/NAME. A finding becomes a breach when it has stood for `rules.GRACE`: a pod
    that starts is no fault. What cannot be read at all is unmeasured.
    """
    clock = kube.clock
    wanted = tuple(moved)
    patience = max(2 * settings.interval, BLIND)
    started = _started(kube, run, patience, say)
    last, looks = clock.now(), 0
    standing: dict[tuple[str, str], datetime] = {}
    while True:
        if leases.lost():
            raise Refused(f"run {run}", leases.lost(), remedy="see who runs now: poolshift status")
        now = clock.now()
        try:
            seen = list(_look(kube, pool, wanted, started, csi))
        except Unreachable as error:
            say(f"soak: cannot see the cluster ({error.observed})")
            if now - last > patience:
                records_lost = f"the cluster could not be seen for {span(now - last)}"
                return _verdict(Outcome.UNMEASURED, now - started, settings, records_lost)
            clock.sleep(settings.interval.total_seconds())
            continue
        last, looks = now, looks + 1
        standing = {key: standing.get(key, now) for f in seen if (key := (f.code, f.object))}
        breaches = [f for f in seen if now - standing[(f.code, f.object)] >= rules.GRACE]
        unread = [f for f in breaches if f.code == rules.UNREAD]
        if breaches:
            records.write_note(kube, run, _NOTE, {})
            outcome = Outcome.UNMEASURED if len(unread) == len(breaches) else Outcome.FAIL
            return _verdict(outcome, now - started, settings, breaches[0].wording(), breaches)
        records.write_note(kube, run, _NOTE, {"started": rfc3339(started), "last": rfc3339(now)})
        if now - started >= settings.duration and not seen:
            what = f"{looks} looks, {len(wanted)} workloads at full strength, nothing Pending"
            return _verdict(Outcome.PASS, now - started, settings, what)
        well = "all well" if not seen else seen[0].fact()
        say(f"soak: {span(now - started)} of {span(settings.duration)}, {well}")
        pause = min(settings.interval, settings.duration) if not seen else min(settings.interval, rules.GRACE)
        clock.sleep(max(1.0, pause.total_seconds()))


def _look(kube: Kube, pool: Pool, wanted: Iterable[str], started: datetime, csi: str) -> Iterable[Finding]:
    pending = list(kube.list("/api/v1/pods", {"fieldSelector": "status.phase=Pending"}))
    yield from rules.breaches(_workloads(kube, wanted), pending, pool.node_selector, started)
    yield from (f for f in readiness.look(kube, pool, csi).findings if f.level is Level.BLOCK)


def _started(kube: Kube, run: str, patience: timedelta, say: Say) -> datetime:
    """When this soak began: the noted one goes on if its last look is not too long ago."""
    found = records.read(kube, run)
    noted = found.notes.get(_NOTE) if found else None
    now = kube.clock.now()
    if isinstance(noted, dict) and noted.get("started") and noted.get("last"):
        gap = now - parse_time(str(noted["last"]))
        if gap <= patience:
            return parse_time(str(noted["started"]))
        say(f"soak: begins anew, since nobody looked for {span(gap)}")
    records.write_note(kube, run, _NOTE, {"started": rfc3339(now), "last": rfc3339(now)})
    return now


def _workloads(kube: Kube, wanted: Iterable[str]) -> dict[str, rules.Seen]:
    return {name: _workload(kube, name) for name in wanted}


def _workload(kube: Kube, name: str) -> rules.Seen:
    """The object, and for gangs of a custom kind its pods, since only they say whether it runs."""
    kind, namespace, own = name.split("/", 2)
    if kind in _PATHS:
        return rules.Seen(obj=kube.get(_PATHS[kind].format(namespace, own)), known=True)
    for row in (k for k in GANG_KINDS if k.kind == kind):
        obj = kube.get(row.path(namespace, own))
        if obj is None:
            continue
        if row.group == "batch":
            return rules.Seen(obj=obj, known=True)
        pods = _pods_of(kube, namespace, row.pod_label, own)
        return rules.Seen(obj=obj, known=bool(row.pod_label), stopped=row.read_switch(obj), pods=pods)
    return rules.Seen(obj=None, known=any(k.kind == kind for k in GANG_KINDS))


def _pods_of(kube: Kube, namespace: str, label: str, name: str) -> tuple[dict[str, Any], ...]:
    if not label:
        return ()
    return tuple(kube.list(f"/api/v1/namespaces/{namespace}/pods", {"labelSelector": f"{label}={name}"}))


def _verdict(
    outcome: Outcome, lasted: timedelta, settings: Soak, reason: str, findings: Iterable[Finding] = ()
) -> Verdict:
    return Verdict(
        check="soak",
        outcome=outcome,
        observed=span(lasted),
        limit=f"{span(settings.duration)} without a breach",
        statistic="replacements at full strength, nothing newly Pending, devices present",
        reason=reason,
        findings=tuple(findings),
    )
