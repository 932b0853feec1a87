"""What both clients share about HTTP: headers, timeouts, and how answers are read."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

import httpx

from . import _operations as operations
from . import _wire as wire
from ._endpoints import RetryPolicy
from ._errors import InvalidAnswer, Problem, problem
from ._models import Message, Outgoing, Published
from ._operations import Request
from ._sse import Event

#: The pause before a stream that ended is opened again.
RECONNECT_S: Final = 0.2
#: The server sends comments on a stream without events; a longer silence is a broken connection.
_SILENCE_S: Final = 60.0
#: As many as a program's threads need. An idle connection is not used again after less time than the server waits for a
#: request on it: one that is closed while a request is on its way leaves unknown whether that was carried out.
LIMITS: Final = httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=4.0)

T = TypeVar("T")


@dataclass(frozen=True)
class ClientSettings:
    """What a client was created with."""

    token: str | None = field(repr=False)
    retry: RetryPolicy
    idempotent: bool

    def publish(self, topic: str, message: Outgoing, traceparent: str | None) -> Request[Published]:
        return operations.publish(topic, message, _trace(traceparent), self.idempotent)

    def publish_batch(
        self, topic: str, messages: Sequence[Outgoing], traceparent: str | None
    ) -> Request[tuple[Published, ...]]:
        return operations.publish_batch(topic, messages, _trace(traceparent), self.idempotent)

    def common_headers(self) -> dict[str, str]:
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def headers(self, request: Request[Any]) -> dict[str, str]:
        headers = {**self.common_headers(), **request.headers, "accept": "application/json"}
        if request.body is not None:
            headers["content-type"] = "application/json"
        return headers


@dataclass
class Tail:
    """Where a tail continues after a broken connection."""

    topic: str
    from_: str | int | datetime
    _next: int | None = None

    def query(self) -> dict[str, str | int]:
        from_ = self.from_ if self._next is None else self._next
        return operations.query_of(**{"from": operations.position(from_)})

    @staticmethod
    def behind(last: Sequence[Message]) -> str | int:
        """Where a tail begins that wants only what is published from now on, whose newest message is this.

        A connection that breaks before the first message could not say what was missed meanwhile.
        """
        return last[-1].offset + 1 if last else "start"

    def message(self, event: Event) -> Message | None:
        """`None` for an event that is not a message, or one that was returned before."""
        body = event_body(event)
        if event.name != "message":
            return None
        message = wire.decoded(lambda data: wire.message(self.topic, data), body)
        if self._next is not None and message.offset < self._next:
            return None
        self._next = message.offset + 1
        return message


def event_body(event: Event) -> Any:
    """The JSON of an event; one that reports a problem is raised."""
    try:
        body = json.loads(event.data)
    except ValueError as error:
        raise InvalidAnswer(f"event {event.name!r} is not JSON: {error}") from error
    if event.name == "error":
        status = body.get("status") if isinstance(body, Mapping) else None
        raise problem(status if isinstance(status, int) else 500, body)
    return body


def attempt_timeout(request: Request[Any], policy: RetryPolicy) -> httpx.Timeout:
    """A long poll may take its wait, and then as long as any other request."""
    return httpx.Timeout(policy.answer_s + request.wait_s, connect=policy.connect_s)


def stream_timeout(policy: RetryPolicy) -> httpx.Timeout:
    return httpx.Timeout(policy.answer_s, connect=policy.connect_s, read=_SILENCE_S)


def answer(request: Request[T], response: httpx.Response, repeated: bool) -> T:
    """Reads the answer of a request that succeeded."""
    read = request.read
    if repeated and request.read_repeated is not None:
        read = request.read_repeated
    body = None
    if response.content:
        try:
            body = response.json()
        except ValueError as error:
            raise InvalidAnswer(f"{request.method} {request.path}: answer is not JSON") from error
    return wire.decoded(read, body)


def problem_of(response: httpx.Response) -> Problem:
    """The problem that an answer describes, or one made from its status."""
    try:
        body = response.json()
    except ValueError:
        body = None
    return problem(response.status_code, body, _retry_after(response.headers.get("retry-after")))


def shut_down(response: httpx.Response) -> None:
    """Ends the connection of a response that another thread reads: closing it would not wake that thread."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It has ended already.
            return


def _retry_after(text: str | None) -> float | None:
    # A date is possible too, but no server of Headwater sends one.
    return float(text) if text is not None and text.isdecimal() else None


def _trace(traceparent: str | None) -> dict[str, str]:
    return {} if traceparent is None else {"traceparent": traceparent}
