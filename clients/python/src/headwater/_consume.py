"""Messages in hand of a synchronous client: one delivery, and the iterators that bring them."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from . import _operations as operations
from . import _wire as wire
from ._errors import Bury, HeadwaterError, Outcome, Release, Retry, is_refusal
from ._http import RECONNECT_S, event_body
from ._leases import Held, leased_since
from ._models import Claimed, Duration, Payload, Settlement, milliseconds

if TYPE_CHECKING:
    from ._client import Client, EventStream

_log = logging.getLogger("headwater")


class DeliveryFields:
    """A claimed message, as the deliveries of both clients show it."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._decided = False

    @property
    def message(self) -> Claimed:
        return self._held.message

    @property
    def payload(self) -> Payload:
        return self._held.message.payload

    @property
    def key(self) -> str | None:
        return self._held.message.key

    @property
    def type(self) -> str | None:
        return self._held.message.type

    @property
    def headers(self) -> Mapping[str, str]:
        return self._held.message.headers

    @property
    def offset(self) -> int:
        return self._held.message.offset

    @property
    def attempt(self) -> int:
        return self._held.message.attempt

    @property
    def lost(self) -> bool:
        """Its lease has ended: the server hands the message out again, and a settlement has no effect."""
        return self._held.lost

    @property
    def settled(self) -> bool:
        """Whether an outcome was sent."""
        return self._decided

    def decide(self, outcome: Settlement) -> Settlement:
        """Only once."""
        if self._decided:
            raise HeadwaterError(f"settled before: topic {self.message.topic}, offset {self.offset}")
        self._decided = True
        return outcome

    def __repr__(self) -> str:
        message = self.message
        place = f"topic={message.topic!r}, offset={message.offset}, attempt={message.attempt}"
        return f"{type(self).__name__}({place})"


def outcome_of(
    message: Claimed, error: BaseException | None, bury_on: tuple[type[BaseException], ...] = ()
) -> Settlement:
    """What becomes of a message whose handler ended with this error, or without one."""
    receipt = message.receipt
    if error is None:
        return Settlement(receipt, "ack")
    if isinstance(error, Bury):
        return Settlement(receipt, "bury", reason=error.reason)
    if isinstance(error, Retry):
        return Settlement(receipt, "retry", error.delay, error.reason)
    # An interrupted program did not fail at the message.
    if isinstance(error, Release) or not isinstance(error, Exception):
        return Settlement(receipt, "release")
    reason = f"{type(error).__name__}: {error}"
    return Settlement(receipt, "bury" if isinstance(error, bury_on) else "retry", reason=reason)


class Delivery(DeliveryFields):
    """A message to handle. As a context manager it is acked at the end of the block, and retried if the block raises.

    `Retry`, `Bury` and `Release` raised in the block decide otherwise and end there; every other exception is passed on.
    """

    def __init__(self, consumer: Consumer, held: Held) -> None:
        super().__init__(held)
        self._consumer = consumer

    def ack(self) -> bool:
        """Done. Like every outcome: False if the lease had ended, so that the message is handled again."""
        return self._settle(Settlement(self.message.receipt, "ack"))

    def retry(self, reason: str | None = None, *, delay: Duration | None = None) -> bool:
        """Another attempt, after `delay` or as the group's policy says; the last one makes it a dead letter."""
        return self._settle(Settlement(self.message.receipt, "retry", delay, reason))

    def bury(self, reason: str | None = None) -> bool:
        """Makes it a dead letter."""
        return self._settle(Settlement(self.message.receipt, "bury", reason=reason))

    def release(self) -> bool:
        """Hands it out again at once, without counting an attempt."""
        return self._settle(Settlement(self.message.receipt, "release"))

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not self.settled:
            self._settle(outcome_of(self.message, error))
        return isinstance(error, Outcome)

    def _settle(self, outcome: Settlement) -> bool:
        return self._consumer.settle(self._held, self.decide(outcome))


