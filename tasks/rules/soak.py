"""What breaks a soak: a moved workload below strength, or a pod that waits for a node since the move. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from infra.model.endings import ABORTED, COMPLETE, FAILED, end_of
from infra.model.verdict import Finding, Level
from tasks.rules.wording import plural

GRACE = timedelta(minutes=2)  # an image pull or a rolling update may take this long without being a breach
UNREAD = "workload-unread"
END_UNSEEN = "workload-end-unseen"
STOPPED = "workload-stopped"
UNKNOWN = frozenset(
    {UNREAD, END_UNSEEN, STOPPED}
)  # findings that say that nobody can tell, not that something is broken
_ENDING = frozenset({"Job", "JobSet", "TrainJob", "PyTorchJob", "MPIJob", "RayJob"})  # and may be taken away after that


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One moved workload as it is now.

    `known`: its kind is one whose strength can be told; for gangs of a custom kind `stopped` is their suspend switch,
    `pods` their pods and `wanted` how many they ask for, 0 where nobody can tell. `ended`: how the very object that was
    moved (by UID) was seen to end after that, as `infra.model.endings.end_of`.
    """

    obj: Mapping[str, Any] | None
    known: bool
    ended: str = ""
    stopped: object = None
    pods: Sequence[Mapping[str, Any]] = ()
    wanted: int = 0


def breaches(
    workloads: Mapping[str, Seen],
    pending: Iterable[Mapping[str, Any]],
    target: Mapping[str, str],
    started: datetime,
) -> list[Finding]:
    """Findings over plain objects. `workloads` maps KIND/NAMESPACE/NAME to what was seen of it.

    `target` is the target pool's node selector: a pod pinned to it that cannot be placed is our doing even when it is
    older than the soak.
    """
    found = [f for name, seen in workloads.items() for f in _strength(name, seen)]
    found += [f for pod in pending for f in _stuck(pod, target, started)]
    return sorted(found, key=lambda f: (f.code, f.object))


def _strength(name: str, seen: Seen) -> Iterable[Finding]:
    kind = name.split("/", 1)[0]
    end = seen.ended if seen.obj is None else end_of(seen.obj)
    if not seen.known:
        yield _finding(
            UNREAD, name, f"kind {kind} is not one whose strength can be told", "a kind that poolshift knows"
        )
    elif end == COMPLETE:
        return
    elif end in (FAILED, ABORTED):
        yield _finding(f"{'job' if kind == 'Job' else 'gang'}-failed", name, "has failed", "running or complete")
    elif seen.obj is None and kind in _ENDING:
        yield replace(
            _finding(END_UNSEEN, name, "no longer exists, and was not seen complete", "the job, or a look at its end"),
            remedy="see by what it has written whether it completed. If not: create it again; if it did: the source is "
            "yours to delete, this run cannot vouch for it. Next time: a longer ttlSecondsAfterFinished",
        )
    elif seen.obj is None:
        yield _finding("workload-gone", name, "no longer exists", "the workload that was moved, or its end")
    elif kind == "Job" and not seen.pods:
        yield from _job(name, seen.obj)
    elif seen.pods or seen.stopped is not None:
        yield from _gang(name, seen)
    else:
        yield from _replicas(name, seen.obj)


def time_to_see(obj: Mapping[str, Any]) -> timedelta | None:
    """How soon a workload that is still there has to be looked at again for its end not to be missed; None: any day."""
    spec = obj.get("spec") or {}
    seconds = spec.get("ttlSecondsAfterFinished", (spec.get("runPolicy") or {}).get("ttlSecondsAfterFinished"))
    return None if seconds is None or end_of(obj) else timedelta(seconds=seconds) / 2


def _job(name: str, obj: Mapping[str, Any]) -> Iterable[Finding]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if spec.get("suspend"):
        yield _finding("job-suspended", name, "is suspended", "running on the target")
        return
    parallelism = _count(spec, "parallelism", 1)
    left = _count(spec, "completions", parallelism) - int(status.get("succeeded") or 0)
    if left > 0 and parallelism == 0:
        yield _finding(STOPPED, name, "has parallelism 0: nothing of it runs", "its pods, ready on the target")
    wanted, active = min(parallelism, left), int(status.get("ready") or 0)
    if active < wanted:
        yield _finding("job-below-strength", name, f"{active} of {plural(wanted, 'pod')} ready", f"{wanted}")


def _gang(name: str, seen: Seen) -> Iterable[Finding]:
    running = [p for p in seen.pods if (p.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    failed = [p for p in seen.pods if (p.get("status") or {}).get("phase") == "Failed"]
    unready = [p for p in running if not _ready(p)]
    if seen.stopped is True or (seen.stopped == 0 and seen.stopped is not False):  # suspended, or scaled to nothing
        yield _finding("gang-stopped", name, "is suspended", "running on the target")
    elif not seen.pods:
        yield _finding("gang-without-pods", name, "has no pod", "its ranks running on the target")
    elif failed and not running:
        what = f"{len(failed)} of {plural(len(seen.pods), 'pod')} Failed, none runs"
        yield _finding("gang-failed", name, what, "its ranks running on the target")
    elif len(seen.pods) - len(failed) < seen.wanted:
        what = f"has {len(seen.pods) - len(failed)} of {plural(seen.wanted, 'pod')}"
        yield _finding("gang-below-strength", name, what, "all ready")
    elif unready:
        yield _finding(
            "gang-below-strength", name, f"{len(unready)} of {plural(len(running), 'pod')} not ready", "all ready"
        )


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _replicas(name: str, obj: Mapping[str, Any]) -> Iterable[Finding]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = _count(spec, "replicas", 1)
    if wanted == 0:
        yield _finding(STOPPED, name, "is scaled to 0: nothing of it runs", "its replicas, ready on the target")
    ready = int(status.get("readyReplicas") or 0)
    if ready < wanted:
        yield _finding("replicas-unready", name, f"{ready} of {plural(wanted, 'replica')} ready", f"{wanted}")


def _count(spec: Mapping[str, Any], name: str, default: int) -> int:
    value = spec.get(name)
    return default if value is None else int(value)


def _stuck(pod: Mapping[str, Any], target: Mapping[str, str], started: datetime) -> Iterable[Finding]:
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("nodeName") or meta.get("deletionTimestamp"):
        return
    refused = next(
        (c for c in status.get("conditions") or () if c.get("type") == "PodScheduled" and c.get("status") == "False"),
        None,
    )
    if refused is None:
        return
    wants = spec.get("nodeSelector") or {}
    pinned = bool(target) and all(wants.get(key) == value for key, value in target.items())
    young = str(meta.get("creationTimestamp", "")) >= (started - GRACE).strftime("%Y-%m-%dT%H:%M:%SZ")
    if pinned or young:
        yield _finding(
            "newly-pending",
            f"pod {meta.get('namespace')}/{meta.get('name')}",
            f"Pending: {refused.get('message', '')}",
            "scheduled",
        )


def _finding(code: str, what: str, observed: str, expected: str) -> Finding:
    where = what.removeprefix("pod ").split("/")
    remedy = f"kubectl -n {where[-2]} describe {'pod' if what.startswith('pod ') else where[0].lower()} {where[-1]}"
    return Finding(level=Level.BLOCK, code=code, object=what, observed=observed, expected=expected, remedy=remedy)
