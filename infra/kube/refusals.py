"""What the API server said instead of a success: as an error of ours, and whether the same request may go through
a moment later.
"""

from __future__ import annotations

import orjson

from infra.errors import Conflict, Forbidden, NotFound, PoolshiftError, Status, Unreachable


class ApiError(PoolshiftError):
    """An answer of the API server that is not a success and has no class of its own. See `.status`."""


def translate(method: str, path: str, code: int, body: bytes, retry_after: str | None) -> PoolshiftError:
    """An HTTP error as ours. Bodies that are no Status are cut to 256 characters: they may hold anything."""
    status = read_status(code, body, retry_after)
    what = f"{method} {path}"
    said = f"{code} {status.reason}: {status.message}".strip()
    if code == 404 and not _is_absence(status, path):
        return not_kubernetes(what, f"404 {status.message[:80]!r}")
    error: PoolshiftError
    if code == 404:
        error = NotFound(what, said)
    elif code == 403:
        error = Forbidden(what, said, remedy=_permission_remedy(status.message))
    elif code == 401:
        error = Forbidden(what, said, remedy="renew the kubeconfig's credentials, then: kubectl auth whoami")
    elif code == 409:
        error = Conflict(what, said)
    elif code in (408, 429) or code >= 500:
        error = Unreachable(what, said)
    else:
        error = ApiError(what, said)
    error.status = status
    return error


# Served by every cluster: a path that is not, can only be unknown to somebody who stands before the API server.
_ALWAYS_SERVED = ("/api/v1/", "/apis/apps/", "/apis/batch/", "/apis/policy/", "/apis/coordination.k8s.io/")


def _is_absence(status: Status, path: str) -> bool:
    """Is a 404 the API server's word that there is no such object, or no such kind, and not a load balancer's?

    For a kind that is not served it is Go's plain "404 page not found". A pod's own program says what it likes.
    """
    if status.reason == "NotFound" or "/proxy/" in path:
        return True
    return status.message == "404 page not found" and path != "/apis" and not path.startswith(_ALWAYS_SERVED)


def not_kubernetes(what: str, said: str) -> Unreachable:
    """Somebody who stands before the API server has answered in its place, which says nothing of what was asked.

    Passing, as a 502 that such a one sends when it is honest.
    """
    error = Unreachable(
        what,
        f"not answered by a Kubernetes API: {said}",
        expected="a JSON object of the Kubernetes API",
        remedy="see what stands before it (a load balancer, a proxy, a login page): kubectl get --raw /readyz",
    )
    error.status = Status(code=502, message=said)
    return error


def read_status(code: int, body: bytes, retry_after: str | None) -> Status:
    """Parse a Status object; anything else becomes a Status with a shortened message."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raw = None
    seconds = int(retry_after) if retry_after and retry_after.isdigit() else None
    if not isinstance(raw, dict) or raw.get("kind") != "Status":
        return Status(code=code, message=body[:256].decode(errors="replace").strip(), retry_after=seconds)
    details = raw.get("details") or {}
    return Status(
        code=code,
        reason=raw.get("reason") or "",
        message=raw.get("message") or "",
        causes=tuple(details.get("causes") or ()),
        retry_after=seconds if seconds is not None else details.get("retryAfterSeconds"),
        details=details,
    )


def _permission_remedy(message: str) -> str:
    """From 'User "x" cannot list resource "nodes" in API group "" …' the rule to add."""
    parts = message.split('"')
    if " cannot " in message and len(parts) >= 6:
        verb = message.split(" cannot ", 1)[1].split(" ", 1)[0]
        resource, group = parts[3], parts[5]
        return (
            f'add verb "{verb}" on resource "{resource}" in apiGroup "{group}" to the role of {parts[1]} '
            f"(infra/deploy/rbac.yaml has all rules)"
        )
    return "compare the user's role with infra/deploy/rbac.yaml: kubectl auth can-i --list"


def is_passing(error: PoolshiftError) -> bool:
    """May the same request succeed a moment later? A 429 with a budget's cause is an answer, not an accident."""
    if not isinstance(error, Unreachable):
        return False
    status = error.status
    if status is None:
        return True
    if any(cause.get("reason") == "DisruptionBudget" for cause in status.causes):
        return False
    return status.code in (408, 429, 500, 502, 503, 504)


def is_busy(error: PoolshiftError) -> bool:
    """The server's own priority and fairness turned the request away before anybody looked at it.

    Recorded: 429 in plain text with `Retry-After: 1`. A webhook that answers 429 names no time.
    """
    status = error.status
    return status is not None and status.code == 429 and status.retry_after is not None and is_passing(error)


def was_never_sent(error: PoolshiftError) -> bool:
    """The connection was refused, so the server cannot have acted on the request."""
    import urllib3

    cause: BaseException | None = error.__cause__
    while isinstance(reason := getattr(cause, "reason", None), BaseException):
        cause = reason
    return isinstance(cause, urllib3.exceptions.NewConnectionError)
