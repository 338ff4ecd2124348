"""The judgement of a Job: indexes, failure and success policies, backoff, conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from infra.clock import parse_time
from infra.sandbox.control_plane.controllers.objects import Object, condition
from infra.sandbox.control_plane.controllers.view import PodFacts

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED_FAILURES = "batch.kubernetes.io/job-index-ignored-failure-count"
FIRST_BACKOFF_SECONDS = 10
LONGEST_BACKOFF_SECONDS = 600
NO_INDEX = -1


@dataclass(frozen=True, kw_only=True)
class PolicyMatch:
    """What podFailurePolicy says of one failed pod."""

    message: str = ""
    """Why the whole Job fails, "" when it does not."""
    counts: bool = True
    """The failure counts against backoffLimit."""
    action: str = ""
    """The action of the rule that matched, "" when none did."""


@dataclass(frozen=True)
class Backoff:
    """Failures since the last success, and when the last one was."""

    failures: int = 0
    last: datetime | None = None

    def remaining(self, now: datetime) -> float:
        """Seconds until the next pod may be made."""
        if not self.failures or self.last is None:
            return 0.0
        wait = min(FIRST_BACKOFF_SECONDS * 2 ** min(self.failures - 1, 10), LONGEST_BACKOFF_SECONDS)
        return max(0.0, float(wait) - (now - self.last).total_seconds())


def is_indexed(job: Object) -> bool:
    """Completion mode Indexed."""
    mode: str = job["spec"].get("completionMode", "NonIndexed")
    return mode == "Indexed"


def is_suspended(job: Object) -> bool:
    """spec.suspend is true."""
    return bool(job["spec"].get("suspend"))


def replaces_failed_only(job: Object) -> bool:
    """A replacement waits until the pod has really failed, not only begun to terminate."""
    return job["spec"].get("podReplacementPolicy") == "Failed" or job["spec"].get("podFailurePolicy") is not None


def is_finished(job: Object) -> Object | None:
    """The Complete or Failed condition, when it is True."""
    for kind in ("Complete", "Failed"):
        found = condition(job, kind)
        if found is not None and found.get("status") == "True":
            return found
    return None


def index_of(pod: Object) -> int:
    """The completion index of a pod, NO_INDEX when it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else NO_INDEX


