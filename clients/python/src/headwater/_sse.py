"""Server-sent events: a parser that is fed lines, as the HTML standard defines them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    name: str
    data: str
    id: str | None = None


class Parser:
    """Collects lines, without their ends, to events."""

    def __init__(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    def line(self, text: str) -> Event | None:
        """The event that this line completes."""
        if text == "":
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        # Comments keep the connection open; other fields have no meaning here.
        return None

    def _complete(self) -> Event | None:
        name, data = self._name or "message", self._data
        self._name, self._data = "", []
        return Event(name, "\n".join(data), self._id) if data else None


def lines(chunks: Iterable[str]) -> Iterator[str]:
    """The lines of a text that comes in pieces. `str.splitlines` would also split at characters that JSON may contain."""
    splitter = Splitter()
    for chunk in chunks:
        yield from splitter.feed(chunk)


class Splitter:
    """Splits at CR, LF and CR LF, whatever the pieces are."""

    def __init__(self) -> None:
        self._rest: list[str] = []
        self._after_cr = False

    def feed(self, chunk: str) -> list[str]:
        """The lines that this piece completes."""
        if self._after_cr and chunk.startswith("\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith("\r")
        parts = chunk.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if len(parts) == 1:
            self._rest.append(chunk)
            return []
        complete = ["".join([*self._rest, parts[0]]), *parts[1:-1]]
        self._rest = [parts[-1]]
        return complete
