"""The synchronous client against a server that fails on request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from fake import DEADLINE_S, Fake, fake_server

from headwater import (
    Bury,
    Claimed,
    Client,
    ConnectionFailed,
    NotFound,
    Outgoing,
    Release,
    Retry,
    RetryPolicy,
    ServerFailure,
    Worker,
)

QUICK = RetryPolicy(total_s=10, pause_s=0.01, pause_max_s=0.1)


@pytest.fixture
def client(fake: Fake) -> Iterator[Client]:
    with Client(fake.url, retry=QUICK) as running:
        yield running


def test_publish_whose_answer_is_lost_is_stored_once(fake: Fake, client: Client) -> None:
    fake.fail("/messages", "after", times=3)
    published = client.publish("orders", {"id": 1})
    assert len(fake.stored("orders")) == 1
    assert published.offset == 1 and not published.duplicate
    keys = {headers["idempotency-key"] for _, _, headers, _ in fake.requests}
    assert len(fake.requests) == 4 and len(keys) == 1


def test_batch_whose_answer_is_lost_is_stored_once(fake: Fake, client: Client) -> None:
    fake.fail("/batches", "after")
    results = client.publish_batch("orders", [Outgoing(1), Outgoing(2, dedup_key="two"), Outgoing(3)])
    assert [result.offset for result in results] == [1, 2, 3]
    assert [result.duplicate for result in results] == [False, True, False], "a key of the caller's is reported"
    assert len(fake.stored("orders")) == 3


def test_each_publish_has_a_key_of_its_own(fake: Fake, client: Client) -> None:
    client.publish("orders", 1)
    client.publish("orders", 1)
    assert len(fake.stored("orders")) == 2


def test_publish_that_is_not_idempotent_is_not_repeated(fake: Fake) -> None:
    fake.fail("/messages", "after")
    with Client(fake.url, retry=QUICK, idempotent=False) as client:
        with pytest.raises(ConnectionFailed) as failed:
            client.publish("orders", 1)
        assert failed.value.sent
        assert client.publish("orders", 2, dedup_key="2").offset == 2, "a key of the caller's makes it repeatable"


def test_busy_server_is_asked_again_after_the_time_it_names(fake: Fake, client: Client) -> None:
    fake.fail("/messages", "status", times=1, headers={"retry-after": "1"})
    begun = time.monotonic()
    client.publish("orders", 1)
    assert time.monotonic() - begun >= 1


def test_failure_of_the_server_has_its_kind(fake: Fake, client: Client) -> None:
    fake.fail("/messages", "status", status=507, kind="storage-full")
    with pytest.raises(ServerFailure) as failed:
        client.publish("orders", 1)
    assert (failed.value.kind, failed.value.status) == ("storage-full", 507)


def test_second_server_is_used_when_the_first_is_down(fake: Fake) -> None:
    with fake_server() as gone:
        down = gone.url
    with Client([down, fake.url], retry=QUICK) as client:
        assert client.publish("orders", 1).offset == 1
        assert client.publish("orders", 2).offset == 2


def test_settled_message_whose_answer_is_lost_is_settled(fake: Fake, client: Client) -> None:
    client.publish("orders", 1)
    fake.fail("/settle", "after")
    with client.consume("orders", "billing") as deliveries:
        assert next(iter(deliveries)).ack(), "the attempt whose answer was lost has settled it"
    assert fake.outcomes("orders") == ["ack"]


def test_context_manager_settles_by_how_the_block_ends(fake: Fake, client: Client) -> None:
    client.publish_batch("orders", [Outgoing(name) for name in ("ack", "bury", "retry", "release")])
    released: list[int] = []
    with client.consume("orders", "billing", until_idle=DEADLINE_S) as deliveries:
        for delivery in deliveries:
            with delivery:
                if delivery.payload == "bury":
                    raise Bury("broken")
                if delivery.payload == "retry" and delivery.attempt == 1:
                    raise Retry("later", delay=0.01)
                if delivery.payload == "release" and not released:
                    released.append(delivery.offset)
                    raise Release
            if None not in fake.outcomes("orders"):
                break
    assert fake.outcomes("orders") == ["ack", "bury", "ack", "ack"]
    assert fake.stored("orders")[1].reason == "broken"
    assert [message.attempt for message in fake.stored("orders")] == [1, 1, 2, 1]


def test_exception_in_the_block_is_passed_on_and_the_message_retried(fake: Fake, client: Client) -> None:
    client.publish("orders", 1)
    with client.consume("orders", "billing") as deliveries:
        with pytest.raises(ZeroDivisionError), next(iter(deliveries)):
            1 / 0
    assert fake.stored("orders")[0].reason == "ZeroDivisionError: division by zero"
    assert fake.outcomes("orders") == [None]


def test_what_was_not_handed_out_is_released(fake: Fake, client: Client) -> None:
    client.publish_batch("orders", [Outgoing(at) for at in range(5)])
    with client.consume("orders", "billing", in_hand=5) as deliveries:
        with next(iter(deliveries)):
            pass
    assert fake.outcomes("orders") == ["ack", None, None, None, None]
    assert [message.attempt for message in fake.stored("orders")] == [1, 0, 0, 0, 0]


def test_lease_is_extended_while_a_message_is_handled(fake: Fake, client: Client) -> None:
    client.publish("orders", 1)
    fake.grace_s = DEADLINE_S
    with client.consume("orders", "billing", lease=1.5) as deliveries:
        with next(iter(deliveries)) as delivery:
            fake.wait_for(lambda: fake.extensions >= 3)
    assert not delivery.lost
    assert fake.outcomes("orders") == ["ack"] and fake.stored("orders")[0].attempt == 1


def test_lost_lease_is_reported(fake: Fake, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.publish("orders", 1)
    fake.refuse_extensions = True
    with client.consume("orders", "billing", lease=0.1) as deliveries:
        delivery = next(iter(deliveries))
        wait_until(lambda: delivery.lost)
        assert not delivery.ack()
    assert "lease lost" in caplog.text


def test_stream_continues_after_a_break_and_settles(fake: Fake, client: Client) -> None:
    client.publish_batch("orders", [Outgoing({"at": at, "text": "\u2028\x85"}) for at in range(20)])
    fake.fail("/stream-break", "break", times=3)
    seen = []
    with client.stream("orders", "billing", credit=4, until_idle=DEADLINE_S) as deliveries:
        for delivery in deliveries:
            with delivery:
                seen.append(delivery.payload["at"])
            if None not in fake.outcomes("orders"):
                break
    assert sorted(seen) == list(range(20))
    assert fake.outcomes("orders") == ["ack"] * 20
    streams = [path for _, path, _, _ in fake.requests if "/stream" in path]
    assert len(streams) == 4


def test_leases_of_streamed_messages_are_extended(fake: Fake, client: Client) -> None:
    client.publish_batch("orders", [Outgoing(at) for at in range(3)])
    fake.grace_s = DEADLINE_S
    with client.stream("orders", "billing", credit=3, lease=1.5) as deliveries:
        for delivery in deliveries:
            with delivery:
                at = fake.extensions
                fake.wait_for(lambda: fake.extensions >= at + 2)
            if fake.outcomes("orders") == ["ack"] * 3:
                break
    assert [message.attempt for message in fake.stored("orders")] == [1, 1, 1]


def test_refused_stream_and_claim_raise(client: Client) -> None:
    with client.stream("missing", "billing") as deliveries, pytest.raises(NotFound):
        next(iter(deliveries))
    with client.consume("missing", "billing") as deliveries, pytest.raises(NotFound) as refused:
        next(iter(deliveries))
    assert refused.value.kind == "no-such-topic"


def test_closed_client_ends_an_iteration_in_another_thread(fake: Fake) -> None:
    client = Client(fake.url, retry=QUICK)
    deliveries = client.stream("orders", "billing")
    ended = threading.Thread(target=lambda: list(deliveries))
    ended.start()
    fake.wait_for(lambda: any("/stream" in path for _, path, _, _ in fake.requests))
    deliveries.close()
    ended.join(DEADLINE_S)
    assert not ended.is_alive()
    client.close()


def run_worker(worker: Worker, until: threading.Event) -> None:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert until.wait(DEADLINE_S), "the worker did not do it"
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_worker_handles_all_in_order_per_key_and_several_at_once(fake: Fake, client: Client) -> None:
    count = 200
    client.publish_batch("orders", [Outgoing(at, key=f"k{at % 10}") for at in range(count)])
    lock, seen, running, most, done = threading.Lock(), [], 0, 0, threading.Event()

    def handle(message: Claimed) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
            seen.append((message.key, message.payload))
            if len(seen) == count:
                done.set()

    worker = Worker(client, "orders", "billing", handle, concurrency=8, wait=0.2)
    run_worker(worker, done)
    assert fake.outcomes("orders") == ["ack"] * count
    for key in {key for key, _ in seen}:
        own = [payload for other, payload in seen if other == key]
        assert own == sorted(own)
    assert 1 < most <= 8
    assert worker.stats.handled == count and worker.stats.lost == 0
    settles = sum("/settle" in path for _, path, _, _ in fake.requests)
    assert settles < count, "outcomes go together"


def test_worker_retries_buries_and_releases_what_is_behind_a_failed_key(fake: Fake, client: Client) -> None:
    client.publish_batch(
        "orders", [Outgoing("poison"), Outgoing("flaky", key="k"), Outgoing("after", key="k"), Outgoing("typed")]
    )
    order: list[str] = []

    def handle(message: Claimed) -> None:
        order.append(message.payload)
        if message.payload == "poison":
            raise Bury("cannot be read")
        if message.payload == "typed":
            raise KeyError("field")
        if message.payload == "flaky" and message.attempt == 1:
            raise OSError("down")

    worker = Worker(client, "orders", "billing", handle, concurrency=2, wait=0.2, bury_on=(KeyError,))
    thread = threading.Thread(target=worker.run)
    thread.start()
    fake.wait_for(lambda: None not in fake.outcomes("orders"))
    worker.stop()
    thread.join(DEADLINE_S)
    assert fake.outcomes("orders") == ["bury", "ack", "ack", "bury"]
    own = [name for name in order if name in ("flaky", "after")]
    assert own == ["flaky", "flaky", "after"]
    assert fake.stored("orders")[2].attempt == 1, "a release counts as no attempt"


def test_stopped_worker_ends_its_handlers_and_releases_the_rest(fake: Fake, client: Client) -> None:
    client.publish_batch("orders", [Outgoing(at) for at in range(10)])
    started, go = threading.Semaphore(0), threading.Event()

    def handle(message: Claimed) -> None:
        started.release()
        assert go.wait(DEADLINE_S)

    worker = Worker(client, "orders", "billing", handle, concurrency=2, in_hand=10, wait=0.2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert started.acquire(timeout=DEADLINE_S) and started.acquire(timeout=DEADLINE_S)
    wait_until(lambda: sum(message.attempt for message in fake.stored("orders")) == 10)
    worker.stop()
    go.set()
    thread.join(DEADLINE_S)
    assert sorted(map(str, fake.outcomes("orders"))) == ["None"] * 8 + ["ack"] * 2
    assert sum(message.attempt for message in fake.stored("orders")) == 2
    assert all(message.receipt is None for message in fake.stored("orders"))


def test_worker_survives_a_server_that_fails_and_raises_what_is_refused(fake: Fake, client: Client) -> None:
    fake.fail("/claim", "before", times=2)
    fake.fail("/claim", "status", times=2)
    client.publish("orders", 1)
    done = threading.Event()
    run_worker(Worker(client, "orders", "billing", lambda message: done.set(), wait=0.2), done)
    assert fake.outcomes("orders") == ["ack"]
    with pytest.raises(NotFound):
        Worker(client, "missing", "billing", print).run()


def test_handler_that_does_not_end_keeps_no_lease(fake: Fake, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.publish("orders", 1)
    started, go = threading.Event(), threading.Event()

    def handle(message: Claimed) -> None:
        started.set()
        go.wait(DEADLINE_S)

    worker = Worker(client, "orders", "billing", handle, concurrency=1, wait=0.1, lease=0.3, shutdown_timeout=0.1)
    with caplog.at_level(logging.ERROR, "headwater"):
        run_worker(worker, started)
    assert "did not end in time" in caplog.text
    wait_until(lambda: fake.stored("orders")[0].deadline < time.monotonic())
    go.set()


def wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the expected state is not reached"
        time.sleep(0.005)
