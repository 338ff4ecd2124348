"""Where a probe's Job stands, read from the Job and its pods. Pure.

A probe that could not run says nothing about the fabric: not scheduled, no image, evicted, node lost and out of time
are all unmeasured, with the object and the cluster's own words. Only a program that ran and ended may be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from infra.clock import parse_time
from tasks.rules.wording import plural

Wire = Mapping[str, Any]

SCHEDULE_SECONDS = 300.0  # the nodes are there and empty: what is not scheduled by then will not be
IMAGE_SECONDS = 300.0  # a registry may be slow once; a wrong name or a missing secret does not mend itself
_NO_START = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun", "OOMKilled", "Evicted"})
_POD_LOST = frozenset({"Evicted", "NodeLost", "Preempting", "UnexpectedAdmissionError", "Terminated", "NodeShutdown"})


class State(StrEnum):
    """`ENDED` and `FAILED`: every program ran to its own end, well or not. `UNMEASURED`: it could not."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """One look at the Job. `object`, `reason` and `remedy` explain what is not `ENDED`."""

    state: State
    object: str = ""
    reason: str = ""
    remedy: str = ""


Rule = Callable[[Wire, datetime], Sight | None]


def look(job: Wire | None, pods: Sequence[Wire], now: datetime, *, pods_wanted: int) -> Sight:
    """Job and pods as the API returns them; `job` is None when it is gone."""
    if job is None:
        return Sight(state=State.UNMEASURED, object="job", reason="it was deleted by somebody else")
    name = f"job {job['metadata'].get('namespace', '')}/{job['metadata']['name']}"
    trouble = next((seen for pod in pods for rule in _POD_RULES if (seen := rule(pod, now))), None)
    if _condition(job, "Complete") is not None:
        return _complete(name, pods, pods_wanted)
    failed = _condition(job, "Failed")
    if failed is not None:
        return _failed(name, failed, trouble, pods)
    if trouble:
        return trouble
    return Sight(state=State.RUNNING, object=name, reason=_progress(pods, pods_wanted))


def held_seconds(pod: Wire, now: datetime) -> float:
    """How long the pod has held its devices: from being scheduled to the end of its last container."""
    scheduled = _pod_condition(pod, "PodScheduled")
    if scheduled is None or scheduled.get("status") != "True":
        return 0.0
    begin = scheduled.get("lastTransitionTime") or (pod.get("status") or {}).get("startTime")
    if not begin:
        return 0.0
    ends = [ended.get("finishedAt") for ended in _terminated(pod)]
    finished = [parse_time(end) for end in ends if end]
    done = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return max(0.0, ((max(finished) if done and finished else now) - parse_time(begin)).total_seconds())


def ended_at(pods: Sequence[Wire]) -> datetime | None:
    """When the last program of the probe ended, or None while none did."""
    ends = [parse_time(t["finishedAt"]) for pod in pods for t in _terminated(pod) if t.get("finishedAt")]
    return max(ends, default=None)


def owned_by(pod: Wire, job: Wire) -> bool:
    """Is it of this very Job? A label can be worn by anybody, a former Job of the same name included."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(o.get("controller") and o.get("uid") == job["metadata"]["uid"] for o in owners)


def images_of(pods: Sequence[Wire]) -> tuple[str, ...]:
    """The image ids that the programs' containers ran, each once."""
    statuses = [s for pod in pods for s in (pod.get("status") or {}).get("containerStatuses") or ()]
    ids = {str(s["imageID"]).rpartition("@")[2] for s in statuses if s.get("imageID")}  # without the registry's name
    return tuple(sorted(ids))


def any_failed(pods: Sequence[Wire]) -> bool:
    """A pod has failed already: the Job will soon take down the others, logs and all."""
    return any((pod.get("status") or {}).get("phase") == "Failed" for pod in pods)


def _complete(name: str, pods: Sequence[Wire], wanted: int) -> Sight:
    done = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
    nodes = {pod["spec"].get("nodeName") for pod in done}
    if again := [pod for pod in done if _restarted(pod)]:
        reason = "its program was started again during the probe: what it printed before is lost"
        return Sight(state=State.UNMEASURED, object=_pod_name(again[0]), reason=reason)
    if len(done) == wanted == len(nodes) == len(pods):
        return Sight(state=State.ENDED, object=name)
    return Sight(
        state=State.UNMEASURED,
        object=name,
        reason=f"complete, but of {wanted} wanted, {plural(len(pods), 'pod')} were seen and {len(done)} ended well on "
        f"{plural(len(nodes), 'node')}: somebody deleted or made pods",
    )


