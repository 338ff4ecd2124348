"""Failures as the Kubernetes API words them: each becomes a `Status` object with its HTTP code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One entry of `Status.details.causes`."""

    reason: str
    message: str
    field: str = ""

    def to_json(self) -> dict[str, str]:
        body = {"reason": self.reason, "message": self.message}
        return body | {"field": self.field} if self.field else body


class ApiError(Exception):
    """A request that the API refuses.

    Attributes:
        code: HTTP status.
        reason: `Status.reason`, "" where the real server leaves it out.
        message: `Status.message`.
        details: `Status.details` (name, group, kind, causes, retryAfterSeconds), or None.
        continue_token: where an expired list can go on, if at all.

    """

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details) if details is not None else None
        self.continue_token = ""

    def to_status(self) -> dict[str, Any]:
        """The `Status` object that goes over the wire."""
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure"}
        status["message"] = self.message
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def _qualified(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _subject(name: str, group: str, kind: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404: no such object."""
    message = f'{_qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", message, _subject(name, group, plural))


def no_such_path() -> ApiError:
    """404: the server does not serve this path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """409: create of a name that is taken."""
    message = f'{_qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _subject(name, group, plural))


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409: the object is not what the writer thought it was."""
    message = f'Operation cannot be fulfilled on {_qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _subject(name, group, plural))


def stale(group: str, plural: str, name: str) -> ApiError:
    """409: another write came first."""
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(group, plural, name, why)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def forbidden(group: str, plural: str, name: str, why: str, causes: Iterable[Cause] = ()) -> ApiError:
    """403."""
    details = _subject(name, group, plural)
    listed = [cause.to_json() for cause in causes]
    if listed:
        details["causes"] = listed
    return ApiError(403, "Forbidden", f'{_qualified(plural, group)} "{name}" is forbidden: {why}', details)


def invalid(group: str, kind: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """422 with one cause a field; `kind` is the Kind ("Pod"), as the real server has it here."""
    listed = list(causes)
    worded = [f"{cause.field}: {cause.message}" for cause in listed]
    text = worded[0] if len(worded) == 1 else "[" + ", ".join(worded) + "]"
    qualified = f"{kind}.{group}" if group else kind
    details = _subject(name, group, kind) | {"causes": [cause.to_json() for cause in listed]}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details)


def method_not_allowed() -> ApiError:
    """405."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(message: str) -> ApiError:
    """415."""
    return ApiError(415, "UnsupportedMediaType", message)


def expired(message: str) -> ApiError:
    """410: the history that was asked for is gone; list again."""
    return ApiError(410, "Expired", message)


def internal(message: str) -> ApiError:
    """500 as the real server has it for its own errors: worded, without a reason."""
    return ApiError(500, "", message)


def not_offered(what: str) -> ApiError:
    """501: the real server does this; the embedded one says so instead of pretending."""
    return ApiError(501, "NotImplemented", f"{what} is not offered by the embedded control plane")
