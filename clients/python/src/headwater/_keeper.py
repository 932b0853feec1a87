"""Extends the leases in hand of a synchronous client, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._errors import HeadwaterError
from ._leases import Held, Leases, apply, extension

if TYPE_CHECKING:
    from ._client import Client

_log = logging.getLogger("headwater")


class Keeper:
    """The thread begins with the first lease and ends with the client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leases = Leases()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, held: Sequence[Held]) -> None:
        if not held:
            return
        with self._changed:
            self._leases.add(held)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="headwater-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, held: Sequence[Held]) -> None:
        with self._changed:
            self._leases.remove(held)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # A request that is under way ends with the client's connections.
            thread.join(timeout=1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                due_at = self._leases.next_due()
                now = time.monotonic()
                if due_at is None or due_at > now:
                    self._changed.wait(None if due_at is None else due_at - now)
                    continue
                requests = self._leases.due(now)
            for held in requests:
                self._extend(held)

    def _extend(self, held: Sequence[Held]) -> None:
        asked_at = time.monotonic()
        request, policy = extension(held, asked_at, self._client.retry_policy)
        results: dict[str, bool] | None = None
        try:
            results = {each.receipt: each.lost for each in self._client.send(request, retry=policy)}
        except HeadwaterError as error:
            if not self._closed:
                _log.warning("lease extension failed: %s", error)
        self.remove(apply(held, asked_at, results))
