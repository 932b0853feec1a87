"""Runs a handler in threads."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from . import _operations as operations
from ._consume import outcome_of, release
from ._errors import HeadwaterError, Outcome, is_refusal
from ._leases import Held, KeyOrder, leased_since
from ._models import Claimed, Duration, Settled, Settlement, milliseconds

if TYPE_CHECKING:
    from ._client import Client

_log = logging.getLogger("headwater")

#: Outcomes in one request.
_SETTLE_MAX: Final = 500
#: The pause after a claim that failed although it was repeated.
_CLAIM_PAUSE_S: Final = 1.0


@dataclass
class WorkerStats:
    """What a worker did since it was created."""

    handled: int = 0
    failed: int = 0
    released: int = 0
    #: Handled, but the lease had ended or no outcome could be sent: delivered again.
    lost: int = 0

    def count(self, outcome: Settlement) -> None:
        if outcome.outcome == "ack":
            self.handled += 1
        elif outcome.outcome == "release":
            self.released += 1
        else:
            self.failed += 1


def lost_work(batch: Sequence[tuple[Held, Settlement]], results: Sequence[Settled]) -> int:
    """How many handled messages are delivered again. One that was to be released is so anyway, also behind a failed one of its key."""
    handled = {outcome.receipt for _, outcome in batch if outcome.outcome != "release"}
    return sum(result.lost and result.receipt in handled for result in results)


def log_failure(message: Claimed, error: Exception) -> None:
    """An outcome that the handler decided is not a failure of it."""
    if not isinstance(error, Outcome):
        _log.warning(
            "handler failed: topic %s, offset %d, attempt %d",
            message.topic,
            message.offset,
            message.attempt,
            exc_info=error,
        )


class Worker:
    """Claims messages and calls `handler` with each, `concurrency` at once; messages of one key one after the other.

    A message is acked when the handler returns, and retried when it raises; `Bury`, `Retry` and `Release` decide
    otherwise, and so does `bury_on`, exceptions after which no attempt can succeed. While handlers run, leases are
    extended. After `stop`, SIGINT or SIGTERM no message is claimed any more, running handlers end (at most
    `shutdown_timeout`), and messages that were not started are released for other workers.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        group: str,
        handler: Callable[[Claimed], object],
        *,
        concurrency: int = 4,
        in_hand: int | None = None,
        lease: Duration = 30,
        wait: Duration = 5,
        bury_on: tuple[type[Exception], ...] = (),
        shutdown_timeout: Duration = 30,
    ) -> None:
        if concurrency < 1:
            raise ValueError("a worker has at least one thread")
        self._client = client
        self._topic, self._group = topic, group
        self._handler = handler
        self._concurrency = concurrency
        self._in_hand_max = max(concurrency, in_hand if in_hand is not None else concurrency * 4)
        self._lease_s = milliseconds(lease) / 1000
        self._wait_s = milliseconds(wait) / 1000
        self._bury_on = bury_on
        self._shutdown_s = milliseconds(shutdown_timeout) / 1000
        self._changed = threading.Condition()
        self._stopping = False
        self._in_hand: set[Held] = set()
        self._running: set[Held] = set()
        self._order: KeyOrder[Held] = KeyOrder()
        self._todo: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[tuple[Held, Settlement] | None] = queue.SimpleQueue()
        self.stats = WorkerStats()

    def stop(self) -> None:
        """Ends `run`, in order. May be called from any thread."""
        # Without the lock: a signal handler may interrupt the thread that holds it.
        self._stopping = True

    def run(self, *, handle_signals: bool = True) -> None:
        """Works until it is stopped. Raises if the server refuses the claim, because of a missing topic or right for example.

        In the main thread SIGINT and SIGTERM stop it, unless `handle_signals` is false.
        """
        in_main = threading.current_thread() is threading.main_thread()
        with _stop_on_signals(self.stop) if handle_signals and in_main else _nothing():
            handlers = [self._start(self._handle, f"handler-{at}") for at in range(self._concurrency)]
            settler = self._start(self._settle, "settler")
            try:
                self._claim()
            finally:
                self._finish(handlers, settler)

    def _start(self, run: Callable[[], None], name: str) -> threading.Thread:
        # A handler that never returns must not keep the program from ending.
        thread = threading.Thread(target=run, name=f"headwater-{name}", daemon=True)
        thread.start()
        return thread

    def _claim(self) -> None:
        policy = replace(self._client.retry_policy, total_s=min(self._client.retry_policy.total_s, 5.0))
        while not self._stopping:
            with self._changed:
                free = self._in_hand_max - len(self._in_hand)
                # In larger pieces than one: a claim costs about the same for several.
                if free < max(1, self._in_hand_max // 4):
                    self._changed.wait(0.1)
                    continue
            asked_at = time.monotonic()
            try:
                request = operations.claim(self._topic, self._group, free, self._wait_s, self._lease_s)
                messages = self._client.send(request, retry=policy).messages
            except HeadwaterError as error:
                if is_refusal(error) or self._client.is_closed:
                    raise
                _log.warning("claim failed: topic %s, group %s: %s", self._topic, self._group, error)
                self._pause(_CLAIM_PAUSE_S)
                continue
            self._take(messages, leased_since(asked_at, time.monotonic()))

    def _take(self, messages: Sequence[Claimed], since: float) -> None:
        held = [Held(message, self._lease_s, since) for message in messages]
        self._client.keeper.add(held)
        with self._changed:
            self._in_hand.update(held)
            ready = [each for each in held if self._order.admit(each.message.key, each)]
        for each in ready:
            self._todo.put(each)

    def _handle(self) -> None:
        while (held := self._todo.get()) is not None:
            if self._stopping or held.lost:
                self._drop(held)
                continue
            with self._changed:
                self._running.add(held)
            error: Exception | None = None
            try:
                self._handler(held.message)
            except Exception as raised:
                error = raised
                log_failure(held.message, raised)
            self._handled(held, error)

    def _handled(self, held: Held, error: Exception | None) -> None:
        outcome = outcome_of(held.message, error, self._bury_on)
        with self._changed:
            self._running.discard(held)
            self.stats.count(outcome)
            if error is None:
                follower, behind = self._order.finished(held.message.key), []
            else:
                follower, behind = None, self._order.failed(held.message.key)
        self._outcomes.put((held, outcome))
        # After the failed one, or they would overtake it.
        for each in behind:
            self._release(each)
        if follower is not None:
            self._todo.put(follower)

    def _drop(self, held: Held) -> None:
        """Not handled, nor are those behind it."""
        with self._changed:
            behind = self._order.failed(held.message.key)
        for each in [held, *behind]:
            self._release(each)

    def _release(self, held: Held) -> None:
        with self._changed:
            self.stats.released += 1
        self._outcomes.put((held, Settlement(held.message.receipt, "release")))

    def _settle(self) -> None:
        """Sends outcomes: those that came while a request was under way go together in the next."""
        while (first := self._outcomes.get()) is not None:
            batch, ended = [first], False
            while len(batch) < _SETTLE_MAX and not self._outcomes.empty():
                further = self._outcomes.get()
                if further is None:
                    ended = True
                    break
                batch.append(further)
            self._send(batch)
            if ended:
                return

    def _send(self, batch: list[tuple[Held, Settlement]]) -> None:
        for held, _ in batch:
            held.done = True
        lost = 0
        try:
            results = self._client.settle(self._topic, self._group, [outcome for _, outcome in batch])
            lost = lost_work(batch, results)
            if lost:
                _log.warning("leases lost before %d messages of topic %s were settled", lost, self._topic)
        except HeadwaterError as error:
            lost = len(batch)
            _log.error("%d messages of topic %s not settled, they are delivered again: %s", lost, self._topic, error)
        held_now = [held for held, _ in batch]
        self._client.keeper.remove(held_now)
        with self._changed:
            self.stats.lost += lost
            self._in_hand.difference_update(held_now)
            self._changed.notify_all()

    def _finish(self, handlers: list[threading.Thread], settler: threading.Thread) -> None:
        self._stopping = True
        deadline = time.monotonic() + self._shutdown_s
        for _ in handlers:
            self._todo.put(None)
        for thread in handlers:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._outcomes.put(None)
        settler.join(max(1.0, deadline - time.monotonic()))
        with self._changed:
            running = list(self._running)
            left = [held for held in self._in_hand if held not in self._running]
        if running:
            _log.error("%d handlers did not end in time; their messages are delivered again", len(running))
            self._client.keeper.remove(running)
        if left:
            release(self._client, left)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until:
            time.sleep(0.05)


@contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    def on_signal(number: int, frame: Any) -> None:
        stop()

    before = {name: signal.signal(name, on_signal) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
