"""The asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import TypeVar

import httpx

from .. import _operations as operations
from .._endpoints import Attempts, Endpoints, RetryPolicy
from .._errors import HeadwaterError
from .._http import (
    LIMITS,
    RECONNECT_S,
    ClientSettings,
    Tail,
    answer,
    attempt_timeout,
    problem_of,
    stream_timeout,
)
from .._models import (
    Claim,
    Duration,
    Extended,
    Json,
    Message,
    Outgoing,
    Page,
    Payload,
    Published,
    Settled,
    Settlement,
)
from .._operations import Request
from .._sse import Event, Parser, Splitter
from ._consume import AsyncConsumer, AsyncPollConsumer, AsyncStreamConsumer
from ._keeper import AsyncKeeper
from ._resources import AsyncDeadLetters, AsyncGroups, AsyncTopics

T = TypeVar("T")
Own = TypeVar("Own", bound="AsyncClient")


class AsyncClient:
    """As `Client`, on asyncio: to be used in one event loop."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        retry: RetryPolicy | None = None,
        idempotent: bool = True,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._settings = ClientSettings(token, retry or RetryPolicy(), idempotent)
        self._endpoints = Endpoints([urls] if isinstance(urls, str) else urls)
        self._http = http or httpx.AsyncClient(limits=LIMITS)
        self._closed = False
        self._keeper = AsyncKeeper(self)
        self.topics = AsyncTopics(self)
        self.groups = AsyncGroups(self)
        self.dead_letters = AsyncDeadLetters(self)

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        key: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        dedup_key: str | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | None = None,
        expires_in: Duration | None = None,
        content_type: str | None = None,
        correlation_id: str | None = None,
        traceparent: str | None = None,
    ) -> Published:
        """Stores one message. Bytes are stored as they are, every other value as JSON."""
        message = Outgoing(
            payload=payload,
            key=key,
            type=type,
            headers=headers or {},
            dedup_key=dedup_key,
            delay=delay,
            deliver_at=deliver_at,
            expires_in=expires_in,
            content_type=content_type,
            correlation_id=correlation_id,
        )
        return await self.send(self._settings.publish(topic, message, traceparent))

    async def publish_batch(
        self, topic: str, messages: Sequence[Outgoing], *, traceparent: str | None = None
    ) -> tuple[Published, ...]:
        """Stores all messages, or none if one is refused."""
        return await self.send(self._settings.publish_batch(topic, messages, traceparent))

    async def claim(
        self, topic: str, group: str, *, max: int = 1, wait: Duration = 0, lease: Duration = 30
    ) -> Claim:
        """Leases messages to the caller, who settles them, and extends their leases if it takes longer.

        `consume` and `AsyncWorker` do both; this is the request they are made of.
        """
        return await self.send(operations.claim(topic, group, max, wait, lease))

    async def settle(
        self, topic: str, group: str, settlements: Sequence[Settlement]
    ) -> tuple[Settled, ...]:
        """Acks, retries, buries or releases claimed messages."""
        return await self.send(operations.settle(topic, group, settlements))

    async def extend(
        self, topic: str, group: str, receipts: Sequence[str], *, lease: Duration = 30
    ) -> tuple[Extended, ...]:
        """Lets leases last that long from now."""
        return await self.send(operations.extend(topic, group, receipts, lease))

    def consume(
        self,
        topic: str,
        group: str,
        *,
        in_hand: int = 32,
        wait: Duration = 20,
        lease: Duration = 30,
        until_idle: Duration | None = None,
    ) -> AsyncConsumer:
        """An iterator over messages, whose leases are extended in the background until they are settled:

        ```python
        async with client.consume("orders", "billing") as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    await charge(delivery.payload)
        ```

        At most `in_hand` messages are claimed and not settled. With `until_idle` it ends once nothing came for that
        long. Leaving the `with` block of the iterator releases what was not handed out.
        """
        return AsyncPollConsumer(
            self, topic, group, in_hand=in_hand, wait=wait, lease=lease, until_idle=until_idle
        )

    def stream(
        self,
        topic: str,
        group: str,
        *,
        credit: int = 64,
        lease: Duration = 30,
        until_idle: Duration | None = None,
    ) -> AsyncConsumer:
        """As `consume`, but the server sends messages as they come, at most `credit` of them unsettled.

        A connection that breaks is opened again; messages in hand stay leased meanwhile.
        """
        return AsyncStreamConsumer(self, topic, group, in_hand=credit, lease=lease, until_idle=until_idle)

    async def tail(
        self, topic: str, *, from_: str | int | datetime | None = None
    ) -> AsyncGenerator[Message, None]:
        """Messages as they are published, without a group: `from_` is an offset, a time, `start` or `last:N`; else from now.

        A connection that breaks is opened again behind the last message.
        """
        if from_ is None:
            from_ = Tail.behind((await self.browse(topic, from_="last:1")).items)
        state = Tail(topic, from_)
        while True:
            async with self.events(operations.tail_path(topic), state.query()) as events:
                async for event in events:
                    message = state.message(event)
                    if message is not None:
                        yield message
            await asyncio.sleep(RECONNECT_S)

    async def browse(
        self,
        topic: str,
        *,
        from_: str | int | datetime | None = None,
        key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Message]:
        """Stored messages, without consuming them."""
        return await self.send(operations.browse(topic, from_, key, limit, cursor))

    async def message(self, topic: str, offset: int) -> Message:
        """One stored message."""
        return await self.send(operations.message(topic, offset))

    async def stats(self) -> Mapping[str, Json]:
        """Figures of the whole store."""
        return await self.send(operations.get_object("/v1/stats"))

    async def send(self, request: Request[T], *, retry: RetryPolicy | None = None) -> T:
        """Sends a request until a server answers it."""
        policy = retry or self._settings.retry
        attempts = Attempts(policy, self._endpoints, request.repeatable, request.wait_s)
        headers = self._settings.headers(request)
        while True:
            self._check_open()
            url, repeated = self._endpoints.pick(), attempts.sent_before
            try:
                response = await self._http.request(
                    request.method,
                    url + request.path,
                    content=request.body,
                    params=request.query or None,
                    headers=headers,
                    timeout=attempt_timeout(request, policy),
                )
            except httpx.TransportError as error:
                pause = attempts.broken(url, error)
            else:
                if response.is_success:
                    self._endpoints.succeeded(url)
                    return answer(request, response, repeated)
                pause = attempts.answered(url, problem_of(response))
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def events(
        self, path: str, query: Mapping[str, str | int]
    ) -> AsyncIterator[AsyncIterator[Event]]:
        """Opens a stream of server-sent events, until a server answers. A stream that breaks ends without an error."""
        response = await self._open(path, query)
        try:
            yield _events(response)
        finally:
            await response.aclose()

    async def _open(self, path: str, query: Mapping[str, str | int]) -> httpx.Response:
        attempts = Attempts(self._settings.retry, self._endpoints, True)
        headers = {**self._settings.common_headers(), "accept": "text/event-stream"}
        timeout = stream_timeout(self._settings.retry)
        while True:
            self._check_open()
            url = self._endpoints.pick()
            request = self._http.build_request(
                "GET", url + path, params=query or None, headers=headers, timeout=timeout
            )
            try:
                response = await self._http.send(request, stream=True)
                if response.is_success:
                    self._endpoints.succeeded(url)
                    return response
                try:
                    await response.aread()
                finally:
                    await response.aclose()
                pause = attempts.answered(url, problem_of(response))
            except httpx.TransportError as error:
                pause = attempts.broken(url, error)
            await asyncio.sleep(pause)

    @property
    def retry_policy(self) -> RetryPolicy:
        """How long requests are repeated."""
        return self._settings.retry

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def keeper(self) -> AsyncKeeper:
        """Extends leases in hand."""
        return self._keeper

    async def close(self) -> None:
        """Ends the extension of leases and closes connections. Messages in hand are redelivered after their leases."""
        self._closed = True
        await self._keeper.close()
        await self._http.aclose()

    async def __aenter__(self: Own) -> Own:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise HeadwaterError("client is closed")


async def _events(response: httpx.Response) -> AsyncIterator[Event]:
    parser, splitter = Parser(), Splitter()
    try:
        async for chunk in response.aiter_text():
            for line in splitter.feed(chunk):
                event = parser.line(line)
                if event is not None:
                    yield event
    except httpx.TransportError:
        # The server ended or the network failed: the reader opens another connection.
        return
