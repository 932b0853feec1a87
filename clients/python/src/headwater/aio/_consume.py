"""Messages in hand of an asynchronous client: one delivery, and the iterators that bring them."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from .. import _operations as operations
from .. import _wire as wire
from .._consume import DeliveryFields, outcome_of
from .._errors import HeadwaterError, Outcome, is_refusal
from .._http import RECONNECT_S, event_body
from .._leases import Held, leased_since
from .._models import Claimed, Duration, Settlement, milliseconds

if TYPE_CHECKING:
    from ._client import AsyncClient

_log = logging.getLogger("headwater")


class AsyncDelivery(DeliveryFields):
    """A message to handle. As a context manager it is acked at the end of the block, and retried if the block raises.

    `Retry`, `Bury` and `Release` raised in the block decide otherwise and end there; every other exception is passed on.
    """

    def __init__(self, consumer: AsyncConsumer, held: Held) -> None:
        super().__init__(held)
        self._consumer = consumer

    async def ack(self) -> bool:
        """Done. Like every outcome: False if the lease had ended, so that the message is handled again."""
        return await self._settle(Settlement(self.message.receipt, "ack"))

    async def retry(self, reason: str | None = None, *, delay: Duration | None = None) -> bool:
        """Another attempt, after `delay` or as the group's policy says; the last one makes it a dead letter."""
        return await self._settle(Settlement(self.message.receipt, "retry", delay, reason))

    async def bury(self, reason: str | None = None) -> bool:
        """Makes it a dead letter."""
        return await self._settle(Settlement(self.message.receipt, "bury", reason=reason))

    async def release(self) -> bool:
        """Hands it out again at once, without counting an attempt."""
        return await self._settle(Settlement(self.message.receipt, "release"))

    async def __aenter__(self) -> AsyncDelivery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not self.settled:
            await self._settle(outcome_of(self.message, error))
        return isinstance(error, Outcome)

    async def _settle(self, outcome: Settlement) -> bool:
        return await self._consumer.settle(self._held, self.decide(outcome))


class AsyncConsumer(ABC):
    """An iterator of deliveries; see `AsyncClient.consume` and `AsyncClient.stream`."""

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        group: str,
        *,
        in_hand: int,
        lease: Duration,
        until_idle: Duration | None,
    ) -> None:
        if in_hand < 1:
            raise ValueError("a consumer has at least one message in hand")
        self._client = client
        self._topic, self._group = topic, group
        self._in_hand_max = in_hand
        self._lease_s = milliseconds(lease) / 1000
        self._idle_s = None if until_idle is None else milliseconds(until_idle) / 1000
        self._changed = asyncio.Event()
        #: Claimed and not handed out.
        self._ready: deque[Held] = deque()
        #: Handed out and not settled.
        self._out: set[Held] = set()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[AsyncDelivery]:
        return self

    async def __anext__(self) -> AsyncDelivery:
        idle_at = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._closed:
            while self._ready:
                held = self._ready.popleft()
                if not held.lost:
                    self._out.add(held)
                    return AsyncDelivery(self, held)
            left = None if idle_at is None else idle_at - time.monotonic()
            if left is not None and left <= 0:
                break
            await self._refill(left)
        await self.close()
        raise StopAsyncIteration

    async def settle(self, held: Held, outcome: Settlement) -> bool:
        """Sends an outcome; False if the lease was lost."""
        held.done = True
        try:
            result = (await self._client.settle(self._topic, self._group, [outcome]))[0]
        finally:
            self._client.keeper.remove([held])
            self._out.discard(held)
            self._changed.set()
        if result.lost:
            held.lost = True
            _log.warning(
                "lease lost before %s: topic %s, offset %d", outcome.outcome, self._topic, held.message.offset
            )
        return not result.lost

    async def close(self) -> None:
        """Ends the iteration and releases what was not handed out. Deliveries in hand may still be settled."""
        self._closed = True
        await self._end()
        left = list(self._ready)
        self._ready.clear()
        self._changed.set()
        await release(self._client, left)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _hold(self, messages: Sequence[Claimed], since: float) -> None:
        held = [Held(message, self._lease_s, since) for message in messages]
        self._client.keeper.add(held)
        self._ready.extend(held)
        self._changed.set()

    async def _wait(self, at_most_s: float | None) -> None:
        """Until something changes."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), at_most_s)
        except asyncio.TimeoutError:
            return

    @abstractmethod
    async def _refill(self, at_most_s: float | None) -> None:
        """Waits until there may be another message, at most that long."""

    async def _end(self) -> None:
        """Stops what brings messages."""


class AsyncPollConsumer(AsyncConsumer):
    """Claims the next messages when those before are settled or in hand."""

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        group: str,
        *,
        in_hand: int,
        wait: Duration,
        lease: Duration,
        until_idle: Duration | None,
    ) -> None:
        super().__init__(client, topic, group, in_hand=in_hand, lease=lease, until_idle=until_idle)
        self._wait_s = milliseconds(wait) / 1000

    async def _refill(self, at_most_s: float | None) -> None:
        free = self._in_hand_max - len(self._out)
        if free <= 0:
            # Other tasks settle them.
            await self._wait(at_most_s)
            return
        wait = self._wait_s if at_most_s is None else min(self._wait_s, at_most_s)
        asked_at = time.monotonic()
        claim = await self._client.claim(self._topic, self._group, max=free, wait=wait, lease=self._lease_s)
        self._hold(claim.messages, leased_since(asked_at, time.monotonic()))


class AsyncStreamConsumer(AsyncConsumer):
    """A task reads the server's stream, so that leases of messages that arrived are extended while others are handled."""

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        group: str,
        *,
        in_hand: int,
        lease: Duration,
        until_idle: Duration | None,
    ) -> None:
        super().__init__(client, topic, group, in_hand=in_hand, lease=lease, until_idle=until_idle)
        self._failure: HeadwaterError | None = None
        self._task: asyncio.Task[None] | None = None

    async def _refill(self, at_most_s: float | None) -> None:
        if self._failure is not None:
            raise self._failure
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="headwater-stream")
        await self._wait(at_most_s)

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._closed:
            try:
                await self._read()
            except HeadwaterError as error:
                if is_refusal(error) or self._client.is_closed:
                    self._failure = error
                    self._changed.set()
                    return
                _log.warning("stream of topic %s, group %s failed: %s", self._topic, self._group, error)
            await asyncio.sleep(RECONNECT_S)

    async def _read(self) -> None:
        credit = max(1, self._in_hand_max - len(self._out) - len(self._ready))
        query = {"credit": credit, "lease_ms": milliseconds(self._lease_s)}
        path = operations.stream_path(self._topic, self._group)
        async with self._client.events(path, query) as events:
            async for event in events:
                body = event_body(event)
                if event.name == "message":
                    self._hold([wire.claimed_event(self._topic, self._group, body)], time.monotonic())


async def release(client: AsyncClient, held: Sequence[Held]) -> None:
    """Releases messages that were not handled. Without an answer they are redelivered after their leases."""
    groups: dict[tuple[str, str], list[Held]] = {}
    for each in held:
        each.done = True
        groups.setdefault((each.message.topic, each.message.group), []).append(each)
    for (topic, group), those in groups.items():
        try:
            await client.settle(
                topic, group, [Settlement(each.message.receipt, "release") for each in those]
            )
        except HeadwaterError as error:
            _log.warning("%d messages of topic %s not released: %s", len(those), topic, error)
    client.keeper.remove(held)
