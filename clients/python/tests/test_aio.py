"""The asynchronous client against a server that fails on request."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fake import DEADLINE_S, Fake, fake_server

from headwater import (
    AsyncClient,
    AsyncWorker,
    Bury,
    Claimed,
    ConnectionFailed,
    NotFound,
    Outgoing,
    Retry,
    RetryPolicy,
)

QUICK = RetryPolicy(total_s=10, pause_s=0.01, pause_max_s=0.1)


def run(fake: Fake, test: Callable[[AsyncClient], Awaitable[Any]]) -> None:
    """Runs a test in an event loop, with a deadline."""

    async def inside() -> None:
        async with AsyncClient(fake.url, retry=QUICK) as client:
            await asyncio.wait_for(test(client), DEADLINE_S)

    asyncio.run(inside())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_publish_whose_answer_is_lost_is_stored_once(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        fake.fail("/messages", "after", times=2)
        assert not (await client.publish("orders", {"id": 1})).duplicate
        fake.fail("/batches", "after")
        await client.publish_batch("orders", [Outgoing(2), Outgoing(3)])
        assert [message.body["payload"] for message in fake.stored("orders")] == [{"id": 1}, 2, 3]

    run(fake, test)


def test_second_server_is_used_and_unreachable_servers_are_an_error(fake: Fake) -> None:
    with fake_server() as gone:
        down = gone.url

    async def test(_: AsyncClient) -> None:
        async with AsyncClient([down, fake.url], retry=QUICK) as client:
            assert (await client.publish("orders", 1)).offset == 1
        short = RetryPolicy(total_s=0.2, pause_s=0.01)
        async with AsyncClient(down, retry=short) as client:
            with pytest.raises(ConnectionFailed) as failed:
                await client.publish("orders", 1)
            assert not failed.value.sent

    run(fake, test)


def test_context_manager_settles_by_how_the_block_ends(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish_batch("orders", [Outgoing(name) for name in ("ack", "bury", "retry")])
        async with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    if delivery.payload == "bury":
                        raise Bury("broken")
                    if delivery.payload == "retry" and delivery.attempt == 1:
                        raise Retry("later", delay=0.01)
                if None not in fake.outcomes("orders"):
                    break
        assert fake.outcomes("orders") == ["ack", "bury", "ack"]

    run(fake, test)


def test_lease_is_extended_while_a_message_is_handled(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish("orders", 1)
        fake.grace_s = DEADLINE_S
        async with client.consume("orders", "billing", lease=1.5) as deliveries:
            async with await anext(deliveries) as delivery:
                await until(lambda: fake.extensions >= 3)
        assert not delivery.lost and fake.outcomes("orders") == ["ack"]

    run(fake, test)


def test_cancelled_block_releases_its_message(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish("orders", 1)
        inside = asyncio.Event()

        async def handle() -> None:
            async with client.consume("orders", "billing") as deliveries:
                async with await anext(deliveries):
                    inside.set()
                    await asyncio.sleep(DEADLINE_S)

        task = asyncio.create_task(handle())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        message = fake.stored("orders")[0]
        assert (message.outcome, message.receipt, message.attempt) == (None, None, 0)

    run(fake, test)


def test_stream_continues_after_a_break_and_settles(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish_batch("orders", [Outgoing(at) for at in range(20)])
        fake.fail("/stream-break", "break", times=2)
        seen = []
        async with client.stream("orders", "billing", credit=4, until_idle=DEADLINE_S) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    seen.append(delivery.payload)
                if None not in fake.outcomes("orders"):
                    break
        assert sorted(seen) == list(range(20))
        assert fake.outcomes("orders") == ["ack"] * 20
        async with client.stream("missing", "billing") as deliveries:
            with pytest.raises(NotFound):
                await anext(deliveries)

    run(fake, test)


def test_worker_handles_all_in_order_per_key_and_several_at_once(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        count = 200
        await client.publish_batch("orders", [Outgoing(at, key=f"k{at % 10}") for at in range(count)])
        seen: list[tuple[str | None, int]] = []
        running = most = 0

        async def handle(message: Claimed) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            seen.append((message.key, message.payload))
            if len(seen) == count:
                worker.stop()

        worker = AsyncWorker(client, "orders", "billing", handle, concurrency=8, wait=0.2)
        await worker.run()
        assert fake.outcomes("orders") == ["ack"] * count
        for key in {key for key, _ in seen}:
            own = [payload for other, payload in seen if other == key]
            assert own == sorted(own)
        assert 1 < most <= 8
        assert worker.stats.handled == count

    run(fake, test)


def test_worker_releases_what_is_behind_a_failed_key(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish_batch("orders", [Outgoing("flaky", key="k"), Outgoing("after", key="k")])
        order: list[str] = []

        async def handle(message: Claimed) -> None:
            order.append(message.payload)
            if len(order) == 1:
                raise OSError("down")
            if len(order) == 3:
                worker.stop()

        worker = AsyncWorker(client, "orders", "billing", handle, wait=0.2)
        await worker.run()
        assert order == ["flaky", "flaky", "after"]
        assert fake.outcomes("orders") == ["ack", "ack"]
        assert fake.stored("orders")[1].attempt == 1

    run(fake, test)


def test_signal_stops_a_worker_and_a_stuck_handler_is_cancelled(fake: Fake) -> None:
    async def test(client: AsyncClient) -> None:
        await client.publish_batch("orders", [Outgoing(at) for at in range(5)])
        cancelled = 0

        async def handle(message: Claimed) -> None:
            nonlocal cancelled
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.sleep(DEADLINE_S)
            except asyncio.CancelledError:
                cancelled += 1
                raise

        worker = AsyncWorker(
            client, "orders", "billing", handle, concurrency=2, wait=0.2, shutdown_timeout=0.2
        )
        await worker.run()
        assert cancelled == 2
        stored = fake.stored("orders")
        assert [(each.outcome, each.receipt, each.attempt) for each in stored] == [(None, None, 0)] * 5

    run(fake, test)


def test_worker_raises_what_is_refused(fake: Fake) -> None:
    async def handle(message: Claimed) -> None:
        pass

    async def test(client: AsyncClient) -> None:
        with pytest.raises(NotFound):
            await AsyncWorker(client, "missing", "billing", handle).run()

    run(fake, test)
