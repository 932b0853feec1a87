"""The JSON of the HTTP API: from values of this package, and to them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

from ._errors import InvalidAnswer
from ._models import (
    Claim,
    Claimed,
    DeadLetter,
    Extended,
    Group,
    Message,
    Outgoing,
    Page,
    Published,
    Settled,
    Settlement,
    Topic,
    milliseconds,
)

T = TypeVar("T")


def encode(body: Mapping[str, Any]) -> bytes:
    """Compact JSON; NaN and infinities, which JSON has not, are refused."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def outgoing(message: Outgoing) -> dict[str, Any]:
    """The body of a publish."""
    body = payload_fields(message.payload)
    if message.deliver_at is not None and message.deliver_at.tzinfo is None:
        raise ValueError("deliver_at has to have a time zone")
    optional = {
        "key": message.key,
        "type": message.type,
        "headers": dict(message.headers) or None,
        "dedup_key": message.dedup_key,
        "delay_ms": None if message.delay is None else milliseconds(message.delay),
        "deliver_at": None if message.deliver_at is None else timestamp(message.deliver_at),
        "expires_in_ms": None if message.expires_in is None else milliseconds(message.expires_in),
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
    }
    body.update((name, value) for name, value in optional.items() if value is not None)
    return body


def payload_fields(payload: Any) -> dict[str, Any]:
    """Bytes are stored as they are, every other value as JSON."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}
    return {"payload": payload}


def settlement(value: Settlement) -> dict[str, Any]:
    """One entry of a settle request."""
    entry: dict[str, Any] = {"receipt": value.receipt, "outcome": value.outcome}
    if value.delay is not None:
        entry["delay_ms"] = milliseconds(value.delay)
    if value.reason is not None:
        entry["reason"] = value.reason
    return entry


def published(body: Mapping[str, Any]) -> Published:
    return Published(offset=body["offset"], id=body["id"], duplicate=body["duplicate"])


def message(topic: str, body: Mapping[str, Any]) -> Message:
    return Message(**_message_fields(topic, body))


def claimed(topic: str, group: str, body: Mapping[str, Any]) -> Claimed:
    fields = _message_fields(topic, body)
    return Claimed(**fields, group=group, receipt=body["receipt"], attempt=body["attempt"])


def claimed_event(topic: str, group: str, body: Any) -> Claimed:
    """The same of an event in a stream."""
    return decoded(lambda data: claimed(topic, group, data), body)


def claim(topic: str, group: str, body: Mapping[str, Any]) -> Claim:
    messages = tuple(claimed(topic, group, entry) for entry in body["messages"])
    return Claim(messages, optional_time(body.get("lease_until")))


def settled(body: Mapping[str, Any]) -> Settled:
    return Settled(receipt=body["receipt"], lost=body["result"] == "lost")


def extended(body: Mapping[str, Any]) -> Extended:
    until = optional_time(body.get("lease_until"))
    return Extended(receipt=body["receipt"], lost=body["result"] == "lost", lease_until=until)


def topic(body: Mapping[str, Any]) -> Topic:
    return Topic(name=body["name"], raw=body)


def group(body: Mapping[str, Any]) -> Group:
    return Group(
        topic=body["topic"], group=body["group"], state=body["state"], lag=body["lag"], raw=body
    )


def dead_letter(body: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(
        id=body["id"],
        source=body["source"],
        topic=body.get("topic"),
        group=body.get("group"),
        offset=body.get("offset"),
        error=body.get("error") or "",
        attempts=body["attempts"],
        payload=_payload(body),
        raw=body,
    )


def page(body: Mapping[str, Any], item: Callable[[Mapping[str, Any]], T]) -> Page[T]:
    return Page(tuple(item(entry) for entry in body["items"]), body.get("next_cursor"))


def timestamp(time: datetime) -> str:
    """RFC 3339 in UTC."""
    return time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def optional_time(text: str | None) -> datetime | None:
    """Python before 3.11 reads neither `Z` nor more than six digits of a second."""
    if text is None:
        return None
    main, zone = (text[:-1], "+00:00") if text.endswith("Z") else (text[:-6], text[-6:])
    whole, _, fraction = main.partition(".")
    return datetime.fromisoformat(f"{whole}.{(fraction + '000000')[:6]}{zone}")


def decoded(parse: Callable[[Any], T], body: object) -> T:
    """Applies a reader; an answer that lacks what it reads is not that of a Headwater server."""
    try:
        return parse(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidAnswer(f"answer not understood: {type(error).__name__}: {error}") from error


def _message_fields(topic_name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topic": topic_name,
        "offset": body["offset"],
        "id": body["id"],
        "payload": _payload(body),
        "key": body.get("key"),
        "type": body.get("type"),
        "headers": body.get("headers") or {},
        "content_type": body.get("content_type"),
        "correlation_id": body.get("correlation_id"),
        "published_at": optional_time(body.get("published_at")),
        "raw": body,
    }


def _payload(body: Mapping[str, Any]) -> Any:
    encoded = body.get("payload_base64")
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    return body.get("payload")
