"""Soak: time AND replacements at full strength AND nothing newly Pending; a timer alone sees no broken image.

Only time that somebody watched counts. The start and the last look are in the run record: a restart soon after goes on
with the same soak, a longer gap or a breach begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from infra.clock import parse_time, rfc3339
from infra.errors import Refused, Unreachable
from infra.kube import leases, owners, records
from infra.kube.api import Kube
from infra.model.endings import end_of
from infra.model.gangs import GANG_KINDS
from infra.model.pools import Pool
from infra.model.spec import Soak
from infra.model.verdict import Finding, Level, Outcome, Verdict
from tasks import readiness
from tasks.rules import soak as rules
from tasks.rules.wording import plural, span
from tasks.run import Say

BLIND = timedelta(minutes=5)  # how long nobody may have looked before the time before it no longer counts
_NOTE = "soak"
_ENDED = "soak-ended"  # how moved workloads were seen to end, by name: their TTL may take them away after that
_PATHS: Mapping[str, str] = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments/{}",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets/{}",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets/{}",
    "ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers/{}",
}


def soak(
    kube: Kube, pool: Pool, moved: Mapping[str, str], settings: Soak, run: str, say: Say, csi: str = ""
) -> Verdict:
    """Watch the target pool and the moved workloads for `settings.duration`; stop at the first lasting breach.

    `moved` are workloads as KIND/NAMESPACE/NAME with the UID that was moved, "" where nobody knows it. A finding
    becomes a breach when it has stood for `rules.GRACE`: a pod that starts is no fault. What cannot be read at all is
    unmeasured, and so is a job that is gone and whose end nobody saw.
    """
    clock = kube.clock
    look = _Look(kube=kube, pool=pool, moved=moved, run=run, csi=csi, ended=_ended(kube, run))
    patience = max(2 * settings.interval, BLIND)
    started = _started(kube, run, patience, say)
    last, looks = clock.now(), 0
    standing: dict[tuple[str, str], datetime] = {}
    while True:
        if leases.lost():
            raise Refused(f"run {run}", leases.lost(), remedy="see who runs now: poolshift status")
        now = clock.now()
        try:
            seen = list(look.findings(started))
        except Unreachable as error:
            say(f"soak: cannot see the cluster ({error.observed})")
            if now - last > patience:
                records_lost = f"the cluster could not be seen for {span(now - last)}"
                return _verdict(Outcome.UNMEASURED, now - started, settings, records_lost)
            clock.sleep(max(1.0, min(settings.interval, look.soon).total_seconds()))
            continue
        last, looks = now, looks + 1
        standing = {key: standing.get(key, now) for f in seen if (key := (f.code, f.object))}
        breaches = [f for f in seen if now - standing[(f.code, f.object)] >= rules.GRACE]
        unknown = [f for f in breaches if f.code in rules.UNKNOWN]
        if breaches:
            records.write_note(kube, run, _NOTE, {})
            outcome = Outcome.UNMEASURED if len(unknown) == len(breaches) else Outcome.FAIL
            return _verdict(outcome, now - started, settings, breaches[0].wording(), breaches)
        records.write_note(kube, run, _NOTE, {"started": rfc3339(started), "last": rfc3339(now)})
        if now - started >= settings.duration and not seen:
            what = f"{plural(looks, 'look')}, {plural(len(moved), 'workload')} at full strength, nothing Pending"
            return _verdict(Outcome.PASS, now - started, settings, what)
        well = "all well" if not seen else seen[0].fact()
        say(f"soak: {span(now - started)} of {span(settings.duration)}, {well}")
        pause = min(settings.interval, look.soon, settings.duration if not seen else rules.GRACE)
        clock.sleep(max(1.0, pause.total_seconds()))


@dataclass(kw_only=True)
class _Look:
    """What one look at the cluster finds. `soon`: how long the next one may be put off at most."""

    kube: Kube
    pool: Pool
    moved: Mapping[str, str]
    run: str
    csi: str
    ended: Mapping[str, str]
    soon: timedelta = timedelta.max

    def findings(self, started: datetime) -> Iterable[Finding]:
        pending = list(self.kube.list("/api/v1/pods", {"fieldSelector": "status.phase=Pending"}))
        seen = {name: _workload(self.kube, name, ended=self.ended.get(name, "")) for name in self.moved}
        self._see_ends(seen)
        yield from rules.breaches(seen, pending, self.pool.node_selector, started)
        yield from (f for f in readiness.look(self.kube, self.pool, self.csi).findings if f.level is Level.BLOCK)

    def _see_ends(self, seen: Mapping[str, rules.Seen]) -> None:
        """Note how the very workloads that were moved have ended, before anything takes them away."""
        theirs = {
            name: found.obj
            for name, found in seen.items()
            if found.obj and found.obj["metadata"].get("uid") == self.moved[name]
        }
        ended = {**self.ended, **{name: end for name, obj in theirs.items() if (end := end_of(obj))}}
        if ended != self.ended:
            records.write_note(self.kube, self.run, _ENDED, ended)
            self.ended = ended
        self.soon = min(filter(None, map(rules.time_to_see, theirs.values())), default=timedelta.max)


def _ended(kube: Kube, run: str) -> Mapping[str, str]:
    """What an earlier look of this run has seen to end, and how."""
    found = records.read(kube, run)
    noted = found.notes.get(_ENDED) if found else None
    return {str(name): str(end) for name, end in noted.items()} if isinstance(noted, dict) else {}


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


def _workload(kube: Kube, name: str, *, ended: str) -> rules.Seen:
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
        return rules.Seen(
            obj=obj, known=bool(row.pod_label), stopped=row.read_switch(obj), pods=pods, wanted=_wanted(obj)
        )
    return rules.Seen(obj=None, known=any(k.kind == kind for k in GANG_KINDS), ended=ended)


def _wanted(gang: Mapping[str, Any]) -> int:
    """How many pods it asks for at once; 0 for a JobSet some of whose jobs begin when others have ended."""
    later = any(job.get("dependsOn") for job in (gang.get("spec") or {}).get("replicatedJobs") or ())
    return 0 if later else owners.workload(dict(gang)).replicas


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
