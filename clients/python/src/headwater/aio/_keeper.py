"""Extends the leases in hand of an asynchronous client, in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._errors import HeadwaterError
from .._leases import Held, Leases, apply, extension

if TYPE_CHECKING:
    from ._client import AsyncClient

_log = logging.getLogger("headwater")


class AsyncKeeper:
    """The task begins with the first lease and ends with the client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._leases = Leases()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, held: Sequence[Held]) -> None:
        if not held or self._closed:
            return
        self._leases.add(held)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="headwater-leases")

    def remove(self, held: Sequence[Held]) -> None:
        self._leases.remove(held)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            due_at, now = self._leases.next_due(), time.monotonic()
            if due_at is None or due_at > now:
                self._changed.clear()
                try:
                    await asyncio.wait_for(
                        self._changed.wait(), None if due_at is None else due_at - now
                    )
                except asyncio.TimeoutError:
                    pass
                continue
            await asyncio.gather(*(self._extend(held) for held in self._leases.due(now)))

    async def _extend(self, held: Sequence[Held]) -> None:
        asked_at = time.monotonic()
        request, policy = extension(held, asked_at, self._client.retry_policy)
        results: dict[str, bool] | None = None
        try:
            results = {each.receipt: each.lost for each in await self._client.send(request, retry=policy)}
        except HeadwaterError as error:
            _log.warning("lease extension failed: %s", error)
        self.remove(apply(held, asked_at, results))
