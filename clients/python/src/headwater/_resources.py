"""Topics, groups and dead letters of a synchronous client: what operators do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from . import _operations as operations
from ._models import DeadLetter, Group, Json, Page, Payload, Topic

if TYPE_CHECKING:
    from ._client import Client

T = TypeVar("T")


class Topics:
    """`client.topics`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, search: str | None = None, limit: int = 100, cursor: str | None = None) -> Page[Topic]:
        """A page of topics, by name."""
        return self._client.send(operations.list_topics(search, limit, cursor))

    def all(self, *, search: str | None = None) -> Iterator[Topic]:
        """Every topic, page by page."""
        return _all(lambda cursor: self.list(search=search, limit=1000, cursor=cursor))

    def get(self, topic: str) -> Topic:
        """A topic with its settings and status."""
        return self._client.send(operations.get_topic(topic))

    def create(
        self, name: str, *, preset: str | None = None, settings: Mapping[str, Json] | None = None
    ) -> Topic:
        """Creates a topic; settings have the names of the HTTP API, such as `max_retention_ms`."""
        return self._client.send(operations.create_topic(name, preset, settings))

    def update(self, topic: str, settings: Mapping[str, Json]) -> Topic:
        """Changes the settings that are given."""
        return self._client.send(operations.update_topic(topic, settings))

    def delete(self, topic: str, *, dry_run: bool = False) -> Mapping[str, Json]:
        """Removes a topic with its messages and groups; returns what that is, or would be."""
        return self._client.send(operations.delete_topic(topic, dry_run))


class Groups:
    """`client.groups`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self,
        *,
        topic: str | None = None,
        state: str | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Group]:
        """A page of groups, of one topic or all."""
        return self._client.send(operations.list_groups(topic, state, search, limit, cursor))

    def all(
        self, *, topic: str | None = None, state: str | None = None, search: str | None = None
    ) -> Iterator[Group]:
        """Every group, page by page."""
        return _all(
            lambda cursor: self.list(topic=topic, state=state, search=search, limit=1000, cursor=cursor)
        )

    def get(self, topic: str, group: str) -> Group:
        """A group with its health and position."""
        return self._client.send(operations.get_group(topic, group))

    def put(self, topic: str, group: str, **settings: Json) -> Group:
        """Creates a group, or changes its policy; `start` says from where a new one begins."""
        return self._client.send(operations.put_group(topic, group, settings))

    def delete(self, topic: str, group: str, *, dry_run: bool = False) -> Mapping[str, Json]:
        """Removes a group; returns what that is, or would be."""
        return self._client.send(operations.delete_group(topic, group, dry_run))

    def pause(self, topic: str, group: str, *, reason: str | None = None) -> Mapping[str, Json]:
        """Nothing is handed out until it is resumed."""
        body = {} if reason is None else {"reason": reason}
        return self._client.send(operations.act_on_group(topic, group, "pause", body))

    def resume(self, topic: str, group: str) -> Mapping[str, Json]:
        """Ends a pause."""
        return self._client.send(operations.act_on_group(topic, group, "resume", {}))

    def cancel(self, topic: str, group: str) -> Mapping[str, Json]:
        """Ends the subscription for good."""
        return self._client.send(operations.act_on_group(topic, group, "cancel", {}))

    def resurrect(self, topic: str, group: str, *, behind_max: int | None = None) -> Mapping[str, Json]:
        """Revives a dead subscription."""
        body = {} if behind_max is None else {"behind_max": behind_max}
        return self._client.send(operations.act_on_group(topic, group, "resurrect", body))

    def seek(
        self, topic: str, group: str, to: str | int | datetime, *, dry_run: bool = False
    ) -> Mapping[str, Json]:
        """Moves the position: to an offset, a time, `start` or `end`."""
        body = {"to": operations.seek_position(to), "dry_run": dry_run}
        return self._client.send(operations.act_on_group(topic, group, "seek", body))


class DeadLetters:
    """`client.dead_letters`, whatever their source."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self,
        *,
        source: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        search: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[DeadLetter]:
        """A page of dead letters."""
        return self._client.send(
            operations.list_dead_letters(source, topic, group, search, limit, cursor)
        )

    def all(
        self, *, source: str | None = None, topic: str | None = None, group: str | None = None
    ) -> Iterator[DeadLetter]:
        """Every dead letter, page by page."""
        return _all(
            lambda cursor: self.list(source=source, topic=topic, group=group, limit=1000, cursor=cursor)
        )

    def get(self, id: str) -> DeadLetter:
        """One dead letter with its payload."""
        return self._client.send(operations.get_dead_letter(id))

    def redrive(
        self, ids: Sequence[str] | None = None, *, selection: Mapping[str, Json] | None = None
    ) -> Mapping[str, Json]:
        """Hands messages out again: those with these ids, or all that a selection names (`topic`, `group`, …)."""
        return self._client.send(operations.redrive(ids, selection, None))

    def redrive_edited(self, id: str, payload: Payload) -> Mapping[str, Json]:
        """Hands one message out again, with another payload."""
        return self._client.send(operations.redrive([id], None, (payload,)))

    def purge(self, ids: Sequence[str], *, dry_run: bool = False) -> Mapping[str, Json]:
        """Removes dead letters for good."""
        return self._client.send(operations.purge(ids, dry_run))


def _all(page: Callable[[str | None], Page[T]]) -> Iterator[T]:
    cursor: str | None = None
    while True:
        part = page(cursor)
        yield from part.items
        cursor = part.next_cursor
        if cursor is None:
            return
