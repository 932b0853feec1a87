"""Every request of the HTTP API, once: the synchronous and the asynchronous client only send them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from . import _wire as wire
from ._models import (
    Claim,
    DeadLetter,
    Duration,
    Extended,
    Group,
    Json,
    Message,
    Outgoing,
    Page,
    Payload,
    Published,
    Settled,
    Settlement,
    Topic,
    milliseconds,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Request(Generic[T]):
    """What is sent, and how the answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: bytes | None = None
    query: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Repeating it changes nothing more than sending it once.
    repeatable: bool = True
    #: For how long the server is asked to wait.
    wait_s: float = 0.0
    #: Reads the answer instead of `read` where an earlier attempt may have been carried out.
    read_repeated: Callable[[Any], T] | None = None


def publish(topic: str, message: Outgoing, headers: Mapping[str, str], idempotent: bool) -> Request[Published]:
    """With a key made here, so that a repetition after a lost answer stores nothing twice."""
    keyed = message.dedup_key is not None
    return Request(
        "POST",
        f"{_topic(topic)}/messages",
        partial(_published, not keyed and idempotent),
        wire.encode(wire.outgoing(message)),
        headers=_with_key(headers, idempotent and not keyed),
        repeatable=keyed or idempotent,
    )


def publish_batch(
    topic: str, messages: Sequence[Outgoing], headers: Mapping[str, str], idempotent: bool
) -> Request[tuple[Published, ...]]:
    """All or none are stored."""
    keyed = [message.dedup_key is not None for message in messages]
    own = [idempotent and not each for each in keyed]

    def read(body: Any) -> tuple[Published, ...]:
        return tuple(_published(mine, entry) for mine, entry in zip(own, body["published"], strict=True))

    return Request(
        "POST",
        f"{_topic(topic)}/batches",
        read,
        wire.encode({"messages": [wire.outgoing(message) for message in messages]}),
        headers=_with_key(headers, any(own)),
        repeatable=idempotent or all(keyed),
    )


def claim(topic: str, group: str, max_: int, wait: Duration, lease: Duration) -> Request[Claim]:
    """A repetition may leave messages leased that no answer brought; they are handed out again after their lease."""
    wait_ms = milliseconds(wait)
    body = {"max": max_, "wait_ms": wait_ms, "lease_ms": milliseconds(lease)}
    read = partial(wire.claim, topic, group)
    return Request("POST", f"{_group(topic, group)}/claim", read, wire.encode(body), wait_s=wait_ms / 1000)


def settle(topic: str, group: str, settlements: Sequence[Settlement]) -> Request[tuple[Settled, ...]]:
    body = {"settlements": [wire.settlement(each) for each in settlements]}

    def settled_before(answer: Any) -> tuple[Settled, ...]:
        # A receipt is valid for one settlement: the attempt whose answer was lost has settled it.
        return tuple(Settled(each["receipt"], False) for each in answer["results"])

    return Request(
        "POST",
        f"{_group(topic, group)}/settle",
        lambda answer: tuple(wire.settled(each) for each in answer["results"]),
        wire.encode(body),
        read_repeated=settled_before,
    )


def extend(
    topic: str, group: str, receipts: Sequence[str], lease: Duration
) -> Request[tuple[Extended, ...]]:
    body = {"receipts": list(receipts), "lease_ms": milliseconds(lease)}
    return Request(
        "POST",
        f"{_group(topic, group)}/extend",
        lambda answer: tuple(wire.extended(each) for each in answer["results"]),
        wire.encode(body),
    )


def stream_path(topic: str, group: str) -> str:
    return f"{_group(topic, group)}/stream"


def tail_path(topic: str) -> str:
    return f"{_topic(topic)}/tail"


def browse(
    topic: str,
    from_: str | int | datetime | None,
    key: str | None,
    limit: int,
    cursor: str | None,
) -> Request[Page[Message]]:
    # A cursor has the place already.
    start = position(from_) if cursor is None else None
    query = _query(key=key, limit=limit, cursor=cursor, **{"from": start})
    item = partial(wire.message, topic)
    return Request("GET", f"{_topic(topic)}/messages", partial(wire.page, item=item), query=query)


def message(topic: str, offset: int) -> Request[Message]:
    return Request("GET", f"{_topic(topic)}/messages/{offset}", partial(wire.message, topic))


def list_topics(search: str | None, limit: int, cursor: str | None) -> Request[Page[Topic]]:
    query = _query(search=search, limit=limit, cursor=cursor)
    return Request("GET", "/v1/topics", partial(wire.page, item=wire.topic), query=query)


def get_topic(topic: str) -> Request[Topic]:
    return Request("GET", _topic(topic), wire.topic)


def create_topic(name: str, preset: str | None, settings: Mapping[str, Json] | None) -> Request[Topic]:
    body: dict[str, Any] = {"name": name}
    if preset is not None:
        body["preset"] = preset
    if settings:
        body["settings"] = dict(settings)
    # One that exists with these settings is returned.
    return Request("POST", "/v1/topics", wire.topic, wire.encode(body))


