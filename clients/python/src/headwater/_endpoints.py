"""Which server is asked, and whether and when a request is repeated: pure decisions, shared by both clients."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx

from ._errors import HeadwaterError, Problem, unreachable

#: A gateway or a server that ends answers these; a repeated request may reach another one.
_RETRIED_STATUS: Final = frozenset({429, 502, 503, 504})
#: With these the server says that it did not carry the request out.
_REFUSED_STATUS: Final = frozenset({429, 503})
#: Except with this kind: the connection to the database broke during a commit.
_UNKNOWN_KIND: Final = "commit-unknown"
_DOWN_FOR_S: Final = 1.0
_DOWN_FOR_MAX_S: Final = 15.0


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a request is repeated when a server does not answer.

    A request that changes something which a repetition would change twice is repeated only if it was never sent.
    """

    #: From the first attempt until no further one is made.
    total_s: float = 30.0
    #: The pause after every server was tried once; it doubles, and half of it is random.
    pause_s: float = 0.05
    pause_max_s: float = 2.0
    #: How long a server may take to accept a connection, and to answer beside a wait that was asked for.
    connect_s: float = 5.0
    answer_s: float = 10.0

    def pause(self, round_: int, chance: float) -> float:
        """The pause after a round of failures, from 1."""
        longest = min(self.pause_max_s, self.pause_s * 2.0 ** min(round_ - 1, 16))
        return longest * (0.5 + chance / 2)


class Endpoints:
    """The base URLs. The one that answered last is asked first; one that failed is left out for a while."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        if not urls:
            raise ValueError("a client needs at least one base URL")
        for url in urls:
            if httpx.URL(url).scheme not in ("http", "https"):
                raise ValueError(f"base URL has to begin with http:// or https://: {url}")
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._clock = clock
        self._lock = threading.Lock()
        self._current = 0
        self._down_until = [0.0] * len(urls)
        self._failures = [0] * len(urls)

    def __len__(self) -> int:
        return len(self._urls)

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, in the given order."""
        return self._urls

    def pick(self) -> str:
        """The URL for the next attempt: the current one, or the next that is not known to be down."""
        with self._lock:
            now = self._clock()
            count = len(self._urls)
            order = [(self._current + step) % count for step in range(count)]
            up = [index for index in order if self._down_until[index] <= now]
            # All are down: the one that is due first.
            self._current = up[0] if up else min(order, key=lambda index: self._down_until[index])
            return self._urls[self._current]

    def failed(self, url: str) -> None:
        """The server did not answer, or answered that it cannot."""
        with self._lock:
            index = self._urls.index(url)
            self._failures[index] += 1
            pause = min(_DOWN_FOR_MAX_S, _DOWN_FOR_S * 2.0 ** min(self._failures[index] - 1, 8))
            self._down_until[index] = self._clock() + pause

    def succeeded(self, url: str) -> None:
        """The server answered."""
        with self._lock:
            index = self._urls.index(url)
            self._failures[index] = 0
            self._down_until[index] = 0.0


@dataclass
class Attempts:
    """The attempts of one request."""

    policy: RetryPolicy
    endpoints: Endpoints
    #: A repetition changes nothing more than one attempt does.
    repeatable: bool
    #: For how long the request asks the server to wait: not counted as time for retries.
    wait_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    _begun: float = field(init=False)
    _failed: int = field(init=False, default=0)
    _sent: bool = field(init=False, default=False)
    _causes: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._begun = self.clock()

    @property
    def sent_before(self) -> bool:
        """Whether an earlier attempt may have been carried out."""
        return self._sent

    def broken(self, url: str, error: httpx.TransportError) -> float:
        """How long to wait before the next attempt after the network failed; raises if there is none."""
        self.endpoints.failed(url)
        never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        self._sent = self._sent or not never_sent
        return self._next(f"{url}: {type(error).__name__}: {error}", None, never_sent or self.repeatable, error)

    def answered(self, url: str, error: Problem) -> float:
        """The same after an answer that is an error; one that no repetition changes is raised."""
        if error.status not in _RETRIED_STATUS:
            self.endpoints.succeeded(url)
            raise error
        if error.status != 429:
            self.endpoints.failed(url)
        refused = error.status in _REFUSED_STATUS and error.kind != _UNKNOWN_KIND
        self._sent = self._sent or not refused
        return self._next(f"{url}: {error}", error.retry_after, refused or self.repeatable, error)

    def _next(self, cause: str, asked_for: float | None, may_repeat: bool, error: Exception) -> float:
        self._failed += 1
        self._causes.append(cause)
        rounds, within = divmod(self._failed, len(self.endpoints))
        # The other servers are tried at once; then all of them after a pause.
        pause = self.policy.pause(rounds, self.chance()) if within == 0 else 0.0
        pause = max(pause, asked_for or 0.0)
        if may_repeat and self.clock() - self._begun + pause < self.policy.total_s + self.wait_s:
            return pause
        if isinstance(error, HeadwaterError):
            raise error
        raise unreachable(self._failed, self._causes, self._sent) from error
