"""The synchronous client against the real server, on both stores."""

from __future__ import annotations

import itertools
import json
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest
from fake import DEADLINE_S
from real import Proxy, Server, Store, wait_until

from headwater import (
    Bury,
    Claimed,
    Client,
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Outgoing,
    RetryPolicy,
    Settlement,
    Unauthorized,
    Worker,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_message_comes_back_as_it_was_published(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    published = client.publish(
        "orders", {"id": 1, "text": "ä\u2028"}, key="k", type="order.placed", headers={"a": "b"}, traceparent=TRACE
    )
    client.publish("orders", b"\xff\x00bytes")
    claim = client.claim("orders", "billing", max=10, wait=5)
    first, second = claim.messages
    assert (first.offset, first.id, first.payload) == (published.offset, published.id, {"id": 1, "text": "ä\u2028"})
    assert (first.key, first.type, first.attempt) == ("k", "order.placed", 1)
    assert first.headers["a"] == "b" and first.headers["traceparent"] == TRACE
    assert second.payload == b"\xff\x00bytes" and second.key is None
    assert first.published_at is not None and claim.lease_until is not None
    assert abs(first.published_at - datetime.now(timezone.utc)) < timedelta(minutes=5)
    results = client.settle("orders", "billing", [Settlement(each.receipt) for each in claim.messages])
    assert [result.lost for result in results] == [False, False]
    assert client.groups.get("orders", "billing").lag == 0


def test_batch_is_atomic_and_dedup_keys_are_stored_once(client: Client) -> None:
    client.topics.create("orders")
    results = client.publish_batch("orders", [Outgoing(at, key=f"k{at}", dedup_key=f"d{at}") for at in range(3)])
    again = client.publish_batch("orders", [Outgoing(2, dedup_key="d2"), Outgoing(3, dedup_key="d3")])
    assert [result.duplicate for result in results] == [False] * 3
    assert [result.duplicate for result in again] == [True, False]
    assert again[0].offset == results[2].offset
    with pytest.raises(InvalidRequest):
        client.publish_batch("orders", [Outgoing(4), Outgoing(5, key="k" * 100_000)])
    assert [message.payload for message in client.browse("orders", from_="start").items] == [0, 1, 2, 3]
    offset = results[1].offset
    assert offset is not None and client.message("orders", offset).key == "k1"


def test_delayed_message_comes_when_it_is_due(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    # On a machine that stalls, all of them may be due before the first one is claimed.
    for _ in range(5):
        begun = time.monotonic()
        client.publish("orders", "later", delay=2)
        client.publish("orders", "at", deliver_at=datetime.now(timezone.utc) + timedelta(seconds=2))
        client.publish("orders", "now")
        with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
            arrived = []
            for delivery in deliveries:
                with delivery:
                    arrived.append((delivery.payload, time.monotonic() - begun))
                if len(arrived) == 3:
                    break
        assert sorted(name for name, _ in arrived) == ["at", "later", "now"]
        assert all(after > 1.9 for name, after in arrived if name != "now"), arrived
        if arrived[0][0] == "now":
            break
    assert arrived[0][0] == "now", arrived


def test_outcomes_do_what_they_say(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    client.publish_batch("orders", [Outgoing(name) for name in ("ack", "retry", "bury", "release")])
    seen: list[tuple[str, int]] = []
    with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
        for delivery in deliveries:
            seen.append((delivery.payload, delivery.attempt))
            again = seen.count((delivery.payload, delivery.attempt)) > 1 or delivery.attempt > 1
            if delivery.payload == "retry" and not again:
                assert delivery.retry("not yet", delay=0.1)
            elif delivery.payload == "bury":
                assert delivery.bury("broken")
            elif delivery.payload == "release" and not again:
                assert delivery.release()
            else:
                assert delivery.ack()
            if len(seen) == 6:
                break
    assert client.groups.get("orders", "billing").lag == 0
    assert sorted(seen) == [("ack", 1), ("bury", 1), ("release", 1), ("release", 1), ("retry", 1), ("retry", 2)]
    [dead] = client.dead_letters.list(topic="orders").items
    assert (dead.group, dead.error, dead.attempts) == ("billing", "broken", 1)
    assert client.dead_letters.get(dead.id).payload == "bury"


def test_extension_keeps_a_lease_and_its_end_loses_it(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    client.publish("orders", 1)
    # On a machine that stalls, the lease may end before it is extended.
    for _ in range(5):
        [message] = client.claim("orders", "billing", wait=10, lease=1).messages
        [extended] = client.extend("orders", "billing", [message.receipt], lease=60)
        if not extended.lost:
            break
    assert not extended.lost and extended.lease_until is not None
    assert client.claim("orders", "billing", wait=2).messages == ()
    [extended] = client.extend("orders", "billing", [message.receipt], lease=1)
    [again] = client.claim("orders", "billing", wait=10).messages
    assert again.offset == message.offset
    [late] = client.settle("orders", "billing", [Settlement(message.receipt)])
    assert late.lost
    assert client.extend("orders", "billing", [message.receipt])[0].lost
    assert not client.settle("orders", "billing", [Settlement(again.receipt)])[0].lost


def test_group_is_paused_resumed_moved_and_removed(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    for at in range(3):
        client.publish("orders", at)
    client.groups.pause("orders", "billing", reason="maintenance of the database")
    assert client.groups.get("orders", "billing").state == "paused"
    assert client.claim("orders", "billing").messages == ()
    client.groups.resume("orders", "billing")
    claimed = client.claim("orders", "billing", max=10, wait=5).messages
    client.settle("orders", "billing", [Settlement(each.receipt) for each in claimed])
    assert client.groups.get("orders", "billing").lag == 0
    client.groups.seek("orders", "billing", "start", dry_run=True)
    assert client.groups.get("orders", "billing").lag == 0
    client.groups.seek("orders", "billing", "start")
    assert [each.payload for each in client.claim("orders", "billing", max=10, wait=5).messages] == [0, 1, 2]
    assert [each.group for each in client.groups.all(topic="orders")] == ["billing"]
    client.groups.delete("orders", "billing", dry_run=True)
    client.groups.cancel("orders", "billing")
    with pytest.raises(Conflict):
        client.groups.resume("orders", "billing")


def test_dead_letters_are_redriven_edited_and_purged(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    client.publish_batch("orders", [Outgoing({"at": at}) for at in range(4)])
    with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
        for buried, delivery in enumerate(deliveries, start=1):
            with delivery:
                raise Bury(f"poison {delivery.payload['at']}")
            if buried == 4:
                break
    listed = client.dead_letters.all(topic="orders", group="billing")
    dead = {each.payload["at"]: each for each in (client.dead_letters.get(each.id) for each in listed)}
    assert sorted(dead) == [0, 1, 2, 3] and dead[1].error == "poison 1"
    client.dead_letters.redrive([dead[0].id])
    client.dead_letters.redrive_edited(dead[1].id, {"at": 100})
    client.dead_letters.purge([dead[2].id], dry_run=True)
    assert client.dead_letters.get(dead[2].id).payload == {"at": 2}
    client.dead_letters.purge([dead[2].id])
    with pytest.raises(NotFound):
        client.dead_letters.get(dead[2].id)
    with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
        seen = []
        for delivery in deliveries:
            with delivery:
                seen.append(delivery.payload["at"])
            if len(seen) == 2:
                break
    assert sorted(seen) == [0, 100]
    client.dead_letters.redrive(selection={"topic": "orders", "group": "billing"})
    assert client.dead_letters.list(topic="orders").items == ()


def test_refusals_have_their_types(client: Client) -> None:
    with pytest.raises(NotFound) as missing:
        client.claim("missing", "billing")
    assert missing.value.kind == "no-such-topic"
    client.topics.create("orders")
    with pytest.raises(Conflict):
        client.topics.create("orders", settings={"max_attempts": 3})
    with pytest.raises(NotFound):
        client.groups.get("orders", "missing")
    with pytest.raises(InvalidRequest) as unknown:
        client.topics.create("other", settings={"no_such_setting": 1})
    assert unknown.value.status == 400
    with pytest.raises(InvalidRequest):
        client.publish("orders", 1, headers={"": "x"})


def test_names_with_special_characters_work(client: Client) -> None:
    for name in ("a b", "ü/ö", "<script>", "100%", "a?b#c", "x%2Fy", "a+b;c=d"):
        client.topics.create(name)
        client.groups.put(name, name, start="start")
        client.publish(name, name)
        [message] = client.claim(name, name, wait=5).messages
        assert message.payload == name
        assert not client.settle(name, name, [Settlement(message.receipt)])[0].lost
    assert len(list(client.topics.all())) == 7


def test_tokens_limit_what_a_client_may_do(store: Store) -> None:
    def create(*arguments: str) -> str:
        made = json.loads(store.command("token", "create", *arguments))
        return str(next(value for value in made.values() if str(value).startswith("hw_")))

    admin = create("admin", "--scope", "admin", "--scope", "publish", "--scope", "consume", "--scope", "read")
    limited = create("shop", "--scope", "publish", "--topic", "shop.*")
    server = Server(store)
    try:
        with Client(server.url, token=admin) as client:
            client.topics.create("shop.orders")
            client.topics.create("orders")
        with Client(server.url, token=limited) as client:
            client.publish("shop.orders", 1)
            with pytest.raises(Forbidden):
                client.publish("orders", 1)
            with pytest.raises(Forbidden):
                client.claim("shop.orders", "billing")
        for wrong in (None, "hw_nothing_nothing", limited + "x"):
            with Client(server.url, token=wrong) as client, pytest.raises(Unauthorized):
                client.publish("shop.orders", 1)
    finally:
        server.stop()


def test_stream_and_tail_bring_messages_as_they_come(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    seen: list[int] = []
    with client.stream("orders", "billing", credit=10) as deliveries:
        tail = client.tail("orders", from_="start")
        for at in range(50):
            client.publish("orders", at, key=str(at % 3))
        for delivery in deliveries:
            with delivery:
                seen.append(delivery.payload)
            if len(seen) == 50:
                break
        assert sorted(seen) == list(range(50))
        assert [message.payload for message in itertools.islice(tail, 50)] == list(range(50))
        tail.close()
    assert client.groups.get("orders", "billing").lag == 0


def test_claim_that_waits_returns_soon_after_a_publish(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    arrived: list[float] = []

    def claim() -> None:
        client.claim("orders", "billing", wait=20)
        arrived.append(time.monotonic())

    thread = threading.Thread(target=claim)
    thread.start()
    # Until the claim waits at the server; if it does not yet, the message is there before it.
    time.sleep(0.3)
    published = time.monotonic()
    client.publish("orders", 1)
    thread.join(DEADLINE_S)
    assert arrived and arrived[0] - published < 10, "not only at the end of the wait"


def test_lost_answers_store_nothing_twice_and_lose_nothing(server: Server) -> None:
    proxy = Proxy(server.url)
    try:
        with Client(server.url) as direct, Client(proxy.url, retry=RetryPolicy(pause_s=0.01)) as client:
            direct.topics.create("orders")
            direct.groups.put("orders", "billing", start="start")
            proxy.lose("/messages", 3)
            published = client.publish("orders", 0, key="k")
            proxy.lose("/batches")
            batch = client.publish_batch("orders", [Outgoing(1), Outgoing(2)])
            assert not published.duplicate and [each.duplicate for each in batch] == [False, False]
            assert [each.payload for each in direct.browse("orders", from_="start").items] == [0, 1, 2]
            proxy.lose("/claim")
            proxy.lose("/settle", 2)
            settled = set()
            with client.consume("orders", "billing", lease=2, until_idle=DEADLINE_S) as deliveries:
                for delivery in deliveries:
                    # On a machine that stalls, its lease may have ended: then it comes again.
                    if delivery.ack():
                        settled.add(delivery.payload)
                    if len(settled) == 3:
                        break
            assert settled == {0, 1, 2}, "those of the lost answer came again after their leases"
            assert direct.groups.get("orders", "billing").lag == 0
            assert proxy.lost == 7
    finally:
        proxy.close()


def test_worker_with_many_messages(client: Client) -> None:
    client.topics.create("orders")
    client.groups.put("orders", "billing", start="start")
    count = 2000
    for at in range(0, count, 500):
        client.publish_batch("orders", [Outgoing(each, key=str(each % 17)) for each in range(at, at + 500)])
    seen: list[Claimed] = []
    worker = Worker(client, "orders", "billing", seen.append, concurrency=4, in_hand=200, wait=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: len(seen) >= count, "all messages handled", 60)
    worker.stop()
    thread.join(DEADLINE_S)
    assert sorted(message.payload for message in seen) == list(range(count))
    for key in {message.key for message in seen}:
        own = [message.payload for message in seen if message.key == key]
        assert own == sorted(own), f"order of key {key}"
    assert client.groups.get("orders", "billing").lag == 0