def _failed(name: str, condition: Wire, trouble: Sight | None, pods: Sequence[Wire]) -> Sight:
    if trouble:
        return trouble
    if condition.get("reason") == "DeadlineExceeded":
        return Sight(
            state=State.UNMEASURED,
            object=name,
            reason=f"did not end in time: {_progress(pods, len(pods))}",
            remedy="raise validation.timeout, or look for a hang in the ranks' last lines",
        )
    codes = sorted({str(t.get("exitCode")) for pod in pods for t in _terminated(pod) if t.get("exitCode")})
    if not codes:
        return Sight(
            state=State.UNMEASURED,
            object=name,
            reason=f"{condition.get('reason', 'Failed')}: {condition.get('message', '')}, and no pod says why",
        )
    return Sight(state=State.FAILED, object=name, reason=f"the program ended with exit code {', '.join(codes)}")


def _not_scheduled(pod: Wire, now: datetime) -> Sight | None:
    condition = _pod_condition(pod, "PodScheduled")
    if condition is None or condition.get("status") != "False":
        return None
    since = condition.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if since and (now - parse_time(since)).total_seconds() < SCHEDULE_SECONDS:
        return None
    return Sight(
        state=State.UNMEASURED,
        object=_pod_name(pod),
        reason=f"not scheduled: {condition.get('message') or condition.get('reason', '')}",
        remedy="free the nodes, or see which of the pod's demands no node meets: kubectl describe pod",
    )


def _not_started(pod: Wire, now: datetime) -> Sight | None:
    begin = (pod.get("status") or {}).get("startTime") or pod["metadata"].get("creationTimestamp")
    for status in _containers(pod):
        waiting = (status.get("state") or {}).get("waiting") or {}
        late = not begin or (now - parse_time(begin)).total_seconds() >= IMAGE_SECONDS
        if waiting.get("reason") in _NO_START and late:
            return Sight(
                state=State.UNMEASURED,
                object=_pod_name(pod),
                reason=f"{status.get('name')} cannot start: {waiting['reason']}: {waiting.get('message', '')}",
                remedy=f"check image {status.get('image', '')} and the node's right to pull it",
            )
    return None


def _lost(pod: Wire, now: datetime) -> Sight | None:
    del now
    status = pod.get("status") or {}
    disruption = _pod_condition(pod, "DisruptionTarget")
    if disruption is not None and disruption.get("status") == "True":
        said = f"{disruption.get('reason', '')}: {disruption.get('message', '')}"
        return Sight(state=State.UNMEASURED, object=_pod_name(pod), reason=f"taken off its node ({said})")
    if status.get("phase") == "Failed" and status.get("reason") in _POD_LOST:
        said = f"{status['reason']}: {status.get('message', '')}"
        return Sight(state=State.UNMEASURED, object=_pod_name(pod), reason=f"lost its node ({said})")
    for ended in _terminated(pod):
        if ended.get("reason") in _NEVER_RAN:
            said = f"{ended['reason']}: {ended.get('message', '')}".rstrip(": ")
            return Sight(state=State.UNMEASURED, object=_pod_name(pod), reason=f"its program was not let run ({said})")
    return None


_POD_RULES: tuple[Rule, ...] = (_lost, _not_scheduled, _not_started)


def _progress(pods: Sequence[Wire], wanted: int) -> str:
    phases = [(pod.get("status") or {}).get("phase", "Pending") for pod in pods]
    shown = ", ".join(f"{phases.count(p)} {p.lower()}" for p in sorted(set(phases)))
    return f"{len(pods)} of {plural(wanted, 'pod')}: {shown or 'none yet'}"


def _condition(job: Wire, kind: str) -> Wire | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def _pod_condition(pod: Wire, kind: str) -> Wire | None:
    return next((c for c in (pod.get("status") or {}).get("conditions") or () if c.get("type") == kind), None)


def _containers(pod: Wire) -> list[Wire]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _terminated(pod: Wire) -> list[Wire]:
    """The ends of the pod's own containers; a sidecar's end is not the program's."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return [s["state"]["terminated"] for s in statuses if (s.get("state") or {}).get("terminated")]


def _restarted(pod: Wire) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(status.get("restartCount") for status in statuses)


def _pod_name(pod: Wire) -> str:
    return f"pod {pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
