"""Runs a handler in tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from .. import _operations as operations
from .._consume import outcome_of
from .._errors import HeadwaterError, Release, is_refusal
from .._leases import Held, KeyOrder, leased_since
from .._models import Claimed, Duration, Settlement, milliseconds
from .._worker import WorkerStats, log_failure, lost_work
from ._consume import release

if TYPE_CHECKING:
    from ._client import AsyncClient

_log = logging.getLogger("headwater")

_SETTLE_MAX: Final = 500
_CLAIM_PAUSE_S: Final = 1.0


class AsyncWorker:
    """As `Worker`, with a handler that is awaited, `concurrency` at once.

    A handler that does not end within `shutdown_timeout` is cancelled, and its message is released.
    """

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        group: str,
        handler: Callable[[Claimed], Awaitable[object]],
        *,
        concurrency: int = 16,
        in_hand: int | None = None,
        lease: Duration = 30,
        wait: Duration = 5,
        bury_on: tuple[type[Exception], ...] = (),
        shutdown_timeout: Duration = 30,
    ) -> None:
        if concurrency < 1:
            raise ValueError("a worker handles at least one message at once")
        self._client = client
        self._topic, self._group = topic, group
        self._handler = handler
        self._in_hand_max = max(concurrency, in_hand if in_hand is not None else concurrency * 4)
        self._lease_s = milliseconds(lease) / 1000
        self._wait_s = milliseconds(wait) / 1000
        self._bury_on = bury_on
        self._shutdown_s = milliseconds(shutdown_timeout) / 1000
        self._slots = asyncio.Semaphore(concurrency)
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._in_hand: set[Held] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._order: KeyOrder[Held] = KeyOrder()
        self._outcomes: asyncio.Queue[tuple[Held, Settlement] | None] = asyncio.Queue()
        self.stats = WorkerStats()

    def stop(self) -> None:
        """Ends `run`, in order. To be called in the event loop."""
        self._stopping.set()
        self._changed.set()

    async def run(self, *, handle_signals: bool = True) -> None:
        """Works until it is stopped. Raises if the server refuses the claim, because of a missing topic or right for example.

        In the main thread SIGINT and SIGTERM stop it, unless `handle_signals` is false.
        """
        in_main = threading.current_thread() is threading.main_thread()
        with _stop_on_signals(self.stop, handle_signals and in_main):
            settler = asyncio.create_task(self._settle(), name="headwater-settler")
            try:
                await self._claim()
            finally:
                await self._finish(settler)

    async def _claim(self) -> None:
        policy = replace(self._client.retry_policy, total_s=min(self._client.retry_policy.total_s, 5.0))
        while not self._stopping.is_set():
            free = self._in_hand_max - len(self._in_hand)
            # In larger pieces than one: a claim costs about the same for several.
            if free < max(1, self._in_hand_max // 4):
                self._changed.clear()
                await self._changed.wait()
                continue
            request = operations.claim(self._topic, self._group, free, self._wait_s, self._lease_s)
            asked_at = time.monotonic()
            try:
                messages = (await self._client.send(request, retry=policy)).messages
            except HeadwaterError as error:
                if is_refusal(error) or self._client.is_closed:
                    raise
                _log.warning("claim failed: topic %s, group %s: %s", self._topic, self._group, error)
                await self._pause(_CLAIM_PAUSE_S)
                continue
            self._take(messages, leased_since(asked_at, time.monotonic()))

    def _take(self, messages: Sequence[Claimed], since: float) -> None:
        held = [Held(message, self._lease_s, since) for message in messages]
        self._client.keeper.add(held)
        self._in_hand.update(held)
        for each in held:
            if self._order.admit(each.message.key, each):
                self._begin(each)

    def _begin(self, held: Held) -> None:
        task = asyncio.create_task(self._handle(held), name=f"headwater-handler-{held.message.offset}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, held: Held) -> None:
        error: BaseException | None = None
        try:
            async with self._slots:
                if self._stopping.is_set() or held.lost:
                    error = Release()
                else:
                    await self._handler(held.message)
        except Exception as raised:
            error = raised
            log_failure(held.message, raised)
        except asyncio.CancelledError as cancelled:
            # By the end of the shutdown's time, or with the program: the message is released.
            error = cancelled
        self._handled(held, error)

    def _handled(self, held: Held, error: BaseException | None) -> None:
        self._decide(held, outcome_of(held.message, error, self._bury_on))
        if error is not None:
            # After the failed one, or they would overtake it.
            for each in self._order.failed(held.message.key):
                self._decide(each, Settlement(each.message.receipt, "release"))
        else:
            follower = self._order.finished(held.message.key)
            if follower is not None:
                self._begin(follower)

    def _decide(self, held: Held, outcome: Settlement) -> None:
        self.stats.count(outcome)
        # Never more than messages in hand, which are bounded.
        self._outcomes.put_nowait((held, outcome))

    async def _settle(self) -> None:
        """Sends outcomes: those that came while a request was under way go together in the next."""
        while (first := await self._outcomes.get()) is not None:
            batch, ended = [first], False
            while len(batch) < _SETTLE_MAX and not self._outcomes.empty():
                further = self._outcomes.get_nowait()
                if further is None:
                    ended = True
                    break
                batch.append(further)
            await self._send(batch)
            if ended:
                return

    async def _send(self, batch: list[tuple[Held, Settlement]]) -> None:
        for held, _ in batch:
            held.done = True
        lost = 0
        try:
            results = await self._client.settle(self._topic, self._group, [outcome for _, outcome in batch])
            lost = lost_work(batch, results)
            if lost:
                _log.warning("leases lost before %d messages of topic %s were settled", lost, self._topic)
        except HeadwaterError as error:
            lost = len(batch)
            _log.error("%d messages of topic %s not settled, they are delivered again: %s", lost, self._topic, error)
        held_now = [held for held, _ in batch]
        self._client.keeper.remove(held_now)
        self.stats.lost += lost
        self._in_hand.difference_update(held_now)
        self._changed.set()

    async def _finish(self, settler: asyncio.Task[None]) -> None:
        self._stopping.set()
        deadline = time.monotonic() + self._shutdown_s
        while self._tasks and time.monotonic() < deadline:
            await asyncio.wait(set(self._tasks), timeout=deadline - time.monotonic())
        if self._tasks:
            _log.error("%d handlers did not end in time; their messages are released", len(self._tasks))
            for task in set(self._tasks):
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=1.0)
        self._outcomes.put_nowait(None)
        await settler
        await release(self._client, list(self._in_hand))

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return


@contextmanager
def _stop_on_signals(stop: Callable[[], None], wanted: bool) -> Iterator[None]:
    # Windows has none in event loops: programs there call `stop`.
    names = (signal.SIGINT, signal.SIGTERM) if wanted and os.name == "posix" else ()
    loop = asyncio.get_running_loop()
    for name in names:
        loop.add_signal_handler(name, stop)
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)