def parse_indexes(text: str | None, completions: int) -> set[int]:
    """ "0,2-4" as a set, cut at `completions`."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """A set as "0,2-4"; two neighbours are written "1,2"."""
    parts: list[str] = []
    ordered = sorted(indexes)
    start = 0
    for position, index in enumerate(ordered):
        if position + 1 < len(ordered) and ordered[position + 1] == index + 1:
            continue
        first = ordered[start]
        if first == index:
            parts.append(str(index))
        else:
            parts.append(f"{first}{',' if index == first + 1 else '-'}{index}")
        start = position + 1
    return ",".join(parts)


def has_finalizer(pod: PodFacts) -> bool:
    """The pod is not yet counted."""
    return FINALIZER in (pod.obj["metadata"].get("finalizers") or ())


def has_failed(pod: PodFacts, job: Object) -> bool:
    """Failed, or terminating where that is enough for a replacement."""
    if pod.phase == "Failed":
        return True
    return not replaces_failed_only(job) and pod.deleting and pod.phase != "Succeeded"


def finished_time(pod: Object) -> datetime:
    """When a pod ended, from its containers, its Ready condition or its deletion."""
    ends = [
        ((each.get("state") or {}).get("terminated") or {}).get("finishedAt")
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    if ends and all(ends):
        return max(parse_time(end) for end in ends if end)
    ready = condition(pod, "Ready")
    if ready is not None and ready.get("status") == "False" and ready.get("lastTransitionTime"):
        return parse_time(ready["lastTransitionTime"])
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        grace = timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
        return parse_time(meta["deletionTimestamp"]) - grace
    return parse_time(meta["creationTimestamp"])


def next_backoff(before: Backoff, succeeded: Iterable[PodFacts], failed: Iterable[PodFacts]) -> Backoff:
    """The record after more pods have ended: a success wipes out the failures before it."""
    ends = sorted(finished_time(pod.obj) for pod in failed)
    successes = [finished_time(pod.obj) for pod in succeeded]
    if successes:
        ends = [end for end in ends if end > max(successes)]
        return Backoff(len(ends), ends[-1] if ends else None)
    return Backoff(before.failures + len(ends), ends[-1]) if ends else before


def _exit_code_matches(status: Mapping[str, Any], rule: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for group in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(group) or ():
            terminated = (container.get("state") or {}).get("terminated")
            if not terminated or (rule.get("containerName") and rule["containerName"] != container["name"]):
                continue
            code = terminated.get("exitCode", 0)
            if code != 0 and (code in (rule.get("values") or ())) is (rule.get("operator") == "In"):
                found: Mapping[str, Any] = container
                return found
    return None


def match_failure_policy(job: Object, pod: Object) -> PolicyMatch:
    """The first rule that matches a failed pod decides."""
    policy = job["spec"].get("podFailurePolicy")
    status = pod.get("status") or {}
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for number, rule in enumerate((policy or {}).get("rules") or ()):
        action = rule["action"]
        if rule.get("onExitCodes"):
            container = _exit_code_matches(status, rule["onExitCodes"])
            if container is None:
                continue
            code = container["state"]["terminated"]["exitCode"]
            why = f"Container {container['name']} for pod {where} failed with exit code {code}"
        else:
            wanted = [(p["type"], p.get("status") or "True") for p in rule.get("onPodConditions") or ()]
            met = [c["type"] for c in status.get("conditions") or () if (c["type"], c["status"]) in wanted]
            if not met:
                continue
            why = f"Pod {where} has condition {met[0]}"
        if action == "FailJob":
            return PolicyMatch(message=f"{why} matching {action} rule at index {number}", action=action)
        return PolicyMatch(counts=action != "Ignore", action=action)
    return PolicyMatch()


def match_success_policy(job: Object, succeeded: set[int]) -> str:
    """The message of the first success rule that is met, or ""."""
    policy = job["spec"].get("successPolicy")
    if not policy or not succeeded:
        return ""
    for number, rule in enumerate(policy.get("rules") or ()):
        count = rule.get("succeededCount")
        if rule.get("succeededIndexes") is not None:
            wanted = parse_indexes(rule["succeededIndexes"], job["spec"]["completions"])
            met = bool(wanted) and (wanted <= succeeded or (count is not None and len(wanted & succeeded) >= count))
        else:
            met = count is not None and len(succeeded) >= count
        if met:
            return f"Matched rules at index {number}"
    return ""


def past_restarts(job: Object, pods: Iterable[PodFacts]) -> bool:
    """With restartPolicy OnFailure, container restarts count against backoffLimit."""
    if job["spec"]["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(
        each.get("restartCount", 0)
        for pod in pods
        if pod.phase in ("Running", "Pending")
        for group in ("initContainerStatuses", "containerStatuses")
        for each in (pod.obj.get("status") or {}).get(group) or ()
    )
    limit = job["spec"].get("backoffLimit", 6)
    return bool(restarts > 0 if limit == 0 else restarts >= limit)


def index_failures(pod: Object, annotation: str = INDEX_FAILURES) -> int:
    """How often a pod's index had failed before it."""
    text = (pod["metadata"].get("annotations") or {}).get(annotation, "")
    return int(text) if text.isdigit() else 0


def index_is_lost(job: Object, pod: PodFacts) -> bool:
    """The failure uses up its index's backoffLimitPerIndex, or the policy gives the index up."""
    if not has_failed(pod, job):
        return False
    match = match_failure_policy(job, pod.obj)
    if match.action == "FailIndex":
        return True
    return match.counts and index_failures(pod.obj) >= job["spec"]["backoffLimitPerIndex"]


def new_condition(kind: str, status: str, reason: str, message: str, stamp: str) -> Object:
    """A JobCondition."""
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": stamp,
        "lastTransitionTime": stamp,
        "reason": reason,
        "message": message,
    }


def indexed_template(template: Object, job_name: str, index: int) -> Object:
    """The template of one index: label, annotation, hostname."""
    meta = template.get("metadata") or {}
    return {
        "metadata": {
            **meta,
            "labels": {**(meta.get("labels") or {}), INDEX: str(index)},
            "annotations": {**(meta.get("annotations") or {}), INDEX: str(index)},
        },
        "spec": {**template["spec"], "hostname": f"{job_name}-{index}"},
    }


def with_index_variable(spec: Object) -> Object:
    """The pod spec with JOB_COMPLETION_INDEX in the environment of every container."""
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}},
    }
    changed = dict(spec)
    for group in ("initContainers", "containers"):
        if spec.get(group):
            changed[group] = [
                {**each, "env": [*(each.get("env") or ()), variable]}
                if all(e["name"] != variable["name"] for e in each.get("env") or ())
                else each
                for each in spec[group]
            ]
    return changed
