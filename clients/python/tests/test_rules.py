"""Pure rules: which server is asked, when a request is repeated, when a lease is extended, the order of keys, events and JSON."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import httpx
import pytest

from headwater import ConnectionFailed, Outgoing, Problem, RetryPolicy, ServerFailure
from headwater import _wire as wire
from headwater._endpoints import Attempts, Endpoints
from headwater._errors import problem
from headwater._leases import Held, KeyOrder, Leases
from headwater._models import Claimed, milliseconds
from headwater._sse import Event, Parser, lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(clock: Clock, urls: list[str], repeatable: bool = True) -> Attempts:
    policy = RetryPolicy(total_s=10, pause_s=1, pause_max_s=4)
    return Attempts(policy, Endpoints(urls, clock), repeatable, clock=clock, chance=lambda: 1.0)


def test_another_server_is_asked_at_once_and_all_of_them_after_a_pause() -> None:
    clock = Clock()
    tried = attempts(clock, ["http://a", "http://b"])
    picked = [tried.endpoints.pick()]
    assert tried.broken("http://a", httpx.ConnectError("refused")) == 0
    picked.append(tried.endpoints.pick())
    assert tried.broken("http://b", httpx.ReadError("reset")) == 1
    assert picked == ["http://a", "http://b"]
    assert tried.sent_before


def test_server_that_failed_is_left_out_until_its_time_is_over() -> None:
    clock = Clock()
    endpoints = Endpoints(["http://a", "http://b/"], clock)
    endpoints.failed("http://a")
    assert endpoints.pick() == "http://b"
    clock.now += 5
    assert endpoints.pick() == "http://b", "the one that answers stays the first"
    endpoints.failed("http://b")
    assert endpoints.pick() == "http://a"


def test_request_that_may_have_been_carried_out_is_repeated_only_if_that_is_harmless() -> None:
    with pytest.raises(ConnectionFailed) as failed:
        attempts(Clock(), ["http://a"], repeatable=False).broken("http://a", httpx.ReadTimeout("late"))
    assert failed.value.sent
    never_sent = attempts(Clock(), ["http://a"], repeatable=False)
    assert never_sent.broken("http://a", httpx.ConnectError("refused")) > 0
    assert not never_sent.sent_before


def test_refused_request_is_repeated_whatever_it_does_but_not_one_with_an_unknown_commit() -> None:
    refused = attempts(Clock(), ["http://a"], repeatable=False)
    assert refused.answered("http://a", problem(503, {"type": "urn:headwater:problem:busy"}, 3.0)) == 3.0
    unknown = attempts(Clock(), ["http://a"], repeatable=False)
    with pytest.raises(ServerFailure):
        unknown.answered("http://a", problem(503, {"type": "urn:headwater:problem:commit-unknown"}))


def test_attempts_end_with_the_last_cause() -> None:
    clock = Clock()
    tried = attempts(clock, ["http://a"])
    with pytest.raises(ConnectionFailed, match="connection refused") as failed:
        while True:
            clock.now += tried.broken("http://a", httpx.ConnectError("connection refused"))
    assert clock.now - 100 < 10
    assert failed.value.attempts > 3 and not failed.value.sent


def test_wrong_request_is_not_repeated() -> None:
    with pytest.raises(Problem) as refused:
        attempts(Clock(), ["http://a"]).answered("http://a", problem(400, {"type": "x", "field": "key"}))
    assert refused.value.field == "key"


def claimed(key: str | None = None, receipt: str = "r") -> Claimed:
    return Claimed("orders", 1, "id", None, key, None, {}, None, None, None, {}, "billing", receipt, 1)


def test_lease_is_extended_at_a_third_of_its_time_and_lost_after_all_of_it() -> None:
    held = Held(claimed(), 30, since=100)
    leases = Leases()
    leases.add([held])
    assert leases.next_due() == 110
    assert leases.due(109) == [] and leases.due(110) == [[held]]
    held.extended(110)
    assert leases.next_due() == 120
    held.not_extended(121)
    assert not held.lost and held.due_at == 122
    held.not_extended(140)
    assert held.lost


def test_lease_that_is_being_settled_is_not_lost() -> None:
    held = Held(claimed(), 30, since=100)
    held.done = True
    held.refused()
    assert not held.lost


def test_leases_that_are_due_soon_are_extended_along() -> None:
    leases = Leases()
    leases.add([Held(claimed(receipt=str(at)), 30, since=100 + at) for at in range(5)])
    [together] = leases.due(110)
    assert len(together) == 4


def test_messages_of_a_key_wait_for_each_other() -> None:
    order: KeyOrder[int] = KeyOrder()
    assert order.admit("a", 1) and not order.admit("a", 2) and not order.admit("a", 3)
    assert order.admit("b", 4) and order.admit(None, 5) and order.admit(None, 6)
    assert order.finished("a") == 2
    assert order.failed("a") == [3]
    assert order.admit("a", 7), "the key is free again"
    assert order.finished("a") is None and order.finished(None) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_read_whatever_the_pieces_are(size: int) -> None:
    text = ': open\r\n\r\nevent: message\ndata: {"a":\ndata: "\u2028\x85\x0b"}\nid: 7\n\ndata: b\r\rdata: lost'
    parser = Parser()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for line in lines(pieces) if (event := parser.line(line))]
    assert events == [Event("message", '{"a":\n"\u2028\x85\x0b"}', "7"), Event("message", "b", "7")]


def test_bytes_stay_bytes_and_values_become_json() -> None:
    assert wire.outgoing(Outgoing(b"\xff\x00")) == {"payload_base64": "/wA="}
    assert wire.outgoing(Outgoing(None)) == {"payload": None}
    timed = Outgoing(1, key="k", delay=timedelta(milliseconds=1500), headers={"a": "b"})
    assert wire.outgoing(timed) == {"payload": 1, "key": "k", "delay_ms": 1500, "headers": {"a": "b"}}
    with pytest.raises(ValueError):
        wire.encode({"payload": float("nan")})
    with pytest.raises(ValueError, match="time zone"):
        wire.outgoing(Outgoing(1, deliver_at=datetime(2030, 1, 1)))


def test_times_are_read_and_written() -> None:
    time = datetime(2030, 1, 2, 3, 4, 5, 123456, tzinfo=timezone.utc)
    assert wire.optional_time("2030-01-02T03:04:05.123456789Z") == time
    assert wire.optional_time("2030-01-02T05:04:05.123456+02:00") == time
    assert wire.optional_time("2030-01-02T03:04:05Z") == time.replace(microsecond=0)
    assert wire.timestamp(time) == "2030-01-02T03:04:05.123456Z"


def test_durations_are_whole_milliseconds() -> None:
    assert [milliseconds(value) for value in (0, 0.0001, 1.5, timedelta(seconds=2))] == [0, 1, 1500, 2000]
    with pytest.raises(ValueError):
        milliseconds(-1)
