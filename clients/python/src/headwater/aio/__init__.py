"""The client on asyncio: the same methods as the synchronous one, awaited."""

from ._client import AsyncClient
from ._consume import AsyncConsumer, AsyncDelivery
from ._worker import AsyncWorker

__all__ = ["AsyncClient", "AsyncConsumer", "AsyncDelivery", "AsyncWorker"]
