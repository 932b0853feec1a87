"""Fixtures: the server in memory, and servers of the real program on both stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake import Fake, fake_server
from real import Server, Store

from headwater import Client


@pytest.fixture
def fake() -> Iterator[Fake]:
    with fake_server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = Store(request.param, tmp_path)
    yield store
    store.remove()


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    server = Server(store)
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