def update_topic(topic: str, settings: Mapping[str, Json]) -> Request[Topic]:
    return Request("PATCH", _topic(topic), wire.topic, wire.encode(settings))


def delete_topic(topic: str, dry_run: bool) -> Request[Mapping[str, Json]]:
    query = _query(dry_run="true" if dry_run else None)
    return Request("DELETE", _topic(topic), _object, query=query, repeatable=dry_run)


def list_groups(
    topic: str | None, state: str | None, search: str | None, limit: int, cursor: str | None
) -> Request[Page[Group]]:
    query = _query(topic=topic, state=state, search=search, limit=limit, cursor=cursor)
    return Request("GET", "/v1/groups", partial(wire.page, item=wire.group), query=query)


def get_group(topic: str, group: str) -> Request[Group]:
    return Request("GET", _group(topic, group), wire.group)


def put_group(topic: str, group: str, settings: Mapping[str, Json]) -> Request[Group]:
    return Request("PUT", _group(topic, group), wire.group, wire.encode(settings))


def delete_group(topic: str, group: str, dry_run: bool) -> Request[Mapping[str, Json]]:
    query = _query(dry_run="true" if dry_run else None)
    return Request("DELETE", _group(topic, group), _object, query=query, repeatable=dry_run)


def act_on_group(
    topic: str, group: str, action: str, body: Mapping[str, Json]
) -> Request[Mapping[str, Json]]:
    """pause, resume, cancel, resurrect and seek."""
    path = f"{_group(topic, group)}/{action}"
    return Request("POST", path, _object, wire.encode(body))


def list_dead_letters(
    source: str | None,
    topic: str | None,
    group: str | None,
    search: str | None,
    limit: int,
    cursor: str | None,
) -> Request[Page[DeadLetter]]:
    query = _query(
        source=source, topic=topic, group=group, search=search, limit=limit, cursor=cursor
    )
    return Request("GET", "/v1/dead-letters", partial(wire.page, item=wire.dead_letter), query=query)


def get_dead_letter(id_: str) -> Request[DeadLetter]:
    return Request("GET", f"/v1/dead-letters/{_segment(id_)}", wire.dead_letter)


def redrive(
    ids: Sequence[str] | None, selection: Mapping[str, Json] | None, payload: tuple[Payload] | None
) -> Request[Mapping[str, Json]]:
    """Each is redriven once, even if the request is repeated; an edited one is not found again."""
    if (ids is None) == (selection is None):
        raise ValueError("redrive takes either ids or a selection")
    body: dict[str, Any] = {"ids": list(ids)} if ids is not None else {"selection": dict(selection or {})}
    if payload is not None:
        body["edit"] = wire.payload_fields(payload[0])
    repeatable = payload is None
    return Request("POST", "/v1/dead-letters/redrive", _object, wire.encode(body), repeatable=repeatable)


def purge(ids: Sequence[str], dry_run: bool) -> Request[Mapping[str, Json]]:
    body = {"ids": list(ids), "dry_run": dry_run}
    return Request("POST", "/v1/dead-letters/purge", _object, wire.encode(body))


def get_object(path: str) -> Request[Mapping[str, Json]]:
    """An answer without a type of its own, such as `/v1/stats`."""
    return Request("GET", path, _object)


def position(from_: str | int | datetime | None) -> str | int | None:
    """`start`, `last:N`, an offset, or a time."""
    return wire.timestamp(from_) if isinstance(from_, datetime) else from_


def seek_position(to: str | int | datetime) -> str | int:
    """`start`, `end`, an offset, or a time."""
    return wire.timestamp(to) if isinstance(to, datetime) else to


def query_of(**values: str | int | None) -> dict[str, str | int]:
    """Without those that are not given."""
    return _query(**values)


def _query(**values: str | int | None) -> dict[str, str | int]:
    return {name: value for name, value in values.items() if value is not None}


def _topic(topic: str) -> str:
    return f"/v1/topics/{_segment(topic)}"


def _group(topic: str, group: str) -> str:
    return f"{_topic(topic)}/groups/{_segment(group)}"


def _segment(text: str) -> str:
    """A name inside a path. `.` and `..` would be removed on the way, whether they are escaped or not."""
    if text in ("", ".", ".."):
        raise ValueError(f"not a name that a path can have: {text!r}")
    return quote(text, safe="")


def _with_key(headers: Mapping[str, str], wanted: bool) -> dict[str, str]:
    return {**headers, "idempotency-key": uuid.uuid4().hex} if wanted else dict(headers)


def _published(own_key: bool, body: Mapping[str, Any]) -> Published:
    result = wire.published(body)
    # With a key that only this call knows, the earlier message is its own, stored by an attempt whose answer was lost.
    return Published(result.offset, result.id, False) if own_key else result


def _object(body: Any) -> Mapping[str, Json]:
    if body is None:
        return {}
    if not isinstance(body, Mapping):
        raise ValueError("an object is expected")
    return body
