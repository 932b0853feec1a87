"""Servers that are killed while clients work: nothing is lost, and only what was in flight may be handled twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from real import Server, Store, wait_until

from headwater import AsyncClient, AsyncWorker, Claimed, Client, Outgoing, RetryPolicy, Settled, Settlement, Worker

COUNT = 1500
BATCH = 25
KILLS = 4
LEASE_S = 10
RETRY = RetryPolicy(pause_s=0.02, pause_max_s=0.2)


class Effects:
    """What handlers did, and which of it was confirmed as settled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: dict[int, list[float]] = {}
        self.receipts: dict[str, int] = {}
        self.confirmed: dict[int, float] = {}

    def handle(self, message: Claimed) -> None:
        with self.lock:
            self.begun.setdefault(message.payload, []).append(time.monotonic())
            self.receipts[message.receipt] = message.payload
        time.sleep(0.001)

    def settled(self, results: Sequence[Settled]) -> None:
        with self.lock:
            for result in results:
                if not result.lost and result.receipt in self.receipts:
                    self.confirmed.setdefault(self.receipts[result.receipt], time.monotonic())

    def check(self, kills: Sequence[float]) -> None:
        assert sorted(self.begun) == list(range(COUNT)), "each message is handled at least once"
        for payload, times in self.begun.items():
            if len(times) == 1:
                continue
            # Handled before a server died, and not known to be settled by then.
            confirmed = self.confirmed.get(payload, float("inf"))
            in_flight = any(times[0] <= kill <= confirmed for kill in kills)
            assert in_flight, f"message {payload} is handled {len(times)} times and was not in flight at a kill"


class Recording(Client):
    """Reports which settlements the server confirmed."""

    effects: Effects

    def settle(self, topic: str, group: str, settlements: Sequence[Settlement]) -> tuple[Settled, ...]:
        results = super().settle(topic, group, settlements)
        self.effects.settled(results)
        return results


def publish_all(client: Client) -> None:
    for at in range(0, COUNT, BATCH):
        if at % (BATCH * 4) == 0:
            for each in range(at, at + BATCH):
                client.publish("orders", each, key=str(each % 13))
        else:
            client.publish_batch("orders", [Outgoing(each, key=str(each % 13)) for each in range(at, at + BATCH)])


def stored(client: Client) -> Counter[int]:
    counted: Counter[int] = Counter()
    cursor = None
    while True:
        page = client.browse("orders", from_="start", limit=1000, cursor=cursor)
        counted.update(message.payload for message in page.items)
        cursor = page.next_cursor
        if cursor is None:
            return counted


def work_through(urls: list[str], servers: list[Server], kill: Callable[[int], None]) -> None:
    """Publishes and handles all messages while `kill` is called; then checks."""
    effects = Effects()
    with Recording(urls, retry=RETRY) as client, Client(urls, retry=RETRY) as publisher:
        client.effects = effects
        client.topics.create("orders")
        client.groups.put("orders", "billing", start="start")
        worker = Worker(client, "orders", "billing", effects.handle, lease=LEASE_S, wait=1, in_hand=64)
        threads = [threading.Thread(target=worker.run), threading.Thread(target=publish_all, args=(publisher,))]
        for thread in threads:
            thread.start()
        for at in range(KILLS):
            # Spread over the work, and never before some of it is done.
            goal = (at + 1) * COUNT // (KILLS + 2)
            wait_until(lambda: len(effects.begun) >= goal, f"{goal} messages handled", 60)
            kill(at)
        wait_until(lambda: len(effects.begun) == COUNT, "all messages handled", 90)
        wait_until(lambda: client.groups.get("orders", "billing").lag == 0, "all messages settled", 60)
        worker.stop()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert stored(publisher) == Counter(range(COUNT)), "each message is stored once"
        effects.check([time for server in servers for time in server.kills])


def test_server_is_killed_and_restarted_in_the_middle(store: Store, server: Server) -> None:
    def kill(_: int) -> None:
        server.kill()
        server.start()

    work_through([server.url], [server], kill)


def test_either_of_two_servers_is_killed(store: Store, server: Server) -> None:
    if store.engine == "sqlite":
        two = [server, Server(store, "--no-maintenance")]
    else:
        two = [server, Server(store)]
    try:

        def kill(at: int) -> None:
            victim, other = two[at % 2], two[1 - at % 2]
            victim.kill()
            with Client(other.url) as alone:
                alone.publish("alive", at)
            victim.start()

        with Client(two[0].url) as client:
            client.topics.create("alive")
        work_through([each.url for each in two], two, kill)
    finally:
        two[1].stop()


def test_message_claimed_at_one_server_is_settled_at_the_other(store: Store, server: Server) -> None:
    other = Server(store)
    try:
        with Client(server.url) as first, Client(other.url) as second:
            first.topics.create("orders")
            first.groups.put("orders", "billing", start="start")
            first.publish_batch("orders", [Outgoing(at) for at in range(2)])
            messages = first.claim("orders", "billing", max=2, wait=5, lease=30).messages
            receipts = [message.receipt for message in messages]
            assert [each.lost for each in second.extend("orders", "billing", receipts)] == [False, False]
            server.kill()
            assert second.claim("orders", "billing", wait=1).messages == (), "the leases outlive their server"
            results = second.settle("orders", "billing", [Settlement(receipt) for receipt in receipts])
            assert [each.lost for each in results] == [False, False]
            assert second.groups.get("orders", "billing").lag == 0
            server.start()
    finally:
        other.stop()


def test_asyncio_worker_survives_a_killed_server(store: Store, server: Server) -> None:
    count = 300
    seen: Counter[int] = Counter()
    worker: AsyncWorker

    async def handle(message: Claimed) -> None:
        seen[message.payload] += 1
        if len(seen) == count:
            # The rest of the batch is settled before it ends.
            worker.stop()
        await asyncio.sleep(0.001)

    async def run() -> None:
        nonlocal worker
        async with AsyncClient(server.url, retry=RETRY) as client:
            await client.topics.create("orders")
            await client.groups.put("orders", "billing", start="start")
            worker = AsyncWorker(client, "orders", "billing", handle, lease=LEASE_S, wait=1)
            working = asyncio.create_task(worker.run(handle_signals=False))
            for at in range(count):
                if at in (100, 200):
                    await asyncio.to_thread(server.kill)
                    restart = asyncio.create_task(asyncio.to_thread(server.start))
                await client.publish("orders", at)
                if at in (100, 200):
                    await restart
            await asyncio.wait_for(working, 60)
            assert (await client.groups.get("orders", "billing")).lag == 0
            page = await client.browse("orders", from_="start", limit=1000)
            assert Counter(message.payload for message in page.items) == Counter(range(count))

    asyncio.run(run())
    assert sorted(seen) == list(range(count))
