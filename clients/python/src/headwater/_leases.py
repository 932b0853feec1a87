"""Leases in hand, and the order of messages with one key: pure rules, which the keepers and workers of both clients apply."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from . import _operations as operations
from ._endpoints import RetryPolicy
from ._models import Claimed, Extended
from ._operations import Request

_log = logging.getLogger("headwater")

#: A lease is extended after this part of its time, as the library does it.
_EXTEND_AFTER: Final = 1 / 3
#: A failed extension is repeated after this part of it, at most a second.
_REPEAT_AFTER: Final = 1 / 20
#: Receipts in one request.
_EXTEND_MAX: Final = 500

#: How long the answer to a claim may be on its way.
_ANSWER_S: Final = 1.0

T = TypeVar("T")


def leased_since(asked_at: float, now: float) -> float:
    """From when the leases of an answer count. They begin when messages are found, which may be long after the request."""
    return max(asked_at, now - _ANSWER_S)


@dataclass(eq=False)
class Held:
    """The lease of one message."""

    message: Claimed
    lease_s: float
    #: From when its time counts: before the request that brought it, so never later than on the server.
    since: float
    lost: bool = False
    #: Settled, or being settled: a refused extension means nothing any more.
    done: bool = False
    due_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.due_at = self.since + self.lease_s * _EXTEND_AFTER

    @property
    def expires_at(self) -> float:
        return self.since + self.lease_s

    def extended(self, asked_at: float) -> None:
        self.since = asked_at
        self.due_at = asked_at + self.lease_s * _EXTEND_AFTER

    def not_extended(self, now: float) -> None:
        """The request failed: repeated until the lease has ended."""
        if now >= self.expires_at:
            self.refused()
        self.due_at = now + min(1.0, self.lease_s * _REPEAT_AFTER)

    def refused(self) -> None:
        self.lost = self.lost or not self.done


class Leases:
    """All leases in hand of a client. Not locked: its owner does that."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Iterable[Held]) -> None:
        self._held.update((each.message.receipt, each) for each in held)

    def remove(self, held: Iterable[Held]) -> None:
        for each in held:
            self._held.pop(each.message.receipt, None)

    def next_due(self) -> float | None:
        """When the next extension is due."""
        return min((held.due_at for held in self._held.values()), default=None)

    def due(self, now: float) -> list[list[Held]]:
        """What to extend, a list per request. Leases of one group that are due soon go along with those that are due."""
        groups: dict[tuple[str, str, float], list[Held]] = {}
        for held in self._held.values():
            place = (held.message.topic, held.message.group, held.lease_s)
            groups.setdefault(place, []).append(held)
        requests: list[list[Held]] = []
        for (_, _, lease_s), all_held in groups.items():
            if all(held.due_at > now for held in all_held):
                continue
            soon = [held for held in all_held if held.due_at <= now + lease_s / 10]
            requests.extend(soon[at : at + _EXTEND_MAX] for at in range(0, len(soon), _EXTEND_MAX))
        return requests


def extension(held: Sequence[Held], now: float, policy: RetryPolicy) -> tuple[Request[tuple[Extended, ...]], RetryPolicy]:
    """The request that extends leases of one group, and how long it is repeated."""
    first = held[0]
    # No longer than the first of them lasts: past that another consumer may have the messages.
    left = max(0.1, min(each.expires_at for each in held) - now)
    receipts = [each.message.receipt for each in held]
    request = operations.extend(first.message.topic, first.message.group, receipts, first.lease_s)
    return request, replace(policy, total_s=min(policy.total_s, left), answer_s=min(policy.answer_s, left))


def apply(held: Sequence[Held], asked_at: float, lost: Mapping[str, bool] | None) -> list[Held]:
    """Applies the answer, or its absence; returns those that are not to be extended any more."""
    for each in held:
        if lost is None:
            each.not_extended(time.monotonic())
        elif lost.get(each.message.receipt, True):
            each.refused()
        else:
            each.extended(asked_at)
    for each in held:
        if each.lost:
            _log.warning("lease lost: topic %s, offset %d", each.message.topic, each.message.offset)
    return [each for each in held if each.lost or each.done]


class KeyOrder(Generic[T]):
    """Messages of one key are handled one after the other; those without a key are independent."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}

    def admit(self, key: str | None, item: T) -> bool:
        """True if it can be handled now; else `finished` returns it later."""
        if key is None:
            return True
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = deque()
            return True
        queue.append(item)
        return False

    def finished(self, key: str | None) -> T | None:
        """The next message of the key, which can be handled now."""
        if key is None:
            return None
        queue = self._waiting[key]
        if queue:
            return queue.popleft()
        del self._waiting[key]
        return None

    def failed(self, key: str | None) -> list[T]:
        """Those behind a message that failed: to be released, so that they are delivered after it."""
        return [] if key is None else list(self._waiting.pop(key))
