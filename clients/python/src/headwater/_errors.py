"""Errors: what a server answers as problem+json, what the network does, and what a handler raises to decide an outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PROBLEM_PREFIX = "urn:headwater:problem:"


class HeadwaterError(Exception):
    """The base of every error that this package raises."""


class ConnectionFailed(HeadwaterError):
    """No server answered within the time for retries. Whether the request was carried out is unknown if `sent`."""

    def __init__(self, message: str, *, attempts: int, sent: bool) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.sent = sent


class InvalidAnswer(HeadwaterError):
    """An answer that this package does not understand: the address is not that of a Headwater server, or of another version."""


class Problem(HeadwaterError):
    """A request that the server refused, as RFC 9457 describes.

    `kind` is the stable part of its `type`, such as `no-such-topic`; programs compare that and not the texts.
    """

    def __init__(
        self,
        *,
        status: int,
        kind: str,
        title: str,
        detail: str | None = None,
        field: str | None = None,
        retry_after: float | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{detail or title} ({kind}, status {status})")
        self.status = status
        self.kind = kind
        self.title = title
        self.detail = detail
        self.field = field
        self.retry_after = retry_after
        self.body: Mapping[str, Any] = body or {}


class InvalidRequest(Problem):
    """The request is wrong, or larger than a limit; `field` names the part if the server knows it."""


class Unauthorized(Problem):
    """The token is missing, unknown, expired or revoked."""


class Forbidden(Problem):
    """The token lacks the scope, or the topic does not match its patterns."""


class NotFound(Problem):
    """The topic, group, message or other thing does not exist."""


class Conflict(Problem):
    """The state of the thing does not allow the request."""


class TooManyRequests(Problem):
    """A limit of the server is reached; `retry_after` says for how many seconds."""


class ServerFailure(Problem):
    """The server could not carry out the request."""


class Outcome(Exception):
    """Raised by a handler to decide what becomes of the message."""


class Retry(Outcome):
    """Handle the message again, after `delay` seconds or as the group's policy says."""

    def __init__(self, reason: str | None = None, *, delay: float | None = None) -> None:
        super().__init__(reason or "retry")
        self.reason = reason
        self.delay = delay


class Bury(Outcome):
    """Make the message a dead letter: no further attempt succeeds."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "bury")
        self.reason = reason


class Release(Outcome):
    """Hand the message out again at once, without counting an attempt."""


def problem(status: int, body: object, retry_after: float | None = None) -> Problem:
    """The error for an answer with this status and body."""
    fields: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    kind = str(fields.get("type") or "unknown").removeprefix(_PROBLEM_PREFIX)
    return _class_of(status)(
        status=status,
        kind=kind,
        title=str(fields.get("title") or f"status {status}"),
        detail=_text(fields.get("detail")),
        field=_text(fields.get("field")),
        retry_after=retry_after,
        body=fields,
    )


def is_refusal(error: HeadwaterError) -> bool:
    """A refusal that no repetition changes: a missing topic or right for example."""
    return isinstance(error, Problem) and error.status < 500 and error.status != 429


def unreachable(attempts: int, causes: Sequence[str], sent: bool) -> ConnectionFailed:
    """The error after the last attempt, with the last causes."""
    listed = "; ".join(dict.fromkeys(causes[-3:]))
    outcome = ", whether it was carried out is unknown" if sent else ""
    return ConnectionFailed(
        f"no server answered in {attempts} attempts{outcome}: {listed}", attempts=attempts, sent=sent
    )


def _class_of(status: int) -> type[Problem]:
    known: dict[int, type[Problem]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        412: Conflict,
        429: TooManyRequests,
    }
    if status in known:
        return known[status]
    return InvalidRequest if 400 <= status < 500 else ServerFailure


def _text(value: object) -> str | None:
    return None if value is None else str(value)
