"""Evict and delete pods, every answer told apart. An eviction's refusal is an answer, not an error, so none is raised.

What the answers mean was recorded from kube-apiserver 1.36: accepted is 201; a refusal by a budget is 429 with a
cause DisruptionBudget; two budgets are a 500 without a reason; a terminating namespace is a 403 with a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson

from infra.errors import Status, Unreachable
from infra.kube.lines import Lines
from infra.kube.refusals import read_status
from infra.model.workload import Pod

_OTHER_UID = ("UID in precondition", "UID in the precondition")
_ADMISSION = ("admission webhook", "ValidatingAdmissionPolicy")
TIMEOUT = 30.0  # seconds; the server itself retries budget writes for up to 10 s within one request


class Answer(StrEnum):
    """What the server said to an eviction or a delete."""

    ACCEPTED = "accepted"  # the pod has a deletionTimestamp, or is gone; the watch says when
    GONE = "gone"  # 404, or 409 because another pod has the name now
    REFUSED = "refused"  # 429: the budget allows none
    UNCOUNTED = "uncounted"  # 429 with retryAfter: the budget's controller has not counted yet
    BUSY = "busy"  # 429 without a budget: the server protects itself
    TWO_BUDGETS = "two-budgets"  # 500: more than one budget; no retry will help
    NAMESPACE_ENDING = "namespace-ending"  # 403: the namespace deletes the pod by itself
    FORBIDDEN = "forbidden"  # 403 for another reason
    DENIED = "denied"  # an admission webhook or policy says no to this pod
    LATER = "later"  # 429 of an admission webhook: it moves the pod by its own means first
    INVALID = "invalid"  # 400, 405, 422: the request is wrong; no retry will help
    ERROR = "error"  # 409 of another kind, other 5xx: may pass
    UNANSWERED = "unanswered"  # no answer: it may have been accepted


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """An answer with the server's words; `retry_after` in seconds."""

    answer: Answer
    message: str = ""
    retry_after: int | None = None


def evict(lines: Lines, pod: Pod, *, grace: int | None = None, dry_run: bool = False) -> Reply:
    """Ask for one eviction, of this very pod (UID precondition), with its own grace unless `grace` is given."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": options,
    }
    return _send(lines, "POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)


def delete(lines: Lines, pod: Pod, *, grace: int | None = None) -> Reply:
    """Delete this very pod, past any budget. Only for what a person has allowed."""
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
    if grace is not None:
        body["gracePeriodSeconds"] = grace
    return _send(lines, "DELETE", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body)


def _send(lines: Lines, method: str, path: str, body: Mapping[str, Any]) -> Reply:
    try:
        code, retry_after, data = lines.send(method, path, orjson.dumps(body), TIMEOUT)
    except Unreachable as error:
        return Reply(answer=Answer.UNANSWERED, message=error.observed)
    if code < 300 and b'"kind"' in data:
        return Reply(answer=Answer.ACCEPTED)
    if code < 400:  # a login page, say
        return Reply(answer=Answer.UNANSWERED, message=f"not answered by a Kubernetes API: {code} {data[:80]!r}")
    reply = read_reply(read_status(code, data, retry_after))
    # A server that has just started does not know anybody's roles yet.
    return replace(reply, answer=Answer.ERROR) if reply.answer is Answer.FORBIDDEN and lines.is_just_back else reply


def read_reply(status: Status) -> Reply:
    """Tell the refusals apart. Pure."""
    causes = {str(c.get("reason", "")): str(c.get("message", "")) for c in status.causes}
    said = causes.get("DisruptionBudget") or status.message
    return Reply(answer=_which(status, causes), message=said, retry_after=status.retry_after)


def _which(status: Status, causes: Mapping[str, str]) -> Answer:
    admission = any(word in status.message for word in _ADMISSION)
    match status.code:
        case 404:  # in other words it is not the API server's, and says nothing of the pod
            return Answer.GONE if status.reason == "NotFound" else Answer.ERROR
        case 409:
            # A precondition names what differs; a conflict of writers names the pod, whatever it is called.
            return Answer.GONE if any(words in status.message for words in _OTHER_UID) else Answer.ERROR
        case 429 if admission:
            return Answer.LATER
        case 400 | 403 | 422 if admission:
            return Answer.DENIED
        case 429 if "DisruptionBudget" in causes:
            return Answer.UNCOUNTED if status.retry_after else Answer.REFUSED
        case 429:
            return Answer.BUSY
        case 403 if status.details.get("kind") == "poddisruptionbudget":
            # Allowed is negative, or 2,000 accepted evictions are not confirmed yet: its controller has to count.
            return Answer.UNCOUNTED
        case 403 if "NamespaceTerminating" in causes:
            return Answer.NAMESPACE_ENDING
        case 403:
            return Answer.FORBIDDEN
        case 500 if "more than one PodDisruptionBudget" in status.message:
            return Answer.TWO_BUDGETS
        case 400 | 405 | 415 | 422:
            return Answer.INVALID
    return Answer.ERROR