class Consumer(ABC):
    """An iterator of deliveries; see `Client.consume` and `Client.stream`."""

    def __init__(
        self,
        client: Client,
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
        self._changed = threading.Condition()
        #: Claimed and not handed out.
        self._ready: deque[Held] = deque()
        #: Handed out and not settled.
        self._out: set[Held] = set()
        self._closed = False

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        idle_at = None if self._idle_s is None else time.monotonic() + self._idle_s
        while not self._closed:
            with self._changed:
                while self._ready:
                    held = self._ready.popleft()
                    if not held.lost:
                        self._out.add(held)
                        return Delivery(self, held)
            left = None if idle_at is None else idle_at - time.monotonic()
            if left is not None and left <= 0:
                break
            self._refill(left)
        self.close()
        raise StopIteration

    def settle(self, held: Held, outcome: Settlement) -> bool:
        """Sends an outcome; False if the lease was lost."""
        held.done = True
        try:
            result = self._client.settle(self._topic, self._group, [outcome])[0]
        finally:
            self._client.keeper.remove([held])
            with self._changed:
                self._out.discard(held)
                self._changed.notify_all()
        if result.lost:
            held.lost = True
            _log.warning(
                "lease lost before %s: topic %s, offset %d", outcome.outcome, self._topic, held.message.offset
            )
        return not result.lost

    def close(self) -> None:
        """Ends the iteration and releases what was not handed out. Deliveries in hand may still be settled."""
        self._end()
        with self._changed:
            self._closed = True
            left = list(self._ready)
            self._ready.clear()
            self._changed.notify_all()
        release(self._client, left)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _hold(self, messages: Sequence[Claimed], since: float) -> None:
        held = [Held(message, self._lease_s, since) for message in messages]
        self._client.keeper.add(held)
        with self._changed:
            self._ready.extend(held)
            self._changed.notify_all()

    @abstractmethod
    def _refill(self, at_most_s: float | None) -> None:
        """Waits until there may be another message, at most that long."""

    def _end(self) -> None:
        """Stops what brings messages."""


class PollConsumer(Consumer):
    """Claims the next messages when those before are settled or in hand."""

    def __init__(
        self,
        client: Client,
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

    def _refill(self, at_most_s: float | None) -> None:
        with self._changed:
            free = self._in_hand_max - len(self._out)
            if free <= 0:
                # Other threads settle them.
                self._changed.wait(at_most_s)
                return
        wait = self._wait_s if at_most_s is None else min(self._wait_s, at_most_s)
        asked_at = time.monotonic()
        claim = self._client.claim(self._topic, self._group, max=free, wait=wait, lease=self._lease_s)
        self._hold(claim.messages, leased_since(asked_at, time.monotonic()))


class StreamConsumer(Consumer):
    """A thread reads the server's stream, so that leases of messages that arrived are extended while others are handled."""

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        *,
        in_hand: int,
        lease: Duration,
        until_idle: Duration | None,
    ) -> None:
        super().__init__(client, topic, group, in_hand=in_hand, lease=lease, until_idle=until_idle)
        self._events: EventStream | None = None
        self._failure: HeadwaterError | None = None
        self._thread = threading.Thread(target=self._run, name="headwater-stream", daemon=True)
        self._thread.start()

    def _refill(self, at_most_s: float | None) -> None:
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if not self._ready and not self._closed:
                self._changed.wait(at_most_s)

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            if self._events is not None:
                self._events.interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._read()
            except HeadwaterError as error:
                if is_refusal(error) or self._client.is_closed:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return
                if not self._closed:
                    _log.warning("stream of topic %s, group %s failed: %s", self._topic, self._group, error)
            self._client.pause(0 if self._closed else RECONNECT_S)

    def _read(self) -> None:
        with self._changed:
            credit = max(1, self._in_hand_max - len(self._out) - len(self._ready))
        query = {"credit": credit, "lease_ms": milliseconds(self._lease_s)}
        with self._client.events(operations.stream_path(self._topic, self._group), query) as events:
            with self._changed:
                self._events = events
                if self._closed:
                    return
            try:
                for event in events:
                    body = event_body(event)
                    if event.name == "message":
                        self._hold([wire.claimed_event(self._topic, self._group, body)], time.monotonic())
            finally:
                with self._changed:
                    self._events = None


def release(client: Client, held: Sequence[Held]) -> None:
    """Releases messages that were not handled. Without an answer they are redelivered after their leases."""
    groups: dict[tuple[str, str], list[Held]] = {}
    for each in held:
        each.done = True
        groups.setdefault((each.message.topic, each.message.group), []).append(each)
    for (topic, group), those in groups.items():
        try:
            client.settle(topic, group, [Settlement(each.message.receipt, "release") for each in those])
        except HeadwaterError as error:
            _log.warning("%d messages of topic %s not released: %s", len(those), topic, error)
    client.keeper.remove(held)
