"""Client of Headwater: publish, pull and ack over HTTP.

`Client` and `Worker` are synchronous, `AsyncClient` and `AsyncWorker` run on asyncio; both have the same methods.
"""

from ._client import Client
from ._consume import Consumer, Delivery
from ._endpoints import RetryPolicy
from ._errors import (
    Bury,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HeadwaterError,
    InvalidAnswer,
    InvalidRequest,
    NotFound,
    Outcome,
    Problem,
    Release,
    Retry,
    ServerFailure,
    TooManyRequests,
    Unauthorized,
)
from ._models import (
    Claim,
    Claimed,
    DeadLetter,
    Extended,
    Group,
    Message,
    Outgoing,
    Page,
    Published,
    Settled,
    Settlement,
    Topic,
)
from ._worker import Worker, WorkerStats
from .aio import AsyncClient, AsyncConsumer, AsyncDelivery, AsyncWorker

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncWorker",
    "Bury",
    "Claim",
    "Claimed",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Consumer",
    "DeadLetter",
    "Delivery",
    "Extended",
    "Forbidden",
    "Group",
    "HeadwaterError",
    "InvalidAnswer",
    "InvalidRequest",
    "Message",
    "NotFound",
    "Outcome",
    "Outgoing",
    "Page",
    "Problem",
    "Published",
    "Release",
    "Retry",
    "RetryPolicy",
    "ServerFailure",
    "Settled",
    "Settlement",
    "TooManyRequests",
    "Topic",
    "Unauthorized",
    "Worker",
    "WorkerStats",
]
