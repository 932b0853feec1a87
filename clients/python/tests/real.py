"""Servers of the real program, which tests start, kill and start again; and a proxy that loses answers.

`cargo xtask test` names the program in HEADWATER_TEST_BINARY and a PostgreSQL server in HEADWATER_TEST_POSTGRES.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from fake import DEADLINE_S

#: Below the range from which the system takes the ports of outgoing connections: a client that tries again and again
#: while a server is down could otherwise be given that port, and connect to itself.
_PORTS = range(30_000, 32_000)
_ports = iter(_PORTS[(os.getpid() * 37) % len(_PORTS) :])


def needed(variable: str) -> str:
    """The value of a variable that a test needs; without it the test is skipped, or fails where nothing may be skipped."""
    value = os.environ.get(variable)
    if not value:
        if os.environ.get("HEADWATER_TEST_REQUIRE_ALL"):
            pytest.fail(f"{variable} is not set")
        pytest.skip(f"{variable} is not set")
    return value


def free_port() -> int:
    for port in _ports:
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


class Store:
    """A store of its own for a test: a file, or a namespace of the PostgreSQL server."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.binary = needed("HEADWATER_TEST_BINARY")
        self.engine = engine
        if engine == "postgres":
            self.namespace = f"client_{uuid.uuid4().hex}"
            self._url = needed("HEADWATER_TEST_POSTGRES")
            self.options = ["--store", self._url, "--namespace", self.namespace]
        else:
            self.options = ["--store", f"sqlite:{folder / 'test.db'}"]

    def command(self, *arguments: str) -> str:
        """Runs a command of the program on the store; returns what it prints."""
        command = [self.binary, *self.options, "--output", "json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def remove(self) -> None:
        if self.engine == "postgres":
            drop = f'DROP SCHEMA IF EXISTS "{self.namespace}" CASCADE'
            command = ["psql", "-q", "-v", "VERBOSITY=verbose", self._url, "-c", drop]
            for _ in range(10):
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                # A deadlock with what a killed server left behind.
                if "40P01" not in done.stderr:
                    break
            assert done.returncode == 0, done.stderr


class Server:
    """One server process, on one port for all its lives."""

    def __init__(self, store: Store, *arguments: str) -> None:
        self._store = store
        self._arguments = arguments
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self.kills: list[float] = []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        listen = f"127.0.0.1:{self._port}"
        command = [self._store.binary, *self._store.options, "--output", "json", "serve", "--listen", listen]
        self._process = subprocess.Popen(
            [*command, *self._arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        # The address is printed once it is listened on.
        line = self._process.stdout.readline()
        assert json.loads(line)["url"].rstrip("/") == self.url

    def kill(self) -> None:
        """Without a chance to end in order."""
        process, self._process = self._process, None
        assert process is not None
        self.kills.append(time.monotonic())
        process.kill()
        self._end(process)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                self._end(process)
            assert process.returncode == 0

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.wait(15)
        assert process.stdout is not None
        process.stdout.close()


class Proxy:
    """Passes requests on. The answer to one whose path contains `losing` is lost: its connection is closed instead."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._losing: dict[str, int] = {}
        self.lost = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose(self, path: str, times: int = 1) -> None:
        with self._lock:
            self._losing[path] = times

    def close(self) -> None:
        # Closing alone would not wake the thread that waits for a connection.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # One request per connection: the answer says so.
        with connection, socket.create_connection(self._target) as upstream:
            try:
                head, body = _read_request(connection)
                first, _, rest = head.partition(b"\r\n")
                upstream.sendall(first + b"\r\nconnection: close\r\n" + rest + body)
                answer = b"".join(iter(lambda: upstream.recv(65536), b""))
                if not self._loses(first.decode()):
                    status, _, rest = answer.partition(b"\r\n")
                    connection.sendall(status + b"\r\n" + rest)
            except OSError:
                return

    def _loses(self, request: str) -> bool:
        with self._lock:
            for path, times in self._losing.items():
                if path in request and times > 0:
                    self._losing[path] -= 1
                    self.lost += 1
                    return True
        return False


def _read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("closed")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return b"\r\n".join(lines) + b"\r\n\r\n", body


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls: the state is in another process."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not reached: {what}"
        time.sleep(0.01)
