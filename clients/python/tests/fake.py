"""A small server in memory that speaks the HTTP API and fails on request, for tests of what a real server rarely does."""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Long enough for a slow machine, short enough for a test that fails.
DEADLINE_S = 20.0


@dataclass
class Fault:
    """Happens to the next request whose path contains `path`, `times` times."""

    path: str
    #: before: closed without an effect; after: carried out, closed without an answer; status: refused.
    how: str
    times: int = 1
    status: int = 503
    kind: str = "busy"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Stored:
    offset: int
    body: dict[str, Any]
    id: str
    attempt: int = 0
    receipt: str | None = None
    deadline: float = 0.0
    #: ack, bury; None while it is to be handled.
    outcome: str | None = None
    reason: str | None = None


class Fake:
    """One topic per name, one group for all of them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.topics: dict[str, list[Stored]] = {}
        self.keys: dict[str, Stored] = {}
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.extensions = 0
        self.refuse_extensions = False
        #: How much longer than asked for leases last: with it a machine that stalls loses none.
        self.grace_s = 0.0
        self.closed = False
        self.server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def fail(self, path: str, how: str, times: int = 1, **more: Any) -> None:
        with self.lock:
            self.faults.append(Fault(path, how, times, **more))

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def stored(self, topic: str) -> list[Stored]:
        with self.lock:
            return list(self.topics.get(topic, []))

    def outcomes(self, topic: str) -> list[str | None]:
        return [message.outcome for message in self.stored(topic)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), "the expected state is not reached"

    def handle(self, method: str, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        with self.changed:
            self.requests.append((method, path, headers, body))
            self.changed.notify_all()
        if found := re.fullmatch(r"/v1/topics/([^/]+)/(messages|batches)", path):
            return self._publish(found[1], found[2], headers, body)
        if found := re.fullmatch(r"/v1/topics/([^/]+)/groups/[^/]+/(claim|settle|extend)", path):
            if found[1] == "missing":
                return problem(404, "no-such-topic", "no such topic: missing")
            return getattr(self, f"_{found[2]}")(found[1], body)  # type: ignore[no-any-return]
        if path == "/v1/stats":
            return 200, {"requests": len(self.requests)}
        return problem(404, "not-found", f"no path {path}")

    def _publish(self, topic: str, what: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        messages = body["messages"] if what == "batches" else [body]
        prefix, results = headers.get("idempotency-key"), []
        with self.changed:
            for at, message in enumerate(messages):
                results.append(self._store(topic, message, None if prefix is None else f"{prefix}/{at}"))
            self.changed.notify_all()
        return 201, {"published": results} if what == "batches" else results[0]

    def _store(self, topic: str, message: dict[str, Any], own: str | None) -> dict[str, Any]:
        key = message.get("dedup_key", own)
        known = self.keys.get(f"{topic}/{key}") if key is not None else None
        if known is None:
            log = self.topics.setdefault(topic, [])
            known = Stored(len(log) + 1, message, uuid.uuid4().hex)
            log.append(known)
            if key is not None:
                self.keys[f"{topic}/{key}"] = known
            return {"offset": known.offset, "id": known.id, "duplicate": False}
        return {"offset": known.offset, "id": known.id, "duplicate": True}

    def _claim(self, topic: str, body: Any) -> tuple[int, Any]:
        until = time.monotonic() + body.get("wait_ms", 0) / 1000
        with self.changed:
            while not (messages := self.take(topic, body["max"], body["lease_ms"] / 1000)):
                left = until - time.monotonic()
                if left <= 0 or self.closed:
                    break
                self.changed.wait(min(left, 0.05))
        return 200, {"messages": messages, "lease_until": "2030-01-01T00:00:00.123456789Z"}

    def take(self, topic: str, most: int, lease_s: float) -> list[dict[str, Any]]:
        now, taken = time.monotonic(), list[dict[str, Any]]()
        for message in self.topics.get(topic, []):
            if len(taken) < most and message.outcome is None and message.deadline <= now:
                message.attempt += 1
                message.receipt, message.deadline = uuid.uuid4().hex, now + lease_s + self.grace_s
                taken.append(as_claimed(message))
        return taken

    def _settle(self, topic: str, body: Any) -> tuple[int, Any]:
        results = []
        with self.changed:
            for entry in body["settlements"]:
                message = self._held(topic, entry["receipt"])
                if message is not None:
                    message.receipt, message.deadline = None, 0.0
                    message.reason = entry.get("reason")
                    if entry["outcome"] in ("ack", "bury"):
                        message.outcome = entry["outcome"]
                    elif entry["outcome"] == "release":
                        message.attempt -= 1
                    else:
                        message.deadline = time.monotonic() + entry.get("delay_ms", 0) / 1000
                result = "lost" if message is None else "settled"
                results.append({"receipt": entry["receipt"], "result": result})
            self.changed.notify_all()
        return 200, {"results": results}

    def _extend(self, topic: str, body: Any) -> tuple[int, Any]:
        results = []
        with self.changed:
            for receipt in body["receipts"]:
                message = self._held(topic, receipt)
                if message is not None and self.refuse_extensions:
                    message.receipt, message.deadline, message = None, 0.0, None
                if message is not None:
                    message.deadline = time.monotonic() + body["lease_ms"] / 1000 + self.grace_s
                    self.extensions += 1
                results.append({"receipt": receipt, "result": "lost" if message is None else "extended"})
            self.changed.notify_all()
        return 200, {"results": results}

    def _held(self, topic: str, receipt: str) -> Stored | None:
        now = time.monotonic()
        for message in self.topics.get(topic, []):
            if message.receipt == receipt and message.deadline > now:
                return message
        return None


def as_claimed(message: Stored) -> dict[str, Any]:
    """A message as a claim returns it."""
    kept = ("payload", "payload_base64", "key", "type", "headers")
    return {
        "receipt": message.receipt,
        "offset": message.offset,
        "id": message.id,
        "attempt": message.attempt,
        "published_at": "2025-11-17T15:45:00Z",
        **{name: message.body[name] for name in kept if name in message.body},
    }


def problem(status: int, kind: str, detail: str) -> tuple[int, Any]:
    title = kind.replace("-", " ")
    return status, {"type": f"urn:headwater:problem:{kind}", "title": title, "status": status, "detail": detail}


@contextmanager
def fake_server() -> Iterator[Fake]:
    """A server on a free port, until the block ends."""
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if "/stream" in self.path:
                self._stream()
            else:
                self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("content-length") or 0)
            raw = self.rfile.read(length)
            body = json.loads(raw) if raw else None
            headers = {name.lower(): value for name, value in self.headers.items()}
            fault = fake.fault(self.path)
            if fault is not None and fault.how == "before":
                self.close_connection = True
                return
            extra: dict[str, str] = {}
            if fault is not None and fault.how == "status":
                status, answer = problem(fault.status, fault.kind, "as asked for")
                extra = fault.headers
            else:
                status, answer = fake.handle(method, self.path, headers, body)
            if fault is not None and fault.how == "after":
                self.close_connection = True
                return
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json" if status < 400 else "application/problem+json")
            self.send_header("content-length", str(len(data)))
            for name, value in extra.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _stream(self) -> None:
            path, _, query = self.path.partition("?")
            fields = dict(pair.split("=") for pair in query.split("&"))
            topic = path.split("/")[3]
            if topic == "missing":
                self._answer("GET")
                return
            credit, lease_s = int(fields["credit"]), int(fields["lease_ms"]) / 1000
            with fake.changed:
                fake.requests.append(("GET", self.path, {}, None))
                fake.changed.notify_all()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            sent: list[Stored] = []
            while not fake.closed:
                # A stream may be asked to break after some messages.
                fault = fake.fault("/stream-break") if sent else None
                if fault is not None:
                    return
                with fake.changed:
                    sent = [each for each in sent if each.receipt is not None]
                    taken = fake.take(topic, credit - len(sent), lease_s)
                    by_offset = {each.offset: each for each in fake.topics.get(topic, [])}
                    sent.extend(by_offset[each["offset"]] for each in taken)
                    if not taken:
                        fake.changed.wait(0.02)
                try:
                    for each in taken:
                        text = json.dumps(each, ensure_ascii=False)
                        self.wfile.write(f"event: message\ndata: {text}\n\n".encode())
                    self.wfile.write(b": open\n\n")
                    self.wfile.flush()
                except OSError:
                    return

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # Workers of a test connect at once.
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            # A client that goes away is part of the tests.
            pass

    server = Server(("127.0.0.1", 0), Handler)
    fake.server = server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.closed = True
        server.shutdown()
        server.server_close()
        thread.join()
