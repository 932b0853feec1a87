"""What goes to a server and what comes back: plain, frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

#: A value that JSON can express.
Json: TypeAlias = Any
#: What a message carries: bytes are stored as they are, every other value as its JSON.
Payload: TypeAlias = Any
#: Seconds, or a timedelta.
Duration: TypeAlias = float | timedelta

OutcomeName: TypeAlias = Literal["ack", "retry", "bury", "release"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Outgoing:
    """A message to publish in a batch."""

    payload: Payload
    key: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    dedup_key: str | None = None
    #: Delivered that much later; or at a time, by `deliver_at`.
    delay: Duration | None = None
    deliver_at: datetime | None = None
    #: Not delivered any more after that time.
    expires_in: Duration | None = None
    #: The media type of the payload; `application/json` for JSON unless said otherwise.
    content_type: str | None = None
    #: Links messages of one conversation.
    correlation_id: str | None = None


@dataclass(frozen=True)
class Published:
    """Where a message was stored."""

    #: `None` while it is scheduled.
    offset: int | None
    id: str
    #: An earlier message has the same dedup key; this is its place.
    duplicate: bool


@dataclass(frozen=True)
class Message:
    """A stored message."""

    topic: str
    offset: int
    id: str
    #: The JSON value, or bytes if what is stored is not JSON.
    payload: Payload
    key: str | None
    type: str | None
    headers: Mapping[str, str]
    content_type: str | None
    correlation_id: str | None
    published_at: datetime | None
    #: The answer as the server gave it.
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Claimed(Message):
    """A message leased to a consumer."""

    group: str
    #: Names the lease in `settle` and `extend`.
    receipt: str
    #: From 1.
    attempt: int


@dataclass(frozen=True)
class Claim:
    """The answer to a claim; empty if no message came in time."""

    messages: tuple[Claimed, ...]
    lease_until: datetime | None


@dataclass(frozen=True)
class Settlement:
    """What becomes of a claimed message."""

    receipt: str
    outcome: OutcomeName = "ack"
    #: For `retry`: the pause before the next attempt.
    delay: Duration | None = None
    #: For `retry` and `bury`: the error.
    reason: str | None = None


@dataclass(frozen=True)
class Settled:
    """The result for one receipt: settled, or lost because its lease had ended."""

    receipt: str
    lost: bool


@dataclass(frozen=True)
class Extended:
    """The result for one receipt: extended, or lost."""

    receipt: str
    lost: bool
    lease_until: datetime | None


@dataclass(frozen=True)
class Page(Generic[T_co]):
    """A part of a list; `next_cursor` begins the following one."""

    items: tuple[T_co, ...]
    next_cursor: str | None


@dataclass(frozen=True)
class Topic:
    """A topic: its settings and status are in `raw`, by the names of the HTTP API."""

    name: str
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Group:
    """A group on one topic; what else the server says of it is in `raw`."""

    topic: str
    group: str
    #: active, paused, dead or cancelled.
    state: str
    #: Messages that it has not done.
    lag: int
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class DeadLetter:
    """A message that a group gave up on, or another dead letter; what else the server says of it is in `raw`."""

    id: str
    #: Where it comes from: a group, the outbox, a process.
    source: str
    topic: str | None
    group: str | None
    offset: int | None
    error: str
    attempts: int
    #: `None` in lists: `dead_letters.get` has it.
    payload: Payload
    raw: Mapping[str, Any] = field(repr=False, compare=False)


def milliseconds(duration: Duration) -> int:
    """A duration as the HTTP API has it; a fraction of a millisecond counts as a whole one."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"a duration is at least 0 and finite: {duration!r}")
    return -int(-seconds * 1000 // 1)
